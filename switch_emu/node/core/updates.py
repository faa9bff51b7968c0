"""The page updates that are under way. Pure.

start    Update -> updated    the page's new values are known; its weights may be handed out
                -> written    they are on the page's other side
"""

from __future__ import annotations

from luwu.protocol.outbox import Outbox
from switch_emu.node.core.actions import Update
from switch_emu.node.core.budget import GradientBudget
from switch_emu.node.core.filling import Filling
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.step import Step
from switch_emu.node.core.steps import Steps


class Updates:
    """Updates of any attempt, at most `updates_max` at a time."""

    def __init__(
        self, outbox: Outbox, shard: Shard, steps: Steps, budget: GradientBudget, serving: Serving,
        filling: Filling, updates_max: int,
    ) -> None:  # fmt: skip
        self._outbox, self._shard, self._steps = outbox, shard, steps
        self._budget, self._serving, self._updates_max = budget, serving, updates_max
        self._filling = filling
        self.under_way: dict[tuple[int, int], Update] = {}
        """(attempt, extent) -> update."""

    def start(self, step: Step) -> None:
        """Update pages whose gradients are complete."""
        if step.hyper is None or self._serving.reads_before(step.number):
            return  # a read for step t - 1 must end before its side is written again
        attempt = self._outbox.attempt
        for _ in range(len(step.ready)):
            if len(self.under_way) >= self._updates_max:
                return
            if not self._filling.has(step.ready[0]):
                step.ready.rotate(-1)  # its pages are still to come
                continue
            publish = self._serving.awaits(step.number + 1, step.ready[0])
            update = step.next_update(attempt, publish=publish)
            self.under_way[attempt, update.extent] = update
            self._outbox.actions.append(update)

    def updated(self, update: Update, squares: tuple[float, ...]) -> bool:
        """A page has its new values; False if they are of an older attempt."""
        for contribution in update.contributions:
            self._budget.release(contribution.payload)
        if update.attempt != self._outbox.attempt:
            return False
        step = self._steps.by_number[update.step]
        if self._shard.is_streaming:
            step.measured(update.extent, {2.0: squares})
        step.updated.add(update.extent)
        return True

    def written(self, update: Update) -> None:
        """The page's new values are on its other side: they can be read."""
        del self.under_way[update.attempt, update.extent]
        if update.attempt == self._outbox.attempt:
            self._steps.by_number[update.step].written.add(update.extent)
            self._serving.serve(update.step + 1, update.extent)
