"""The worker as a member of its job: joining, new attempts, cancelling and leaving. Pure.

    `Membership.welcomed`   a `Welcome` was received: what follows from it is a `Welcomed`
    `Membership.restarted`  a new attempt began: whether the worker goes back, is left out or ends

It sends and repeats the messages that belong to no step. What a new attempt means for steps and
handles is up to `NicCore`, which acts upon what these two return.
"""

from __future__ import annotations

from enum import Enum

from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.tree import ranges_text, ranks_of
from luwu.nic.core.actions import Aborted, Joined, Left, Refused
from luwu.protocol.children import refusal_text
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire

CANCEL_CHARS_MAX = 900
"""The reason of a `Cancel` is cut to this length."""


class Welcomed(Enum):
    """The meaning of a `Welcome` for a worker."""

    NOTHING = "it is not meant for this start of the worker"
    ADMITTED = "the worker is a member for the first time"
    AGAIN = "it is one already"
    COUNTS_AGAIN = "it was left out, and is one again"


class Membership:
    """The membership of one worker."""

    def __init__(self, outbox: Outbox, uplink: Uplink, world_size: int) -> None:
        self._out, self._uplink = outbox, uplink
        self._contributors, self._world_size = 1 << outbox.rank, world_size
        self.counted = 0
        """Bitmap of the ranks that count in the attempt; if left out, of its last one."""
        self._hello: tuple[bytes, str, int] | None = None
        """The job's description, its hash and the chunks of an extent, once the worker wants to
        join."""
        self.has_joined = False
        self._missing = 0
        """Ranks that have not joined, as the parent reported last."""
        self.is_left_out = False
        """The job goes on without this worker, which waits to be admitted again."""
        self._is_leaving = False
        self._cancelling: str | None = None
        """Why the worker asked for the attempt to be given up, until it is."""

    # ---------------------------------------------------------------------- the script

    def join(self, description: bytes, description_hash: str, extent_chunks: int = 1) -> None:
        """Become a member with this job description."""
        self._hello = (description, description_hash, extent_chunks)
        self._send_hello()

    def cancel(self, text: str) -> None:
        """Ask for the attempt to be given up; if this worker is in none, nothing of it counts."""
        if self.has_joined:
            self._cancelling = text[:CANCEL_CHARS_MAX]
            self._send_cancel()

    @property
    def is_cancelling(self) -> bool:
        """True until the attempt that this worker wants given up is."""
        return self._cancelling is not None

    def leave(self) -> None:
        """Announce that this worker is done."""
        self._is_leaving = True
        self._send_leave()

    def waits_for(self) -> str:
        """The event that the worker waits for before it has joined, as text; empty afterwards."""
        if self.has_joined:
            return ""
        if self._missing:
            return f"ranks {ranges_text(ranks_of(self._missing))} have not joined"
        return "Welcome: the parent waits for all ranks"

    # ---------------------------------------------------------------------- the parent

    def reconnected(self) -> None:
        """The connection to the parent, or to its successor, is back."""
        if self._hello is not None:
            self._send_hello()

    def rejoin(self, m: wire.Rejoin) -> None:
        """The parent was started again, and does not know this worker."""
        if self._hello is not None and not self._uplink.asks("hello"):
            self._send_hello()

    def missing(self, m: wire.Received) -> None:
        """Other ranks have not joined yet: a person may want to look after them."""
        if not self.has_joined:
            self._missing = ((1 << self._world_size) - 1) & ~m.contributors
            self._out.note("worker.misses", "WARNING", rank=self._out.rank, text=self.waits_for())

    def refused(self, m: wire.Refuse) -> None:
        """The parent refuses this worker for good."""
        self._out.actions.append(Refused(m.text, m.is_older))

    def welcomed(self, m: wire.Welcome) -> Welcomed:
        """The parent knows this worker; the caller acts upon what is returned."""
        asked = self._uplink.answered("hello")
        self._uplink.window_bytes = m.push_window_bytes
        if self.has_joined:
            return Welcomed.AGAIN
        if self.is_left_out and self.is_newer(m):
            self.has_joined, self.is_left_out = True, False
            return Welcomed.COUNTS_AGAIN
        if not asked:
            return Welcomed.NOTHING
        self.has_joined = True
        self._adopt(m)
        self._out.actions.append(Joined(m.step, m.loaded))
        return Welcomed.ADMITTED

    def is_newer(self, m: wire.Welcome) -> bool:
        """True if a later attempt counts than the one this worker knows; on an older copy of the
        state, its number may be lower, and the node's opening is a later one."""
        return (m.generation, m.attempt) > (self._out.generation, self._out.attempt)

    def restarted(
        self, m: wire.Abort | wire.Welcome, text: str, committed: int | None
    ) -> Aborted | Refused:
        """A new attempt began, which voids all that is open; the action that reports it.

        `committed` is the step whose decision is awaited. If this worker is left out, it stays in
        the attempt that is over: how its open steps come out does not concern it any more.
        """
        if not m.contributors & self._contributors:
            self.has_joined, self.is_left_out = False, True
            self._cancelling = None
            first = m.step if committed is None else min(committed, m.step)
            text = f"the job goes on without this rank: {text}"
            return Aborted(first, text, m.loaded, counts=False)
        if m.step < self._out.step:
            return Refused(refusal_text(m.step, self._out.step), is_older=True)
        self._adopt(m)
        self._cancelling = None
        return Aborted(m.step, text, m.loaded)

    def repeat(self) -> None:
        """Send under a new attempt what belongs to no step; if left out, ask to be admitted."""
        if self._cancelling is not None:
            self._send_cancel()
        if self._is_leaving:
            self._send_leave()
        if not self.has_joined:
            self._send_hello()

    def left(self, m: wire.Received) -> None:
        """The parent has received that this worker leaves."""
        if self._uplink.answered("leave"):
            self._out.actions.append(Left())

    def _adopt(self, m: wire.Welcome | wire.Abort) -> None:
        self._out.epoch, self._out.generation = m.epoch, m.generation
        self._out.attempt, self._out.step = m.attempt, m.step
        self.counted = m.contributors

    def _send_hello(self) -> None:
        assert self._hello is not None
        description, description_hash, extent_chunks = self._hello
        hello = self._out.stamped(
            wire.Hello, protocol=PROTOCOL_VERSION, world_size=self._world_size,
            contributors=self._contributors, present=self._contributors, roll=0,
            description_hash=description_hash, extent_chunks=extent_chunks,
        )  # fmt: skip
        self._uplink.ask(self._out.now_ns, "hello", hello, description)

    def _send_cancel(self) -> None:
        cancel = self._out.stamped(wire.Cancel, text=self._cancelling or "", lost=0)
        self._uplink.ask(self._out.now_ns, "cancel", cancel)

    def _send_leave(self) -> None:
        leave = self._out.stamped(wire.Leave, contributors=self._contributors)
        self._uplink.ask(self._out.now_ns, "leave", leave)
