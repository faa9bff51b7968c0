"""Node 0: which attempt counts, the verdict, and the decision, for all optimizer nodes of a job.

Each node owns some chunks; node 0 speaks for all of them, and its disk is the log of what was
decided (two-phase commit). To the others it is what a parent is to a child: they ask, it answers.

    a node sends  when                                   node 0 answers when
    Hello         its store is open, and repeatedly      its own is: Welcome, the attempt and step
    Measured      all its sums of a step are complete    all nodes have measured: Verdict
    Prepared      the version is durable there           all are prepared, and it has decided on
                                                         its own disk: Resolved
    Cancel        it wants the attempt given up          that is done: Abort
    Leave         its child has left                     Received; node 0 ends when all have left

A single node is node 0 of one, and sends nothing of this.

Only node 0 raises the attempt, durably before it announces it; the others (`following.py`) take it
over. A node that was started again has lost what came in for the open step, so node 0 gives the
attempt up, even between verdict and decision: that step is redone. A node that finds a version
prepared follows node 0: forward if node 0 is decided at it, else back. Two sides of each page are
enough for that: pages of the version after it are written only once it is decided. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from luwu.base.errors import RemoteProtocolError
from luwu.protocol.children import Children
from luwu.protocol.members import Members, RefusedError
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from luwu.wire.squares import Squares, parse_all
from switch_emu.node.core.actions import GiveUp
from switch_emu.node.core.ballot import Ballot
from switch_emu.node.core.results import AbortRequest, Joined, Judgement
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.steps import Steps


class Joint:
    """Node 0's knowledge of the other nodes, and the aborts that wait."""

    is_enlisted = True
    """It knows which attempt counts."""
    may_leave = False
    """It reports to no other node that its child has left."""
    repeated_count = 0
    """Messages that were repeated because no answer came in time."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, state: State, steps: Steps
    ) -> None:
        self._outbox, self._children = outbox, children
        self._shard, self._state, self._steps = shard, state, steps
        others = range(1, shard.node.count)
        self._nodes = Members(job=outbox.job, children=[1 << number for number in others])
        self._ballot = Ballot(shard.node.count, shard.node.replicas)
        self._early: dict[int, tuple[str, wire.Hello, bytes]] = {}
        """Nodes that wait for this node's store to be open."""
        self._abort_text: str | None = None
        """An abort that waits for the open step to be decided, ..."""
        self._is_lost = False
        """... or, as what came in for the step is lost, only for the store to have time."""
        self._unwelcomed: list[str] = []
        """Nodes that were started again, to be welcomed to the new attempt."""

    # ---------------------------------------------------------------------- the other nodes

    def opened(self) -> list[Joined]:
        """The store is open: nodes that had to wait for that join."""
        early, self._early = list(self._early.values()), {}
        joined = (self.hello(peer, hello, description) for peer, hello, description in early)
        return [each for each in joined if each is not None]

    def hello(self, peer: str, hello: wire.Hello, description: bytes) -> Joined | None:
        """Another node joins, still to be welcomed; None if it is refused, or has to wait."""
        try:
            if hello.contributors not in self._nodes.children:
                raise wrong_node_error(hello, self._shard.node.count)
            if self._shard.description is None:
                self._early[hello.contributors] = (peer, hello, description)
                return None
            if description != self._shard.description_bytes:
                raise RefusedError(
                    "your state and that of optimizer node 0 are of different jobs; give every "
                    "node its own directory of one --state"
                )
            is_restarted = self._nodes.join(peer, hello, description)
        except RefusedError as exc:
            self._children.refuse(peer, exc)
            return None
        return Joined(peer, hello, is_restarted)

    def welcome_node(self, peer: str) -> None:
        """Welcome a node that has joined, unless an abort is about to open a new attempt."""
        if self._is_lost:
            self._unwelcomed.append(peer)
        else:
            self._outbox.send(peer, self._children.welcome(0))

    def node_at(self, peer: str, incarnation: int) -> int | None:
        """The number of the node behind a connection, if this start of it has joined."""
        member = self._nodes.of(peer, incarnation)
        return None if member is None else member.ranks.bit_length() - 1

    def node_measured(
        self, peer: str, node: int, m: wire.Measured, payload: bytes | None
    ) -> Judgement | bool:
        """The sums of another node are complete."""
        verdict = self._children.outcomes.verdict
        if verdict is not None and verdict.step == m.step:
            self._outbox.send(peer, verdict)
        elif m.step == self._outbox.step:
            try:
                squares = parse_all(payload, self._shard.node.replicas)
            except RemoteProtocolError as exc:
                self._outbox.note("node.misfit", level="WARNING", node=node, text=str(exc))
                return False
            self._ballot.measured(node, squares)
            return self._judgement() or True
        return False

    def node_prepared(
        self, peer: str, node: int, m: wire.Prepared, digests: bytes | None = None
    ) -> None:  # fmt: skip
        """A version is durable at another node."""
        version = self._state.version
        decided = -1 if version is None else version
        if m.version <= decided:
            self._outbox.send(peer, self._outbox.stamped(wire.Resolved, version=m.version))
        elif m.version == decided + 1:
            self._ballot.prepared(node, digests or b"")
            self._decide_if_prepared()

    def node_cancels(self, peer: str, node: int, m: wire.Cancel, *_: object) -> AbortRequest:
        """Another node wants the attempt given up."""
        return AbortRequest(f"optimizer node {node}: {m.text}")

    def node_leaves(self, peer: str, node: int, m: wire.Leave, *_: object) -> None:
        """The child of another node has left."""
        self._nodes.leave(peer)
        self._outbox.send(peer, self._outbox.receipt(m, Verb.LEAVE))

    def announce(self, message: wire.Message) -> None:
        """Send to all other nodes."""
        if self._nodes.peers:
            self._outbox.send_all(self._nodes.peers, message)

    @property
    def peers(self) -> tuple[str, ...]:
        """Connections of the other nodes."""
        return self._nodes.peers

    @property
    def has_left(self) -> bool:
        """The children of all other nodes have left."""
        return self._nodes.all_left

    # ---------------------------------------------------------------------- the open step

    def measured(self, step: int, squares: Sequence[Squares | None]) -> Judgement | None:
        """The sums of this node are complete; None: one of that stripe is not finite."""
        self._ballot.measured(0, squares)
        return self._judgement()

    def was_judged(self) -> None:
        """The open step has its verdict."""

    def prepared(self, version: int, digests: bytes) -> AbortRequest | None:
        """A version is durable here; the abort that had to wait for that."""
        if self._is_lost:
            return self.waiting()
        self._ballot.prepared(0, digests)
        self._decide_if_prepared()
        return None

    def was_decided(self, version: int) -> None:
        """A version is decided here, so the others may decide it."""
        self._ballot.clear()
        self.announce(self._outbox.stamped(wire.Resolved, version=version))

    def _judgement(self) -> Judgement | None:
        """All nodes have measured the open step: it is applied if its norm is finite."""
        step, norm = self._steps.open, self._ballot.norm(self._shard.norm_type)
        if norm is None or step is None or step.is_judged:
            return None
        if self._gives_up(self._ballot.differing_gradients(self._shard.norm_type)):
            return None
        applied = math.isfinite(norm) and not step.skip
        return Judgement(applied, norm, self._outbox.attempt + 1)

    def _decide_if_prepared(self) -> None:
        if not self._ballot.is_prepared or self._state.is_sealing:
            return
        if not self._gives_up(self._ballot.differing_pages()):
            self._state.decide()

    def _gives_up(self, text: str | None) -> bool:
        """True if owners of a stripe differ: the step is not decided, and the job ends."""
        if text is not None:
            step = self._outbox.step
            self._outbox.actions.append(
                GiveUp(
                    f"step {step}: {text}, which received the same sums; the step is not decided. "
                    "Check the memory and the disks of these hosts (luwu verify --full), then "
                    "continue with --resume",
                    code="E509",
                )
            )
        return text is not None

    # ---------------------------------------------------------------------- attempts

    def request_abort(self, request: AbortRequest) -> bool:
        """True if the attempt may be given up now; else the abort waits."""
        step = self._steps.open
        is_judged = step is not None and step.is_judged
        if self._state.is_sealing or (is_judged and not request.is_lost):
            self._abort_text, self._is_lost = request.text, self._is_lost or request.is_lost
            return False
        return True

    def waiting(self) -> AbortRequest | None:
        """The abort that waits: the store has time for it."""
        return None if self._abort_text is None else AbortRequest(self._abort_text)

    def was_aborted(self, text: str) -> None:
        """A new attempt counts: the others must know."""
        self._abort_text, self._is_lost = None, False
        self.announce(self._children.abort(text))
        for peer in self._unwelcomed:
            self._outbox.send(peer, self._children.welcome(0))
        self._unwelcomed.clear()

    def forget(self) -> None:
        """A new attempt: what was stated under the older one is void."""
        self._ballot.clear()

    # ---------------------------------------------------------------------- as of a following node

    def leave(self) -> None:
        """The child of this node has left."""

    def reconnected(self) -> None:
        """Node 0 has no connection to a first node."""

    def tick(self) -> None:
        """Nothing is repeated: the others repeat what they ask."""

    def next_tick_ns(self) -> int | None:
        """Never."""
        return None


def wrong_node_error(hello: wire.Hello, count: int) -> RefusedError:
    """A node of another job, or one that takes this node for node 0."""
    return RefusedError(
        f"you are optimizer node {hello.contributors.bit_length() - 1}, expected are "
        f"1 to {count - 1}; start all with the same --optimizer-nodes"
    )
