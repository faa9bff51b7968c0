"""The node's child: how it joins, and how it leaves.

    Hello, no store    OpenStore -> the store is open: Welcome | it cannot be: Refuse
    Hello, a store     Welcome; another job than the store's: Refuse
    Cancel             an AbortRequest
    Leave              Received

A child that knows of more decided steps than the state has is sent Refuse, and the node gives up.
Where it only knows of a later attempt, the next one goes beyond that. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from luwu.base.limits import TEXT_CHARS_MAX
from luwu.protocol.children import Children, KnowsMoreError, RefusedError
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import GiveUp, OpenStore
from switch_emu.node.core.deciding import OLDER_STATE_CODE, AbortRequest
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.step import Steps

_NOT_BELIEVED = (
    "you report that the state lacks steps, in the name of a switch that is still connected and "
    "reports none: ignored. If this is a switch that was restarted, start it again when the former "
    "one has ended; if it is an unknown process, use keys (luwu keys) to reject it"
)


class Joined(NamedTuple):
    """A child that has joined."""

    peer: str
    hello: wire.Hello
    is_restarted: bool
    """It replaces an earlier start of itself."""
    knows_later: bool
    """It knows a later attempt, or opening of the store, than the state does: what was sent then
    must not be taken for what is sent now."""


class Membership:
    """The child, from its Hello to its Leave."""

    def __init__(self, outbox: Outbox, children: Children, shard: Shard, steps: Steps) -> None:
        self._outbox, self._children = outbox, children
        self._shard, self._steps = shard, steps
        self._waiting: tuple[str, wire.Hello, bytes] | None = None
        """A child that waits for the store to be opened."""
        self._has_joined = False
        """Before that, no child can know of this opening of the store."""

    def hello(self, peer: str, hello: wire.Hello, description: bytes) -> None:
        """A child wants to join: `admit` lets it in, as soon as that can be."""
        children, is_open = self._children, self._shard.description is not None
        knows_more = hello.step > self._outbox.step
        if knows_more and children.members.is_taken(peer, hello):
            children.refuse(peer, RefusedError(_NOT_BELIEVED))
            return
        if not is_open:
            try:
                children.members.check(hello, description)
            except RefusedError as exc:
                children.refuse(peer, exc)
                return
            if knows_more:  # make no new state in the place of one that is missing
                self._refuse_to_go_back(peer, hello)
                return
            if self._waiting is None:
                self._outbox.actions.append(OpenStore(description))
        self._waiting = (peer, hello, description)

    def store_refused(self, text: str) -> None:
        """No store can be made for this job."""
        if self._waiting is not None:
            (peer, _, _), self._waiting = self._waiting, None
            refuse = self._outbox.stamped(wire.Refuse, text=text[:TEXT_CHARS_MAX])
            self._outbox.send(peer, refuse)

    def admit(self) -> Joined | None:
        """The child that waits, as a member, still to be welcomed; None if it was sent Refuse."""
        if self._waiting is None:
            return None
        (peer, hello, description), self._waiting = self._waiting, None
        outbox, children = self._outbox, self._children
        try:
            self._shard.check_same_job(description)
            is_restarted = children.members.join(peer, hello, description)
        except RefusedError as exc:
            children.refuse(peer, exc)
            return None
        if hello.step > outbox.step:
            self._refuse_to_go_back(peer, hello)
            return None
        # It knows this opening of the store, or a later one, and no child can yet; or another,
        # with an attempt that ours has yet to go beyond: the state is an older copy.
        knows_later = hello.generation > 0 and (
            (not self._has_joined and hello.generation >= outbox.generation)
            or (hello.generation != outbox.generation and hello.attempt >= outbox.attempt)
        )  # fmt: skip
        self._has_joined = True
        if knows_later:
            outbox.generation = max(outbox.generation, hello.generation + 1)
            outbox.attempt = max(outbox.attempt, hello.attempt)
        return Joined(peer, hello, is_restarted, knows_later)

    def cancel(self, peer: str, m: wire.Cancel, *_: object) -> AbortRequest:
        """The child wants the attempt given up."""
        return AbortRequest(m.text, self._steps.lacks_pieces_of(m.lost))

    def leave(self, peer: str, m: wire.Leave, *_: object) -> bool:
        """The child is done."""
        self._children.members.leave(peer)
        self._children.send_all(self._outbox.receipt(m, Verb.LEAVE))
        return True

    def _refuse_to_go_back(self, peer: str, hello: wire.Hello) -> None:
        """The child knows of decided steps that the state does not have: end, and report it."""
        error = KnowsMoreError(self._outbox.step, hello.step)
        self._children.refuse(peer, error)
        self._outbox.actions.append(GiveUp(str(error), code=OLDER_STATE_CODE))
