"""A bit that flips at one of several owners of a page: a small share of `python -m tests.flips`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from switch_emu.switch.core.ballot import Ballot
from tests.flips import PLACES, WEIGHTS, Trial, run

OUTCOMES = {
    "disk": {"checksum"}, "memory": {"made again", "named", "E509", "no effect"},
    "gradient": {"made again", "named", "E509", "no effect"},
}  # fmt: skip


@pytest.mark.feature("a bit that flips in one replica")
@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    """E7, I3. Goal: it is found before its step is decided, and no decided version has other
    weights than plain training."""
    trial = Trial.drawn(seed, PLACES)
    assert run(trial, tmp_path) in OUTCOMES[trial.place]


def test_a_flip_that_nobody_compares_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the trials can fail. Method: the switch compares no digests of pages."""
    none: Any = lambda ballot: None  # noqa: E731
    monkeypatch.setattr(Ballot, "differing_pages", none)
    with pytest.raises(AssertionError):
        run(Trial.drawn(0, ["memory"]), tmp_path)


def test_weights_that_are_sent_are_not_compared(tmp_path: Path) -> None:
    """Goal: `docs/storage.md` names this limit; whoever lifts it deletes this test."""
    with pytest.raises(AssertionError, match="other weights than in plain training"):
        run(Trial.drawn(0, [WEIGHTS]), tmp_path)
