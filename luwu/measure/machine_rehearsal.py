"""Processor time of switch and node per message and page, with one worker without a model.

A real node and a real switch, with the store, extents and transport of the job, serve one worker
that only pushes, commits and pulls. Counted are seconds of a processor that each of the two took,
its threads of libzmq aside, while gradients go up (until the step is decided), and while weights
come down. Nothing computes, so how long it takes says nothing, and is not looked at:

    end      switch, while weights come down: an end (2 up, 2 down for each extent), with what the
             thread of its link takes beside bytes
    update   node, gradients: what is left beside two ends and two hand-overs of an extent,
             threads of links aside
    read     node, weights: what is left beside two ends and a hand-over of an extent
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from luwu.base.config import RunConfig
from luwu.base.json_file import read_json
from luwu.join.open import open_nic
from luwu.launch.processes.console import Console
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.serving import Sizes, serve
from luwu.launch.supervisor import Supervisor
from luwu.layout import Layout
from luwu.nic.flat_push import push_flat
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper

ROUNDS: Final = 6
ENDS: Final = 4
"""Messages per pulled extent at the switch, with one worker."""
LINK_THREADS: Final = "ZMQbg"
HYPER: Final = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "maximize": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalFloors:
    """Seconds of a processor."""

    end_s: float
    update_s_per_byte: float
    """Seconds per byte of weights."""
    read_s_per_byte: float


def rehearse(
    config: RunConfig, sizes: Sizes, layout: Layout, *, state: Path | None, directory: Path,
    handed_s: float, wire_s_per_byte: float,
) -> RehearsalFloors:  # fmt: skip
    """See the module; `directory`: for its records; `wire_s_per_byte`: of a switch's link, for what
    comes in and goes out again. Raises LuwuError."""
    run = RunDirectory.create(directory)
    before = os.environ.get("LUWU_CONNECT")
    with (
        (run.path / "console.log").open("a") as log,
        Supervisor(run, Console(log), restarts_max=0) as supervisor,
    ):
        serve(
            supervisor, replace(config, workers=1), state=state, sizes=sizes, say=Console(log).say
        )
        os.environ["LUWU_CONNECT"] = str(run.connect_file)
        try:
            nic = open_nic(0, 1)
        finally:
            _restore("LUWU_CONNECT", before)
        try:
            alive = read_json(run.file("processes.json")) or {}
            pids = {each["role"]: each["pid"] for each in alive["processes"]}
            found = _rounds(_Worker(nic, layout), pids)
        finally:
            nic.close()
    extents, nbytes = len(layout.extents), sum(each.wire_bytes for each in layout.extents)
    link_s = max(0.0, found.switch_link_s - nbytes * wire_s_per_byte)
    end_s = (found.switch_s + link_s) / (ENDS * extents)
    updates_s = found.node_updates_s - extents * 2 * (end_s + handed_s)
    reads_s = found.node_reads_s - extents * (2 * end_s + handed_s)
    return RehearsalFloors(
        end_s=end_s,
        update_s_per_byte=max(0.0, updates_s) / nbytes,
        read_s_per_byte=max(0.0, reads_s) / nbytes,
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """Median seconds of a round."""

    node_updates_s: float
    node_reads_s: float
    switch_s: float
    """While weights come down."""
    switch_link_s: float
    """The same of its link's thread."""


def _rounds(worker: _Worker, pids: dict[str, int]) -> _Taken:
    rounds: list[tuple[float, float, float, float]] = []
    for _ in range(ROUNDS):
        _, start_s = cpu_of(pids["node"])
        worker.push()
        _, middle_s = cpu_of(pids["node"])
        link_s, switch_s = cpu_of(pids["switch"])
        worker.pull()
        _, end_s = cpu_of(pids["node"])
        link_end_s, switch_end_s = cpu_of(pids["switch"])
        rounds.append(
            (middle_s - start_s, end_s - middle_s, switch_end_s - switch_s, link_end_s - link_s)
        )
    worker.leave()
    return _Taken(*(median(each) for each in zip(*rounds[1:], strict=True)))


def cpu_of(pid: int) -> tuple[float, float]:
    """Seconds of a processor that a process took: the threads of libzmq, and all others."""
    found = {True: 0, False: 0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            is_link = (task / "comm").read_text(encoding="ascii").startswith(LINK_THREADS)
            found[is_link] += int((task / "schedstat").read_text(encoding="ascii").split()[0])
        except OSError:
            continue  # it has ended
    return found[True] / 1e9, found[False] / 1e9


class _Worker:
    """Pushes, commits and pulls, and computes nothing."""

    def __init__(self, nic: Nic, layout: Layout) -> None:
        self._nic, self._layout = nic, layout
        self._units = range(len(layout.units))
        self._memory = [bytearray(layout.unit_wire_bytes(unit)) for unit in self._units]
        self._hyper = encode_hyper(StepHyper(groups=(HYPER,)))
        joined = nic.join(
            Description(
                layout=layout, optimizer="adamw", update="streaming", state_fields=("m", "v")
            )
        )
        nic.load(self._first_weights())
        self._step = joined.step

    def push(self) -> None:
        """All gradients, unit by unit as a backward does, until the step is decided."""
        nic, step = self._nic, self._step
        nic.begin(step, self._hyper)
        for unit in reversed(self._units):
            gradient = memoryview(self._memory[unit])
            for each in push_flat(
                nic, self._layout, gradient, "float32", step=step, unit=unit, last=True
            ):
                nic.wait(each)
        nic.commit(step, 1, self._hyper).decision()
        self._step += 1

    def pull(self) -> None:
        """All weights, unit by unit as a forward does."""
        for unit in self._units:

            def memory(unit: int = unit) -> memoryview:
                return memoryview(self._memory[unit])

            pulled = self._nic.pull(self._step, 0, unit, memory, in_place=True)
            self._nic.wait(pulled)
            self._nic.forget(pulled)

    def leave(self) -> None:
        """Part from the others."""
        self._nic.leave()

    def _first_weights(self) -> Iterator[tuple[int, memoryview]]:
        for chunk in self._layout.chunks:
            yield chunk.index, memoryview(bytes(4 * chunk.elems))


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value
