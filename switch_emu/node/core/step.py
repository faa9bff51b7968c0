"""One undecided step at the node: its sums, how far its pages are, and its verdict. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from luwu.protocol.children import ranks_text
from luwu.protocol.contribution import Contribution, common_absent
from luwu.wire.hyper import StepHyper, stated_hyper
from luwu.wire.messages import Verdict
from luwu.wire.norms import Squares, condensed
from switch_emu.node.core.actions import BlockNorms, Fold, Update
from switch_emu.node.core.sums import ExtentSum, StepSums


@dataclass(slots=True)
class Step:
    """State of a step that is not decided yet."""

    number: int
    attempt: int
    """In which it began; a skipped step goes on in the next."""
    sums: StepSums
    streaming: bool
    norm_types: tuple[float, ...]
    """Norms to take of its sums: that of the job and, once they are known, those of its clips."""
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
    """All its sums here are complete and measured: the verdict was asked for."""
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
            norms=() if self.verdict is None else self.verdict.norms,
            hyper=self.hyper,
            publish=publish,
        )

    def next_fold(self, extent: int, attempt: int) -> Fold | None:
        """The next part of an extent to fold, if it is complete and none is being folded; or, with
        the last one folded, its total, of which a norm is still to be taken."""
        entry, norm_types = self.sums.extents[extent], self.norm_types
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
            return Fold(extent, self.number, attempt, number, total, present, absent, norm_types)
        missing = tuple(each for each in norm_types if each not in entry.squares)
        total = entry.total
        # A clip's norm type is known from `Commit`, when parts may be folded already.
        if missing and total is not None and not entry.folding and entry.folded_count == self.parts:
            entry.folding, entry.total = True, None
            number, absent = entry.folded_count - 1, total.absent
            return Fold(extent, self.number, attempt, number, total, (), absent, missing)
        return None

    def folded(self, fold: Fold, squares: BlockNorms, total: Contribution) -> None:
        """A part was folded, or a total measured: the new total, and its squares."""
        entry = self.sums.extents[fold.extent]
        entry.folding, entry.total = False, total
        if fold.contributions:
            entry.squares.clear()
            entry.folded_count += 1
        self.measured(fold.extent, squares)

    def commit(self, parts: int, hyper: bytes | None, *, skip: bool) -> None:
        """All its pushes are out; `hyper`: None where they are known since `Begin`."""
        self.parts, self.skip = parts, skip
        if hyper is not None:
            self.hyper = hyper
            clips = self.stated.clips
            self.norm_types = tuple(
                dict.fromkeys([*self.norm_types, *(clip.norm_type for clip in clips)])
            )

    def has_kept(self, ranks: int) -> bool:
        """True if everything that is to be kept beside the step is put aside."""
        return not self.keeps or self.kept_ranks == ranks

    @property
    def stated(self) -> StepHyper:
        """Its hyper-parameters, as far as they are known."""
        return stated_hyper(self.hyper)

    @property
    def keeps(self) -> bool:
        """True if, by its hyper-parameters, every rank attaches something to it."""
        return self.stated.keeps

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
            if not self.streaming and (
                entry.folded_count < self.parts
                or entry.folding
                or (entry.total is not None and not entry.squares.keys() >= {*self.norm_types})
            ):
                return False
            self.measured_count += 1
        return True

    def measured(self, extent: int, squares: BlockNorms) -> None:
        """The squares of an extent's sum are known. A few numbers are kept, so that little is left
        to add when the last ones come."""
        of_types = {each: condensed(values, each) for each, values in squares.items()}
        self.sums.extents[extent].squares.update(of_types)

    def squares(self, trainable: Sequence[int]) -> Squares | None:
        """Block squares of the undivided sums, for the norm; None if a sum is not finite.

        By norm type. Extents of equal total weight stand together: they are added, divided once.
        """
        blocks: dict[tuple[float, float], list[float]] = {}
        for extent in trainable:
            entry = self.sums.extents[extent]
            if not (weight := entry.weight) > 0:
                return None  # nothing to divide by: no mean gradient
            for each in self.norm_types:
                blocks.setdefault((each, weight), []).extend(entry.squares.get(each, ()))
        if not all(math.isfinite(square) for each in blocks.values() for square in each):
            return None
        return blocks

    def not_finite(self, trainable: Sequence[int]) -> int | None:
        """The last extent here whose sum is not finite: backward came to it first. None if there is
        none, or none has come: a node that is being filled is told of steps too."""
        for extent in reversed(trainable):
            entry = self.sums.extents.get(extent)
            squares = () if entry is None else entry.squares.get(self.norm_types[0], ())
            if not all(map(math.isfinite, squares)):
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
