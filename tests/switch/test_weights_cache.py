"""Weights that a switch caches, and answers pulls with (`switch/core/weights_down.py`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from luwu.protocol.actions import PARENT
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.messages import Role, Verb
from switch_emu.node.core.actions import ReadWeights
from switch_emu.switch.core.actions import Cache, SwitchLimits
from switch_emu.switch.core.weights_down import WeightsDown, chosen_extents
from tests.helpers.switch_parts import Handed, message
from tests.simulate.cluster import Cluster
from tests.simulate.job import Job, make_layout
from tests.simulate.machines import Node
from tests.simulate.world import Faults, Payload
from tests.suites.switch_suite import CHUNK_BYTES, WORLD, Bench, child

LAYOUT = make_layout(units=2, frozen=True, extent_chunks=1)
"""Two units of two extents each, and a frozen extent in the second."""
FROZEN = next(each.index for each in LAYOUT.extents if not each.trainable)
FIRST = LAYOUT.unit_extents[0]
SECOND = LAYOUT.trainable_extents(1)
ALL_BYTES = sum(each.wire_bytes for each in LAYOUT.extents)


def part_of(handed: Handed) -> WeightsDown:
    """A part of a switch that has read the description of its job."""
    limits = replace(handed.limits, cache_bytes_max=ALL_BYTES)
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, limits)
    part.cache.learn(Description(layout=LAYOUT, optimizer="test", update="streaming"))
    return part


def cached(part: WeightsDown, handed: Handed, extent: int, *, step: int = 0, now: str) -> None:
    """The weights of an extent come, asked for or not, and are copied."""
    part.pull(handed.left, message(wire.Pull, index=extent, step=step))
    part.weights(message(wire.Weights, index=extent, step=step), "bytes", 5)
    part.cached(Cache(extent, step, 0, 0, "float32", "bytes"), now, 5)
    handed.outbox.take()


def test_the_last_extents_that_fit_are_chosen() -> None:
    """I5. Goal: never more bytes than the cache has; a node keeps the first pages in its RAM."""
    sizes = [each.wire_bytes for each in LAYOUT.extents]
    last = len(sizes) - 1
    assert chosen_extents(LAYOUT, sum(sizes)) == frozenset(range(len(sizes)))
    assert chosen_extents(LAYOUT, sum(sizes) - 1) == frozenset(range(1, len(sizes)))
    assert chosen_extents(LAYOUT, sizes[last]) == {last}
    assert chosen_extents(LAYOUT, 0) == frozenset()


def test_a_unit_is_asked_for_ahead_once_a_step() -> None:
    """Goal: not when a child is a step ahead of the others, whose weights are not due then; once
    when they are, and again in a new attempt."""
    handed = Handed()
    part = part_of(handed)
    first, second = SECOND
    push = ("pushed", (1, second))
    pull = f"parent: Pull step=2 index={first} count=2"
    handed.play(part, [(*push, [])])
    handed.outbox.step = 1
    handed.play(part, [(*push, [pull]), (*push, []), ("forget", (0,), []), (*push, [])])
    handed.uplink.forget()
    handed.play(part, [("forget", (), []), (*push, [pull])])


def test_frozen_weights_serve_every_step_of_an_attempt() -> None:
    """Goal: they are asked for once; a new attempt drops all."""
    handed = Handed()
    part = part_of(handed)
    cached(part, handed, FROZEN, now="frozen")
    handed.play(part, [("forget", (0,), [])])
    handed.outbox.step = 7
    pull = message(wire.Pull, index=FROZEN, step=7)
    sent = f"left: Weights step=7 index={FROZEN} dtype=float32 + 'frozen'"
    handed.play(part, [("pull", (handed.left, pull), [sent]), ("forget", (), ["drop frozen"])])
    assert part.cache.bytes_used == 0


def test_a_switch_below_that_has_the_same_weights_is_sent_none() -> None:
    """Goal: a receipt, whether it asks before or after the answer is known; those that have none
    are sent the weights, and of new ones all are; and all once the step before is decided, as they
    may have dropped what they had."""
    handed = Handed()
    part, extent = part_of(handed), SECOND[0]
    cached(part, handed, extent, now="old")
    first, second = (message(wire.Pull, step=step, index=extent, has=True) for step in (1, 2))
    same = message(wire.Received, step=1, index=extent, verb=Verb.PULL)
    copy = Cache(extent, 1, 0, 0, "float32", "old", is_new=False)
    new = Cache(extent, 2, 0, 0, "float32", "bytes")
    form = (
        f"Cache extent={extent} step={{}} part=0 attempt=0 dtype=float32 payload={{}} is_new={{}}"
    )
    kept, copied = form.format(1, "old", False), form.format(2, "bytes", True)
    receipt = f"Received step=1 index={extent} verb=PULL"
    handed.play(
        part,
        [
            ("pull", (handed.left, first), [f"parent: Pull step=1 index={extent} has=True"]),
            ("pull", (handed.right, replace(first, has=False)), []),
            ("same", (same,), [kept]),
            ("cached", (copy, "old", 5),
             [f"left: {receipt}", f"right: Weights step=1 index={extent} dtype=float32 + 'old'",
              "drop old"]),
            ("same", (same,), []),
            ("pull", (handed.right, first), [f"right: {receipt}"]),
        ],
    )  # fmt: skip
    handed.outbox.step = 1
    again = f"right: Weights step=1 index={extent} dtype=float32 + 'old'"
    handed.play(part, [("pull", (handed.right, first), [again])])
    weights = message(wire.Weights, step=2, index=extent, dtype="float32")
    sent = f"left: Weights step=2 index={extent} dtype=float32 + 'new'"
    handed.play(
        part,
        [
            ("pull", (handed.left, second), [f"parent: Pull step=2 index={extent} has=True"]),
            ("weights", (weights, "bytes", 5), [copied, "drop bytes"]),
            ("cached", (new, "new", 5), [sent, "drop old"]),
        ],
    )


@pytest.mark.parametrize("change", ["attempt", "decided", "cached"])
def test_a_copy_that_comes_too_late_is_dropped(change: str) -> None:
    """I1. Goal: weights of an older attempt or step are never sent again, nor is one copy put in
    the place of another."""
    handed = Handed()
    part = part_of(handed)
    if change == "attempt":
        handed.outbox.attempt = 1
    elif change == "decided":
        handed.outbox.step = 1
    else:
        cached(part, handed, FIRST[0], now="first")
    late = Cache(FIRST[0], 0, 0, 0, "float32", "bytes")
    handed.play(part, [("cached", (late, "late", 5), ["drop late"])])


def test_a_skipped_step_and_an_abort_drop_what_streamed_ahead() -> None:
    """I1. Goal: weights that an update handed out are void where the step is not applied."""
    bench = Bench(SwitchLimits(cache_bytes_max=10**6))
    bench.parent_says(wire.Verdict, step=0, applied=True, norms=(1.0,))
    [(pull, _)] = bench.take_parent(wire.Pull)
    assert (pull.step, pull.count) == (1, 5)
    weights = bench.of(
        wire.Weights, 0, role=Role.NODE, incarnation=1, step=1, index=0, part=0, dtype="float32",
        in_place=False,
    )  # fmt: skip
    bench.deliver(PARENT, weights, Payload(np.ones(CHUNK_BYTES // 4, np.float32)))
    assert bench.core.counts()["cache_bytes_now"] == CHUNK_BYTES
    bench.attempt = 1
    bench.parent_says(
        wire.Abort, step=0, text="rank 1 is lost", loaded=True, contributors=(1 << WORLD) - 1
    )
    assert bench.core.counts()["cache_bytes_now"] == 0
    bench.take_parent(wire.Pull)
    bench.deliver(child(0), bench.of(wire.Pull, 0, step=1, index=0, part=0, count=1))
    assert len(bench.take_parent(wire.Pull)) == 1


class Counted(Node):
    """A node whose reads of weights are noted."""

    reads: list[tuple[int, int]]
    """(step, extent) of each."""

    def _do(self, actions: list[Any]) -> None:
        self.reads = getattr(self, "reads", [])
        self.reads += [(a.step, a.extent) for a in actions if isinstance(a, ReadWeights)]
        super()._do(actions)


class CountedCluster(Cluster):
    """A cluster with such a node."""

    node_type = Counted


class Unclipped(Job):
    """A job that takes one norm of its gradients: no pass over sums delays their updates."""

    @property
    def hyper(self) -> bytes:
        return encode_hyper(StepHyper(groups=()))


@pytest.mark.parametrize("update", ["streaming", "at_step"])
@pytest.mark.parametrize("cache_bytes", [60_000, 10**6])
def test_a_node_reads_no_weights_that_a_switch_caches(cache_bytes: int, update: str) -> None:
    """I1. Goal: each extent is read once for the first step, for all uses of all workers; of later
    steps updates hand nearly all out; what is not cached is read as before."""
    limits = SwitchLimits(push_window_bytes=50_000, cache_bytes_max=cache_bytes)
    job = Unclipped(LAYOUT, steps=4, update=update, switch_limits=limits)
    cluster = CountedCluster(1, job, Faults())
    cluster.run()
    (node,) = cluster.nodes
    assert isinstance(node, Counted)
    chosen = chosen_extents(LAYOUT, cache_bytes)
    counts = Counter(read for read in node.reads if read[1] in chosen)
    assert set(counts.values()) == {1}, "a pull that came after its update is a read as well"
    assert counts.keys() >= {(0, extent) for extent in chosen}
    assert counts.total() < 2 * len(chosen)
    others = {read for read in node.reads if read[1] not in chosen}
    assert bool(others) == (cache_bytes < ALL_BYTES)
    assert cluster.switch.core.counts()["cached_count"] > 0


@pytest.mark.parametrize("update", ["streaming", "at_step"])
def test_a_node_reads_nothing_of_what_did_not_change(update: str) -> None:
    """I1. Goal: in odd steps a unit has no gradient, and no update hands its weights out: the
    switch has them for the even steps that follow."""
    limits = SwitchLimits(push_window_bytes=50_000, cache_bytes_max=10**6)
    job = Unclipped(LAYOUT, steps=6, update=update, switch_limits=limits, absent_unit=1)
    cluster = CountedCluster(1, job, Faults())
    cluster.run()
    (node,) = cluster.nodes
    assert isinstance(node, Counted)
    read = {step for step, extent in node.reads if extent in SECOND}
    assert {step for step in read if step % 2 == 0} == {0}
