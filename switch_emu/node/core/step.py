"""The undecided steps at the node: their sums, how far their pages are, and their verdicts. Pure.

Anything is known of the open step and of the one after it (`Steps`). A contribution to a step is a
sum that a switch made, or raw from one rank when the switch had no slot. A part of an extent is
complete when its contributors are all ranks: then its payloads are added in rank order; in a tree,
as its switches would have (`total_weight`). Payloads are opaque, and nothing is added here.

Gradients in RAM have a budget (`GradientBudget`). One that is over it waits where it lies, in the
window of the child, if its page can be updated whatever else comes: then its receipt is sent when
there is room for it or its page has been updated. All others are spilled: they wait for more than
the disk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, ranks_text
from luwu.protocol.contribution import Contribution, common_absent, merge, rank_order, total_weight
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.hyper import StepHyper, stated_hyper
from luwu.wire.messages import Verdict
from luwu.wire.norms import Squares, clip_factor, condensed
from switch_emu.node.core.actions import BlockNorms, Fold, Spill, Update
from switch_emu.node.core.shard import Shard


class GradientBudget:
    """Counts payloads from their arrival until their page is updated."""

    def __init__(
        self, outbox: Outbox, children: Children, bytes_max: int, raw_bytes_max: int | None
    ) -> None:
        self._outbox, self._children = outbox, children
        self.bytes_max = bytes_max
        self._raw_bytes_max = bytes_max if raw_bytes_max is None else raw_bytes_max
        self._bytes_of: dict[int, tuple[int, bool]] = {}
        self._owed: dict[int, tuple[int, wire.Received]] = {}
        """Bytes and receipts of payloads that wait, in the order of their arrival."""
        self.bytes_used = 0
        self._raw_bytes_used = 0
        self.spilled_count = 0
        self.owed_count = 0
        """Gradients whose receipt had to wait."""

    def add(self, payload: Payload | None, payload_bytes: int, *, is_raw: bool) -> None:
        """Count a payload, or spill it if there is no room. Raw: of a single rank."""
        if payload is None:
            return
        over = self.bytes_used + payload_bytes > self.bytes_max
        # Raw gradients wait for other ranks, which need room in the same arena to come.
        if over or (is_raw and self._raw_bytes_used + payload_bytes > self._raw_bytes_max):
            self.spilled_count += 1
            self._outbox.actions.append(Spill(payload, is_raw))
            return
        self._bytes_of[id(payload)] = (payload_bytes, is_raw)
        self._count(payload_bytes, is_raw)

    def add_or_owe(self, payload: Payload, payload_bytes: int, receipt: wire.Received) -> None:
        """Count a payload and send its receipt: now, or when there is room."""
        if self._owed or self.bytes_used + payload_bytes > self.bytes_max:
            self.owed_count += 1
            self._owed[id(payload)] = (payload_bytes, receipt)
            return
        self._children.send_all(receipt)
        self.add(payload, payload_bytes, is_raw=False)

    def owes(self, step: int, part: int, extent: int) -> bool:
        """True if the receipt of this gradient waits."""
        found = ((each.step, each.part, each.index) for _, each in self._owed.values())
        return (step, part, extent) in found

    def release(self, payload: Payload | None) -> None:
        """Drop a payload; it may be one that was spilled, or whose receipt waits."""
        if payload is None:
            return
        owed = self._owed.pop(id(payload), None)
        if owed is not None:
            self._children.send_all(owed[1])
        payload_bytes, is_raw = self._bytes_of.pop(id(payload), (0, False))
        self._count(-payload_bytes, is_raw)
        self._outbox.drop(payload)
        while self._owed:
            each, (waiting_bytes, receipt) = next(iter(self._owed.items()))
            if self.bytes_used + waiting_bytes > self.bytes_max:
                break
            del self._owed[each]
            self._bytes_of[each] = (waiting_bytes, False)
            self._count(waiting_bytes, is_raw=False)
            self._children.send_all(receipt)

    def forget(self) -> None:
        """A new attempt: no receipt of the former is sent."""
        self._owed.clear()

    def _count(self, payload_bytes: int, is_raw: bool) -> None:
        self.bytes_used += payload_bytes
        if is_raw:
            self._raw_bytes_used += payload_bytes


@dataclass(slots=True)
class PartSum:
    """One backward's gradient of one extent."""

    contributors: int = 0
    contributions: list[Contribution] = field(default_factory=list)
    complete: bool = False
    is_out: bool = False
    """Its payloads were handed out."""

    def payloads(self) -> list[Contribution]:
        """The payloads to add, in rank order."""
        here = [] if self.is_out else rank_order(self.contributions)
        return [c for c in here if c.payload is not None]


@dataclass(slots=True)
class ExtentSum:
    """All that came in for one extent in one step."""

    groups: Sequence[int] = ()
    """Bitmaps of the ranks that each switch of a tree sums: weights are added in that order."""
    parts: dict[int, PartSum] = field(default_factory=dict)
    folded_count: int = 0
    """Where parts are folded (`Step.folds`): how many are in `total`, from the first on."""
    folding: bool = False
    total: Contribution | None = None
    """The sum over the folded parts; None if none of them had a gradient."""
    squares: dict[float, tuple[float, ...]] = field(default_factory=dict)
    """Norm type -> a few numbers for the blocks of the undivided gradient, of 4,096 elements."""

    def complete_up_to(self, parts_count: int) -> bool:
        """True if the first `parts_count` parts are all complete."""
        return all(i in self.parts and self.parts[i].complete for i in range(parts_count))

    @property
    def weight(self) -> float:
        """The divisor of the sum: the contributors' weights, in the order of the sum."""
        last = self.parts[max(self.parts)]
        return total_weight(last.contributions, self.groups)


@dataclass(slots=True)
class Step:
    """State of a step that is not decided yet."""

    number: int
    attempt: int
    """In which it began; a skipped step goes on in the next."""
    ranks: int
    """Bitmap of those whose contributions it sums."""
    groups: Sequence[int]
    """Bitmaps of the ranks that each switch of a tree sums."""
    streaming: bool
    norm_types: tuple[float, ...]
    """Norms to take of its sums: that of the job and, once they are known, those of its clips."""
    extents: dict[int, ExtentSum] = field(default_factory=dict)
    """All that came in, by extent."""
    hyper: bytes | None = None
    """Hyper-parameters: from `Begin` when streaming, else from `Commit`."""
    parts: int | None = None
    """Backward passes; known from `Commit`."""
    skip: bool = False
    """A rank wants it left out; known from `Commit`."""
    pulled: dict[int, None] = field(default_factory=dict)
    """Extents in the order of their first pull: the forward order."""
    sheet: Callable[[int], Sequence[int]] = lambda extent: (extent,)
    """The extents that are updated with one, itself among them (`Layout.sheet`)."""
    gathered: set[int] = field(default_factory=set)
    """Extents whose gradient is all there."""
    ready: deque[int] = field(default_factory=deque)
    """Extents whose update may start; of a sheet the last one, when all of it may."""
    updated: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    unchanged: set[int] = field(default_factory=set)
    """Also among updated and written: no rank had a gradient, so the page stays as it is."""
    verdict: Verdict | None = None
    judged_ns: int = 0
    """When it had its verdict."""
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

    def add(self, entry: PartSum, contribution: Contribution) -> bool:
        """Add a contribution to a part; False if it is a repetition. Raises OverlapError."""
        if not merge(entry.contributors, contribution.contributors):
            return False
        entry.contributors |= contribution.contributors
        entry.contributions.append(contribution)
        entry.complete = entry.contributors == self.ranks
        return True

    def part(self, extent: int, part: int) -> PartSum:
        """One backward's gradient of an extent."""
        of_extent = self.extents.setdefault(extent, ExtentSum(self.groups))
        return of_extent.parts.setdefault(part, PartSum())

    def payloads(self) -> list[Payload]:
        """All payloads, to be dropped."""
        found: list[Payload | None] = []
        for entry in self.extents.values():
            found += [c.payload for part in entry.parts.values() for c in part.payloads()]
            found += [None if entry.total is None else entry.total.payload]
        return [payload for payload in found if payload is not None]

    def make_ready(self, extent: int) -> bool:
        """All of an extent's gradient is there. False if it is empty: the page stays as it is."""
        if self._gradient(self.extents[extent]):
            self.gathered.add(extent)
            sheet = self.sheet(extent)
            if self.gathered.issuperset(sheet):
                self.ready.append(sheet[-1])
            return True
        for each in (self.unchanged, self.updated, self.written):
            each.add(extent)
        return False

    def take_gradient(self, extent: int) -> tuple[Contribution, ...]:
        """Hand an extent's gradient out; its payloads belong to the caller from now on."""
        entry = self.extents[extent]
        gradient = self._gradient(entry)
        entry.total = None
        for part in entry.parts.values():
            part.is_out = True
        return gradient

    def next_update(
        self, attempt: int, awaits: Callable[[int, int], bool], *, is_preview: bool = False
    ) -> Update:
        """The update of the next extent that is ready, and of those that are updated with it.

        `awaits`: if weights of an extent are waited for, for a step.
        """
        *others, found = (
            self._update(extent, attempt, awaits(self.number + 1, extent), is_preview)
            for extent in self.sheet(self.ready.popleft())
        )
        return replace(found, others=tuple(others)) if others else found

    def _update(self, extent: int, attempt: int, publish: bool, is_preview: bool) -> Update:
        assert self.hyper is not None
        gradient = self.take_gradient(extent)
        return Update(
            extent=extent,
            step=self.number,
            attempt=attempt,
            contributions=gradient,
            absent=common_absent(gradient),
            divisor=self.extents[extent].weight,
            norms=() if self.verdict is None else self.verdict.norms,
            hyper=self.hyper,
            publish=publish and not self.is_provisional,
            is_provisional=self.is_provisional,
            is_preview=is_preview,
        )

    def put_back(self, update: Update) -> None:
        """Keep the folded gradient of an update: another one of this extent may follow."""
        (self.extents[update.extent].total,) = update.contributions

    def redo(self, extent: int) -> None:
        """An extent is to be updated once more, as are all of its sheet."""
        self.updated.discard(extent)
        self.written.discard(extent)
        if extent == self.sheet(extent)[-1]:
            self.ready.append(extent)

    def next_fold(self, extent: int, attempt: int) -> Fold | None:
        """The next part of an extent to fold, if it is complete and none is being folded; or, with
        the last one folded, its total, of which a norm is still to be taken."""
        entry, norm_types = self.extents[extent], self.norm_types
        while not entry.folding and entry.complete_up_to(entry.folded_count + 1):
            number, part = entry.folded_count, entry.parts[entry.folded_count]
            present = tuple(part.payloads())
            if not present:
                entry.folded_count += 1
                continue
            entry.folding = part.is_out = True
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
        entry = self.extents[fold.extent]
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

    @property
    def has_kept(self) -> bool:
        """True if everything that is to be kept beside the step is put aside."""
        return not self.keeps or self.kept_ranks == self.ranks

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
    def folds(self) -> bool:
        """True if parts are folded into a total, which is measured, and kept until the verdict. A
        step that streams, whose `hyper` must be known, needs that if it may be clipped; and its
        updates take no other norm than the 2-norm."""
        may_be_clipped = self.stated.max_grad_norm is not None
        return not self.streaming or may_be_clipped or self.norm_types != (2.0,)

    @property
    def is_provisional(self) -> bool:
        """True while pages are updated as if the step was not clipped, and their weights stay."""
        return self.streaming and self.folds and self.verdict is None

    @property
    def is_clipped(self) -> bool:
        """True if it has its verdict, by which its gradient is too large."""
        clips = self.stated.all_clips(self.norm_types[0])
        return self.verdict is not None and clip_factor(clips, self.verdict.norms) != 1

    def is_void(self, update: Update) -> bool:
        """True if an update was made as if the step was not clipped, and it is."""
        return not update.norms and self.is_applied and self.is_clipped

    @property
    def is_skipped(self) -> bool:
        """True if it has its verdict, which skips it."""
        return self.verdict is not None and not self.verdict.applied

    @property
    def is_applied(self) -> bool:
        """True if it has its verdict, which does not skip it."""
        return self.verdict is not None and self.verdict.applied

    def is_measured(self, trainable: Sequence[int]) -> bool:
        """True if every sum of the step is complete and its squares are known."""
        # A step that streams, and has no gradients, still waits for its hyper-parameters: they say
        # what is kept beside it.
        if self.parts is None or (self.streaming and self.hyper is None):
            return False
        folds = self.folds
        while self.measured_count < len(trainable):
            extent = trainable[self.measured_count]
            entry = self.extents.get(extent)
            if entry is None or not entry.complete_up_to(self.parts):
                return False
            if not folds and extent not in self.updated:
                return False
            # While a part is folded its total is out; a total may still lack the norm of a clip.
            if folds and (
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
        self.extents[extent].squares.update(of_types)

    def squares(self, trainable: Sequence[int]) -> Squares | None:
        """Block squares of the undivided sums, for the norm; None if a sum is not finite.

        By norm type. Extents of equal total weight are together: they are added, divided once.
        """
        blocks: dict[tuple[float, float], list[float]] = {}
        for extent in trainable:
            entry = self.extents[extent]
            if not (weight := entry.weight) > 0:
                return None  # nothing to divide by: no mean gradient
            for each in self.norm_types:
                blocks.setdefault((each, weight), []).extend(entry.squares.get(each, ()))
        if not all(math.isfinite(square) for each in blocks.values() for square in each):
            return None
        return blocks

    def not_finite(self, trainable: Sequence[int]) -> int | None:
        """The last extent here whose sum is not finite: backward came to it first. None if all sums
        that are here are finite; a node that is being filled may have none."""
        for extent in reversed(trainable):
            entry = self.extents.get(extent)
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
            entry = self.extents.get(extent, ExtentSum())
            late = self.ranks & ~entry.parts.get(0, PartSum()).contributors
            if late:
                return f"extent {extent} of ranks {ranks_text([late])}"
        if self.parts is None:
            return "commit"
        if self.verdict is not None and self.keeps:
            missing = self.ranks & ~self.kept_ranks
            if missing:
                return f"what ranks {ranks_text([missing])} attached"
        return f"{len(trainable) - len(self.written)} extents to be written"

    def _gradient(self, entry: ExtentSum) -> tuple[Contribution, ...]:
        if not self.folds:
            return tuple(entry.parts[0].payloads())
        return () if entry.total is None else (entry.total,)


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
            self.by_number[number] = Step(
                number, self._outbox.attempt, self._children.members.active, self._groups,
                self._shard.is_streaming, (self._shard.norm_type,),
                sheet=self._shard.layout.sheet,
            )  # fmt: skip
        return self.by_number[number]

    def close(self) -> None:
        """The open step was decided: go on with the next."""
        step = self.by_number.pop(self._outbox.step, None)
        self._outbox.step += 1
        if step is not None:  # None: it was prepared before this node was started again
            self._release(step)

    @property
    def is_overwriting(self) -> bool:
        """True if pages of the decided version may be overwritten by the open step."""
        step = self._applied_in_place
        return step is not None and step.has_kept

    @property
    def lacks_pieces(self) -> bool:
        """True if the open step would overwrite pages, but for what is still to be attached."""
        step = self._applied_in_place
        return step is not None and not step.has_kept

    @property
    def _applied_in_place(self) -> Step | None:
        """The open step, if it is applied where the decided version lies."""
        step = self.open if self._shard.is_in_place else None
        return step if step is not None and step.is_applied else None

    def lacks_pieces_of(self, ranks: int) -> bool:
        """True if the open step can never be decided, as attachments of these ranks are lost."""
        step = self.open
        # Before its verdict a step is given up with the attempt: then nothing of it is missed.
        if step is None or step.verdict is None or not step.keeps:
            return False
        return bool(ranks & self._children.members.active & ~step.kept_ranks)

    def forget(self) -> None:
        """A new attempt: drop all gradients."""
        self._budget.forget()
        for step in self.by_number.values():
            self._release(step)
        self.by_number.clear()

    def _release(self, step: Step) -> None:
        for payload in step.payloads():
            self._budget.release(payload)
