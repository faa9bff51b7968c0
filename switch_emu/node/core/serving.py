"""The weights on their way out of the node: read and sent as soon as they may be.

    for the open step t            the decided version of the page, at any time
    for the step after it, t + 1   handed out by the update itself, or read once it is written;
                                   a page that no update touches is the same in both versions

What was read under an older attempt is dropped: it is asked for again under the new one. Pure.
"""

from __future__ import annotations

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from switch_emu.node.core.actions import ReadWeights, Update
from switch_emu.node.core.publisher import Publisher
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.steps import Steps


class Serving:
    """Pulls, and the weights that answer them."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, steps: Steps, reads_max: int
    ) -> None:
        self._outbox, self._children = outbox, children
        self._shard, self._steps = shard, steps
        self._publisher = Publisher(reads_max)
        self._pulled_ahead: dict[int, None] = {}
        """Chunks of the step after the open one, in the order of their first pull."""

    def pull(self, peer: str, m: wire.Pull, *_: object) -> None:
        """A child wants weights."""
        open_step = self._outbox.step
        if not open_step <= m.step <= open_step + 1 or not self._shard.owns(m.chunk):
            return
        if m.step == open_step:
            self._steps.at(m.step).pulled.setdefault(m.chunk)
        else:
            self._pulled_ahead.setdefault(m.chunk)
        self._publisher.ask(m.step, m.chunk, m.part)
        self.serve(m.step, m.chunk)

    def serve(self, number: int, chunk: int) -> None:
        """Read the weights of a chunk for a step, if they are wanted and can be read."""
        if not self._children.loaded or not self._publisher.awaits(number, chunk):
            return
        version: int | None = number
        if number == self._outbox.step + 1:
            step = self._steps.open
            is_trainable = self._shard.layout.chunks[chunk].trainable
            if not is_trainable or (step and chunk in step.unchanged):
                version = None  # the same in both versions
            elif step is None or chunk not in step.written:
                return
            elif step.is_judged and not step.is_applied:
                return  # what was written is void
        self._publisher.queue(number, chunk, version, self._outbox.attempt)
        self._start_reads()

    def publish(self, update: Update, weights: Payload, *, in_place: bool) -> None:
        """An update hands its weights out to all that wait for them."""
        parts = self._publisher.take(update.step + 1, update.chunk)
        self._send(update.step + 1, update.chunk, parts, weights, in_place)

    def weights_read(self, read: ReadWeights, payload: Payload | None, *, in_place: bool) -> None:
        """The weights that `read` asked for; None if that version has gone meanwhile."""
        self._publisher.ended(read)
        if payload is not None and read.attempt == self._outbox.attempt:
            self._send(read.step, read.chunk, read.parts, payload, in_place)
        self._outbox.drop(payload)
        self._start_reads()

    def awaits(self, step: int, chunk: int) -> bool:
        """Whether weights of a chunk are wanted for a step."""
        return self._publisher.awaits(step, chunk)

    def reads_before(self, step: int) -> bool:
        """Whether weights for an older step are still being read."""
        return self._publisher.reads_before(step)

    def was_decided(self) -> None:
        """A step was decided: what was pulled ahead of the next is how its forward begins."""
        open_step = self._outbox.step
        if self._pulled_ahead:
            self._steps.at(open_step).pulled.update(self._pulled_ahead)
            self._pulled_ahead.clear()
        for chunk in self._publisher.advance(open_step):
            self.serve(open_step, chunk)

    def was_skipped(self) -> None:
        """The open step is skipped: reads of what streamed ahead are void."""
        self._publisher.clear(waiting=False)

    def forget(self) -> None:
        """A new attempt: weights are asked for again."""
        self._pulled_ahead.clear()
        self._publisher.clear(waiting=True)

    def _start_reads(self) -> None:
        self._outbox.actions.extend(self._publisher.start())

    def _send(
        self, step: int, chunk: int, parts: tuple[int, ...], payload: Payload, in_place: bool
    ) -> None:
        dtype = self._shard.layout.chunks[chunk].wire_dtype
        for part in parts:
            weights = self._outbox.stamped(
                wire.Weights, step=step, chunk=chunk, part=part, dtype=dtype, in_place=in_place
            )
            self._children.send_all(weights, payload)
