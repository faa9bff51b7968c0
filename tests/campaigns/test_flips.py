"""A bit that flips at one of several owners of a page: a small share of `python -m tests.flips`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luwu.launch.local_cluster import LocalCluster
from luwu.wire.altered import AlteredWeights, WeightsAlteredError
from switch_emu.process import places
from tests import flips
from tests.flips import PLACES, REPLICAS, WEIGHTS, Trial, run
from tests.helpers.local_job import LARGE, Worker

OUTCOMES = {
    "disk": {"checksum"}, "memory": {"made again", "named", "E509", "no effect"},
    "gradient": {"made again", "named", "E509", "no effect"}, WEIGHTS: {"asked for again"},
}  # fmt: skip


@pytest.mark.feature("a bit that flips in one replica")
@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_found(seed: int, tmp_path: Path) -> None:
    """E7, I3. Goal: it is found before its step is decided, and no decided version has other
    weights than plain training."""
    trial = Trial.drawn(seed, PLACES)
    assert run(trial, tmp_path) in OUTCOMES[trial.place]


def test_workers_check_what_the_switch_sends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: weights that are altered in the switch's memory are found by each worker, and asked
    for again. Method: the switch does not look at what it receives."""
    looked, found = AlteredWeights.has, []

    def has(self: AlteredWeights, message: Any, data: memoryview) -> bool:
        if self._receiver == "the switch":
            return False
        is_altered = looked(self, message, data)
        if is_altered:
            found.append(self._receiver)
        return is_altered

    monkeypatch.setattr(AlteredWeights, "has", has)
    monkeypatch.setattr(flips, "judge", lambda *_: "")
    run(Trial.drawn(0, [WEIGHTS]), tmp_path)
    assert {*found} == {"worker 0", "worker 1"}  # again, if it was asked for twice


def test_weights_that_are_always_altered_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what comes altered again and again is never used; the message says who states what.
    Method: the node states the checksum of other weights."""
    monkeypatch.setattr(places, "checksum_of", lambda data: 7)
    trial = Trial.drawn(0, [WEIGHTS])
    with LocalCluster(
        world_size=trial.job.world_size, state=tmp_path / "state", summary=tmp_path / "summary",
        memory_budget_bytes=LARGE, chunk_bytes=trial.job.layout.chunk_bytes,
        optimizer_nodes=trial.optimizer_nodes, replicas=REPLICAS,
    ) as cluster:  # fmt: skip
        said = r"weights of extent \d+ for step \d came to the switch altered 4 times"
        with pytest.raises(WeightsAlteredError, match=said):
            cluster.run(Worker(trial.job))
