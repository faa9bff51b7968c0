"""Golden headers: what every message is on the wire, and what is refused, does not change."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from luwu.wire.codec import decode, encode
from luwu.wire.messages import MESSAGE_TYPES, PayloadRule
from tests.evidence.headers import HEADERS, REFUSALS, refusals_text, value_of

LINES: list[dict[str, Any]] = [json.loads(line) for line in HEADERS.read_text().splitlines()]
KINDS = {kind.CODE: kind for kind in MESSAGE_TYPES}


def code_of(header: bytes) -> int:
    """The second element of every header: an integer below 128, after one or three bytes."""
    return header[3] if header[0] == 0xDC else header[1]


@pytest.mark.parametrize("name", sorted({line["message"] for line in LINES}))
def test_headers_are_what_they_were(name: str) -> None:
    """Goal: the same fields give the same bytes, and the bytes the same message."""
    for line in LINES:
        if line["message"] != name:
            continue
        header = bytes.fromhex(line["header"])
        kind = KINDS[code_of(header)]
        shown = line["fields"]
        message = kind(**{field: value_of(value) for field, value in shown.items()})
        assert encode(message) == header, line["case"]
        payload_count = 0 if kind.PAYLOAD is PayloadRule.NONE else 1
        assert decode(header, payload_count) == message, line["case"]


def test_every_message_has_its_cases() -> None:
    counts = Counter(line["message"] for line in LINES)
    assert len(counts) == len(MESSAGE_TYPES)
    assert min(counts.values()) >= 7


def test_what_is_refused_is_what_was_refused() -> None:
    """Goal: a field that takes less or more than it did is found, whatever the message says."""
    found = [line.split("  ")[0] for line in refusals_text().splitlines()]
    expected = [line.split("  ")[0] for line in REFUSALS.read_text().splitlines()]
    differing = [pair for pair in zip(expected, found, strict=True) if pair[0] != pair[1]]
    assert not differing, f"expected, found: {differing[:3]}"
