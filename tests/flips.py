"""Flip a bit at one of several optimizer nodes that hold the same pages, and see that it is found.

    python -m tests.flips --count 100 [--seed 0] [--place memory]

Each trial trains a small job on 2 or 3 nodes with 2 replicas, in threads of this process: real
stores, kernels, cores and shells. Drawn from its seed: the place, the node, the step, the page and
the bit. The places are

    disk      the decided record of a page in a node's directory, before the step reads it
    memory    that record as the update reads it, in RAM or in a thread's memory
    gradient  the sum of a page's gradients, as the update reads it
    weights   the weights of a page as a node has them to be sent

A bit in memory flips once, twice at the same place, or at two places as the step is made again. It
must be found before that step is decided, unless it changes no byte of a page (*no effect*: it was
rounded away), and no decided version may have other weights than plain training. One in weights is
found by who receives them, and asked for again. The last line is `N trials, V violations`; exit
code 0 or 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from luwu.base.dtypes import DTYPES
from luwu.base.errors import LuwuError, PageCorruptError
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import Share
from luwu.nic.shell import Nic
from luwu.nic.threads import StepHandle
from switch_emu.node.kernels import UpdateCall
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import weights_digest
from switch_emu.process.payload import Payload
from switch_emu.process.places import Outgoing
from switch_emu.store.around import TieredPageStore
from switch_emu.store.logged import LoggedPageStore
from switch_emu.store.striped import StripedPages, left_out_nodes
from switch_emu.store.views import RecordRows
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.parents import Parents
from tests.helpers.local_job import LARGE, Job, Worker, make_layout, plain

WEIGHTS: Final = "weights"
PLACES: Final = ("disk", "memory", "gradient", WEIGHTS)
REPLICAS: Final = 2
TIMES: Final = {"once": 1, "same bit": 2, "other bit": 2}
"""How often a bit in memory flips."""
SMALL_CHUNKS: Final = 20
"""A memory budget, in chunks, with which no page of a whole chunk is in the RAM tier."""
LIMITS: Final = SwitchLimits(drop_node_after_ns=200_000_000)


@dataclass(frozen=True)
class Trial:
    """One flip, as drawn from a seed."""

    seed: int
    place: str
    optimizer_nodes: int
    update: str
    is_resident: bool
    """True if the RAM tier holds all pages."""
    node: int
    chunk: int
    step: int
    times: str

    @classmethod
    def drawn(cls, seed: int, places: Sequence[str]) -> Trial:
        """The trial of a seed; the places take turns."""
        random, place = Random(seed), places[seed % len(places)]
        optimizer_nodes = random.choice((2, 3))
        layout = replace(make_layout(), optimizer_nodes=optimizer_nodes)
        node = random.randrange(optimizer_nodes)
        share = Share(layout, node, REPLICAS)
        owned = [each for each in layout.chunks if each.trainable and share.owns(each.index)]
        most = max(each.elems for each in owned)
        # The smallest pages are always in the RAM tier, or in the page table.
        chunks = [each.index for each in owned if place != "disk" or each.elems == most]
        if place == WEIGHTS:
            parents = Parents(optimizer_nodes, REPLICAS)
            parents.learn(layout)
            chunks = [chunk for chunk in chunks if parents._readers[chunk] == node]
        return cls(
            seed=seed, place=place, optimizer_nodes=optimizer_nodes, node=node,
            update=random.choice(("streaming", "at_step")),
            is_resident=place != "disk" and random.random() < 0.5,
            chunk=random.choice(chunks), step=random.randrange(1, Job.steps - 1),
            times="once" if place in ("disk", WEIGHTS) else random.choice([*TIMES, "once"]),
        )  # fmt: skip

    @property
    def job(self) -> Job:
        """What is trained."""
        layout = replace(make_layout(), optimizer_nodes=self.optimizer_nodes)
        return Job(layout=layout, update=self.update)

    @property
    def page(self) -> int:
        """Of the node's store."""
        return Share(self.job.layout, self.node, REPLICAS).page(self.chunk)


def flip(memory: memoryview, random: Random) -> None:
    """Flip one bit."""
    memory[random.randrange(len(memory))] ^= 1 << random.randrange(8)


class Flipper:
    """Makes the flips of a trial; called by the threads of its node."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.count = trial, 0
        self._random = Random(f"bits of {trial.seed}")

    def random(self, place: str, page: int, step: int) -> Random | None:
        """What to draw the bit from; None: nothing flips here and now."""
        trial = self.trial
        if (place, page, step) != (trial.place, trial.page, trial.step):
            return None
        if self.count == TIMES[trial.times]:
            return None
        self.count += 1
        return Random(trial.seed) if trial.times == "same bit" else self._random

    def flip_on_disk(self, store: Any) -> None:
        """Of a page's decided record that no RAM tier holds."""
        trial, decided = self.trial, store.decided
        random = self.random("disk", trial.page, decided.version)
        if random is None:
            return
        assert store.rows_in_ram(trial.page, 1, decided.version) is None
        while isinstance(store, TieredPageStore):
            store = store._store
        side = store._steps.entry_to_read(trial.page, decided.version).side
        at = store._geometry.offsets[trial.page] + random.randrange(store._body(trial.page))
        file = os.open(store.path / store._sides[side].name, os.O_RDWR)
        try:
            octet = bytearray(os.pread(file, 1, at))
            flip(memoryview(octet), random)
            os.pwrite(file, octet, at)
        finally:
            os.close(file)


class FlippingReads:
    """Reads of a node's store, whose records may have a flipped bit as an update reads them."""

    def __init__(self, store: Any, flipper: Flipper) -> None:
        """They take the place of the store's own."""
        self._store, self._flipper = store, flipper
        self.reading = threading.local()
        """What this thread works on: `page` and `version`."""
        self._rows_in_ram, self._read_rows = store.rows_in_ram, store.read_rows
        store.rows_in_ram, store.read_rows = self.rows_in_ram, self.read_rows

    def rows_in_ram(self, first: int, count: int, version: int) -> RecordRows | None:
        self.reading.page, self.reading.version = first, version
        found: RecordRows | None = self._rows_in_ram(first, count, version)
        if found is not None:
            self._flip(first, version, self._in_ram(first, version))
        return found

    def _in_ram(self, page: int, version: int) -> memoryview:
        """The record as it lies in RAM, of the RAM tier or beside a log."""
        store = self._store
        if isinstance(store, LoggedPageStore):
            side = store._steps.entry_to_read(page, version).side
            return store._ram._sides[side].record(page)
        record: memoryview = store._memory.record(page)
        return record

    def read_rows(self, first: int, version: int, into: RecordRows) -> None:
        self._read_rows(first, version, into)
        self._flip(first, version, into.records()[0])

    def _flip(self, page: int, version: int, record: memoryview) -> None:
        if not threading.current_thread().name.startswith(("luwu-update", "node")):
            return
        random = self._flipper.random("memory", page, version)
        if random is not None:
            kind = self._store.config.kind(page)
            field = random.choice(kind.fields)
            start, _ = kind.range(field.name)
            flip(record[start : start + field.field_bytes], random)


class FlippingOutgoing(Outgoing):
    """Memory for weights to be sent, of which a bit may flip as soon as they are there."""

    flipper: Flipper

    def written(self, *, show: bool = True) -> Payload | None:
        payload = super().written(show=show)
        extent, step, _ = self._key
        share = Share(self.flipper.trial.job.layout, self.flipper.trial.node, REPLICAS)
        if payload is not None and share.owns(extent):
            random = self.flipper.random(WEIGHTS, share.page(extent), step)
            if random is not None:
                flip(payload.view(), random)
        return payload


class FlippingKernel:
    """A node's kernel: a bit of what it adds may flip."""

    def __init__(self, kernel: Any, reads: FlippingReads, flipper: Flipper) -> None:
        self._kernel, self._reads, self._flipper = kernel, reads, flipper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def update(self, call: UpdateCall) -> Any:
        page, version = self._reads.reading.page, self._reads.reading.version
        random = self._flipper.random("gradient", page, version)
        if random is not None:
            terms = list(call.contributions)
            at = random.randrange(len(terms))
            octets, dtype = memoryview(bytearray(terms[at][0])), terms[at][1]
            assert len(octets) == call.old.weights.size * DTYPES[dtype].nbytes
            flip(octets, random)
            terms[at] = octets, dtype
            call = replace(call, contributions=terms)
        return self._kernel.update(call)


class Following(Worker):
    """A worker that has its page flipped on disk, and keeps the weights of forward for backward."""

    def __init__(self, trial: Trial, flipper: Flipper, cluster: LocalCluster) -> None:
        super().__init__(trial.job)
        self._trial, self._flipper, self._cluster = trial, flipper, cluster
        self._handle: StepHandle | None = None
        self._pulled: dict[tuple[int, int], memoryview] = {}

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        is_here = (nic.rank, self._trial.place, self._trial.step) == (0, "disk", step)
        if is_here and not self._flipper.count:
            assert self._handle is not None
            self._handle.decision()  # then its node has decided it too
            self._flipper.flip_on_disk(self._cluster.nodes[self._trial.node].store)
        handle = super()._step(nic, step, may_cancel)
        if nic.rank == 0:
            self._handle = handle
        return handle

    def _pull(self, nic: Nic, step: int, use: int, unit: int) -> memoryview:
        if use == 0:
            self._pulled[nic.rank, unit] = super()._pull(nic, step, use, unit)
        return self._pulled[nic.rank, unit]


def install(shell: Any, flipper: Flipper) -> None:
    """Put the flips between a node's pipeline and its store, which it has not made yet."""
    in_front, use = shell._storage._in_front, shell._use
    reads: list[FlippingReads] = []

    def flipping_in_front(file: Any, job: Any) -> Any:
        store = in_front(file, job)
        reads.append(FlippingReads(store, flipper))
        return store

    def used(store: Any) -> None:
        use(store)
        pipeline = shell._pipeline
        kernels = pipeline._kernels
        flipping_kernel = FlippingKernel(pipeline._kernel, reads[-1], flipper)
        made = replace(kernels.made, kernel=flipping_kernel)
        pipeline._updates_of._kernels = kernels._replace(made=made)
        wire = pipeline._wire

        def flipping(*arguments: Any, **named: Any) -> Outgoing:
            made = wire(*arguments, **named)
            made.__class__ = FlippingOutgoing
            made.flipper = flipper
            return made  # type: ignore[no-any-return]

        pipeline._wire = flipping

    shell._storage._in_front = flipping_in_front
    shell._use = used


@dataclass
class Seen:
    """What a trial came to."""

    errors: dict[str, BaseException]
    """Of nodes and switch that ended."""
    differ: list[dict[str, Any]]
    """What the switch logged of owners that state different sums or digests."""
    altered: list[dict[str, Any]] = field(default_factory=list)
    """What it logged of weights that it did not take."""
    ended: str = ""
    """The code with which the job ended."""


def run(trial: Trial, directory: Path) -> str:
    """Make a trial; how it came out. Raises AssertionError."""
    seen, flipper, job = Seen({}, []), Flipper(trial), trial.job
    with LocalCluster(
        world_size=job.world_size, state=directory / "state", summary=directory / "summary.json",
        memory_budget_bytes=LARGE if trial.is_resident else SMALL_CHUNKS * job.layout.chunk_bytes,
        chunk_bytes=job.layout.chunk_bytes, switch_limits=LIMITS,
        optimizer_nodes=trial.optimizer_nodes, replicas=REPLICAS,
        on_error=lambda error: seen.errors.update({threading.current_thread().name: error}),
    ) as cluster:  # fmt: skip
        install(cluster.nodes[trial.node], flipper)
        recorder: Any = cluster.switch.recorder
        write = recorder.event

        def event(what: str, /, **fields: Any) -> None:
            if what == "switch.differ":
                seen.differ.append(fields)
            if what == "weights.altered":
                seen.altered.append(fields)
            write(what, **fields)

        recorder.event = event
        try:
            cluster.run(Following(trial, flipper, cluster))
        except LuwuError as error:
            seen.ended = error.code
    assert flipper.count, "nothing was flipped"
    outcome = judge(trial, seen, left_out_nodes(directory / "state"))
    check_pages(trial, directory / "state", trial.step if seen.ended else job.steps)
    return outcome


def judge(trial: Trial, seen: Seen, left_out: tuple[int, ...]) -> str:
    """How a flip was found. Raises AssertionError if it was not, or another node was blamed."""
    assert left_out in ((), (trial.node,)), f"left out: {left_out}"
    assert all(each["step"] == trial.step for each in seen.differ), seen.differ
    if trial.place == "disk":
        name = "node" if trial.node == 0 else f"node-{trial.node}"
        error = seen.errors.get(name)
        assert isinstance(error, PageCorruptError), f"{name} ended with {error!r}"
        assert f"page {trial.page} of " in str(error), error
        assert f"(version {trial.step}, " in str(error), error
        assert (left_out, seen.ended) == ((trial.node,), ""), (left_out, seen.ended)
        return "checksum"
    if trial.place == WEIGHTS:
        assert [each["step"] for each in seen.altered] == [trial.step], seen.altered
        assert (left_out, seen.ended, seen.differ) == ((), "", []), (left_out, seen)
        return "asked for again"
    found = len(seen.differ)
    assert found <= TIMES[trial.times], seen.differ
    if found < 2:
        assert (left_out, seen.ended) == ((), ""), (left_out, seen)
        return ("no effect", "made again")[found]
    if trial.times == "same bit" or seen.ended:
        assert (seen.ended, left_out) == ("E509", ()), (left_out, seen)
        return "E509"
    assert left_out == (trial.node,), left_out
    assert seen.differ[-1]["odd"] == (trial.node,), seen.differ
    return "named"


def check_pages(trial: Trial, state: Path, version: int) -> None:
    """The decided version is this one, with the weights of plain training at all owners."""
    layout = trial.job.layout
    with StripedPages(state, trial.optimizer_nodes, redo_of) as pages:
        pages.lay_out(layout)
        assert pages.decided is not None
        assert pages.decided.version == version, f"{pages.decided.version}, not {version}"
        expected = plain(Job(steps=version)).digest
        assert weights_digest(pages, layout) == expected, "other weights than in plain training"
        for stripe in range(trial.optimizer_nodes):
            owners = [(Share(layout, n, REPLICAS), store) for n, store in pages.stores.items()]
            digests = {
                store.digest(share.pages_of(stripe), version)
                for share, store in owners
                if stripe in share.stripes
            }
            assert len(digests) == 1, f"owners of stripe {stripe} differ"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the trials; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.flips", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=100, help="trials (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first trial (0)")
    parser.add_argument("--place", choices=PLACES, help="only this one")
    asked = parser.parse_args(arguments)
    places = [asked.place] if asked.place else PLACES
    outcomes, violations = Counter[str](), 0
    for seed in range(asked.seed, asked.seed + asked.count):
        trial = Trial.drawn(seed, places)
        with tempfile.TemporaryDirectory(prefix="luwu-flips-") as name:
            try:
                outcomes[f"{trial.place}: {run(trial, Path(name))}"] += 1
            except Exception as error:
                violations += 1
                print(f"VIOLATION: {trial}: {error!r}", flush=True)
    for outcome, count in sorted(outcomes.items()):
        print(f"{outcome}, {count} trials")
    print(f"{asked.count} trials, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
