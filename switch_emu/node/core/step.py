"""One undecided step at the node: its sums, how far its pages are, and its verdict. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from luwu.protocol.contribution import Contribution, common_absent
from luwu.protocol.members import ranks_text
from luwu.wire.hyper import keeps
from luwu.wire.messages import Verdict
from luwu.wire.squares import Squares, condensed
from switch_emu.node.core.actions import Fold, Update
from switch_emu.node.core.sums import ExtentSum, StepSums


@dataclass(slots=True)
class Step:
    """State of a step that is not decided yet."""

    number: int
    attempt: int
    """In which it began; a skipped step goes on in the next."""
    sums: StepSums
    streaming: bool
    hyper: bytes | None = None
    """Hyper-parameters: from `Begin` when streaming, else from `Commit`."""
    parts: int | None = None
    """Backward passes; known from `Commit`."""
    skip: bool = False
    """A rank wants it left out; known from `Commit`."""
    pulled: dict[int, None] = field(default_factory=dict)
    """Extents in the order of their first pull: the forward order."""
    ready: deque[int] = field(default_factory=deque)
    """Extents whose update may start."""
    updated: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    unchanged: set[int] = field(default_factory=set)
    """Also among updated and written: no rank had a gradient, so the page stays as it is."""
    verdict: Verdict | None = None
    is_stated: bool = False
    """Node 0 knows that this node's sums are complete."""
    preparing: bool = False
    kept: dict[int, set[int]] = field(default_factory=dict)
    """Ranks (one each) -> pieces of theirs that are put aside beside this step."""
    keeping: set[tuple[int, int]] = field(default_factory=set)
    """(ranks, piece) on their way there."""
    pieces_count: dict[int, int] = field(default_factory=dict)
    """Ranks -> how many pieces they are."""
    measured_count: int = 0
    """Trainable extents, from the first on, whose sums are complete and measured: they stay so."""

    def make_ready(self, extent: int) -> bool:
        """All of an extent's gradient is there. False if it is empty: the page stays as it is."""
        if self._gradient(self.sums.extents[extent]):
            self.ready.append(extent)
            return True
        for each in (self.unchanged, self.updated, self.written):
            each.add(extent)
        return False

    def take_gradient(self, extent: int) -> tuple[Contribution, ...]:
        """Hand an extent's gradient out; its payloads belong to the caller from now on."""
        entry = self.sums.extents[extent]
        gradient = self._gradient(entry)
        entry.total = None
        for part in entry.parts.values():
            part.contributions = [replace(c, payload=None) for c in part.contributions]
        return gradient

    def next_update(self, attempt: int, *, publish: bool) -> Update:
        """The update of the next extent that is ready; `publish`: its weights are waited for."""
        extent = self.ready.popleft()
        assert self.hyper is not None
        gradient = self.take_gradient(extent)
        return Update(
            extent=extent,
            step=self.number,
            attempt=attempt,
            contributions=gradient,
            absent=common_absent(gradient),
            divisor=self.sums.extents[extent].weight,
            grad_norm=None if self.verdict is None else self.verdict.grad_norm,
            hyper=self.hyper,
            publish=publish,
        )

    def next_fold(self, extent: int, attempt: int) -> Fold | None:
        """The next part of an extent to fold, if it is complete and none is being folded."""
        entry = self.sums.extents[extent]
        while not entry.folding and entry.complete_up_to(entry.folded_count + 1):
            number, part = entry.folded_count, entry.parts[entry.folded_count]
            present = tuple(part.payloads())
            if not present:
                entry.folded_count += 1
                continue
            entry.folding = True
            part.contributions = [replace(c, payload=None) for c in part.contributions]
            total, entry.total = entry.total, None
            absent = common_absent(present if total is None else (total, *present))
            return Fold(extent, self.number, attempt, number, total, present, absent)
        return None

    def folded(
        self, extent: int, squares: Sequence[float], norm_type: float, total: Contribution
    ) -> None:  # fmt: skip
        """A part was folded: the extent's new total, and its squares."""
        entry = self.sums.extents[extent]
        entry.folding, entry.total = False, total
        self.measured(extent, squares, norm_type)
        entry.folded_count += 1

    def has_kept(self, ranks: int) -> bool:
        """True if everything that is to be kept beside the step is put aside."""
        return not self.keeps or self.kept_ranks == ranks

    @property
    def keeps(self) -> bool:
        """True if, by its hyper-parameters, every rank attaches something to it."""
        return keeps(self.hyper)

    @property
    def kept_ranks(self) -> int:
        """Ranks all of whose pieces are put aside."""
        complete = 0
        for rank, pieces in self.kept.items():
            complete |= rank if len(pieces) == self.pieces_count[rank] else 0
        return complete

    @property
    def is_judged(self) -> bool:
        """True if it has its verdict."""
        return self.verdict is not None

    @property
    def is_applied(self) -> bool:
        """True if it has its verdict, which does not skip it."""
        return self.verdict is not None and self.verdict.applied

    def is_measured(self, trainable: Sequence[int]) -> bool:
        """True if every sum of the step is complete and its squares are known."""
        if self.parts is None:
            return False
        while self.measured_count < len(trainable):
            extent = trainable[self.measured_count]
            entry = self.sums.extents.get(extent)
            if entry is None or not entry.complete_up_to(self.parts):
                return False
            if self.streaming and extent not in self.updated:
                return False
            if not self.streaming and entry.folded_count < self.parts:
                return False
            self.measured_count += 1
        return True

    def measured(self, extent: int, squares: Sequence[float], norm_type: float) -> None:
        """The squares of an extent's sum are known. A few numbers are kept, so that little is left
        to add when the last ones come."""
        self.sums.extents[extent].squares = condensed(squares, norm_type)

    def squares(self, trainable: Sequence[int]) -> Squares | None:
        """Block squares of the undivided sums, for the norm; None if a sum is not finite.

        Extents of equal total weight stand together: they are added, and divided once.
        """
        blocks: dict[float, list[float]] = {}
        for extent in trainable:
            entry = self.sums.extents[extent]
            if not entry.weight > 0:
                return None  # nothing to divide by: no mean gradient
            blocks.setdefault(entry.weight, []).extend(entry.squares)
        if not all(math.isfinite(square) for each in blocks.values() for square in each):
            return None
        return blocks

    def not_finite(self, trainable: Sequence[int]) -> int | None:
        """The last extent here whose sum is not finite: backward came to it first."""
        for extent in reversed(trainable):
            if not all(map(math.isfinite, self.sums.extents[extent].squares)):
                return extent
        return None

    def forward_order(self, trainable: Sequence[int]) -> list[int]:
        """The extents in the order in which the next forward will want them."""
        wanted = set(trainable)
        first = [extent for extent in self.pulled if extent in wanted]
        return [*first, *(extent for extent in trainable if extent not in self.pulled)]

    def waits_for(self, trainable: Sequence[int]) -> str:
        """The next event that the step waits for, as text."""
        for extent in trainable:
            late = self.sums.missing_ranks(extent)
            if late:
                return f"extent {extent} of ranks {ranks_text([late])}"
        if self.parts is None:
            return "commit"
        if self.verdict is not None and self.keeps:
            missing = self.sums.ranks & ~self.kept_ranks
            if missing:
                return f"what ranks {ranks_text([missing])} attached"
        return f"{len(trainable) - len(self.written)} extents to be written"

    def _gradient(self, entry: ExtentSum) -> tuple[Contribution, ...]:
        if self.streaming:
            return tuple(entry.parts[0].payloads())
        return () if entry.total is None else (entry.total,)
