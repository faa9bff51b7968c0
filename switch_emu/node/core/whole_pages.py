"""Pages that come whole: the initial weights from rank 0, all pages where a node is filled. Pure.

    Load     LoadPage -> page_loaded: Received
    Adopt    BeginFilling -> store_opened    the store is at a version, and has no page of it
    Page     FillPage -> page_filled: Received

While a node is filled, more extents count in each step than in the one before (`wire.Commit.held`).
The pages of those that are new come at the version that the step begins with; then they are updated
like all others.

A worker that does not pull before it pushes (a replicated model, an empty backward) may send for
step 0 before version 0 is decided. What it sends is kept until then, within the window (`Early`):
its sender repeats what is not answered only after seconds.
"""

from __future__ import annotations

from typing import Any, Final

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import FillPage, LoadPage
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State


class FirstWeights:
    """The chunks that come before step 0."""

    def __init__(self, outbox: Outbox, children: Children, shard: Shard, state: State) -> None:
        self._outbox, self._children = outbox, children
        self._shard, self._state = shard, state
        self._loading: set[int] = set()
        """Chunks that have arrived; of these, ..."""
        self._loaded: set[int] = set()
        """... those that are in their pages."""
        self._waiting: list[LoadPage] = []
        """They wait until pages of an older attempt are discarded."""
        self.under_way_count = 0
        """Pages under way to the store, of any attempt."""

    def load(self, peer: str, m: wire.Load, payload: Payload, payload_bytes: int) -> None:
        """Initial weights of a chunk."""
        if m.index in self._loaded or self._children.loaded:
            self._confirm(m.index)
            self._outbox.drop(payload)
        elif m.index in self._loading or not self._shard.owns(m.index):
            self._outbox.drop(payload)
        elif payload_bytes not in self._sizes(m.index):
            self._outbox.note("node.misfit", level="WARNING", chunk=m.index, bytes=payload_bytes)
            self._outbox.drop(payload)
        else:
            self._loading.add(m.index)
            self._waiting.append(LoadPage(m.index, self._outbox.attempt, payload))
            self.start()

    def start(self) -> None:
        """Write what waits, unless older pages are still to be discarded."""
        if not self._state.must_discard:
            self.under_way_count += len(self._waiting)
            self._outbox.actions.extend(self._waiting)
            self._waiting.clear()

    def page_loaded(self, done: LoadPage) -> bool:
        """Initial weights are in their page; True if they are those of an older attempt."""
        self.under_way_count -= 1
        if done.attempt != self._outbox.attempt:
            return True
        self._loaded.add(done.chunk)
        self._confirm(done.chunk)
        if not self.missing_count:
            self._state.prepare(0)
        return False

    @property
    def missing_count(self) -> int:
        """Chunks of this node that are not in their pages."""
        return self._shard.chunks_count - len(self._loaded)

    @property
    def is_loading(self) -> bool:
        """True if weights are on their way to their pages, or all there and not decided."""
        if self._children.loaded or not self._loading:
            return False
        return not self.missing_count or self._loading != self._loaded

    def forget(self) -> None:
        """A new attempt: weights that are not decided must come again."""
        if not self._children.loaded:
            self._loading.clear()
            self._loaded.clear()
        self._outbox.drop_all(load.payload for load in self._waiting)
        self._waiting.clear()

    def _sizes(self, chunk: int) -> tuple[int, ...]:
        """Bytes of initial weights; or of weights, state fields and the counts of updates."""
        return self._shard.layout.chunks[chunk].sum_bytes, self._shard.loaded_bytes(chunk)

    def _confirm(self, chunk: int) -> None:
        self._children.send_all(self._outbox.receipt_of(Verb.LOAD, 0, chunk))


_KINDS: Final = (wire.Push, wire.Propose, wire.Commit, wire.Keep)


class Early:
    """What is received again, as it came, when there are weights."""

    def __init__(self, outbox: Outbox, bytes_max: int) -> None:
        self._outbox, self._bytes_max = outbox, bytes_max
        self._bytes = 0
        self._kept: dict[tuple[str, wire.Message], tuple[Any, int]] = {}
        """Sender and message -> its payload."""

    def is_early(self, m: wire.Message) -> bool:
        """True if this message must wait, as long as there are no weights."""
        return m.step == 0 and isinstance(m, _KINDS)

    def keep(self, peer: str, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        """Keep a message; a repetition, and what is beyond the window, is dropped."""
        if (peer, m) in self._kept or self._bytes + payload_bytes > self._bytes_max:
            self._outbox.ignore(m, payload)
            return
        self._kept[peer, m] = payload, payload_bytes
        self._bytes += payload_bytes

    def take(self) -> list[tuple[str, wire.Message, Any, int]]:
        """All that is kept, in the order in which it came."""
        found = [(peer, m, *kept) for (peer, m), kept in self._kept.items()]
        self._kept.clear()
        self._bytes = 0
        return found

    def forget(self) -> None:
        """A new attempt: what came under the older one does not count."""
        for _, m, payload, _ in self.take():
            self._outbox.ignore(m, payload)


class Filling:
    """The pages of a node that is being filled while the others go on."""

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
        """The store is empty; 0: the filling ends, as the node has all its pages, and counts."""
        self.number = number
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
        """True if all pages of an extent, and of those updated with it, are there."""
        layout = self._shard.layout
        return not self.number or all(
            self._filled.issuperset(layout.extents[each].chunks) for each in layout.sheet(extent)
        )

    @property
    def has_held(self) -> bool:
        """True if all pages are there that count in the open step, and no other is on its way."""
        has_all = len(self._filled) >= self._shard.held_chunks
        # A page on its way is of the version that the step ends: it must be there before.
        return not self.number or (has_all and not self._under_way)

    def _confirm(self, chunk: int) -> None:
        self._children.send_all(self._outbox.receipt_of(Verb.PAGE, self._outbox.step, chunk))
