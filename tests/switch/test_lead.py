"""The lead of several optimizer nodes, alone: what they state, what it makes of it (E1 to E8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import PARENT, End, Note, Send
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.messages import Role, Verb
from luwu.wire.norms import encode_all
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.lead import Lead
from switch_emu.switch.core.parents import Parents
from switch_emu.switch.core.readers import ReaderRoutes
from tests.helpers.switch_parts import LEFT, line, message
from tests.simulate.job import make_layout

PATIENCE_NS = 100
SQUARES = {(2.0, 2.0): [8.0]}
DIGEST, OTHER = b"d" * 16, b"o" * 16


class Bench:
    """A lead, and the messages between it, the nodes and the core."""

    def __init__(
        self, count: int = 2, replicas: int = 2, fill_rate_bytes_per_s: float | None = None, *,
        is_known: bool = True,
    ) -> None:  # fmt: skip
        self.outbox = Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=9)
        self.children = Children(self.outbox, [LEFT])
        self.count, self.replicas = count, replicas
        parents = Parents(count, replicas)
        limits = SwitchLimits(
            drop_node_after_ns=PATIENCE_NS, fill_rate_bytes_per_s=fill_rate_bytes_per_s
        )
        self.routes = ReaderRoutes(self.outbox)
        self.lead = Lead(self.outbox, self.children, parents, self.routes, limits, RetryPolicy())
        job = Description(layout=make_layout(units=1, optimizer_nodes=count), optimizer="test")
        parents.learn(job.layout)
        self.job = job
        if is_known:
            self.lead.learn(job)
        self.chunks_count = len(job.layout.chunks)

    def core_says(self, kind: type[Any], payload: Any = None, **values: Any) -> list[str]:
        """What is sent when the core sends this, and what the core hears at once."""
        attempt = values.pop("attempt", self.outbox.attempt)
        m = message(kind, attempt=attempt, **values)
        routed = self.lead.routed([Send((PARENT,), m, payload)])
        return [line(each) for each in routed] + self.lines() + self.heard()

    def says(self, node: int, kind: type[Any], payload: Any = None, **values: Any) -> list[str]:
        """What is sent, and what the core hears, when a node sends this."""
        m = message(kind, **{"role": Role.NODE, "rank": node, "incarnation": 1, **values})
        heard = self.lead.received(node, m, payload)
        return [*self.lines(), *(f"core: {shown(each)}" for each in heard)]

    def heard(self) -> list[str]:
        return [f"core: {shown(each)}" for each in self.lead.take_inbound()]

    def lines(self) -> list[str]:
        actions = [each for each in self.outbox.take() if not isinstance(each, Note)]
        return [f"End {each.code}" if isinstance(each, End) else line(each) for each in actions]

    def greet(self) -> None:
        """The core's children have all joined."""
        self.core_says(wire.Hello, b"job", contributors=LEFT, present=LEFT, roll=1)

    def join(self, version: int = 0) -> None:
        """All nodes stand at a version, and take the first attempt over."""
        self.greet()
        for node in range(self.count):
            self.says(node, wire.Standing, step=version, loaded=True)
        for node in range(self.count):
            self.welcome(node, 1)

    def welcome(self, node: int, attempt: int, **values: Any) -> list[str]:
        return self.says(node, wire.Welcome, attempt=attempt, push_window_bytes=7, **values)

    def measure(self, node: int, attempt: int = 1, step: int = 0, **values: Any) -> list[str]:
        squares = encode_all([SQUARES] * self.replicas)
        return self.says(node, wire.Measured, squares, attempt=attempt, step=step, **values)

    def prepare(
        self, node: int, digest: bytes = DIGEST, attempt: int = 1, version: int = 1
    ) -> list[str]:
        digests = digest * self.replicas
        return self.says(node, wire.Prepared, digests, attempt=attempt, version=version)

    def fill(self) -> list[str]:
        """Node 1 was lost and left out, has come back empty, and takes the attempt over in which it
        is filled; what was asked for then."""
        self.join()
        self.lose(1)
        self.welcome(0, 2)
        self.reconnect(1, ends=False)
        assert self.says(1, wire.Standing, incarnation=2) == []
        self.measure(0, attempt=2)
        found = self.prepare(0, attempt=2)
        starts(
            found, "parent-0: Resolved", "parent-0: Adopt step=1 members=1",
            "parent-1: Adopt step=1 members=1",
        )  # fmt: skip
        assert "filling=3" in found[2]
        assert "filling" not in found[1]
        self.welcome(0, 3)
        return self.welcome(1, 3, incarnation=2, step=1)

    def lose(self, *nodes: int) -> list[str]:
        """Nodes are lost, and time passes until all that are gone are so for too long; what is
        proposed then."""
        for node in nodes:
            self.lead.lost(node)
        self.outbox.now_ns += PATIENCE_NS
        self.lines()
        self.lead.tick()
        return [each for each in self.lines() if "Adopt" in each]

    def reconnect(self, *nodes: int, ends: bool = True) -> None:
        """Connections are back; before that, they end."""
        for node in nodes:
            if ends:
                self.lead.lost(node)
            self.lead.reconnected(node)
        self.lines()

    def copied(self, chunk: int, version: int = 1) -> list[str]:
        """Node 0 has sent a page, and node 1 has it."""
        found = self.says(0, wire.Page, f"page-{chunk}", step=version, index=chunk, attempt=3)
        return found + self.says(
            1, wire.Received, step=version, index=chunk, verb=Verb.PAGE, incarnation=2, attempt=3
        )

    def decide(self, version: int, *, digest: bytes = DIGEST) -> list[str]:
        """Both nodes have measured, prepared and decided a version, in attempt 3."""
        self.measure(0, attempt=3, step=version - 1)
        self.prepare(0, attempt=3, version=version)
        found = self.says(1, wire.Prepared, digest * 2, attempt=3, version=version, incarnation=2)
        for node in (0, 1):
            found += self.says(
                node, wire.Decided, attempt=3, step=version - 1, applied=True, incarnation=1 + node
            )
        return found


def shown(m: wire.Message) -> str:
    return f"{type(m).__name__} step={m.step} attempt={m.attempt}"


def starts(lines: Sequence[str], *expected: str) -> None:
    assert [each[: len(text)] for each, text in zip(lines, expected, strict=True)] == [*expected]


def asked(lines: Sequence[str]) -> list[int]:
    """The chunks whose pages are asked for."""
    copies = (f"{each} index=0" for each in lines if " Copy " in each)
    return [int(each.partition("index=")[2].split()[0]) for each in copies]


def test_an_attempt_counts_once_all_nodes_have_taken_it_over() -> None:
    """E1, E3. Goal: first all say where they stand, then all record epoch and attempt, then the
    core goes on."""
    bench = Bench()
    starts(
        bench.core_says(wire.Hello, b"job", contributors=LEFT, present=LEFT),
        "parent-0: Hello", "parent-1: Hello",
    )  # fmt: skip
    assert bench.says(1, wire.Standing, step=3, attempt=6, loaded=True, epoch=2) == []
    starts(
        bench.says(0, wire.Standing, step=3, attempt=5, loaded=True, epoch=2),
        "parent-0: Adopt step=3 members=3", "parent-1: Adopt step=3 members=3",
    )  # fmt: skip
    assert bench.welcome(0, 7) == []
    assert bench.welcome(1, 7) == ["core: Welcome step=3 attempt=7"]


def test_a_step_is_judged_and_decided_when_all_have_stated_theirs() -> None:
    """I2, E2. Goal: verdict, decision and announcement, each after the last statement; a node that
    asks again is answered again."""
    bench = Bench()
    bench.join()
    assert bench.measure(1) == []
    starts(
        bench.measure(0), "parent-0,parent-1: Verdict applied=True norms=(2.0,)",
        "core: Verdict step=0 attempt=1",
    )  # fmt: skip
    starts(bench.measure(1), "parent-1: Verdict applied=True norms=(2.0,)")
    assert bench.prepare(0) == []
    starts(bench.prepare(1), "parent-0,parent-1: Resolved step=1 version=1")
    starts(bench.prepare(0), "parent-0: Resolved step=1 version=1")
    assert bench.says(0, wire.Decided, attempt=1, applied=True) == []
    assert bench.says(1, wire.Decided, attempt=1, applied=True) == [
        "core: Decided step=0 attempt=1"
    ]


def test_a_sum_that_is_not_finite_skips_the_step_under_the_next_attempt() -> None:
    """I2. Goal: all nodes and the core go on in it without an abort."""
    bench = Bench(replicas=1)
    bench.join()
    bench.measure(0)
    starts(
        bench.says(1, wire.Measured, None, attempt=1), "parent-0,parent-1: Verdict norms=(inf,)",
        "core: Verdict step=0 attempt=2",
    )  # fmt: skip


def test_an_abort_waits_for_a_step_that_is_judged() -> None:
    """Goal: it is as good as decided; before that, the attempt is given up at once."""
    bench = Bench()
    bench.join()
    bench.outbox.attempt = 1
    starts(bench.core_says(wire.Cancel, text="asked"), "parent-0: Adopt", "parent-1: Adopt")
    assert bench.welcome(0, 2) == []
    assert bench.welcome(1, 2) == ["core: Abort step=0 attempt=2"]
    bench.outbox.attempt = 2
    bench.measure(0, attempt=2)
    bench.measure(1, attempt=2)
    assert bench.core_says(wire.Cancel, text="asked again") == []
    bench.prepare(0, attempt=2)
    starts(
        bench.prepare(1, attempt=2), "parent-0,parent-1: Resolved step=1 version=1",
        "parent-0: Adopt step=1", "parent-1: Adopt step=1",
    )  # fmt: skip


def test_a_node_that_was_started_again_costs_the_attempt() -> None:
    """I1, I2. Goal: what came in for the step is lost; a connection that was lost costs nothing."""
    bench = Bench()
    bench.join()
    bench.reconnect(1)
    where = {"attempt": 1, "loaded": True, "epoch": 1, "members": 3}
    assert bench.says(1, wire.Standing, **where) == []
    bench.measure(0)
    starts(bench.says(1, wire.Rejoin, incarnation=2), "parent-1: Hello")
    starts(
        bench.says(1, wire.Standing, incarnation=2, **where), "parent-0: Adopt", "parent-1: Adopt"
    )
    assert bench.measure(1) == []  # of the former start, which has a successor


def test_a_version_that_all_have_prepared_is_decided_with_the_epoch() -> None:
    """E5. Goal: after a switch was lost, or a node, such a step is finished; where one has it not,
    or under another attempt, or they differ, it is made again."""
    ready = {"attempt": 4, "loaded": True, "prepared_attempt": 4}
    for second, digests, step in (
        (ready, DIGEST * 2, 1),
        ({**ready, "prepared_attempt": 3}, DIGEST * 2, 0),
        ({**ready, "attempt": 5}, DIGEST * 2, 0),
        ({**ready, "prepared_attempt": 0}, b"", 0),
        (ready, OTHER * 2, 0),
    ):
        bench = Bench()
        bench.greet()
        bench.says(0, wire.Standing, DIGEST * 2, **ready)
        found = bench.says(1, wire.Standing, digests, **second)
        assert [("step=1" in each) == bool(step) for each in found] == [True, True], second


@pytest.mark.parametrize(
    ("count", "replicas", "goes_on"), [(2, 2, True), (3, 2, True), (2, 1, False)]
)
def test_a_lost_node_is_left_out_where_others_hold_its_pages(
    count: int, replicas: int, goes_on: bool
) -> None:
    """E4, E6. Goal: after its patience the job goes on without it, in an epoch that the others
    record; a node that comes back from before is refused. Where nobody else holds its pages the job
    waits."""
    bench = Bench(count, replicas)
    bench.join()
    bench.outbox.now_ns = 50
    bench.lead.lost(count - 1)
    assert bench.lead.next_tick_ns() == 50 + PATIENCE_NS
    bench.outbox.now_ns = 50 + PATIENCE_NS
    bench.lines()
    bench.lead.tick()
    found = [each for each in bench.lines() if "Adopt" in each]
    assert len(found) == (count - 1 if goes_on else 0)
    if not goes_on:
        assert "optimizer node 1" in bench.lead.waits_for()
        return
    members = (1 << count - 1) - 1
    assert all(f"members={members}" in each for each in found)
    for node in range(count - 1):
        heard = bench.welcome(node, 2)
    assert heard == ["core: Abort step=0 attempt=2"]
    for node in range(count - 1):
        heard = bench.measure(node, attempt=2)
    assert any("Verdict applied=True norms=" in each for each in heard)
    bench.reconnect(count - 1, ends=False)
    refused = bench.says(count - 1, wire.Standing, attempt=1, loaded=True, incarnation=2)
    starts(refused, f"parent-{count - 1}: Refuse")
    assert "is_left_out=True" in refused[0]


def test_less_than_half_of_the_nodes_do_not_go_on() -> None:
    """E3. Goal: the others may be led by a new switch, as they are most of the three."""
    bench = Bench(3, 3)
    bench.join()
    assert bench.lose(1, 2) == []
    assert "optimizer nodes 1, 2" in bench.lead.waits_for()


def test_a_node_that_is_lost_before_the_first_epoch_counts_is_left_out() -> None:
    """E3. Goal: it has answered a new switch, and is lost before it has recorded its proposal: the
    two others of three go on without it. Method: as 10,000 histories found it."""
    bench = Bench(3, 3)
    bench.greet()
    for node in range(3):
        bench.says(node, wire.Standing, step=4, loaded=True, attempt=3, epoch=2, members=0b111)
    bench.welcome(0, 4, step=4)
    bench.lead.lost(1)
    bench.welcome(2, 4, step=4)
    bench.lines()
    found = bench.lose()
    starts(found, "parent-0: Adopt step=4 members=5", "parent-2: Adopt step=4 members=5")
    assert bench.lose() == [], "once"
    bench.welcome(0, 5, step=4)
    bench.welcome(2, 5, step=4)
    assert bench.lead.at.now.members == 0b101


def test_a_node_that_is_to_be_filled_waits_for_a_new_switch_too() -> None:
    """E8. Goal: a switch that is started while a node without a state waits lets it wait, though it
    does not know the job yet, and fills it from the next step on. Method: the job becomes known
    after the first epoch, as the core learns it with its welcome."""
    bench = Bench(fill_rate_bytes_per_s=1e12, is_known=False)
    bench.greet()
    counts = {"attempt": 3, "loaded": True, "epoch": 2, "members": 0b01, "step": 5}
    bench.says(0, wire.Standing, b"", **counts)
    bench.says(1, wire.Standing)
    bench.lines()
    found = bench.welcome(0, 4, step=5)
    assert not any("Refuse" in each for each in found), found
    assert bench.says(1, wire.Standing, incarnation=2) == []
    bench.lead.learn(bench.job)
    bench.measure(0, attempt=4, step=5)
    found = bench.prepare(0, attempt=4, version=6)
    assert any(each.startswith("parent-1: Adopt") and "filling=5" in each for each in found), found


def test_a_new_switch_needs_all_members_of_two_and_most_of_three() -> None:
    """E3, E6. Goal: so that no two switches lead different parts of one job."""
    where = {"attempt": 3, "loaded": True, "epoch": 2}
    for count, members, answering, goes_on in (
        (2, 0b11, (0,), False),
        (2, 0b01, (0,), True),
        (3, 0b111, (0, 1), True),
        (3, 0b111, (0,), False),
    ):
        bench = Bench(count)
        bench.greet()
        for node in answering:
            bench.says(node, wire.Standing, members=members, **where)
        sent = bench.lose()
        is_proposed = bench.lead.at.next is not None
        assert is_proposed == goes_on, (count, members, answering, sent)


def test_a_node_with_an_empty_directory_is_left_out() -> None:
    """E4. Goal: it holds nothing of what the others are decided at; it makes no store."""
    bench = Bench()
    bench.greet()
    bench.says(0, wire.Standing, step=3, attempt=5, loaded=True, epoch=2, members=3)
    found = bench.says(1, wire.Standing)
    starts(found, "parent-0: Adopt step=3 members=1")
    found = bench.welcome(0, 6)
    starts(found, "parent-1: Refuse", "core: Welcome step=3 attempt=6")


def test_a_job_whose_pages_are_lost_ends() -> None:
    """E6. Goal: when all nodes have answered, and pages are at none of them, the job does not wait
    for ever; as long as one has not, it does. Method: two of three come back empty."""
    bench = Bench(3, 2)
    bench.join()
    bench.reconnect(0, 1)
    assert bench.says(0, wire.Standing, incarnation=2) == []
    assert bench.says(1, wire.Standing, incarnation=2) == ["End E511"]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("is_known", [True, False], ids=["same-switch", "new-switch"])
def test_a_job_that_lost_all_directories_ends(replicas: int, *, is_known: bool) -> None:
    """E6. Goal: all nodes come back empty: their pages are lost, which is no older state; while one
    has not come back, it may have them. Method: workers know of decided steps."""
    bench = Bench(2, replicas)
    if is_known:
        bench.join(version=4)
        for node in (0, 1):
            bench.lead.lost(node)
            bench.lead.reconnected(node)
    bench.outbox.step = 4
    bench.greet()
    bench.lines()
    assert bench.says(0, wire.Standing, incarnation=2) == []
    assert bench.says(1, wire.Standing, incarnation=2) == ["End E511"]


def test_owners_that_differ_decide_nothing() -> None:
    """E7. Goal: of three the odd one is left out; of two the step is made again, and then the one
    that states something else than before; if neither does, the job ends."""
    bench = Bench(3, 3)
    bench.join()
    for node in range(3):
        bench.measure(node)
    bench.prepare(0)
    bench.prepare(1, OTHER)
    starts(bench.prepare(2), "parent-0: Adopt members=5", "parent-2: Adopt members=5")

    for again, expected in (
        (OTHER, "End E509"),
        (DIGEST, "parent-0,parent-1: Resolved step=1 version=1"),
        (b"x" * 16, "parent-0: Adopt members=1"),
    ):
        bench = Bench()
        bench.join()
        for attempt, second in ((1, OTHER), (2, again)):
            for node in range(2):
                bench.measure(node, attempt=attempt)
            bench.prepare(0, DIGEST, attempt)
            found = bench.prepare(1, second, attempt)
            if attempt == 1:
                starts(found, "parent-0: Adopt members=3", "parent-1: Adopt members=3")
                bench.welcome(0, 2)
                bench.welcome(1, 2)
        starts(found, expected)


def test_the_end_is_known_when_all_nodes_know_it() -> None:
    """Goal: a node that is started again as all ends, or is gone, keeps nobody."""
    bench = Bench()
    bench.join()
    starts(bench.core_says(wire.Leave), "parent-0,parent-1: Leave")
    left = {"verb": Verb.LEAVE, "attempt": 1}
    assert bench.says(0, wire.Received, **left) == []
    bench.says(1, wire.Rejoin, incarnation=2)
    again = {"attempt": 1, "loaded": True, "epoch": 1, "members": 3, "incarnation": 2}
    starts(bench.says(1, wire.Standing, **again), "parent-1: Adopt members=3")
    starts(bench.welcome(1, 1, incarnation=2), "parent-1: Leave")
    heard = bench.says(1, wire.Received, incarnation=2, **left)
    assert [each.partition(" ")[0] for each in heard] == ["core:"]


def test_a_node_that_lost_its_state_is_filled_while_the_others_go_on() -> None:
    """E4, E8. Goal: in each step more of its extents count, whose pages come from an owner; the
    others wait for it, and it counts once it has all pages, with the digests of the others."""
    bench = Bench(fill_rate_bytes_per_s=1.0)
    found = bench.fill()
    starts(found, "parent-0: Copy step=1 index=1", "core: Abort step=1 attempt=3")
    commit = {"step": 1, "parts": 1, "attempt": 3}
    starts(
        bench.core_says(wire.Commit, b"", **commit),
        "parent-0: Commit step=1 parts=1", "parent-1: Commit step=1 parts=1 held=1",
    )  # fmt: skip
    push = {"step": 1, "attempt": 3}
    assert bench.core_says(wire.Push, "g", index=1, **push)[0].startswith("parent-0,parent-1: Push")
    assert bench.core_says(wire.Push, "g", index=0, **push)[0].startswith("parent-0: Push")
    starts(bench.copied(1), "parent-1: Page step=1 index=1", "drop page-1")
    assert bench.copied(1) == ["drop page-1"]  # again
    found = bench.decide(2)
    starts(
        found, "parent-0,parent-1: Resolved", "parent-0: Copy step=2",
        "core: Decided step=1 attempt=3",
    )  # fmt: skip
    version = 2
    while not any("Adopt" in each for each in found):
        (chunk,) = asked(found)
        bench.copied(chunk, version)
        version += 1
        found = bench.decide(version)
    starts(
        found, f"parent-0,parent-1: Resolved step={version}",
        f"parent-0: Adopt step={version} members=3", f"parent-1: Adopt step={version} members=3",
        f"core: Decided step={version - 1}",
    )  # fmt: skip
    assert version == 1 + bench.chunks_count
    assert not any("filling" in each for each in found)


def test_a_node_that_says_nothing_while_it_is_filled_is_not_waited_for() -> None:
    """E8. Goal: one that is stopped, and stays connected, is asked, and given up when it has sent
    nothing for as long as a member may be gone; when it answers it is filled again."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    bench.fill()
    where = {"attempt": 3, "step": 1, "loaded": True, "epoch": 3, "incarnation": 2}
    due_ns = bench.outbox.now_ns + PATIENCE_NS // 2
    assert bench.lead.next_tick_ns() == due_ns
    bench.outbox.now_ns = due_ns
    bench.lead.tick()
    starts(bench.lines(), "parent-1: Hello")
    assert bench.says(1, wire.Standing, **where) == []
    for _ in range(2):
        due_ns += PATIENCE_NS // 2
        assert bench.lead.next_tick_ns() == due_ns
        bench.outbox.now_ns = due_ns
        bench.lead.tick()
        found = bench.lines()
    starts(found, "parent-0: Adopt step=1 members=1")
    assert bench.welcome(0, 4, step=1) == ["core: Abort step=1 attempt=4"]
    assert bench.says(1, wire.Standing, **where) == []
    bench.measure(0, attempt=4, step=1)
    starts(
        bench.prepare(0, attempt=4, version=2), "parent-0: Resolved step=2",
        "parent-0: Adopt step=2 members=1", "parent-1: Adopt step=2 members=1",
    )  # fmt: skip


def test_a_node_that_is_filled_is_sent_a_verdict_again() -> None:
    """E8. Goal: it does not ask for the verdict of a step that is skipped, as its sums may never be
    complete: one that was lost on the way comes when it says that it is there."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    bench.fill()
    bench.core_says(wire.Commit, step=1, attempt=3, parts=1, skip=True)
    assert "core: Verdict step=1 attempt=4" in "".join(bench.measure(0, attempt=3, step=1))
    where = {"attempt": 3, "step": 1, "loaded": True, "epoch": 3, "incarnation": 2}
    starts(bench.says(1, wire.Standing, **where), "parent-1: Verdict step=1 norms")


def test_a_node_that_was_filled_with_other_bits_never_counts() -> None:
    """E7, E8. Goal: it is told so, and the job goes on without it."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    found, version = bench.fill(), 1
    while not any("Refuse" in each for each in found):
        for chunk in asked(found):
            bench.copied(chunk, version)
        version += 1
        found = bench.decide(version, digest=OTHER)
    assert "differ between nodes 0 and 1, though node 1 was filled" in "".join(found)
    assert "is_left_out=True" in "".join(found)  # E510: any other error would end the job
    assert bench.lead.at.now.members == 1
    assert bench.lead.at.next is None


def test_what_a_node_said_before_its_connection_ended_does_not_bring_it_back() -> None:
    """E4. Goal: a node that was started again and is gone at once is left out after its patience,
    though what it said arrives only then."""
    bench = Bench()
    bench.join()
    bench.lead.lost(1)
    bench.lead.reconnected(1)
    bench.core_says(wire.Cancel, text="asked", attempt=1)
    bench.welcome(0, 2)
    bench.lead.lost(1)
    bench.lines()
    late = {"attempt": 1, "loaded": True, "epoch": 1, "members": 3, "incarnation": 2}
    assert bench.says(1, wire.Standing, **late) == []
    assert bench.welcome(1, 2, incarnation=2) == []
    bench.outbox.now_ns += PATIENCE_NS
    bench.lead.tick()
    starts([each for each in bench.lines() if "Adopt" in each], "parent-0: Adopt members=1")


def test_no_node_is_filled_before_there_are_weights() -> None:
    """E8. Goal: one that comes back while the first weights come in waits until they are decided,
    though another costs the attempt meanwhile."""
    bench = Bench(3, 3, fill_rate_bytes_per_s=1e9)
    bench.greet()
    for node in range(3):
        bench.says(node, wire.Standing)
    for node in range(3):
        bench.welcome(node, 1)
    bench.lose(2)
    for node in range(2):
        bench.welcome(node, 2)
    bench.reconnect(2, ends=False)
    assert bench.says(2, wire.Standing, incarnation=2) == []
    bench.says(1, wire.Rejoin, incarnation=2)
    bench.lines()
    found = bench.says(1, wire.Standing, incarnation=2, attempt=2, epoch=2, members=3)
    starts(found, "parent-0: Adopt members=3", "parent-1: Adopt members=3")
    bench.welcome(0, 3)
    bench.welcome(1, 3, incarnation=2)
    bench.prepare(0, attempt=3, version=0)
    found = bench.says(1, wire.Prepared, DIGEST * 3, attempt=3, version=0, incarnation=2)
    starts(
        found, "parent-0,parent-1: Resolved", "parent-0: Adopt members=3",
        "parent-1: Adopt members=3", "parent-2: Adopt members=3",
    )  # fmt: skip
    assert "filling=4" in found[3]


def test_a_node_that_is_filled_is_waited_for_in_each_attempt() -> None:
    """E8. Goal: what it had prepared under an attempt that was given up is not what it has now."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    found, version = bench.fill(), 1
    bench.outbox.now_ns += 10**9
    for chunk in asked(found):
        bench.copied(chunk, version)
    found = bench.decide(2)
    while chunks := asked(found):
        found = [line for chunk in chunks for line in bench.copied(chunk, 2)]
    bench.measure(0, attempt=3, step=2)
    bench.says(1, wire.Prepared, DIGEST * 2, attempt=3, version=3, incarnation=2)
    bench.outbox.attempt = 3
    bench.says(0, wire.Rejoin, incarnation=2)
    bench.lines()
    found = bench.says(
        0, wire.Standing, attempt=3, epoch=2, members=1, step=2, loaded=True, decided_attempt=3,
        incarnation=2,
    )  # fmt: skip
    starts(found, "parent-0: Adopt step=2", "parent-1: Adopt step=2")
    assert "filling=3" in found[1]
    bench.welcome(0, 4, incarnation=2, step=2)
    bench.welcome(1, 4, incarnation=2, step=2)
    ready = {"attempt": 4, "version": 3, "incarnation": 2}
    assert bench.says(0, wire.Prepared, DIGEST * 2, **ready) == []
    starts(
        bench.says(1, wire.Prepared, DIGEST * 2, **ready), "parent-0,parent-1: Resolved step=3",
        "parent-0: Adopt step=3 members=3", "parent-1: Adopt step=3 members=3",
    )  # fmt: skip


def test_a_node_is_filled_anew_if_the_others_come_back_older() -> None:
    """E2, E8. Goal: what it has by now is of a version that is made again."""
    bench = Bench(fill_rate_bytes_per_s=1e9)
    bench.fill()
    bench.decide(2)
    bench.says(0, wire.Rejoin, incarnation=2)
    bench.lines()
    older = {"attempt": 3, "epoch": 2, "members": 1, "step": 1, "decided_attempt": 2}
    found = bench.says(0, wire.Standing, loaded=True, incarnation=2, **older)
    starts(found, "parent-0: Adopt step=1 members=1", "parent-1: Adopt step=1 members=1")
    assert "filling=4" in found[1]


def test_a_node_is_not_asked_for_what_it_has_not() -> None:
    """E4. Goal: an attempt that is given up while one node has come back empty, and another is
    gone, asks neither; who has the state is asked when it is back, and goes on alone."""
    bench = Bench()
    bench.join()
    for node in (0, 1):
        bench.lead.lost(node)
    bench.reconnect(0, ends=False)
    assert bench.says(0, wire.Standing, incarnation=2) == []
    assert bench.core_says(wire.Cancel, text="asked", attempt=1) == []
    bench.reconnect(1, ends=False)
    where = {"attempt": 1, "loaded": True, "epoch": 1, "members": 3, "incarnation": 2}
    starts(bench.says(1, wire.Standing, **where), "parent-1: Adopt members=2")
