"""The undecided steps of which anything is known: the open one, and the one after it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from switch_emu.node.core.budget import GradientBudget
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.step import Step
from switch_emu.node.core.sums import StepSums


class Steps:
    """Steps by their number; their gradients count against `budget`."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, budget: GradientBudget,
        groups: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self._outbox, self._children, self._shard = outbox, children, shard
        self._budget, self._groups = budget, groups
        self.by_number: dict[int, Step] = {}

    @property
    def open(self) -> Step | None:
        """The first undecided step, if anything is known of it."""
        return self.by_number.get(self._outbox.step)

    @property
    def has_commit(self) -> bool:
        """True if a Commit came that is not decided."""
        return any(step.parts is not None for step in self.by_number.values())

    def takes(self, number: int) -> bool:
        """True if gradients of a step are taken now: of the open one, and the one after it."""
        return self._children.loaded and 0 <= number - self._outbox.step <= 1

    def at(self, number: int) -> Step:
        """A step, made if nothing was known of it."""
        if number not in self.by_number:
            sums = StepSums(self._children.members.active, self._groups)
            self.by_number[number] = Step(
                number, self._outbox.attempt, sums, self._shard.is_streaming,
                (self._shard.norm_type,),
            )  # fmt: skip
        return self.by_number[number]

    def close(self) -> None:
        """The open step was decided: go on with the next."""
        step = self.by_number.pop(self._outbox.step, None)
        self._outbox.step += 1
        if step is not None:  # None: it was prepared before this node was started again
            self._release(step)

    def lacks_pieces_of(self, ranks: int) -> bool:
        """True if the open step can never be decided, as attachments of these ranks are lost."""
        step = self.open
        if step is None or not step.is_judged or not step.keeps:
            return False
        return bool(ranks & self._children.members.active & ~step.kept_ranks)

    def forget(self) -> None:
        """A new attempt: drop all gradients."""
        self._budget.forget()
        for step in self.by_number.values():
            self._release(step)
        self.by_number.clear()

    def _release(self, step: Step) -> None:
        for payload in step.sums.payloads():
            self._budget.release(payload)
