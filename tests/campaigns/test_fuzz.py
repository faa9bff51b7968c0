"""A small share of each part of `tests.fuzz`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luwu.wire.codec import decode
from luwu.wire.messages import MESSAGE_TYPES
from tests.fuzz import files, headers, live

PATIENT_S = 60.0
"""A busy machine is no hang."""
PATIENT_NS = int(PATIENT_S * 1e9)


@pytest.mark.feature("hostile headers, messages and files")
def test_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nothing is wrong with 20,000 headers, which reach every type of message."""
    reached = set()

    def seen(header: bytes, payload_count: int) -> Any:
        message = decode(header, payload_count)
        reached.add(type(message))
        return message

    monkeypatch.setattr(headers, "decode", seen)
    assert list(headers.fuzz_headers(1, 0, 20_000, hang_ns=PATIENT_NS)) == []
    assert reached == set(MESSAGE_TYPES)


@pytest.mark.feature("hostile headers, messages and files")
def test_files(tmp_path: Path) -> None:
    """Goal: whatever stands in the place of a file, each reader of one ends with a sentence, and
    waits for nothing; what is imported is what was exported. Method: 1,000 cases, from a seed."""
    assert list(files.fuzz_files(1, 0, 1000, tmp_path, hang_ns=PATIENT_NS)) == []


@pytest.mark.faults(29)
@pytest.mark.feature("hostile headers, messages and files")
def test_live(tmp_path: Path) -> None:
    """I1, I3. Goal: 1,000 messages of a stranger change no bit of a job that trains meanwhile."""
    assert list(live.fuzz_live(1, 0, 1000, tmp_path, hang_s=PATIENT_S)) == []
