"""The shortest soak: a real run with a few faults, compared with plain torch."""

from __future__ import annotations

import re

import pytest

from tests import soak


@pytest.mark.slow  # faults one by one are tested elsewhere
@pytest.mark.feature("long runs under faults")
def test_a_short_soak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """I1, I2, I3, I8. Goal: faults happen, and nothing is wrong with what comes of them."""
    monkeypatch.setattr(soak, "COMPUTE_MS", 120.0)  # few steps, and yet time for two faults
    flags = ["--minutes", "0.1", "--every", "3s", "--seed", "4", "--steps", "60", "--light"]
    code = soak.main(flags)
    said = capsys.readouterr().out
    assert code == 0, said
    assert re.fullmatch(r"[1-9]\d* trials, 0 violations", said.splitlines()[-1])
