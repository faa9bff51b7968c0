"""Weights on their way out of the node: what was asked for is read and sent as soon as it may be.

    for the undecided step t       the decided version of the page, at any time
    for the step after it, t + 1   handed out by the update itself, or read once it is written;
                                   a page that no update touches is the same in both versions

What was read under an older attempt is dropped: it is asked for again under the new one. Pure.
"""

from __future__ import annotations

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import Payload
from luwu.wire import messages as wire
from switch_emu.node.core.actions import NodeLimits, NodePlace, ReadWeights, Update
from switch_emu.node.core.joint import NodeJoint
from switch_emu.node.core.membership import Action
from switch_emu.node.core.publisher import Publisher
from switch_emu.node.core.step import Step
from switch_emu.node.core.sums import StepSums


class NodeServing(NodeJoint):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, ranks: int, place: NodePlace, limits: NodeLimits,
        retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, ranks, place, limits, retry)
        self._publisher = Publisher(limits.reads_max)
        self._pulled_ahead: dict[int, None] = {}
        """Chunks of the step after the undecided one, in the order of their first pull."""

    def _forget(self) -> None:
        super()._forget()
        self._pulled_ahead.clear()
        self._publisher.clear(waiting=True)

    def _step_of(self, number: int) -> Step:
        if number not in self._steps:
            may_overflow = self.aggregator.may_overflow
            sums = StepSums(self._members.active, self.groups, may_overflow=may_overflow)
            self._steps[number] = Step(number, self._attempt, sums, self._streaming)
        return self._steps[number]

    def _pull(self, m: wire.Pull) -> None:
        if not self._step <= m.step <= self._step + 1 or not self._owns(m.chunk):
            return
        if m.step == self._step:
            self._step_of(m.step).pulled.setdefault(m.chunk)
        else:
            self._pulled_ahead.setdefault(m.chunk)
        self._publisher.ask(m.step, m.chunk, m.part)
        self._serve(m.step, m.chunk)

    def _go_on_serving(self) -> None:
        """A step was decided: what was pulled ahead of the next is how its forward begins."""
        if self._pulled_ahead:
            self._step_of(self._step).pulled.update(self._pulled_ahead)
            self._pulled_ahead.clear()
        for chunk in self._publisher.advance(self._step):
            self._serve(self._step, chunk)

    def _serve(self, number: int, chunk: int) -> None:
        """Read the weights that were asked for, if they are there to be read."""
        if not self._loaded or not self._publisher.awaits(number, chunk):
            return
        version: int | None = number
        if number == self._step + 1:
            step = self._steps.get(self._step)
            if not self._layout.chunks[chunk].trainable or (step and chunk in step.unchanged):
                version = None  # the same in both versions
            elif step is None or chunk not in step.written:
                return
            elif step.is_judged and not step.is_applied:
                return  # what was written is void
        self._publisher.queue(number, chunk, version, self._attempt)
        self._actions.extend(self._publisher.start())

    def _publish(self, update: Update, weights: Payload, in_place: bool) -> None:
        """An update hands its weights out to all who wait for them."""
        parts = self._publisher.take(update.step + 1, update.chunk)
        self._send_weights(update.step + 1, update.chunk, parts, weights, in_place)

    def weights_read(
        self, read: ReadWeights, payload: Payload | None, *, in_place: bool = False
    ) -> list[Action]:
        """The weights that `read` asked for; None if that version has gone meanwhile.

        `in_place`: the payload lies at a place of its own in shared memory.
        """
        self._publisher.ended(read)
        if payload is not None and read.attempt == self._attempt:
            self._send_weights(read.step, read.chunk, read.parts, payload, in_place)
        self._drop(payload)
        self._actions.extend(self._publisher.start())
        self._settle()
        return self._take()

    def _send_weights(
        self, step: int, chunk: int, parts: tuple[int, ...], payload: Payload, in_place: bool
    ) -> None:
        dtype = self._layout.chunks[chunk].wire_dtype
        for part in parts:
            weights = self._ours(
                wire.Weights, step=step, chunk=chunk, part=part, dtype=dtype, in_place=in_place
            )
            self._tell_all(weights, payload)
