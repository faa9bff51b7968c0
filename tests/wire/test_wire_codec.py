"""Messages to bytes and back: round trips, and what is refused, by name.

Golden bytes: `tests/evidence/headers.py`. Bytes that mean nothing: `tests/fuzz/headers.py`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from random import Random
from typing import Any

import msgpack
import pytest

from luwu.base import limits
from luwu.base.errors import RemoteProtocolError
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.messages import MESSAGE_TYPES, Message, PayloadRule
from tests.evidence.headers import cases
from tests.fuzz.mutate import random_message

EXAMPLES = {type(message): message for case, message in cases() if case == "usual"}

_PAYLOADS = {PayloadRule.NONE: [0], PayloadRule.ONE: [1], PayloadRule.OPTIONAL: [0, 1]}


def by_name(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else ""


def wire_values(message: Message) -> list[Any]:
    """The list a header holds."""
    values: list[Any] = msgpack.unpackb(encode(message))
    return values


def refuses(header: bytes, payload_count: int = 0) -> str:
    """The text of the refusal; any other exception fails the test."""
    with pytest.raises(RemoteProtocolError) as caught:
        decode(header, payload_count)
    return str(caught.value)


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_round_trip(message_type: type[Message]) -> None:
    """Goal: every legal message arrives as it was sent, and its header stays within the caps.
    NaN and infinity are legal floats: the norm of a skipped step is one of them."""
    cap = limits.DATA_HEADER_BYTES_MAX if message_type.IS_DATA else limits.CONTROL_HEADER_BYTES_MAX
    random = Random(message_type.CODE)
    for message in (random_message(random, message_type) for _ in range(60)):
        header = encode(message)
        assert len(header) <= cap
        for count, data in product(_PAYLOADS[message.PAYLOAD], (header, memoryview(header))):
            arrived = decode(data, count)
            assert type(arrived) is message_type
            assert repr(arrived) == repr(message)  # repr: a NaN equals nothing
            assert encode(arrived) == header


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_truncated_and_longer(message_type: type[Message]) -> None:
    """Goal: no prefix of a header is one, and nothing may follow it."""
    message = EXAMPLES[message_type]
    header, count = encode(message), _PAYLOADS[message.PAYLOAD][0]
    for size in range(len(header)):
        assert "not msgpack" in refuses(header[:size], count)
    for tail in (b"\0", header, b"\xc1"):
        assert "not msgpack" in refuses(header + tail, count)


@pytest.mark.parametrize("depth", [1, 31, 500, 990, 1000, 1015, 1023, 1024, 2000, 4000])
def test_nested_bombs(depth: int) -> None:
    """Goal: nesting, however deep, is refused; also by the text that reports it."""
    bomb = b"\x91" * depth + b"\xc0"
    for header in (bomb, b"\x99\x13" + bomb + b"\x01" * 7, b"\x99\x13" + b"\x01" * 7 + bomb):
        refuses(header)


def test_unknown_code() -> None:
    """Goal: a code of a later protocol is named."""
    used = {message_type.CODE for message_type in MESSAGE_TYPES}
    for code in (*(set(range(64)) - used), -1, 2**63, 2**64 - 1):
        assert f"code {code} is unknown" in refuses(msgpack.packb([code, 1, 2]))


@pytest.mark.parametrize("message_type", MESSAGE_TYPES, ids=by_name)
def test_refusals_name_what_is_wrong(message_type: type[Message]) -> None:
    """Goal: the field, or both numbers of fields, or of frames. (`tests/evidence` has what each
    field takes.)"""
    message, name = EXAMPLES[message_type], message_type.__name__
    values, count = wire_values(message), _PAYLOADS[message.PAYLOAD][0]
    for index, entry in enumerate(fields(message_type), start=1):
        wrong = [*values[:index], None, *values[index + 1 :]]
        assert f"{name}.{entry.name}: None is not " in refuses(msgpack.packb(wrong), count)
    expected = f"{name} has {len(values) - 2} fields, expected {len(values) - 1}"
    assert refuses(msgpack.packb(values[:-1]), count) == expected
    assert f"{name} came with 100 payload frames" in refuses(encode(message), 100)


def test_caps_hold() -> None:
    """I5. Goal: a header above its cap is refused before it is read. Method: legal but wordy
    spellings of the same numbers make it longer."""
    over = limits.CONTROL_HEADER_BYTES_MAX + 1
    assert f"header of {over} bytes, at most" in refuses(b"\x13" * over)
    pull = [3, 1, 2, 3, 4, 1, 5, 6, 7, 8, "x" * limits.DATA_HEADER_BYTES_MAX]
    assert "Pull header of " in refuses(msgpack.packb(pull))


def test_wordy_integers_are_legal() -> None:
    """Goal: documented: an integer may be spelled longer than needed; it is the same message."""
    wordy = b"\x99\x13" + b"".join(b"\xcf" + bytes([0] * 7 + [i]) for i in (1, 2, 3, 4, 3, 6, 7, 8))
    assert decode(wordy, 0) == EXAMPLES[wire.Rejoin]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (wire.Leave, {"epoch": 2**63}), (wire.Leave, {"attempt": -1}),
        (wire.Leave, {"contributors": 1 << limits.WORLD_SIZE_MAX}),
        (wire.Refuse, {"text": "x" * (limits.TEXT_CHARS_MAX + 1)}),
    ],
)  # fmt: skip
def test_what_a_receiver_would_refuse_is_not_encoded(
    kind: type[Message], wrong: dict[str, Any]
) -> None:
    """Goal: a value that every peer would refuse fails where it is sent, not over there."""
    with pytest.raises(AssertionError):
        encode(replace(EXAMPLES[kind], **wrong))
