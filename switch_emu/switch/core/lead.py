"""The root switch leads several optimizer nodes: attempts, verdicts, decisions, and who counts.

No node is special. To the rest of the core they look like one parent; this part asks for their
positions, proposes what counts, and answers the core in their name. See `node/core/deciding.py`.

    greeting -> proposed    `_propose`   enough have sent their position (E3): `at.next` is set
    proposed -> settled     `_install`   all that it names have taken it over (E1): `at.is_settled`
    proposed -> proposed    `_propose`   one of them is lost, or cannot take it over
    settled  -> judged      `_judge`     all members have measured the open step: `_verdict` is set
    judged   -> settled     `_decide`    all members have prepared it (E2)
    settled  -> proposed    `_propose`   an abort, other ranks; a member that is lost, or is back
    judged   -> proposed    `_propose`   such a member; an abort waits until the step is decided

    nodes send            this part
    Standing              all members of the newest epoch have: it proposes the next (`Adopt`)
    Welcome               all members have: the epoch and the attempt count; the core goes on
    Measured              all members have: the verdict, to the nodes and to the core
    Prepared              all members have: the version is decided (`Resolved`)
    Decided               all members have: the core announces it

Who may decide:

    E1  An epoch (its number, its members, and the switch that leads it) and an attempt are durable
        at every member before anything is stated or decided under them.
    E2  A version is decided once every member has it prepared. That can be read from their disks,
        so no disk is the log of decisions, and no node is special. A version is its number and the
        attempt under which it was made: one that was made again is another. A node that has only
        the former, as of an older copy, is not at this version, and decides nothing of it.
    E3  A node that has answered a switch answers no older start of one, after a crash too. A switch
        proposes its first epoch only after all members of the newest recorded one have answered,
        or of each, if two switches proposed one of its number; of three or more, most are enough.
        Later ones may leave out up to half of its members. So two switches never lead different
        parts of one job. An operator who overrules that (`luwu refill --without`) begins epochs
        that are far beyond: nodes that do not know of these are not followed.
    E4  A member that is lost is left out by an epoch that the others record. It hears nothing of
        the later one, so it prepares nothing; when it comes back it is filled as if it were empty.
    E5  A version that all members of a new epoch have prepared, under one attempt and with no
        later one known, is decided with the epoch; once that is proposed, the switch does not go
        back. Otherwise its step is made again.
    E6  If too few members answer, or those that do lack a page, the job waits for the others. It
        ends if all have answered, and some pages are at none, or too few are at one version.
    E7  Owners of a page that state different sums or digests of it decide nothing: the odd one of
        three is left out; of two, the one that states something else when the step is made again.
    E8  A node that is being filled (`filling.py`) is no member: it is asked for no vote and serves
        nothing. It is one from the epoch on that follows a version of which it has all pages, with
        the digests of the other owners. If it is lost, or says nothing for as long as a member
        may be gone, the others go on without it.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from luwu.base.errors import RemoteProtocolError
from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import PARENT, Send
from luwu.protocol.children import Children, refusal_text
from luwu.protocol.counted_ranks import CountedRanks
from luwu.protocol.epoch import change_text, nodes_of, nodes_text
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Outstanding, earliest
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.hyper import stated_hyper
from luwu.wire.messages import Verb
from luwu.wire.norms import parse_all
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.ballot import Ballot, Difference
from switch_emu.switch.core.filling import Filling
from switch_emu.switch.core.parents import Parents
from switch_emu.switch.core.readers import JointReaders, ReaderRoutes
from switch_emu.switch.core.refusals import Refusals
from switch_emu.switch.core.standings import Position, Standings, Version


class Lead:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, parents: Parents, routes: ReaderRoutes,
        limits: SwitchLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        self._outbox, self._children, self._parents = outbox, children, parents
        self._ballot = Ballot(parents.count, parents.replicas)
        after_ns, rate = limits.drop_node_after_ns, limits.fill_rate_bytes_per_s
        self.at = Standings(outbox, children, self._ballot, parents.count, after_ns)
        self._readers = readers = JointReaders(outbox, parents, self.at, routes)
        self._refusals = Refusals(outbox, parents)
        self._filling = Filling(outbox, parents, self.at, self._ballot, self._refusals, rate, retry)
        self._text = ""
        """Why an epoch or an attempt is proposed."""
        self._counted = CountedRanks(
            outbox, children.members.ranks, limits.workers_min, grows=limits.workers_max is not None
        )
        self._verdict: wire.Verdict | None = None
        """Of the open step."""
        self._abort_text: str | None = None
        """An abort that waits for the open step to be decided."""
        self._suspected: dict[int, Difference] = {}
        """Step -> how owners differed when it was made before."""
        self._skips, self._hyper = False, stated_hyper(None)
        """Of the open step: a rank wants it left out; its hyper-parameters."""
        self._norm_type = 2.0
        self._hello: tuple[wire.Hello, Any] | None = None
        """The core's last, and the job's description."""
        self._awaits_welcome = False
        """The core has sent Hello and was not welcomed yet."""
        self._leave: wire.Leave | None = None
        """All children have left."""
        self._left = 0
        """Bitmap of the nodes that know."""
        self._asked: Outstanding[Send] = Outstanding(retry)
        self._inbound: list[wire.Message] = []
        self._handlers: dict[type[wire.Message], Callable[[int, Any, Any], None]] = {
            wire.Standing: self._stands, wire.Welcome: self._takes_over, wire.Cancel: self._cancels,
            wire.Measured: self._measured, wire.Prepared: self._prepared,
            wire.Decided: self._decided, wire.Rejoin: self._rejoins, wire.Received: self._received,
            wire.Page: self._filling.page, wire.Opened: readers.opened,
            wire.Content: readers.content, wire.Gone: readers.gone,
        }  # fmt: skip
        self.repeated_count = 0
        """Messages that were repeated because no answer came in time."""

    def learn(self, job: Description) -> None:
        """The job is known: nothing is stated of a step before."""
        self._norm_type = job.norm_type
        self._parents.learn(job.layout)
        self._filling.learn(job)

    # ---------------------------------------------------------------------- from and to the core

    def routed(self, actions: Sequence[Any]) -> list[Any]:
        """The same actions, with the nodes that a message concerns in place of the parent."""
        found: list[Any] = []
        for action in actions:
            is_up = isinstance(action, Send) and action.peers == (PARENT,)
            found += self._sent(action) if is_up else [action]
        return found

    def take_inbound(self) -> list[wire.Message]:
        """Messages that the core receives in the name of the nodes."""
        taken, self._inbound = self._inbound, []
        return taken

    def _sent(self, send: Send) -> list[Send]:
        m = send.message
        match m:
            case wire.Hello():
                self._greets(m, send.payload)
                return []
            case wire.Present():
                self._counted.report(m.contributors, (m.incarnation, m.roll))
                self._inbound.append(self._outbox.receipt(m, Verb.PRESENT, m.contributors))
                self._recount()
                return []
            case wire.Cancel():
                if m.attempt == self.at.now.attempt:
                    self._request_abort(m.text, lost=m.lost)
                return []
            case wire.Open() | wire.Read() | wire.Shut():
                self._readers.asked(m)
                return []
            case wire.Leave():
                self._leave = m
            case wire.Commit() if m.parts and m.step == self.at.now.step:
                self._skips, self._hyper = m.skip, stated_hyper(send.payload)
        return self._parents.sends(m, send.payload)

    # ---------------------------------------------------------------------- connections and time

    def reconnected(self, number: int) -> None:
        """A connection is there, or there again."""
        self._away(number)
        self.at.connected(number)
        self._greet(number, again=True)

    def lost(self, number: int) -> None:
        """A connection has ended."""
        self._away(number)
        self.at.disconnected(number)
        self._greet(number)

    def _away(self, number: int) -> None:
        """The position of a node is not known now; the others do not wait for one that is being
        filled."""
        self.at.away(number)
        self._asked.pop(("adopt", number))
        self._filling.waiting.discard(number)
        if self.at.is_installed and self.at.latest.filled >> number & 1:
            self._consider()

    def tick(self) -> None:
        """Repeat what is due; go on without nodes that are gone for too long."""
        due = self._asked.due(self._outbox.now_ns)
        self.repeated_count += len(due) + self._filling.tick()
        self._outbox.actions.extend(due)
        self._look_after_filled()
        if self.at.lost:
            self._consider()

    def _look_after_filled(self) -> None:
        """E8: a node that says nothing as it is being filled is asked, and then not waited for."""
        silent = self._filling.silent()
        if silent is None:
            return
        number, ask_ns, end_ns = silent
        key = ("hello", number)
        if self._outbox.now_ns >= end_ns:
            self._away(number)
            self._greet(number)
        # Before the first child has joined there is no Hello to ask with.
        elif self._outbox.now_ns >= ask_ns and self._hello is not None and key not in self._asked:
            self._ask(key, number, *self._hello)

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        filling_ns = self._filling.next_tick_ns()
        return earliest(self._asked.next_due_ns(), self.at.next_lost_ns(), filling_ns)

    def waits_for(self) -> str:
        """The nodes that are waited for, as text; or nothing."""
        everyone = self.at.latest.everyone
        away = sum(1 << n for n in nodes_of(everyone) if not self.at.nodes[n].is_adopted)
        return f"optimizer {nodes_text(away)}" if away else ""

    # ---------------------------------------------------------------------- where nodes stand

    def received(self, number: int, m: wire.Message, payload: Any) -> list[wire.Message]:
        """The messages that the core receives once a node has sent this one."""
        if m.incarnation < self.at.nodes[number].incarnation:
            self._outbox.ignore(m, payload)  # of a start that has a successor
            return []
        self.at.nodes[number].heard_ns = self._outbox.now_ns
        handler = self._handlers.get(type(m))
        if handler is None:
            return self._parents.received(number, m)
        handler(number, m, payload)
        return self.take_inbound()

    def _greets(self, m: wire.Hello, description: Any) -> None:
        """The core asks to join."""
        self._hello, self._awaits_welcome = (m, description), True
        self._counted.report(m.present, (m.incarnation, m.roll))
        if any(member.known[0] for member in self._children.members.all_members):
            self._counted.run_goes_on()
        for number, node in enumerate(self.at.nodes):
            if not (self.at.is_installed and node.is_adopted):
                self._greet(number)
        self._welcome_core()

    def _greet(self, number: int, *, again: bool = False) -> None:
        if self._hello is None:
            return
        node, key = self.at.nodes[number], ("hello", number)
        if node.absent_ns is None and node.incarnation < 0:
            node.absent_ns = self._outbox.now_ns
        if node.standing is None and (again or key not in self._asked):
            self._ask(key, number, *self._hello)  # what went by the former connection is lost

    def _rejoins(self, number: int, m: wire.Rejoin, _: Any) -> None:
        """A node does not know this switch: it was started again."""
        self._away(number)
        self._greet(number)

    def _stands(self, number: int, m: wire.Standing, digests: bytes | None) -> None:
        """A node sends its position."""
        node, bit, filled = self.at.nodes[number], 1 << number, self._filling.node
        if node.is_cut:
            return  # it is late; which start of the node it was is to be said again
        self._asked.pop(("hello", number))
        is_same, node.incarnation = node.incarnation == m.incarnation, m.incarnation
        if is_same and not node.is_away:  # it was said before, or says that it is there
            if filled and filled.number == number:
                self._repeat_verdict(number, m.step)
            return
        if self.at.are_given_up(m.epoch):
            self._refusals.end_as_given_up(number, self.at.latest.members)
            return
        node.is_away, node.absent_ns = False, None
        if self.at.is_installed and not (self.at.now.everyone | self.at.latest.everyone) & bit:
            if not self._filling.is_on or self._leave is not None:
                self._refusals.leave_out(number, self.at.now)
                return
            self._filling.came(number)
            node.standing, node.digests = m, b""
            self._consider()
            return
        is_late, was_in = self.at.was_before(number, m), node.adopted_as == m.incarnation
        if was_in and self.at.next is None and (is_late or self._follows(m)):
            node.is_adopted = True  # only the connection was lost
            self._filling.hurry()
            self._repeat_verdict(number, self.at.now.step)
            self._welcome_core()
            self._consider()  # another may have been started again meanwhile
            return
        node.standing, node.digests = None if is_late else m, digests or b""
        self._consider()

    def _follows(self, m: wire.Standing) -> bool:
        """True if a node is in the attempt that counts, or in that before a step was skipped."""
        verdict, now = self._verdict, self.at.now
        is_skip = verdict is not None and not verdict.applied
        attempts = (now.attempt - 1, now.attempt) if is_skip else (now.attempt,)
        return m.generation == now.generation and m.attempt in attempts

    def _takes_over(self, number: int, m: wire.Welcome, _: Any) -> None:
        """A node has taken an attempt over."""
        wanted = self.at.latest
        if (m.generation, m.attempt) != (wanted.generation, wanted.attempt):
            return
        node = self.at.nodes[number]
        if node.is_cut or not wanted.everyone >> number & 1:
            return
        self._asked.pop(("adopt", number))
        node.is_adopted, node.standing, node.window_bytes = True, None, m.push_window_bytes
        node.is_away, node.adopted_as = False, m.incarnation
        if self.at.next is None:
            if self._leave is not None:
                self._send(number, self._leave)
        elif all(self.at.nodes[each].is_adopted for each in nodes_of(wanted.everyone)):
            self._install()
        else:
            self._consider()

    # ---------------------------------------------------------------------- what is to count

    def _consider(self) -> None:
        """Propose what is to count, if what the nodes have stated, or who is gone, asks for it."""
        if self._hello is None:
            return
        if self._leave is not None and self.at.is_settled:
            self._consider_leaving()
        elif self.at.is_installed:
            self._consider_members()
        else:
            self._consider_first()

    def _consider_first(self) -> None:
        """E3: all members of the newest epoch must have answered; of three or more, most. Only
        those that have recorded it say from which version on."""
        answered, missing = self.at.answered()
        if not answered:
            return  # E6
        version, doubts = self.at.first_version(answered)
        if self.at.can_take_over(answered, missing):
            self._ask_to_adopt()
        else:
            is_again = any(node.standing and node.standing.epoch for node in self.at.nodes)
            usual = "the switch was started again" if is_again else "the job begins"
            reasons = [text for text in (change_text(lost=missing), doubts) if text]
            self._go_on_with(answered, version, "; ".join(reasons) or usual)

    def _consider_members(self) -> None:
        """Members are gone for too long, or were started again."""
        wanted, members = self.at.next, self.at.latest.members
        lost = members & self.at.lost
        back = sum(1 << n for n in nodes_of(members) if self.at.nodes[n].standing is not None)
        gone = self._filling.gone
        if wanted is not None and not lost | gone and self.at.are_at(back, wanted.version):
            self._ask_to_adopt()  # all that it names can take it over: it is not proposed anew
            return
        if not lost | back | gone:
            if self._filling.waiting and not self.at.now.filled:
                # From the next step on: the open one need not be made again.
                self._abort_text = f"optimizer node {min(self._filling.waiting)} is to be filled"
            return
        rest = members & ~lost
        is_known = not any(self.at.nodes[number].is_away for number in nodes_of(rest))
        version = self.at.version_without(lost, rest, back)
        if not is_known or version is None or not self._are_enough(rest):
            return  # E3, E6
        self._go_on_with(rest, version, change_text(lost=lost | gone, back=back))

    def _are_enough(self, members: int) -> bool:
        """E3: at least half of the nodes that count."""
        return 2 * members.bit_count() >= self.at.now.members.bit_count()

    def _consider_leaving(self) -> None:
        """Nothing is open any more: who was started again only has to know that all have left."""
        position = self.at.now
        for number in nodes_of(position.members):
            node = self.at.nodes[number]
            if node.standing is not None and self.at.are_at(1 << number, position.version):
                self._ask(("adopt", number), number, self._adoption(position, number))
        self._end_if_left()

    def _go_on_with(self, members: int, version: Version, text: str) -> None:
        """Propose the nodes among `members` that are at a version, if together they have all."""
        fit = sum(1 << n for n in nodes_of(members) if self.at.are_at(1 << n, version))
        announced = [member.known[2] for member in self._children.members.all_members]
        known = max([self._outbox.step, *announced])
        is_few = self.at.is_installed and not self._are_enough(fit)  # E3
        if version.number < 0 < known or is_few or not self._parents.covers(fit):
            versions = {n: self.at.version_of(n).number for n in nodes_of(members)}
            held = sum(1 << n for n in versions if versions[n] >= 0)
            if self._parents.covers(held):
                self._refusals.refuse_all(versions)
            elif members == (self.at.now.members if self.at.is_installed else self.at.recorded):
                self._refusals.end_without_pages(held)
            return  # E6: who is gone has what is missing
        if max(0, self.at.finished(fit, version).number) < known:
            refusal = refusal_text(max(0, version.number), known)
            for number in nodes_of(members):
                self._refusals.refuse(number, refusal, is_older=True)
            self._inbound.append(self._outbox.stamped(wire.Refuse, text=refusal, is_older=True))
            return
        self._propose(fit, version, text)

    def _propose(self, members: int, before: Version, text: str) -> None:
        """Ask nodes to record an epoch and an attempt, later than all that anybody knows."""
        assert self._parents.covers(members), "E6: some pages are at none of them"
        assert not self.at.is_installed or self._are_enough(members), "E3"
        version = self.at.finished(members, before)  # E5
        if version.number >= 0:
            self._counted.change()
        epoch, generation, attempt = self.at.newest()
        last = self.at.latest  # some may have recorded what is proposed
        # The epoch grows where nodes or ranks are others than in the last one.
        is_other = (
            not self.at.is_installed
            or (epoch, members) != (last.epoch, last.members)
            or self._counted.wanted != self._children.members.active
        )
        self.at.next = Position(
            epoch=epoch + is_other, members=members, version=version,
            generation=generation, attempt=attempt + 1,
            filled=self._filling.choose(members, attempt + 1, version),
        )  # fmt: skip
        self._text = text
        self._readers.pause()
        self._ballot.clear()
        self._asked.clear(lambda key: isinstance(key, tuple) and key[0] == "hello")
        for number in nodes_of(self.at.next.everyone):
            self.at.nodes[number].is_adopted = False
            self.at.nodes[number].heard_ns = self._outbox.now_ns
        self._ask_to_adopt()

    def _ask_to_adopt(self) -> None:
        """Ask those that are there, and can: the others send their position first."""
        position = self.at.next
        assert position is not None
        for number in nodes_of(position.everyone):
            node, bit = self.at.nodes[number], 1 << number
            node.is_adopted = node.is_adopted and node.standing is None
            can = bit & position.filled or self.at.are_at(bit, position.version)
            # One at another version would end itself: it says first where it stands.
            if not (node.is_adopted or node.is_away or ("adopt", number) in self._asked) and can:
                self._ask(("adopt", number), number, self._adoption(position, number))

    def _adoption(self, position: Position, number: int) -> wire.Adopt:
        filled = self._filling.node
        return self._outbox.stamped(
            wire.Adopt, epoch=position.epoch, step=position.step, attempt=position.attempt,
            generation=position.generation, members=position.members,
            contributors=self._counted.wanted, loaded=position.version.number >= 0,
            decided_attempt=position.version.attempt, text=self._text[:900],
            filling=0 if filled is None or filled.number != number else filled.filling,
        )  # fmt: skip

    def _install(self) -> None:
        """E1: all members have recorded it. From now on it counts."""
        assert self.at.next is not None
        former, self.at.now, self.at.next = self.at.now, self.at.next, None
        position, was_installed = self.at.now, self.at.is_installed
        self.at.is_installed = True
        self._ballot.members = position.members
        # First: what is sent from here on goes to the nodes that count now.
        self._parents.count_only(position.members, self._filling.node)
        self._filling.opens(position.step, position.generation)
        self._readers.resume(position)
        self._verdict, self._abort_text, self._left = None, None, 0
        self._skips, self._hyper = False, stated_hyper(None)
        missing = ((1 << self._parents.count) - 1) & ~position.members
        self._filling.report(former if was_installed else None, self._text)
        for number in nodes_of(missing & ~position.filled):
            if self.at.nodes[number].standing is not None and self._filling.is_on:
                self._filling.came(number)
            elif not self.at.nodes[number].is_away:
                self._refusals.leave_out(number, self.at.now)
        if not self._awaits_welcome:
            self._inbound.append(self._announced(wire.Abort, text=self._text))
        self._welcome_core()
        self._recount()
        self._consider()

    def _welcome_core(self) -> None:
        """Welcome the core, if it waits for that and all members are where it is to go on."""
        nodes = [self.at.nodes[number] for number in nodes_of(self.at.now.everyone)]
        is_due = self._awaits_welcome and self.at.is_settled
        if is_due and all(node.is_adopted for node in nodes):
            self._awaits_welcome = False
            window_bytes = min(node.window_bytes for node in nodes)
            self._inbound.append(self._announced(wire.Welcome, push_window_bytes=window_bytes))

    def _announced(self, kind: Any, **fields: Any) -> Any:
        position = self.at.now
        return self._outbox.stamped(
            kind, epoch=position.epoch, step=position.step, attempt=position.attempt,
            generation=position.generation, loaded=position.version.number >= 0,
            contributors=self._counted.wanted, **fields,
        )  # fmt: skip

    # ---------------------------------------------------------------------- the open step

    def _is_of_now(self, number: int, m: wire.Message) -> bool:
        """True if a node states something of the attempt that counts."""
        position = self.at.now
        is_in = self.at.is_settled and position.everyone >> number & 1
        return bool(is_in) and (m.generation, m.attempt) == (position.generation, position.attempt)

    def _measured(self, number: int, m: wire.Measured, payload: bytes | None) -> None:
        """The sums of a node are complete."""
        if self._repeat_verdict(number, m.step) or self.at.now.filled >> number & 1:
            return  # E8
        if m.step == self.at.now.step and self._is_of_now(number, m):
            try:
                squares = parse_all(payload, self._parents.replicas)
            except RemoteProtocolError as exc:
                self._outbox.note("switch.misfit", level="WARNING", node=number, text=str(exc))
                return
            self._ballot.measured(number, squares)
            self._judge(m.step)

    def _repeat_verdict(self, number: int, step: int) -> bool:
        """Send a node the verdict of a step, which may have been lost; False if there is none."""
        verdict = self._verdict
        # While an attempt is proposed the verdict of the one before may be void.
        if verdict is None or verdict.step != step or self.at.next is not None:
            return False
        self._send(number, verdict)
        return True

    def _judge(self, step: int) -> None:
        """All nodes have measured the open step: it is applied if its norm is finite."""
        norms = self._ballot.norms(self._norm_type, self._hyper.all_clips(self._norm_type))
        if norms is None or self._differs(self._ballot.differing_gradients()):
            return
        applied = math.isfinite(norms[0]) and not self._skips
        if not applied:
            self.at.now = replace(self.at.now, attempt=self.at.now.attempt + 1)
        verdict = self._outbox.stamped(
            wire.Verdict, step=step, applied=applied, norms=norms, attempt=self.at.now.attempt,
            generation=self.at.now.generation,
        )  # fmt: skip
        self._verdict = verdict
        self._send_members(verdict)
        self._inbound.append(verdict)

    def _prepared(self, number: int, m: wire.Prepared, digests: bytes | None) -> None:
        """A version is durable at a node."""
        version = self.at.now.version.number
        if m.version <= version and self.at.next is None:
            self._send(number, self._resolved())
        elif m.version == version + 1 and self._is_of_now(number, m):
            if self.at.now.filled >> number & 1:
                self._filling.prepared(m.version, digests or b"")
            else:
                self._ballot.prepared(number, digests or b"")
            self.at.nodes[number].prepared_as = m.incarnation
            are_ready = self._ballot.is_prepared and self._filling.is_prepared(m.version)
            if are_ready and not self._differs(self._ballot.differing_pages()):
                self._decide()

    def _decide(self) -> None:
        """E2: all members have the next version prepared."""
        assert self.at.is_settled, "E1: what is proposed decides nothing"
        assert self._ballot.is_prepared, "E2"
        assert self._ballot.differing_pages() is None, "E7"
        version = Version(self.at.now.version.number + 1, self.at.now.attempt)
        self.at.now = replace(self.at.now, version=version)
        whole = self._filling.completed()  # by digests that the ballot forgets
        self._ballot.clear()
        self._verdict, self._skips, self._hyper = None, False, stated_hyper(None)
        self._suspected.clear()
        self._readers.pause()  # until all say Decided: some hold the next version before others
        self._send_members(self._resolved())
        if whole:
            text = f"optimizer {nodes_text(whole)} has been filled"
            self._propose(self.at.now.members | whole, version, text)
        elif self._abort_text is not None:
            self._propose(self.at.now.members, version, self._abort_text)
        else:
            if version.number == 0:  # of which no node says Decided
                self._readers.resume(self.at.now)
            self._recount()

    def _resolved(self) -> wire.Resolved:
        position = self.at.now
        return self._outbox.stamped(
            wire.Resolved, version=position.version.number, step=position.step,
            attempt=position.attempt, generation=position.generation,
        )  # fmt: skip

    def _decided(self, number: int, m: wire.Decided, _: Any) -> None:
        """A version is decided at a node."""
        nodes = self._parents.taking_part(m.step)
        found = self._parents.when_all(number, m, nodes, wire.Decided) if number in nodes else []
        self._inbound += found
        self._parents.forget(m.step)
        # Not of an older step, nor if all is to be taken over anew: then `_install` opens it.
        if found and m.step + 1 == self.at.now.step and self.at.next is None:
            self._filling.opens(m.step + 1, self.at.now.generation)
            self._readers.resume(self.at.now)

    def _differs(self, found: Difference | None) -> bool:
        """E7: True if owners of a stripe differ: nothing is decided."""
        if found is None:
            return False
        position, step = self.at.now, self.at.now.step
        before = self._suspected.get(step)
        odd = found.odd or (0 if before is None else found.changed(before))
        rest, text = position.members & ~odd, f"step {step}: {found}"
        self._ballot.clear()
        self._outbox.note("switch.differ", level="ERROR", step=step, text=text, odd=nodes_of(odd))
        if odd and self._parents.covers(rest) and self._are_enough(rest):  # E6, E3
            self._propose(rest, position.version, f"{text}: {nodes_text(odd)} is left out")
        elif before is None:
            self._suspected[step] = found
            self._propose(position.members, position.version, f"{text}: the step is made again")
        else:
            self._refusals.end_as_they_differ(text)
        return True

    # ---------------------------------------------------------------------- aborts

    def _cancels(self, number: int, m: wire.Cancel, _: Any) -> None:
        """A node wants the attempt given up."""
        if self._is_of_now(number, m):
            self._request_abort(f"optimizer node {number}: {m.text}")

    def _request_abort(self, text: str, *, lost: int = 0) -> None:
        """Give the attempt up as soon as that is allowed; `lost`: ranks that were started again."""
        if not self.at.is_settled:
            return  # one begins anyway
        # As good as decided, unless who was started again still had to attach something to it.
        # Before the first weights are, what was pushed waits at the nodes, and so does this.
        is_decided = self._verdict is not None and not (lost and self._hyper.keeps)
        if is_decided or self.at.now.version.number < 0:
            self._abort_text = text
        else:
            self._propose(self.at.now.members, self.at.now.version, text)

    def _recount(self) -> None:
        """Other ranks count from the next attempt on, if others are present now."""
        if not self.at.is_settled or self.at.now.version.number < 0:
            return
        if change := self._counted.change():
            self._request_abort(change.text, lost=change.lost)

    # ---------------------------------------------------------------------- the end

    def _received(self, number: int, m: wire.Received, _: Any) -> None:
        if m.verb is Verb.PAGE:
            self._filling.received(m)
            return
        if m.verb is not Verb.LEAVE or self._leave is None:
            self._inbound += self._parents.received(number, m)
            return
        self._left |= 1 << number
        self._end_if_left()

    def _end_if_left(self) -> None:
        """All nodes that are there know that the children have left."""
        if self._leave is not None and not self.at.now.members & ~self._left & ~self.at.lost:
            self._inbound.append(self._outbox.receipt(self._leave, Verb.LEAVE))

    # ---------------------------------------------------------------------- what is sent

    def _ask(self, key: tuple[str, int], number: int, m: wire.Message, payload: Any = None) -> None:
        send = Send((self._parents.names[number],), m, payload)
        self._asked.add(key, send, self._outbox.now_ns)
        self._outbox.actions.append(send)

    def _send(self, number: int, m: wire.Message) -> None:
        self._outbox.actions.append(Send((self._parents.names[number],), m))

    def _send_members(self, m: wire.Message) -> None:
        names = tuple(self._parents.names[number] for number in nodes_of(self.at.now.everyone))
        self._outbox.actions.append(Send(names, m))
