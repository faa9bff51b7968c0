"""The pages of a node that is being filled while the others go on. Pure.

Adopt    BeginFilling -> store_opened    the store is at a version, and has no page of it
Page     FillPage -> page_filled: Received

In each step more extents count than in the one before (`wire.Commit.held`). The pages of those that
are new come at the version that the step begins with; then they are updated like all others.
"""

from __future__ import annotations

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import FillPage
from switch_emu.node.core.shard import Shard


class Filling:
    """See the module."""

    def __init__(self, outbox: Outbox, children: Children, shard: Shard) -> None:
        self._outbox, self._children, self._shard = outbox, children, shard
        self.number = 0
        """Of the filling that is under way (`wire.Adopt.filling`); 0: the node has all its pages,
        or no version."""
        self._filled: set[int] = set()
        """Chunks whose pages are there."""
        self._under_way: set[int] = set()
        """Chunks whose pages are being written."""

    def begin(self, number: int) -> None:
        """The store is empty."""
        self.number = number
        self._filled.clear()

    def end(self) -> None:
        """The node has all its pages, and counts."""
        self.number = 0
        self._filled.clear()

    def page(self, m: wire.Page, payload: Payload, payload_bytes: int) -> None:
        """A page came, from a node that has it."""
        is_known = m.index in self._filled
        if is_known:
            self._confirm(m.index)
        # A page of an older version or opening, sent before, would overwrite what counts.
        is_wanted = (
            self.number and not is_known and m.step == self._outbox.step
            and m.generation == self._outbox.generation and self._shard.owns(m.index)
        )  # fmt: skip
        if not is_wanted or m.index in self._under_way:
            self._outbox.drop(payload)
        elif payload_bytes != self._shard.stored_bytes(m.index):
            self._outbox.note("node.misfit", level="WARNING", chunk=m.index, bytes=payload_bytes)
            self._outbox.drop(payload)
        else:
            self._under_way.add(m.index)
            self._outbox.actions.append(FillPage(m.index, payload))

    def page_filled(self, done: FillPage) -> None:
        """A page is in its place."""
        self._under_way.discard(done.chunk)
        self._filled.add(done.chunk)
        self._confirm(done.chunk)

    @property
    def is_writing(self) -> bool:
        """True if a page is on its way to the store."""
        return bool(self._under_way)

    @property
    def is_whole(self) -> bool:
        """True if no page is missing."""
        return not self.number or len(self._filled) == self._shard.chunks_count

    def has(self, extent: int) -> bool:
        """True if all pages of an extent are there."""
        return not self.number or self._filled.issuperset(self._shard.layout.extents[extent].chunks)

    @property
    def has_held(self) -> bool:
        """True if all pages are there that count in the open step, and no other is on its way."""
        has_all = len(self._filled) >= self._shard.held_chunks
        # A page on its way is of the version that the step ends: it must be there before.
        return not self.number or (has_all and not self._under_way)

    def _confirm(self, chunk: int) -> None:
        receipt = self._outbox.stamped(
            wire.Received, index=chunk, part=0, verb=Verb.PAGE, contributors=0
        )
        self._children.send_all(receipt)
