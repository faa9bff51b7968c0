"""The switch's core: what neither `tests/suites/switch_suite.py` nor simulated histories show.

Names and bounds of what is refused or late, the pace of filling, two switches that lead, and what
was found once. Waiting for slots: `test_waiting.py`; the lead of several nodes: `test_lead.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.base.retry import RetryPolicy
from luwu.layout import Share
from luwu.protocol.actions import End
from luwu.protocol.children import Children
from luwu.protocol.contribution import Contribution
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper
from luwu.wire.messages import Role, Verb
from luwu.wire.norms import Clip
from luwu.wire.stored import stored_bytes
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.aggregation import RawUp
from switch_emu.switch.core.attachments import Attachments
from switch_emu.switch.core.ballot import Ballot
from switch_emu.switch.core.filling import Filling
from switch_emu.switch.core.membership import Membership
from switch_emu.switch.core.parents import STEP_MAX_S, FilledNode, Parents
from switch_emu.switch.core.refusals import Refusals
from switch_emu.switch.core.standings import Position, Standings, Version
from switch_emu.switch.core.statements import AgreedStatement, Agreement, BeginCommit, Statement
from switch_emu.switch.core.switch import FROM_CHILD, FROM_PARENT, RECEIPTS
from switch_emu.switch.core.weights_down import STALLED_NS, WeightsCopies, WeightsDown
from tests.helpers.switch_parts import DESCRIPTION, LEFT, RIGHT, Handed, hello, line, message
from tests.simulate.job import make_layout

S = 10**9
BYTES = DESCRIPTION.to_bytes()
JOB = Description(layout=make_layout(optimizer_nodes=2), optimizer="test")
CHUNKS = range(len(JOB.layout.chunks))
OF_THE_LEAD = {
    wire.Measured, wire.Prepared, wire.Resolved, wire.Standing, wire.Adopt, wire.Copy, wire.Page,
}  # fmt: skip


def test_every_message_has_a_place() -> None:
    """Goal: a message that is added to the protocol is handled, or left out on purpose."""
    places = set(FROM_CHILD) | set(FROM_PARENT)
    assert places | OF_THE_LEAD == set(wire.MESSAGE_TYPES)
    assert not places & OF_THE_LEAD
    assert set(RECEIPTS) == set(Verb) - {Verb.PAGE}  # the lead's


def test_a_switch_that_lacks_the_aggregator_says_so() -> None:
    """Goal: a package that is not installed on the switch's host is named to the child."""
    core = SwitchCore(job=1, incarnation=1, children=[LEFT, RIGHT])
    job = DESCRIPTION.aggregated_by("unheard-of")
    found = core.received(0, "left", hello(LEFT, description_hash=job.hash), job.to_bytes())
    (refusal,) = [line(each) for each in found if "Refuse" in line(each)]
    assert refusal.startswith("left: Refuse text=the switch cannot add: aggregate: 'unheard-of'")


def test_statements_that_do_not_fit_end_the_attempt() -> None:
    """Goal: children that measure different extents are not folded, and the reason is said."""
    handed = Handed()
    handed.children.members.description = DESCRIPTION.aggregated_by("shared-exponent").to_bytes()
    part = Agreement(handed.outbox, handed.children, handed.uplink, handed.attempts)
    part.learn("left")
    part.propose(handed.left, message(wire.Propose, index=2), bytes([1, 2]))
    part.propose(handed.right, message(wire.Propose, index=2), bytes([1, 2, 3]))
    (cancel,) = [line(each) for each in handed.outbox.take()]
    assert cancel.startswith("parent: Cancel text=extent 2: ")


def lr(value: float, **more: Any) -> Statement:
    return Statement(encode_hyper(StepHyper(groups=({"lr": value},), **more)), 1)


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        (Statement(b"", 1), Statement(b"", 2), ("number of backward passes", "1", "2")),
        (lr(0.1), lr(0.1, max_grad_norm=2.0), ("max_grad_norm", "None", "2.0")),
        (lr(0.1), lr(0.1, loss_scale=8.0), ("loss_scale", "1.0", "8.0")),
        (lr(0.1), lr(0.1, frozen="a"), ("the digest of frozen parameters", "none", "a")),
        (lr(0.1), lr(0.1, keeps=True), ("whether something is attached", "False", "True")),
        (lr(0.1, clips=(Clip(2.0, 1.0),)), lr(0.1, clips=(Clip(1.0, 1.0),)),
         ("call 1 of clip_grad_norm_", "max_norm=1.0, norm_type=2", "max_norm=1.0, norm_type=1")),
    ],
)  # fmt: skip
def test_every_setting_has_a_name(
    mine: Statement, theirs: Statement, found: tuple[str, str, str]
) -> None:
    """I6. Goal: whatever differs is named as the script knows it, and nothing else is."""
    statement = AgreedStatement(0, (LEFT, RIGHT))
    assert not statement.add(RIGHT, theirs)
    name, one, other = found
    assert not statement.add(LEFT, mine)
    assert f"({name} is {one} on ranks 0, 1 and {other} on ranks 2);" in statement.refusal


def test_disagreement_of_many_stays_short() -> None:
    """I5. Goal: a thousand ranks that all differ fit one refusal, and little of them is kept."""
    children = [1 << rank for rank in range(1024)]
    statement = AgreedStatement(3, children)
    for rank, child in enumerate(children):
        hyper = encode_hyper(StepHyper(groups=({"lr": rank},) * 99))
        assert not statement.add(child, Statement(hyper, 1))
    assert 700 < len(statement.refusal) < TEXT_CHARS_MAX
    assert len(statement.kept) == 4


def test_who_is_late_is_named_once() -> None:
    """Goal: after the patience the log names who has not committed; workers among them are
    returned, switches are not: they miss their own children."""
    patience_ns = 10**9
    for early, late, returned in ((LEFT, RIGHT, [RIGHT]), (RIGHT, LEFT, [])):
        handed = Handed()
        part = BeginCommit(handed.outbox, handed.children, handed.uplink, patience_ns)
        child = handed.left if early == LEFT else handed.right
        part.commit(child, message(wire.Commit, parts=1), b"")
        assert part.waits_for() == f"step 0: commit of ranks {'0, 1' if late == LEFT else '2'}"
        assert part.late_ns() == patience_ns
        assert part.name_late() == []
        handed.outbox.now_ns = patience_ns
        assert part.name_late() == returned
        assert [each.name for each in handed.outbox.take()] == ["switch.late"]
        assert part.late_ns() is None


HELLO_UP = (
    f"parent: Hello protocol={hello(LEFT).protocol} world_size=3 contributors=7 present=7 "
    f"roll={{}} description_hash={DESCRIPTION.hash} + {len(BYTES)} bytes"
)


def made(**limits: Any) -> tuple[Handed, Membership]:
    handed = Handed(joined=False, **limits)
    return handed, Membership(
        handed.outbox, handed.children, handed.uplink, handed.attempts, handed.limits
    )


def welcome(attempt: int = 0, **given: Any) -> Any:
    return message(
        wire.Welcome, attempt=attempt, generation=1,
        **{"contributors": 7, "loaded": True, "push_window_bytes": 9, **given},
    )  # fmt: skip


def joined(**limits: Any) -> tuple[Handed, Membership]:
    """Both children have joined, and the parent has welcomed the switch."""
    handed, part = made(**limits)
    part.hello("left", hello(LEFT), BYTES)
    part.hello("right", hello(RIGHT), BYTES)
    assert part.awaits(welcome())
    part.welcomed(welcome())
    part.welcome_children(is_first=False)
    handed.outbox.take()
    return handed, part


def test_a_switch_whose_successor_leads_ends() -> None:
    """E3, I6. Goal: its children are sent nothing, so that they look for the successor."""
    refuse = message(wire.Refuse, text="a later start leads", is_left_out=True)
    for make in (made, joined):
        handed, part = make()
        part.refused(refuse)
        assert handed.outbox.take() == [End("a later start leads", code="E512")]


def test_a_report_of_presence_waits_for_its_own_receipt() -> None:
    """I6. Goal: a receipt of the report before it, which may come late, leaves it unanswered."""
    handed, part = joined(drop_after_ns=S)
    part.silent(LEFT)
    part.tick()
    for ranks, is_asked in ((LEFT | RIGHT, True), (RIGHT, False)):
        part.present_received(message(wire.Received, contributors=ranks, verb=Verb.PRESENT))
        assert handed.uplink.asks("present") is is_asked


def test_a_child_that_knows_more_is_refused_when_the_parent_has_answered() -> None:
    """I2, I6. Goal: another switch may lead, which this one does not know: the parent is asked
    once, and the child is refused only if it has answered; each time anew."""
    handed, part = joined()
    knows = hello(RIGHT, step=5, generation=1)
    text = "right: Refuse text=the state"
    for roll in (2, 3):
        handed.play(
            part,
            [
                ("hello", ("right", knows, BYTES), [HELLO_UP.format(roll)]),
                ("hello", ("right", knows, BYTES), []),
            ],
        )
        assert part.awaits(welcome())
        assert not part.welcomed(welcome())
        handed.outbox.take()
        part.hello("right", knows, BYTES)
        note, refuse = handed.outbox.take()
        assert line(note) == "note switch.refused"
        assert line(refuse).startswith(text), line(refuse)
        assert "is_older=True" in line(refuse)


def test_a_child_that_is_started_again_while_the_switch_joins_again() -> None:
    """I1, I6. Goal: the attempt goes on, and is given up although the parent has yet to answer."""
    handed, part = joined()
    part.rejoin(message(wire.Rejoin))
    part.hello("right", hello(RIGHT, incarnation=9), BYTES)
    assert handed.uplink.asks("cancel")
    assert part.awaits(welcome())
    part.welcomed(welcome())
    handed.outbox.take()
    handed.play(part, [("hello", ("right", hello(RIGHT, incarnation=9), BYTES), [])])


def outbox_of() -> Outbox:
    return Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=9)


def filled_node(outbox: Outbox, bytes_per_s: float) -> FilledNode:
    """Node 1 of 2, which hold all pages, from step 5 on."""
    return FilledNode(
        outbox, Share(JOB.layout, 1, 2), 3, first_step=5, job=JOB,
        bytes_per_s=bytes_per_s, since_ns=outbox.now_ns,
    )  # fmt: skip


def test_extents_count_as_fast_as_their_pages_may_be_copied() -> None:
    """E8. Goal: one at least, else as many as the time since the last step has room for; a long
    pause counts as a shorter one; what counts in a step stays so."""
    outbox, count = outbox_of(), len(JOB.layout.extents)
    nbytes = sum(stored_bytes(JOB, chunk) for chunk in CHUNKS)
    slow, fast = filled_node(outbox, nbytes / 100 / STEP_MAX_S), filled_node(outbox, nbytes)
    assert slow.held(4) == 0
    assert (slow.held(5), fast.held(5)) == (1, 1)
    outbox.now_ns += S // 2
    half = fast.held(6)
    assert 1 < half < count
    outbox.now_ns += 1000 * S
    assert (slow.held(6), fast.held(7)) == (2, count)
    assert (slow.held(5), slow.held(6), fast.held(6)) == (1, 2, half)
    assert not set(slow.held_chunks(6)) & set(slow.chunks[len(slow.held_chunks(6)) :])
    assert sorted(fast.held_chunks(7)) == list(CHUNKS)
    held = [each.index for each in JOB.layout.extents if slow.holds(each.index, 6)]
    assert len(held) == 2
    assert all(JOB.layout.extent_stripe(extent) == 1 for extent in held)  # its own stripe first


def test_a_sheet_counts_as_soon_as_all_of_it_does() -> None:
    """E8. Goal: however slowly pages are copied, a node that is filled has no sheet in part; other
    extents count one by one."""
    layout = make_layout(optimizer_nodes=2, rows=260, sheets=True)
    job = Description(layout=layout, optimizer="test")
    for number in (0, 1):
        outbox, share = outbox_of(), Share(layout, number, 2)
        node = FilledNode(
            outbox, share, 3, first_step=5, job=job, bytes_per_s=1e-3, since_ns=outbox.now_ns
        )
        ends = [layout.sheet(each.index)[-1] == each.index for each in share.extents()]
        counts = [count for count, is_end in enumerate(ends, 1) if is_end]
        assert [node.held(5 + step) for step in range(len(counts))] == counts
        assert len(counts) < len(ends)


class Bench:
    """Two nodes; the second has come back empty."""

    def __init__(self, bytes_per_s: float = 1e12) -> None:
        self.outbox = outbox_of()
        parents = Parents(2, 2)
        parents.learn(JOB.layout)
        ballot = Ballot(2, 2)
        self.at = Standings(self.outbox, Children(self.outbox, [LEFT]), ballot, 2, None)
        self.at.now = Position(members=0b01, version=Version(5))
        self.refusals = Refusals(self.outbox, parents)
        self.filling = Filling(
            self.outbox, parents, self.at, ballot, self.refusals, bytes_per_s, RetryPolicy()
        )
        parents.count_only(0b01)
        self.filling.waiting.add(1)
        self.at.nodes[1].is_away = False

    def lines(self) -> list[str]:
        return [line(each) for each in self.outbox.take()]

    def m(self, kind: type[Any], **values: Any) -> Any:
        return message(kind, role=Role.NODE, step=5, **values)


@pytest.mark.parametrize("opened_ago_s", [0, 1])
def test_the_first_step_copies_what_a_step_has_time_for(opened_ago_s: int) -> None:
    """E8. Goal: no step is lost at the beginning, where steps take long beside the filling: it may
    begin as a step is opened, or as one is over that followed on a short attempt."""
    nbytes = sum(stored_bytes(JOB, chunk) for chunk in CHUNKS)
    bench = Bench(bytes_per_s=nbytes / 2)
    filling = bench.filling
    filling.learn(JOB)
    for step in (3, 4):
        bench.outbox.now_ns += S if not opened_ago_s else S // 100
        filling.opens(step, 0)
    bench.outbox.now_ns += S * opened_ago_s
    filling.choose(0b01, 2, Version(5))
    assert filling.node is not None
    copied = sum(stored_bytes(JOB, chunk) for chunk in filling.node.held_chunks(5))
    assert nbytes / 4 < copied <= nbytes / 2


def test_a_refusal_says_what_to_do() -> None:
    """Goal: the node, why, and the way out."""
    bench = Bench()
    bench.refusals.leave_out(1, bench.at.now)
    (text,) = bench.lines()
    assert text.startswith("parent-1: Refuse")
    assert "step 5 and later): start it again to have it filled by the others" in text
    bench.refusals.refuse_all({0: 3, 1: -1})
    *refused, end = bench.outbox.take()
    assert len(refused) == 2
    assert isinstance(end, End)
    assert "node 0 at version 3, node 1 at no version" in end.text


def test_copies_beyond_the_budget_go_when_those_who_asked_are_served() -> None:
    """I5. Goal: where there is no room for another copy, it is not kept for children that have not
    asked; they have it fetched again. Method: two children, of which one asks."""
    copies = WeightsCopies(child_count=2, bytes_max=150)
    for extent in range(3):
        key = (1, 0, extent)
        copies.asked(key, "a")
        weights = message(wire.Weights, step=1, index=extent, dtype="float32")
        assert copies.came(key, weights, extent, 100) == {"a": False}
        assert copies.trim(key) == ([] if extent == 0 else [extent])
    assert copies.bytes_used == 100
    assert copies.asked((1, 0, 2), "b") is None
    assert copies.fallback_count == 1


def test_copies_that_are_kept_hold_up_nobody_for_long() -> None:
    """I5. Goal: what is kept for a child that never asks may be all the memory that the parent has
    for weights; when others are due and do not come, it is given back, and only then.
    Method: the left child pulls alone; weights of the next step are asked for too, which are late
    by right."""
    handed = Handed()
    part = WeightsDown(handed.outbox, handed.children, handed.uplink, handed.limits)
    answer = message(wire.Weights, index=7, dtype="float32")

    def after(now_ns: int, *expected: str) -> None:
        handed.outbox.now_ns = now_ns
        handed.play(part, [("tick", (), list(expected))])

    part.pull(handed.left, message(wire.Pull, index=7))
    handed.outbox.take()
    after(STALLED_NS)  # nothing is kept
    part.weights(answer, "kept", 5)
    part.pull(handed.left, message(wire.Pull, index=3, step=1))
    handed.outbox.take()
    assert part.next_ns() is None  # nothing is due: that step has not begun
    part.pull(handed.left, message(wire.Pull, index=8))
    handed.outbox.take()
    assert part.next_ns() == 2 * STALLED_NS
    after(2 * STALLED_NS - 1)
    after(2 * STALLED_NS, "drop kept")
    after(9 * STALLED_NS)
    assert part.copies.bytes_used == 0
    assert part.next_ns() is None
    late = (handed.right, message(wire.Pull, index=7))
    handed.play(part, [("pull", late, ["parent: Pull index=7"])])
    assert part.copies.fallback_count == 1


def test_a_raw_contribution_is_answered_when_it_enters_the_window() -> None:
    """S5, I5. Goal: what waits for the window is not answered, and its repetition is dropped
    without an answer; both are when the bytes are on their way. Method: room for one."""
    handed = Handed()
    part, key = RawUp(handed.outbox, handed.uplink), (0, 0, 7)

    def push(ranks: int, payload: str) -> tuple[Any, ...]:
        receipt = message(wire.Received, index=7, contributors=ranks, verb=Verb.PUSH)
        contribution = Contribution(ranks, 1.0, True, "float32", payload, 60)
        peer = "left" if ranks == LEFT else "right"
        return key, contribution, lambda: handed.outbox.send(peer, receipt)

    pushed = "parent: Push index=7 contributors={} weight=1.0 last=True raw=True dtype=float32 + {}"
    answers = [f"{name}: Received index=7 verb=PUSH contributors={ranks}"
               for name, ranks in (("left", LEFT), ("right", RIGHT))]  # fmt: skip
    handed.play(
        part,
        [
            ("push", push(LEFT, "l"), [pushed.format(LEFT, "'l'"), answers[0]]),
            ("push", push(RIGHT, "r"), []),
            ("push", push(RIGHT, "again"), ["drop again"]),
        ],
    )
    arrived = (0, ("push", *key, LEFT))
    found = ["drop l", pushed.format(RIGHT, "'r'"), answers[1]]
    handed.play(handed.uplink, [("arrived", arrived, found)])
    handed.play(part, [("push", push(RIGHT, "late"), ["drop late", answers[1]])])


def test_a_child_attaches_for_its_own_ranks_only() -> None:
    """I6. Goal: what a worker attaches cannot be replaced by another one."""
    handed = Handed()
    part = Attachments(handed.outbox, handed.children, handed.uplink)
    keep = message(wire.Keep, contributors=RIGHT, pieces=1)
    handed.play(
        part,
        [
            ("attach", (handed.left, keep, "other", 5), ["drop other"]),
            ("attach", (handed.right, keep, "own", 5),
             ["parent: Keep contributors=4 pieces=1 + 'own'"]),
        ],
    )  # fmt: skip
