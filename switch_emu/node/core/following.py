"""A following node: one of several optimizer nodes that is not node 0. See `joint.py`.

What it asks of node 0 is repeated until the answer comes. Hello is repeated, with growing pauses,
as long as the node lives: a node that waits for its child has no other question open, and would not
learn of an abort that got lost.

An attempt that node 0 announces is taken over once this node is decided at the version at which
node 0 is: so it waits while the store is busy, and decides a prepared version first. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from luwu.wire.squares import Squares, encode_all
from switch_emu.node.core.actions import GiveUp
from switch_emu.node.core.joint import wrong_node_error
from switch_emu.node.core.results import AbortRequest, Joined, Judgement
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.steps import Steps

Announced = wire.Welcome | wire.Abort
"""A message by which node 0 opens an attempt."""


class Following:
    """Requests of this node to node 0, and announcements of node 0."""

    peers: tuple[str, ...] = ()
    """Nodes that are connected to this one."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, state: State, steps: Steps,
        retry: RetryPolicy,
    ) -> None:  # fmt: skip
        self._outbox, self._children = outbox, children
        self._shard, self._state, self._steps = shard, state, steps
        self._uplink = Uplink(outbox.actions, retry)
        self.is_enlisted = False
        """Node 0 knows us: we know which attempt counts."""
        self.has_left = False
        """Node 0 knows that our child has left."""
        self._cancelling: str | None = None
        """Why we ask for an abort."""
        self._ahead: Announced | None = None
        """An announcement of node 0, until the store is ready for it."""

    def hello(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        """No other node may join this one."""
        error = wrong_node_error(hello, self._shard.node.count)
        self._children.refuse(peer, error)

    def node_at(self, peer: str, incarnation: int) -> None:
        """No node has joined this one."""

    # ---------------------------------------------------------------------- what node 0 sends

    def refuse(self, m: wire.Refuse) -> None:
        """Node 0 refuses us."""
        self._outbox.actions.append(GiveUp(f"optimizer node {self._shard.node.number}: {m.text}"))

    def rejoin(self, m: wire.Rejoin) -> None:
        """Node 0 was started again."""
        self._send_hello()

    def is_current(self, m: wire.Message) -> bool:
        """True if an announcement is of this opening of node 0's store, and of no older attempt."""
        outbox = self._outbox
        if not self.is_enlisted or m.generation < outbox.generation:
            return False
        if m.generation > outbox.generation:  # it was started again, and its Welcome is lost
            self._send_hello()
            return False
        return m.attempt >= outbox.attempt

    def missed_verdict(self, m: wire.Welcome) -> wire.Verdict | None:
        """The verdict that we missed, if by it the attempt of a Welcome followed upon ours."""
        return m.skip(self._outbox.attempt, self._outbox.generation) if self.is_enlisted else None

    def welcome(self, m: wire.Welcome) -> Announced | None:
        """Node 0 knows us, and announces the attempt that counts."""
        outbox = self._outbox
        if self.is_enlisted and (m.generation, m.attempt) <= (outbox.generation, outbox.attempt):
            return None  # nothing new
        if m.attempt <= outbox.attempt:
            self._give_up(f"{m.attempt} attempts", f"{outbox.attempt}")
            return None
        return self._follow(m)

    def abort(self, m: wire.Abort) -> Announced | None:
        """A new attempt counts."""
        return self._follow(m) if m.attempt > self._outbox.attempt else None

    def verdict(self, m: wire.Verdict) -> Judgement | None:
        """How the open step comes out at all nodes."""
        step = self._steps.open
        if step is None or m.step != step.number or not step.is_stated or step.is_judged:
            return None
        if m.applied and m.attempt != self._outbox.attempt:
            return None  # an attempt that we do not know of yet; what we ask will be answered
        self._uplink.answered("measured")
        return Judgement(m.applied, m.grad_norm, m.attempt)

    def resolved(self, m: wire.Resolved) -> None:
        """Node 0 has decided a version: so do we."""
        prepared = self._state.prepared
        is_ours = prepared is not None and prepared.version == m.version
        if is_ours and not self._state.is_sealing:
            self._uplink.answered("prepared")
            self._state.decide()

    def received(self, m: wire.Received) -> None:
        """Node 0 knows that our child has left."""
        if m.verb is Verb.LEAVE:
            self.has_left = self._uplink.answered("leave") or self.has_left

    # ---------------------------------------------------------------------- the open step

    def measured(self, step: int, squares: Sequence[Squares | None]) -> None:
        """The sums of this node are complete; None: one of that stripe is not finite."""
        payload = encode_all(squares, self._shard.norm_type)
        message = self._outbox.stamped(wire.Measured, step=step)
        self._uplink.ask(self._outbox.now_ns, "measured", message, payload)

    def was_judged(self) -> None:
        """The open step has its verdict: what we ask is asked under the attempt that counts now."""
        if self._cancelling is not None:
            self._send_cancel()

    def prepared(self, version: int, digests: bytes) -> Announced | None:
        """A version is durable here; what node 0 announced meanwhile, if it can be taken over."""
        if self._ahead is not None:
            return self._follow(self._ahead)
        message = self._outbox.stamped(wire.Prepared, version=version)
        self._uplink.ask(self._outbox.now_ns, "prepared", message, digests or None)
        return None

    def was_decided(self, version: int) -> None:
        """A version is decided here."""
        self._uplink.answered("prepared")

    def announce(self, message: wire.Message) -> None:
        """Nothing: only node 0 announces."""

    # ---------------------------------------------------------------------- attempts

    def request_abort(self, request: AbortRequest) -> bool:
        """Ask node 0 for an abort; this node does not give an attempt up by itself."""
        if not self._uplink.asks("cancel"):
            self._cancelling = request.text[:900]
            self._send_cancel()
        return False

    def waiting(self) -> Announced | None:
        """The announcement of node 0 while the store was busy, if it can be applied."""
        return None if self._ahead is None else self._follow(self._ahead)

    def taken_over(self, m: Announced) -> None:
        """The attempt that node 0 announced is the one that counts."""
        self._ahead, self._cancelling, self.is_enlisted = None, None, True
        self._outbox.epoch, self._outbox.generation = m.epoch, m.generation
        self._uplink.forget(lambda name: name == "hello")

    def forget(self) -> None:
        """A new attempt: nothing to do, `taken_over` did it."""

    def _follow(self, m: Announced) -> Announced | None:
        """The announcement if it can be applied now; else decide what node 0 has decided first."""
        self._ahead = m
        if self._state.is_sealing:
            return None
        ours, prepared = self._state.version, self._state.prepared
        theirs = m.step if m.loaded else None
        if ours == theirs:
            return m
        if prepared is not None and prepared.version == theirs:
            self._state.decide()
        else:
            self._give_up(_version_text(theirs), _version_text(ours))
        return None

    def _give_up(self, theirs: str, ours: str) -> None:
        number = self._shard.node.number
        self._outbox.actions.append(
            GiveUp(
                f"the state of optimizer node 0 is at {theirs}, that of node {number} "
                f"at {ours}: they are not parts of one state; restore all directories of the "
                "state from the same checkpoint"
            )
        )

    # ---------------------------------------------------------------------- the connection

    def opened(self) -> list[Joined]:
        """The store is open: join node 0. No node joins this one."""
        self._send_hello()
        return []

    def reconnected(self) -> None:
        """The connection to node 0, or to its successor, is back."""
        if self._shard.description is not None:
            self._send_hello()
            self._uplink.hurry(self._outbox.now_ns)

    @property
    def may_leave(self) -> bool:
        """Node 0 does not know yet that our child has left, and was not asked."""
        return not self.has_left and not self._uplink.asks("leave")

    def leave(self) -> None:
        """Our child has left, and nothing is under way."""
        message = self._outbox.stamped(wire.Leave, contributors=1 << self._shard.node.number)
        self._uplink.ask(self._outbox.now_ns, "leave", message)

    def tick(self) -> None:
        """Repeat what is due."""
        self._uplink.tick(self._outbox.now_ns)

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do."""
        return self._uplink.next_tick_ns()

    @property
    def repeated_count(self) -> int:
        """Messages that were repeated because no answer came in time."""
        return self._uplink.repeated_count

    def _send_hello(self) -> None:
        description, node = self._shard.description, self._shard.node
        assert description is not None
        hello = self._outbox.stamped(
            wire.Hello, protocol=PROTOCOL_VERSION, world_size=node.count,
            contributors=1 << node.number, present=1 << node.number, roll=0,
            description_hash=description.hash,
        )  # fmt: skip
        self._uplink.ask(self._outbox.now_ns, "hello", hello, self._shard.description_bytes)

    def _send_cancel(self) -> None:
        cancel = self._outbox.stamped(wire.Cancel, text=self._cancelling or "", lost=0)
        self._uplink.ask(self._outbox.now_ns, "cancel", cancel)


def _version_text(version: int | None) -> str:
    return "no version" if version is None else f"version {version}"
