"""What the optimizer nodes of a job do as one: which attempt counts, the verdict, the decision.

Each node owns some chunks; node 0 speaks for all of them, and its disk is the log of what was
decided (two-phase commit). To the others it is what a parent is to a child: they ask, it answers.

    a node says   when                                   node 0 answers when
    Hello         its store is open, and ever again      its own is: Welcome, the attempt and step
    Measured      all its sums of a step are complete    all nodes have measured: Verdict
    Prepared      the version is durable there           all are prepared, and it has decided on
                                                         its own disk: Resolved
    Cancel        it wants the attempt given up          that is done: Abort
    Leave         its child has left                     Received; node 0 ends when all have left

Hello is asked again, with growing pauses, as long as the node lives: a node that waits for its
child has no other question open, and would not learn of an abort that got lost.

One node is all of them: its own word is enough, and nothing here is ever sent.

Only node 0 raises the attempt, durably before it says so; the others take it over. A node that was
started again has lost what came in for the open step, so node 0 gives the attempt up, even between
verdict and decision: that step is redone. Whoever finds a version prepared follows node 0: forward
if node 0 is decided at it, else back. Two sides a page are enough for that: pages of the version
after it are written only once it is decided. Pure.
"""

from __future__ import annotations

import math

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.lost_steps import lost_steps_text
from luwu.protocol.members import Members, RefusedError, ranks_text
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from luwu.wire.squares import encode_squares, parse_squares
from switch_emu.node.core.actions import (
    Decide,
    GiveUp,
    NodeLimits,
    NodePlace,
    Prepare,
    PreparedVersion,
    StoreFacts,
)
from switch_emu.node.core.ballot import Ballot
from switch_emu.node.core.membership import Action, NodeMember
from switch_emu.node.core.step import Step


class NodeJoint(NodeMember):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, ranks: int, place: NodePlace, limits: NodeLimits,
        retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, ranks, place, limits)
        self._ballot = Ballot(place.count)
        others = range(1, place.count) if place.number == 0 else ()
        self._nodes = Members(job=job, children=[1 << number for number in others])
        """At node 0: the others."""
        self._early: dict[int, tuple[str, wire.Hello, bytes]] = {}
        """At node 0: nodes that said Hello before its store was open."""
        self._abort_text: str | None = None
        """At node 0: an abort that waits; for the step to be decided, ..."""
        self._is_lost = False
        """... or, as what came in for the step is lost, only for the store to have time."""
        self._unwelcomed: list[str] = []
        """At node 0: nodes that were started again, to be welcomed to the new attempt."""
        self._uplink = Uplink(self._actions, retry)
        """At the others: what they asked node 0."""
        self._welcomed = False
        self._cancelling: str | None = None
        self._ahead: wire.Welcome | wire.Abort | None = None
        """What node 0 said counts, until the store has time for it."""
        self._gone = place.number == 0
        self._present = self._wanted = self._members.ranks
        """At node 0: ranks that can be heard, and those that are to count in the next attempt."""
        self._roll = (0, 0)
        """When that was said: the child's incarnation, and its count."""
        self._ever_present = 0
        """Ranks that were heard at some time: others may still be starting."""

    def _judge(self, step: Step, norm: float, attempt: int, *, applied: bool) -> None:
        """The verdict; if it skips the step, under a new attempt."""
        raise NotImplementedError

    def _forget(self) -> None:
        super()._forget()
        self._ballot.clear()

    @property
    def _is_enlisted(self) -> bool:
        return self._place.number == 0 or self._welcomed

    @property
    def _is_done(self) -> bool:
        """The child has left and nothing is under way."""
        raise NotImplementedError

    # ---------------------------------------------------------------------- what this node states

    def _measured(self, step: Step) -> None:
        """All sums of this node are complete and measured."""
        step.is_stated = True
        squares = step.squares(self._trainable)
        if self._place.number == 0:
            self._ballot.measured(0, squares)
            self._judge_if_measured()
        else:
            payload = None if squares is None else encode_squares(squares, self._norm_type)
            measured = self._ours(wire.Measured, step=step.number)
            self._uplink.ask(self._now_ns, "measured", measured, payload)

    def prepared(self, prepare: Prepare) -> list[Action]:
        """A version is durable here, not yet announced."""
        self._is_sealing = False
        p = prepare
        self._prepared = PreparedVersion(
            p.version, p.attempt, p.applied, p.grad_norm, p.contributors
        )
        if self._ahead is not None:
            self._follow(self._ahead)
        elif self._is_lost:
            self._abort_if_asked()
        elif self._place.number == 0:
            self._ballot.prepared(0)
            self._decide_if_prepared()
        else:
            message = self._ours(wire.Prepared, version=p.version)
            self._uplink.ask(self._now_ns, "prepared", message)
        self._settle()
        return self._take()

    def _decide(self) -> None:
        assert self._prepared is not None
        self._is_sealing = True
        self._actions.append(Decide(self._prepared.version, self._prepared.attempt))

    def _was_decided(self) -> None:
        """The store has decided the version: say so."""
        version, self._prepared, self._is_sealing = self._prepared, None, False
        assert version is not None
        self._ballot.clear()
        self._uplink.answered("prepared")
        if version.version > 0:
            self._announce_decided(version)
        self._tell_nodes(self._ours(wire.Resolved, version=version.version))

    def _go_on(self) -> None:
        """A version was decided: do what had to wait for it."""
        self._abort_if_asked()
        if self._ahead is not None:
            self._follow(self._ahead)
        self._count_ranks()
        self._leave_if_done()

    def _request_abort(self, text: str, *, is_lost: bool = False) -> None:
        if not self._loaded and not is_lost:
            return  # nothing was pushed yet
        step = self._steps.get(self._step)
        if self._place.number:
            if not self._uplink.asks("cancel"):
                self._cancelling = text[:900]
                self._say_cancel()
        elif self._is_sealing or (step is not None and step.is_judged and not is_lost):
            self._abort_text, self._is_lost = text, self._is_lost or is_lost
        else:
            self._abort(text)
            self._settle()

    def _leave_if_done(self) -> None:
        if not self._gone and self._is_done and not self._uplink.asks("leave"):
            leave = self._ours(wire.Leave, contributors=1 << self._place.number)
            self._uplink.ask(self._now_ns, "leave", leave)

    # ---------------------------------------------------------------------- node 0

    def store_opened(self, facts: StoreFacts) -> list[Action]:
        """The store is open: at the start, or because `OpenStore` asked for it."""
        if facts.job == self._job and facts.version is not None:  # this run goes on
            self._ever_present = self._members.ranks
        self._actions.extend(super().store_opened(facts))
        for peer, hello, description in self._early.values():
            self._node_hello(peer, hello, description)
        self._early.clear()
        if self._place.number:
            self._say_hello()
        return self._take()

    def _from_node(self, peer: str, m: wire.Message, payload: bytes | None) -> None:
        """Another node asks for something."""
        member = self._nodes.of(peer, m.incarnation)
        if isinstance(m, wire.Hello):
            self._node_hello(peer, m, payload or b"")
        elif member is None:
            self._tell(peer, self._ours(wire.Rejoin))
        elif m.attempt != self._attempt or m.generation != self._generation:
            self._answer_stale(peer, m)
        elif isinstance(m, wire.Measured):
            self._node_measured(peer, member.ranks.bit_length() - 1, m, payload)
        elif isinstance(m, wire.Prepared):
            self._node_prepared(peer, member.ranks.bit_length() - 1, m)
        elif isinstance(m, wire.Cancel):
            self._request_abort(f"optimizer node {member.ranks.bit_length() - 1}: {m.text}")
        elif isinstance(m, wire.Leave):
            self._nodes.leave(peer)
            self._tell(peer, self._receipt(m, Verb.LEAVE))

    def _node_hello(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        try:
            if hello.contributors not in self._nodes.children:
                raise RefusedError(
                    f"you are optimizer node {hello.contributors.bit_length() - 1}, expected are "
                    f"1 to {self._place.count - 1}; start all with the same --optimizer-nodes"
                )
            if self._description is None:
                self._early[hello.contributors] = (peer, hello, description)
                return
            if description != self._description_bytes:
                raise RefusedError(
                    "your state and that of optimizer node 0 are of different jobs; give every "
                    "node its own directory of one --state"
                )
            replaced = self._nodes.join(peer, hello, description)
        except RefusedError as exc:
            self._refuse_child(peer, exc)
            return
        if replaced:
            node = hello.contributors.bit_length() - 1
            self._request_abort(f"optimizer node {node} was started again", is_lost=True)
        if self._is_lost:
            self._unwelcomed.append(peer)
        else:
            self._tell(peer, self._welcome(0))

    def _node_measured(self, peer: str, node: int, m: wire.Measured, payload: bytes | None) -> None:
        verdict = self._outcomes.verdict
        if verdict is not None and verdict.step == m.step:
            self._tell(peer, verdict)
        elif m.step == self._step:
            try:
                squares = None if payload is None else parse_squares(payload)
            except RemoteProtocolError as exc:
                self._note("node.misfit", level="WARNING", node=node, text=str(exc))
                return
            self._ballot.measured(node, squares)
            self._judge_if_measured()
            self._settle()

    def _judge_if_measured(self) -> None:
        step, norm = self._steps.get(self._step), self._ballot.norm(self._norm_type)
        if norm is not None and step is not None and not step.is_judged:
            applied = math.isfinite(norm) and not step.skip
            self._judge(step, norm, self._attempt + 1, applied=applied)

    def _node_prepared(self, peer: str, node: int, m: wire.Prepared) -> None:
        decided = self._step if self._loaded else -1
        if m.version <= decided:
            self._tell(peer, self._ours(wire.Resolved, version=m.version))
        elif m.version == decided + 1:
            self._ballot.prepared(node)
            self._decide_if_prepared()

    def _decide_if_prepared(self) -> None:
        if self._ballot.is_prepared and not self._is_sealing:
            self._decide()

    def _abort_if_asked(self) -> None:
        """Nothing is in the way any more of an abort that had to wait."""
        if self._abort_text is not None:
            self._abort(self._abort_text)

    def _overtake(self, hello: wire.Hello, *, is_older: bool) -> None:
        text = "the node was started again on an older copy of its state"
        if is_older:
            text = lost_steps_text(self._step, hello.step)
        self._note("node.older", level="ERROR", text=text)
        self._generation = max(self._generation, hello.generation + 1)
        self._attempt = max(self._attempt, hello.attempt)
        self._abort(text)
        self._settle()

    def _abort(self, text: str) -> None:
        self._abort_text, self._is_lost = None, False
        if self._members.active != self._wanted:
            self._members.active = self._wanted
            self._epoch += 1
        self._raise_attempt(self._attempt + 1)
        self._forget()
        self._tell_aborted(text)
        self._tell_nodes(self._abort_child(text))
        for peer in self._unwelcomed:
            self._tell(peer, self._welcome(0))
        self._unwelcomed.clear()

    def _tell_nodes(self, message: wire.Message) -> None:
        if self._nodes.peers:
            self._announce(self._nodes.peers, message)

    def _tell_aborted(self, text: str) -> None:
        self._note("node.abort", level="WARNING", step=self._step, attempt=self._attempt, text=text)
        self._tell_all(self._abort_child(text))

    def _is_heard(self, present: int, roll: tuple[int, int]) -> None:
        """The child says which ranks can be heard; an older word does not undo a later one."""
        if roll >= self._roll:
            self._ever_present |= present
            self._present, self._roll = present, roll
            self._count_ranks()

    def _count_ranks(self) -> None:
        """Go on without ranks that are lost, or with those that are back, in a new attempt."""
        least, ranks = self._limits.ranks_min, self._members.ranks
        present = (self._present | ~self._ever_present) & ranks
        is_ours = self._place.number == 0 and self._loaded
        if least is None or not is_ours or present == self._wanted:
            return
        if present.bit_count() < least:
            self._note("node.too_few", level="WARNING", ranks=ranks_text([present]), least=least)
            return
        lost, back = self._wanted & ~present, present & ~self._wanted
        said = [f"ranks {ranks_text([lost])} are lost"] if lost else []
        said += [f"ranks {ranks_text([back])} are back"] if back else []
        self._wanted = present
        self._request_abort(" and ".join(said), is_lost=self._lacks_pieces_of(lost))

    def _lacks_pieces_of(self, ranks: int) -> bool:
        """Whether the open step can never be decided, as what these should keep is lost."""
        step = self._steps.get(self._step)
        if step is None or not step.is_judged or not step.keeps:
            return False
        return bool(ranks & self._members.active & ~step.kept_ranks)

    # ---------------------------------------------------------------------- the other nodes

    def reconnected(self, now_ns: int) -> list[Action]:
        """The connection to node 0, or to its successor, is back."""
        self._now_ns = now_ns
        if self._description is not None:
            self._say_hello()
            self._uplink.hurry(now_ns)
        return self._take()

    def _from_first(self, m: wire.Message) -> None:
        """Node 0 says something."""
        if isinstance(m, wire.Refuse):
            self._actions.append(GiveUp(f"optimizer node {self._place.number}: {m.text}"))
        elif isinstance(m, wire.Rejoin):
            self._say_hello()
        elif isinstance(m, wire.Welcome):
            self._enlisted(m)
        elif not self._welcomed or m.generation < self._generation:
            return
        elif m.generation > self._generation:  # started again, and the answer to our Hello is lost
            self._say_hello()
        elif m.attempt < self._attempt:
            return
        elif isinstance(m, wire.Abort):
            if m.attempt > self._attempt:
                self._follow(m)
        elif isinstance(m, wire.Verdict):
            self._verdict_came(m)
        elif isinstance(m, wire.Resolved):
            self._resolved(m)
        elif isinstance(m, wire.Received) and m.verb is Verb.LEAVE:
            self._gone = self._uplink.answered("leave") or self._gone

    def _verdict_came(self, m: wire.Verdict) -> None:
        step = self._steps.get(self._step)
        is_ours = step is not None and m.step == self._step and step.is_stated
        if step is None or not is_ours or step.is_judged:
            return
        if m.applied and m.attempt != self._attempt:
            return  # an attempt we were not told of yet; what we ask will be answered
        self._uplink.answered("measured")
        self._judge(step, m.grad_norm, m.attempt, applied=m.applied)
        if self._cancelling is not None:
            self._say_cancel()  # under the attempt that counts now
        self._settle()

    def _resolved(self, m: wire.Resolved) -> None:
        is_ours = self._prepared is not None and self._prepared.version == m.version
        if is_ours and not self._is_sealing:
            self._uplink.answered("prepared")
            self._decide()

    def _enlisted(self, m: wire.Welcome) -> None:
        """Node 0 knows us, and has said what counts."""
        if self._welcomed and (m.generation, m.attempt) <= (self._generation, self._attempt):
            return  # nothing new
        skip = m.skip(self._attempt, self._generation)
        if self._welcomed and skip is not None:
            self._verdict_came(skip)
            if m.attempt == self._attempt:
                return
        if m.attempt <= self._attempt:
            self._give_up(f"{m.attempt} attempts", f"{self._attempt}")
        else:
            self._follow(m)

    def _follow(self, m: wire.Welcome | wire.Abort) -> None:
        """Take over which attempt counts, once we are decided at what node 0 is decided at."""
        self._ahead = m
        if self._is_sealing:
            return
        ours = self._step if self._loaded else None
        theirs = m.step if m.loaded else None
        if ours == theirs:
            self._take_over(m)
        elif self._prepared is not None and self._prepared.version == theirs:
            self._decide()
        else:
            self._give_up(_version_text(theirs), _version_text(ours))

    def _take_over(self, m: wire.Welcome | wire.Abort) -> None:
        self._ahead, self._cancelling, self._welcomed = None, None, True
        self._epoch, self._generation = m.epoch, m.generation
        self._uplink.forget(lambda name: name == "hello")
        self._members.active = m.contributors
        self._raise_attempt(m.attempt)
        self._forget()
        text = m.text if isinstance(m, wire.Abort) else "the optimizer nodes begin a new attempt"
        self._tell_aborted(text)
        self._join_held()
        self._leave_if_done()
        self._settle()

    def _give_up(self, theirs: str, ours: str) -> None:
        self._actions.append(
            GiveUp(
                f"the state of optimizer node 0 is at {theirs}, that of node {self._place.number} "
                f"at {ours}: they are not parts of one state; restore all directories of the "
                "state from the same checkpoint"
            )
        )

    def _say_hello(self) -> None:
        assert self._description is not None
        hello = self._ours(
            wire.Hello, protocol=PROTOCOL_VERSION, world_size=self._place.count,
            contributors=1 << self._place.number, present=1 << self._place.number, roll=0,
            description_hash=self._description.hash,
        )  # fmt: skip
        self._uplink.ask(self._now_ns, "hello", hello, self._description_bytes)

    def _say_cancel(self) -> None:
        cancel = self._ours(wire.Cancel, text=self._cancelling or "", lost=0)
        self._uplink.ask(self._now_ns, "cancel", cancel)


def _version_text(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"
