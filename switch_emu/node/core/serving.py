"""The weights on their way out of the node: read and sent as soon as they may be.

    for the open step t            the decided version of the page, at any time
    for the step after it, t + 1   handed out by the update itself, or read once it is written;
                                   a page that no update touches is the same in both versions

    Pull -> wanted     the weights are not there yet
    wanted -> same     the asker has those of the step before, and no update touches them: Received
         -> queued     they can be read; reads start in this order, a few at a time: ReadWeights
    wanted -> sent     an update hands them out on its way
    Copy -> CopyPage   a whole page, for a node that is being filled

What was read under an older attempt is dropped: it is asked for again under the new one. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import CopyPage, ReadWeights, Update
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.step import Steps


class Serving:
    """Pulls, and the weights that answer them."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, steps: Steps, reads_max: int
    ) -> None:
        self._outbox, self._children = outbox, children
        self._shard, self._steps = shard, steps
        self._reads_max = reads_max
        self._wanted: dict[tuple[int, int], dict[int, bool]] = {}
        """(step, extent) -> uses for which it is wanted, and if the asker has those of the step
        before."""
        self._queue: deque[ReadWeights] = deque()
        self._reads: list[ReadWeights | CopyPage] = []
        """Under way; one that is asked for again is there twice."""
        self._pulled_ahead: dict[int, None] = {}
        """Extents of the step after the open one, in the order of their first pull."""

    def pull(self, peer: str, m: wire.Pull, *_: object) -> bool:
        """A child wants weights; True if they may be those of a preview."""
        open_step = self._outbox.step
        if not open_step <= m.step <= open_step + 1:
            return False
        last = m.index + m.count - 1
        if not (self._shard.owns_extent(m.index) and self._shard.owns_extent(last)):
            return False
        for extent in range(m.index, last + 1):
            if m.step == open_step:
                self._steps.at(m.step).pulled.setdefault(extent)
            else:
                self._pulled_ahead.setdefault(extent)
            self._wanted.setdefault((m.step, extent), {})[m.part] = m.has
            self.serve(m.step, extent)
        return self._steps.lacks_pieces

    def serve(self, number: int, extent: int) -> None:
        """Read the weights of an extent for a step, if they are wanted and can be read."""
        if not self._children.loaded or (number, extent) not in self._wanted:
            return
        version: int | None = number
        if number == self._outbox.step + 1:
            step = self._steps.open
            is_trainable = self._shard.layout.extents[extent].trainable
            if not is_trainable or (step and (step.is_skipped or extent in step.unchanged)):
                version = None  # the same in both versions
                if step and not step.is_skipped:  # by that all weights that are elsewhere are void
                    self._send_same(number, extent)
            elif step is None or extent not in step.written or step.is_provisional:
                return
        elif self._steps.is_overwriting and self._shard.layout.extents[extent].trainable:
            return  # all have committed the step: who asks once more has moved on
        if parts := self._take(number, extent):
            self._queue.append(ReadWeights(extent, number, version, self._outbox.attempt, parts))
            self._start_reads()

    def _send_same(self, number: int, extent: int) -> None:
        """Weights are those of the step before: an asker that has these needs no more."""
        wanted = self._wanted[number, extent]
        for part in [part for part, has in wanted.items() if has]:
            del wanted[part]
            self._children.send_all(self._outbox.receipt_of(Verb.PULL, number, extent, part))

    def publish(self, update: Update, weights: Payload, *, in_place: int) -> None:
        """An update hands its weights out to all that wait for them."""
        parts = self._take(update.step + 1, update.extent)
        self._send(update.step + 1, update.extent, parts, weights, in_place)

    def weights_read(self, read: ReadWeights, payload: Payload | None, *, in_place: int) -> None:
        """The weights that `read` asked for; None if that version has gone meanwhile."""
        self._reads.remove(read)
        if payload is not None and read.attempt == self._outbox.attempt:
            self._send(read.step, read.extent, read.parts, payload, in_place)
        self._outbox.drop(payload)
        self._start_reads()

    def copy(self, m: wire.Copy, *_: object) -> None:
        """The switch wants a page for a node that is being filled."""
        copy, is_ours = CopyPage(m.index, m.step), self._shard.owns(m.index)
        is_decided = self._children.loaded and m.step == self._outbox.step
        if is_ours and is_decided and copy not in self._reads:  # else it is asked for again
            self._reads.append(copy)
            self._outbox.actions.append(copy)

    def page_copied(self, copy: CopyPage, payload: Payload | None) -> None:
        """The page that `copy` asked for; None if that version has gone meanwhile."""
        self._reads.remove(copy)
        if payload is not None and copy.step == self._outbox.step:
            page = self._outbox.stamped(wire.Page, step=copy.step, index=copy.chunk, part=0)
            self._children.send_all(page, payload)
        self._outbox.drop(payload)
        self._start_reads()

    def awaits(self, step: int, extent: int) -> bool:
        """True if weights of an extent are wanted for a step."""
        return (step, extent) in self._wanted

    def awaited(self, number: int) -> Iterator[int]:
        """The extents whose weights are wanted for a step."""
        return (extent for step, extent in self._wanted if step == number)

    @property
    def is_reading(self) -> bool:
        """True if pages, or weights of them, are being read."""
        return bool(self._reads)

    def reads_before(self, step: int) -> bool:
        """True if weights for an older step are still being read."""
        return any(read.step < step for read in self._reads)

    def was_decided(self) -> None:
        """A step was decided: what was pulled ahead of the next is how its forward begins."""
        open_step = self._outbox.step
        if self._pulled_ahead:
            self._steps.at(open_step).pulled.update(self._pulled_ahead)
            self._pulled_ahead.clear()
        self._wanted = {key: parts for key, parts in self._wanted.items() if key[0] >= open_step}
        self._queue = deque(read for read in self._queue if read.step >= open_step)
        self.serve_all(open_step)

    def was_skipped(self) -> None:
        """The open step is skipped: what streamed ahead is void, and the next begins with the
        weights of this one."""
        self._queue.clear()
        self.serve_all(self._outbox.step + 1)

    def forget(self) -> None:
        """A new attempt: weights are asked for again."""
        self._pulled_ahead.clear()
        self._queue.clear()
        self._wanted.clear()

    def serve_all(self, number: int) -> None:
        """Read the weights for a step that are wanted and can be read."""
        for extent in tuple(self.awaited(number)):
            self.serve(number, extent)

    def _take(self, step: int, extent: int) -> tuple[int, ...]:
        """The uses for which an extent is wanted; they are served by the caller."""
        return tuple(sorted(self._wanted.pop((step, extent), {})))

    def _start_reads(self) -> None:
        while self._queue and len(self._reads) < self._reads_max:
            read = self._queue.popleft()
            self._reads.append(read)
            self._outbox.actions.append(read)

    def _send(
        self, step: int, extent: int, parts: tuple[int, ...], payload: Payload, in_place: int
    ) -> None:
        dtype = self._shard.layout.extents[extent].wire_dtype
        for part in parts:
            weights = self._outbox.stamped(
                wire.Weights, step=step, index=extent, part=part, dtype=dtype, in_place=in_place
            )
            self._children.send_all(weights, payload)
