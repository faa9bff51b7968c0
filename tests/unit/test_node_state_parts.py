"""What the parts of the node's core share, each built alone: its chunks, its sums, its budget of
gradients, its steps, its state on disk, and the weights on their way out.
"""

from __future__ import annotations

import pytest

from luwu.protocol.contribution import Contribution, OverlapError
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from switch_emu.node.core import actions as do
from switch_emu.node.core.actions import NodeNumber, StoreFacts
from switch_emu.node.core.budget import GradientBudget
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.steps import Steps
from switch_emu.node.core.sums import ExtentSum, PartSum, StepSums
from tests.simulate.job import JOB, Job, make_layout
from tests.unit.node_parts import CHILD, RANKS, Parts


def contribution(ranks: int, payload: str | None, weight: float = 1.0) -> Contribution:
    return Contribution(ranks, weight, True, "float32", payload)


# -------------------------------------------------------------------------- shard


@pytest.mark.parametrize(
    ("number", "owned", "trainable"), [(0, (0, 2, 4), (0, 2)), (1, (1, 3), (1, 3))]
)
def test_a_shard_knows_the_chunks_of_its_node(
    number: int, owned: tuple[int, ...], trainable: tuple[int, ...]
) -> None:
    """Goal: of two nodes each owns every second chunk; one that is frozen is never updated."""
    job = Job(make_layout(units=2, node_count=2), update="at_step", aggregate="shared-exponent")
    shard = Shard(NodeNumber(number=number, count=2), world_size=3)
    assert (shard.form, shard.trainable, shard.chunks_count) == (None, (), 0)
    shard.open(job.description.to_bytes())
    assert shard.description == job.description
    assert shard.trainable == trainable
    assert shard.chunks_count == len(owned)
    assert tuple(chunk for chunk in range(8) if shard.owns(chunk)) == owned
    assert not shard.is_streaming
    assert shard.aggregator.asks_first
    assert shard.form is not None
    assert shard.form.extents_count == 5


def test_a_shard_knows_the_extents_of_its_node() -> None:
    """Goal: what is updated is counted in extents, what is stored in chunks."""
    layout = make_layout(units=2, node_count=2, rows=150, extent_chunks=3)
    owned = [tuple(extent.chunks) for extent in layout.extents]
    assert owned == [(0, 2), (1, 3), (4, 6), (5, 7), (8,)]
    shard = Shard(NodeNumber(number=1, count=2), world_size=3, extent_chunks=3)
    shard.open(Job(layout).description.to_bytes())
    assert shard.trainable == (1, 3)
    assert shard.chunks_count == 4
    assert [extent for extent in range(9) if shard.owns_extent(extent)] == [1, 3]
    assert shard.form is not None
    assert shard.form.extents_count == 5


# -------------------------------------------------------------------------- budget


def test_what_is_over_the_budget_is_spilled() -> None:
    """Goal: payloads count until they are released; raw ones have a smaller budget of their own."""
    parts = Parts()
    budget = GradientBudget(parts.outbox, parts.children, bytes_max=100, raw_bytes_max=40)
    parts.check(
        (lambda: budget.add("r0", 40, is_raw=True), None, []),
        (lambda: budget.add("r1", 1, is_raw=True), None, ["Spill payload=r1 is_raw=True"]),
        (lambda: budget.add("s0", 60, is_raw=False), None, []),
        (lambda: budget.add("s1", 1, is_raw=False), None, ["Spill payload=s1 is_raw=False"]),
        (lambda: (budget.bytes_used, budget.spilled_count), (100, 2), []),
        (lambda: budget.release("s1"), None, ["drop s1"]),
        (lambda: budget.bytes_used, 100, []),
        (lambda: budget.release("r0"), None, ["drop r0"]),
        (lambda: budget.add("r2", 40, is_raw=True), None, []),
        (lambda: budget.bytes_used, 100, []),
    )  # fmt: skip


def test_a_receipt_waits_for_room_or_for_its_page() -> None:
    """Goal: what waits is not spilled, and is answered in the order of arrival as room is made, or
    when its page has been updated; a smaller one does not overtake it, a new attempt answers none.
    """
    parts = Parts()
    budget = GradientBudget(parts.outbox, parts.children, bytes_max=100, raw_bytes_max=None)

    def owe(name: str, nbytes: int, extent: int) -> None:
        _, push = parts.push(extent)
        budget.add_or_owe(name, nbytes, parts.outbox.receipt(push, Verb.PUSH, RANKS))

    def answered(extent: int) -> str:
        return f"{CHILD}: Received index={extent} part=0 verb=PUSH contributors={RANKS}"

    parts.check(
        (lambda: owe("a", 80, 1), None, [answered(1)]),
        (lambda: owe("b", 60, 2), None, []),
        (lambda: owe("c", 10, 3), None, []),
        (lambda: owe("d", 50, 4), None, []),
        (lambda: [budget.owes(0, 0, extent) for extent in (1, 2, 3)], [False, True, True], []),
        (lambda: budget.release("c"), None, [answered(3), "drop c"]),
        (lambda: budget.release("a"), None, ["drop a", answered(2)]),
        (lambda: (budget.bytes_used, budget.owed_count, budget.spilled_count), (60, 3, 0), []),
        (budget.forget, None, []),
        (lambda: budget.release("d"), None, ["drop d"]),
        (lambda: budget.release("b"), None, ["drop b"]),
        (lambda: budget.bytes_used, 0, []),
    )  # fmt: skip


def test_a_gradient_that_is_empty_takes_no_bytes() -> None:
    parts = Parts()
    budget = GradientBudget(parts.outbox, parts.children, bytes_max=0, raw_bytes_max=None)
    parts.check(
        (lambda: budget.add(None, 100, is_raw=True), None, []),
        (lambda: budget.release(None), None, []),
        (lambda: (budget.bytes_used, budget.spilled_count), (0, 0), []),
    )


# -------------------------------------------------------------------------- sums


def test_a_part_is_complete_when_all_ranks_are_in() -> None:
    """I6. Goal: a repetition adds nothing, an overlap is an error; the order is that of ranks."""
    sums = StepSums(0b111)
    part = sums.part(4, 0)
    assert sums.missing_ranks(4) == 0b111
    assert sums.add(part, contribution(0b100, "g2"))
    assert not sums.add(part, contribution(0b100, "again"))
    with pytest.raises(OverlapError):
        sums.add(part, contribution(0b110, "sum"))
    assert (part.complete, sums.missing_ranks(4), sums.missing_ranks(5)) == (False, 0b011, 0b111)
    assert sums.add(part, contribution(0b011, "g01", 2.0))
    assert (part.complete, sums.missing_ranks(4)) == (True, 0)
    assert [each.payload for each in part.payloads()] == ["g01", "g2"]
    assert sums.extents[4].weight == 3.0
    assert sums.part(4, 0) is part


def test_the_payloads_of_a_step_are_those_of_its_parts_and_totals() -> None:
    sums = StepSums(0b11)
    for number, payload in enumerate(["g0", None, "g2"]):
        sums.add(sums.part(0, number), contribution(0b11, payload))
    sums.part(1, 0)
    sums.extents[1].total = contribution(0b11, "total")
    assert sums.payloads() == ["g0", "g2", "total"]
    assert [sums.extents[0].complete_up_to(count) for count in (3, 4)] == [True, False]


def test_weights_are_added_as_a_tree_of_switches_would() -> None:
    """I3. Goal: (a + b) + (c + d), not ((a + b) + c) + d: the last bit differs."""
    weights = (1.0, 2.0**-53, 2.0**-53, 2.0**-53)
    entries = [contribution(1 << rank, "g", weight) for rank, weight in enumerate(weights)]
    part = PartSum(0b1111, entries, complete=True)
    assert ExtentSum((), {0: part}).weight == 1.0
    assert ExtentSum((0b0011, 0b1100), {0: part}).weight == 1.0 + 2.0**-52


# -------------------------------------------------------------------------- steps


def test_the_open_step_and_the_one_after_it_are_taken() -> None:
    """Goal: a step is made when something is known of it, and is gone when it is decided."""
    parts = Parts()
    steps = Steps(parts.outbox, parts.children, parts.shard, parts.budget, groups=(0b11,))
    assert steps.open is None
    assert [steps.takes(number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
    ahead = steps.at(1)
    assert (ahead.number, ahead.attempt, ahead.streaming, ahead.sums.ranks) == (1, 1, True, RANKS)
    assert steps.open is None
    assert not steps.has_commit
    ahead.parts = 1
    assert steps.has_commit
    steps.close()
    assert steps.open is ahead
    assert [steps.takes(number) for number in (0, 1)] == [False, True]
    parts.children.loaded = False
    assert not steps.takes(1)


@pytest.mark.parametrize(("is_judged", "keeps"), [(False, True), (True, False), (True, True)])
def test_a_step_lacks_what_lost_ranks_did_not_attach(is_judged: bool, keeps: bool) -> None:
    """Goal: only a step that has its verdict, and waits for attachments, can never be decided."""
    parts = Parts(keeps=keeps)
    steps = Steps(parts.outbox, parts.children, parts.shard, parts.budget)
    assert not steps.lacks_pieces_of(RANKS)
    step = steps.at(0)
    step.hyper, step.kept, step.pieces_count = parts.job.hyper, {0b01: {0}}, {0b01: 1}
    if is_judged:
        step.verdict = parts.m(wire.Verdict, applied=True, norms=(1.0,))
    found = [steps.lacks_pieces_of(ranks) for ranks in (0b01, 0b10, 0b11)]
    assert found == [False, is_judged and keeps, is_judged and keeps]


# -------------------------------------------------------------------------- state


@pytest.mark.parametrize("is_same_job", [False, True])
def test_a_state_goes_on_from_its_store(is_same_job: bool) -> None:
    """Goal: another job on the same state is a later epoch; the last decision can be repeated."""
    parts = Parts()
    state = State(parts.outbox, parts.children)
    prepared = do.PreparedVersion(4, 7, True, 2.0, RANKS)
    facts = StoreFacts(
        description=parts.description, generation=3, attempt=7, epoch=5,
        job=JOB if is_same_job else JOB + 1, version=3, applied=False, norms=(2.5,),
        prepared=prepared,
    )  # fmt: skip
    parts.check((lambda: state.opened(facts), None, []))
    outbox = parts.outbox
    assert (outbox.generation, outbox.attempt, outbox.step) == (3, 7, 3)
    assert outbox.epoch == (5 if is_same_job else 6)
    assert (state.version, state.prepared) == (3, prepared)
    assert parts.children.answer_commit(CHILD, 2)
    assert parts.lines() == ["switch: Decided applied=False norms=2.5 step=2"]


def test_a_state_without_weights_has_no_version() -> None:
    """Goal: version 0 is decided without an announcement: it ends no step."""
    parts = Parts(version=None)
    state = State(parts.outbox, parts.children)
    assert state.version is None
    state.prepared = do.PreparedVersion(0, 1, True, 0.0, RANKS)
    parts.check(
        (state.was_decided, do.PreparedVersion(0, 1, True, 0.0, RANKS), []),
        (lambda: state.version, 0, []),
    )


# -------------------------------------------------------------------------- serving


def serving_of(parts: Parts, reads_max: int = 2) -> Serving:
    return Serving(parts.outbox, parts.children, parts.shard, parts.steps, reads_max)


def test_weights_pulled_ahead_are_read_when_their_page_is_written() -> None:
    """Goal: a pull of the next step waits for its page; when that step is open, the order in which
    it was pulled is that of its forward."""
    parts = Parts()
    serving = serving_of(parts)
    ahead = [parts.m(wire.Pull, index=extent, part=0, step=1) for extent in (1, 0)]
    parts.check(
        (lambda: serving.pull(CHILD, ahead[0]), None, []),
        (lambda: serving.pull(CHILD, ahead[1]), None, []),
        (lambda: serving.awaits(1, 1), True, []),
        (lambda: parts.steps.at(0).written.add(1), None, []),
        (lambda: serving.serve(1, 1), None,
         ["ReadWeights extent=1 step=1 version=1 attempt=1 parts=0"]),
        (lambda: serving.awaits(1, 1), False, []),
        (parts.steps.close, None, []),
        (serving.was_decided, None,
         ["ReadWeights extent=0 step=1 version=1 attempt=1 parts=0"]),
        (lambda: list(parts.steps.at(1).pulled), [1, 0], []),
    )  # fmt: skip


def test_weights_of_a_skipped_step_are_not_read() -> None:
    """Goal: what streamed ahead of a step that is skipped is void."""
    parts = Parts()
    serving = serving_of(parts, reads_max=1)
    step = parts.steps.at(0)
    step.written.update((0, 1))
    pulls = [parts.m(wire.Pull, index=extent, part=0, step=1) for extent in (0, 1)]
    read = do.ReadWeights(0, 1, 1, 1, (0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[0]), None,
         ["ReadWeights extent=0 step=1 version=1 attempt=1 parts=0"]),
        (lambda: serving.pull(CHILD, pulls[1]), None, []),
        (serving.was_skipped, None, []),
        (lambda: serving.weights_read(read, None, in_place=False), None, []),
    )  # fmt: skip
    step.verdict = parts.m(wire.Verdict, role=Role.NODE, applied=False, norms=(0.0,))
    parts.check(
        (lambda: serving.pull(CHILD, pulls[0]), None, []),
        (lambda: serving.awaits(1, 0), True, []),
        (serving.forget, None, []),
        (lambda: serving.awaits(1, 0), False, []),
    )


def test_a_pull_of_an_extent_for_two_uses_is_read_once() -> None:
    """Goal: while no read may start, later uses join; an update sends its weights to all uses."""
    parts = Parts()
    serving = serving_of(parts)
    update = do.Update(
        extent=0, step=0, attempt=1, contributions=(), absent=0, divisor=2.0, norms=(),
        hyper=b"", publish=True,
    )  # fmt: skip
    pulls = [parts.m(wire.Pull, index=0, part=part, step=1) for part in (1, 0)]
    parts.check(
        (lambda: serving.pull(CHILD, pulls[0]), None, []),
        (lambda: serving.pull(CHILD, pulls[1]), None, []),
        (lambda: serving.publish(update, "w", in_place=True), None,
         ["switch: Weights index=0 part=0 dtype=float32 in_place=True checksum=0 step=1 + w",
          "switch: Weights index=0 part=1 dtype=float32 in_place=True checksum=0 step=1 + w"]),
        (lambda: serving.publish(update, "w", in_place=True), None, []),
    )  # fmt: skip
