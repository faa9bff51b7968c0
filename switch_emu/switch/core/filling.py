"""A node that does not count is filled with the pages of the others while they go on. Pure.

    it has sent its position         it waits until the open step is decided
    an attempt is proposed with it   it empties its store (`wire.Adopt.filling`)
    a step is open at all nodes      Copy to an owner of each page that counts from now on
    Page, from that owner            the same to the node
    Received, from the node          the page is there

Meanwhile it receives the sums of the extents that count, updates them, and decides with the others,
which wait for it; but it states nothing, serves nothing, and if it is lost the others go on at
once, or if it is silent for too long. With all pages, and digests as theirs, it counts from the
next epoch on.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from luwu.base.retry import RetryPolicy
from luwu.layout import Share
from luwu.protocol.actions import Send
from luwu.protocol.epoch import nodes_of
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Outstanding, earliest
from luwu.wire import messages as wire
from luwu.wire.description import Description
from switch_emu.switch.core.ballot import Ballot
from switch_emu.switch.core.parents import FilledNode, Parents
from switch_emu.switch.core.refusals import Refusals
from switch_emu.switch.core.standings import Position, Standings, Version

PAGES_MAX: Final = 4
"""Pages under way at a time."""


class Filling:
    """See the module. `bytes_per_s`: pages that are copied at most; None: nothing is filled."""

    def __init__(
        self, outbox: Outbox, parents: Parents, at: Standings, ballot: Ballot, refusals: Refusals,
        bytes_per_s: float | None, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        self._outbox, self._parents, self._at, self._ballot = outbox, parents, at, ballot
        self._refusals, self._bytes_per_s = refusals, bytes_per_s
        self._job: Description | None = None
        self.waiting: set[int] = set()
        """Nodes that do not count, and have sent their position."""
        self.node: FilledNode | None = None
        """That which is being filled."""
        self._pages: set[int] = set()
        """Chunks whose pages it has."""
        self._step = self._generation = 0
        """The step that is open at all nodes."""
        self._opened_ns = self._took_ns = 0
        """When it was opened; from the one before until then."""
        self._wanted: deque[int] = deque()
        """Chunks whose pages are to be asked for."""
        self._asked: Outstanding[Send] = Outstanding(retry)
        self._prepared_version, self._digests = -1, b""

    def learn(self, job: Description) -> None:
        """The job is known."""
        self._job = job

    @property
    def is_on(self) -> bool:
        """True if nodes are filled."""
        return self._bytes_per_s is not None

    # ---------------------------------------------------------------------- which node

    def came(self, number: int) -> None:
        """A node that does not count has sent its position."""
        if number not in self.waiting:
            self.waiting.add(number)
            self._outbox.note("switch.returned", node=number, step=self._at.now.step)

    def choose(self, members: int, attempt: int, version: Version) -> int:
        """Bitmap of the node that is filled in an attempt, which begins with this version. If it is
        that of the attempt before, or was decided under it, what the node has by now counts."""
        rest = [number for number in sorted(self.waiting) if not members >> number & 1]
        if self.node is not None and not members & self._bit:
            known = self._at.nodes[self.node.number]
            goes_on = version == self._at.latest.version
            if goes_on and not known.is_away and known.standing is None:  # it has what it was sent
                self._prepared_version = -1  # that is of the attempt before
                return self._bit
            rest = rest if known.is_away else [self.node.number]
        self._end()
        if rest and self._job is not None and version.number >= 0:  # else there are no pages
            self._begin(rest[0], attempt, version.number)
        return self._bit

    def _begin(self, number: int, filling: int, first_step: int) -> None:
        assert self._job is not None
        assert self._bytes_per_s is not None
        now_ns = self._outbox.now_ns
        # Either a step was opened just now, and the one before took `_took_ns`; or a step has ended
        # just now, which was opened at `_opened_ns`.
        since_ns = min(now_ns - self._took_ns, self._opened_ns or now_ns)
        self.waiting.discard(number)
        self.node = FilledNode(
            self._outbox, Share(self._job.layout, number, self._parents.replicas), filling,
            first_step=first_step, job=self._job,
            bytes_per_s=self._bytes_per_s, since_ns=since_ns,
        )  # fmt: skip

    def _end(self) -> None:
        """None is being filled any more."""
        self.node = None
        self._pages.clear()
        self._asked.clear()
        self._prepared_version, self._digests = -1, b""

    @property
    def _bit(self) -> int:
        return 0 if self.node is None else 1 << self.node.number

    @property
    def gone(self) -> int:
        """Bitmap of the node that is being filled, if it is gone, or was started again."""
        position = self._at.latest
        if self.node is None or not position.filled:
            return 0
        known = self._at.nodes[self.node.number]
        is_new = self.node.filling == position.attempt and position is self._at.next
        # One that has not begun may say where it stands; later that is another start of it.
        is_gone = known.is_away or (known.standing is not None and not is_new)
        return position.filled if is_gone else 0

    def completed(self) -> int:
        """E8: bitmap of the node that has been filled, if a version has just been decided of which
        it has all pages, as the others have them."""
        if self.node is None or len(self._pages) < len(self.node.chunks):
            return 0
        number = self.node.number
        stated = {n: self._ballot.digests_of(n) or b"" for n in nodes_of(self._at.now.members)}
        found = self._ballot.difference_of({**stated, number: self._digests})
        if found is None:
            return self._bit
        text = f"{found}, though node {number} was filled from the others"
        self._outbox.note("switch.differ", level="ERROR", step=self._at.now.step, text=text)
        advice = "check its memory and disk, and start it again"
        self._refusals.refuse(number, f"{text}; {advice}", is_left_out=True)
        return 0

    def report(self, former: Position | None, text: str) -> None:
        """Note what has changed with the attempt that counts now; `text`: why it does."""
        now, every = self._at.now, (1 << self._parents.count) - 1
        missing, members = nodes_of(every & ~now.members), nodes_of(now.members)
        before = every if former is None else former.members
        if before & ~now.members:
            self._outbox.note(
                "switch.degraded", level="WARNING", epoch=now.epoch, step=now.step,
                left_out=[*missing], members=[*members], text=text,
            )  # fmt: skip
        if self.node is not None and self.node.filling == now.attempt:
            self._outbox.note(
                "switch.filling", node=self.node.number, step=now.step, bytes=self.node.state_bytes
            )
        for number in nodes_of(now.members & ~before):
            self._outbox.note(
                "switch.filled", node=number, epoch=now.epoch, step=now.step, left_out=[*missing]
            )

    # ---------------------------------------------------------------------- its pages

    def opens(self, step: int, generation: int) -> None:
        """A step is open at all nodes: pages are copied as its version has them."""
        self._took_ns = self._outbox.now_ns - self._opened_ns if self._opened_ns else 0
        self._opened_ns = self._outbox.now_ns
        if self.node is not None:
            self._step, self._generation = step, generation
            self._asked.clear()
            self._wanted = deque(c for c in self.node.held_chunks(step) if c not in self._pages)
            self._ask()

    def page(self, _: int, m: wire.Page, payload: Any) -> None:
        """A page came, from the node that was asked for it."""
        # One that was asked for in an older step is of an older version.
        if self.node is not None and m.index in self._asked and m.step == self._step:
            page = self._outbox.stamped(
                wire.Page, step=m.step, index=m.index, part=0, generation=self._generation
            )
            name = self._parents.names[self.node.number]
            self._outbox.actions.append(Send((name,), page, payload))
        self._outbox.drop(payload)

    def received(self, m: wire.Received) -> None:
        """The node has a page; or had, in a filling that is over."""
        is_of_this = self.node is not None and m.attempt >= self.node.filling
        if is_of_this and self._asked.pop(m.index) is not None:
            self._pages.add(m.index)
            self._ask()

    def prepared(self, version: int, digests: bytes) -> None:
        """The node is prepared, as far as its pages go."""
        self._prepared_version, self._digests = version, digests

    def is_prepared(self, version: int) -> bool:
        """True if no node that is being filled must still prepare a version."""
        return self.node is None or self._prepared_version == version

    def _ask(self) -> None:
        while self._wanted and len(self._asked) < PAGES_MAX:
            chunk = self._wanted.popleft()
            copy = self._outbox.stamped(
                wire.Copy, step=self._step, index=chunk, part=0, generation=self._generation
            )
            send = Send((self._parents.names[self._parents.holder(chunk)],), copy)
            self._asked.add(chunk, send, self._outbox.now_ns)
            self._outbox.actions.append(send)

    # ---------------------------------------------------------------------- time

    def hurry(self) -> None:
        """A connection is back: what was asked for on it is lost."""
        self._asked.hurry(self._outbox.now_ns)

    def tick(self) -> int:
        """Ask again where no answer came; how often."""
        due = self._asked.due(self._outbox.now_ns)
        self._outbox.actions.extend(due)
        return len(due)

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do, or the node is silent for too long."""
        silent, due_ns = self.silent(), self._asked.next_due_ns()
        if silent is None:
            return due_ns
        _, ask_ns, end_ns = silent
        return earliest(due_ns, ask_ns if self._outbox.now_ns < ask_ns else end_ns)

    def silent(self) -> tuple[int, int, int] | None:
        """The number of the node, when it is asked whether it is there, and when it is given up, if
        it sends nothing until then; None: none is being filled, or it is gone already."""
        after_ns = self._at.drop_node_after_ns
        known = None if self.node is None else self._at.nodes[self.node.number]
        # One that is away is reported by its connection; without a time nodes are waited for.
        if self.node is None or known is None or known.is_away or after_ns is None:
            return None
        return self.node.number, known.heard_ns + after_ns // 2, known.heard_ns + after_ns
