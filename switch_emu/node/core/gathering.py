"""The gradients of a step at the node, its hyper-parameters, and its Commit.

A gradient is a sum that a switch made, or raw from one rank; it is kept, in RAM or spilled, until
its pages are updated. Where the order of work is `at_step`, or the step may be clipped, the parts
of an extent are folded into one total as they become complete. Begin and each gradient are answered
once they are kept; a whole sum that can be updated at once, and for which there is no room, when
there is (`GradientBudget`). Then its pages are updated (`Updates`). Pure.

start    Update -> updated    the page's new values are known; its weights may be handed out
                -> written    they are on the page's other side; those of a sheet all together
preview  Update -> previewed  its weights are handed out, and the page stays as it was

A step that streams and may be clipped is updated as if it was not, while its norm is not known;
totals and new weights are kept back. If the verdict has a norm that is too large, these pages are
updated once more: from the side that is decided, by the factor that is known now.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from luwu.protocol.actions import Payload
from luwu.protocol.children import Children, ranks_text
from luwu.protocol.contribution import Contribution, OverlapError, contribution_of
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import BlockNorms, Fold, Update
from switch_emu.node.core.deciding import AbortRequest
from switch_emu.node.core.serving import Serving
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.step import GradientBudget, PartSum, Step, Steps
from switch_emu.node.core.whole_pages import Filling


class Gathering:
    """Pushes and statements of the open step and the one after it."""

    def __init__(
        self, outbox: Outbox, children: Children, shard: Shard, steps: Steps,
        budget: GradientBudget, serving: Serving, filling: Filling | None,
    ) -> None:  # fmt: skip
        """`filling`: at one of several nodes."""
        self._outbox, self._children, self._shard = outbox, children, shard
        self._steps, self._budget, self._serving = steps, budget, serving
        self._filling = filling
        self.duplicates: Counter[str] = Counter()
        """Gradients that had arrived before, and came again, by child."""

    # ---------------------------------------------------------------------- gradients

    def push(
        self, peer: str, m: wire.Push, payload: Payload | None, payload_bytes: int
    ) -> AbortRequest | bool:
        """Keep a gradient and confirm it; True if it is new."""
        outbox, children = self._outbox, self._children
        receipt = outbox.receipt(m, Verb.PUSH, m.contributors)
        if not self._takes(m, payload, payload_bytes):
            outbox.drop(payload)
            if m.step < outbox.step:  # a repetition of what is in the state
                self._count_duplicate(m)
                children.send_all(receipt)
            return False
        step = self._steps.at(m.step)
        part = step.part(m.index, m.part)
        contribution = contribution_of(m, payload, payload_bytes)
        try:
            is_new = step.add(part, contribution)
        except OverlapError as exc:
            outbox.drop(payload)
            return AbortRequest(f"extent {m.index}: {exc}")
        if not is_new:
            if not self._budget.owes(m.step, m.part, m.index):
                children.send_all(receipt)
            self._count_duplicate(m)
            outbox.drop(payload)
            return False
        if payload is not None and self._can_owe(m, step, part):
            self._budget.add_or_owe(payload, payload_bytes, receipt)
        else:
            children.send_all(receipt)
            self._budget.add(payload, payload_bytes, is_raw=m.raw)
        if part.complete:
            self._completed(step, m.index)
        return True

    def _completed(self, step: Step, extent: int) -> None:
        """A part of an extent is complete: fold it, or update its page."""
        if step.streaming and step.hyper is None:
            return  # they say which of both, and come in `begin`
        if step.folds:
            self._fold_next(step, extent)
        if step.streaming and not step.extents[extent].folding:
            self.make_ready(step, extent)

    def _can_owe(self, m: wire.Push, step: Step, part: PartSum) -> bool:
        """True if the page of this gradient can be updated whatever else comes."""
        is_whole = part.complete and len(part.contributions) == len(step.sheet(m.index)) == 1
        # One that waits for other ranks or parts would hold the window by which they come.
        if not (step.streaming and is_whole and not m.raw) or step.hyper is None or step.folds:
            return False
        if m.step == self._outbox.step or self._steps.open is None:
            return True
        # What is attached to the open step may wait behind it, in the window.
        return self._steps.open.has_kept

    def _count_duplicate(self, m: wire.Push) -> None:
        members = self._children.members
        peer = members.peer_of(m.contributors)
        self.duplicates["others" if peer is None else members.name_of(peer)] += 1

    def _takes(self, m: wire.Push, payload: Payload | None, payload_bytes: int) -> bool:
        """True if a gradient is of an open step, of our layout and of ranks of the job."""
        if not self._steps.takes(m.step):
            return False
        form = self._shard.form
        assert form is not None
        fault = form.fault(m, payload_bytes, has_payload=payload is not None)
        is_of_ranks = m.contributors and not m.contributors & ~self._children.members.ranks
        is_whole = not self._shard.is_streaming or (m.part == 0 and m.last)
        # The form knows the whole job: which extents are here, and who there is, it does not.
        if not fault and is_of_ranks and is_whole and self._shard.owns_extent(m.index):
            return True
        misfit = {
            "extent": m.index, "dtype": m.dtype, "bytes": payload_bytes,
            "ranks": ranks_text([m.contributors]), "text": fault,
        }  # fmt: skip
        self._outbox.note("node.misfit", level="WARNING", **misfit)
        return False

    def make_ready(self, step: Step, extent: int) -> None:
        """All of an extent's gradient is there: update its page, or serve it as it is."""
        if not step.make_ready(extent):
            self._serving.serve(step.number + 1, extent)

    # ---------------------------------------------------------------------- sums of a part

    def _fold_next(self, step: Step, extent: int) -> None:
        fold = step.next_fold(extent, self._outbox.attempt)
        if fold is not None:
            self._outbox.actions.append(fold)

    def folded(self, fold: Fold, squares: BlockNorms, payload: Payload, payload_bytes: int) -> None:
        """A part was added to an extent's total; `payload` is the new total."""
        for contribution in (fold.total, *fold.contributions):
            self._budget.release(None if contribution is None else contribution.payload)
        if fold.attempt != self._outbox.attempt:
            self._outbox.drop(payload)
            return
        step, ranks = self._steps.by_number[fold.step], self._children.members.active
        total = Contribution(ranks, 0.0, True, "float32", payload, payload_bytes, fold.absent)
        step.folded(fold, squares, total)
        self._budget.add(payload, payload_bytes, is_raw=False)
        self._fold_next(step, fold.extent)
        if step.streaming:
            self.make_ready(step, fold.extent)

    # ---------------------------------------------------------------------- about a step

    def propose(self, peer: str, m: wire.Propose, statement: bytes, *_: object) -> None:
        """All ranks have stated what they need to know of an extent: send it back to all."""
        if not self._steps.takes(m.step):
            return
        shard = self._shard
        sizes = {0}
        if shard.owns_extent(m.index) and shard.aggregator.asks_first:
            elems = shard.layout.extents[m.index].elems
            sizes.add(shard.aggregator.statement_bytes(elems))
        if len(statement) in sizes:
            agreed = self._outbox.stamped(wire.Agreed, step=m.step, part=m.part, index=m.index)
            self._children.send_all(agreed, statement)
        else:
            self._outbox.note("node.misfit", level="WARNING", extent=m.index, bytes=len(statement))

    def begin(self, peer: str, m: wire.Begin, hyper: bytes, *_: object) -> bool:
        """The hyper-parameters of a step that streams; True if they may be new."""
        if m.step > self._outbox.step + 1:
            return False
        if m.step >= self._outbox.step:  # also before the initial weights are durable
            step = self._steps.at(m.step)
            if step.hyper is None:
                step.hyper = hyper
                self._begun(step)
        self._children.send_all(self._outbox.receipt(m, Verb.BEGIN))
        return True

    def _begun(self, step: Step) -> None:
        """The hyper-parameters of a step that streams are known: see what came before them."""
        for extent, entry in step.extents.items():
            if entry.complete_up_to(1):
                self._completed(step, extent)

    def commit(self, peer: str, m: wire.Commit, hyper: bytes, *_: object) -> bool:
        """All pushes of a step are out; True if it is the open one."""
        is_known = self._children.answer_commit(peer, m.step)
        if not self._children.loaded or m.step != self._outbox.step:
            return False
        is_filling = self._filling is not None and self._filling.number > 0
        if is_known and not is_filling:  # a node that is being filled may know the verdict before
            return False
        step = self._steps.at(m.step)
        if step.parts is None:
            if is_filling:
                self._shard.hold(m.held)
            is_begun = self._shard.is_streaming and (not is_filling or step.hyper is not None)
            step.commit(m.parts, None if is_begun else hyper, skip=m.skip)
            if self._shard.is_streaming and not is_begun:
                self._begun(step)
            for extent in step.extents if step.stated.clips else ():
                self._fold_next(step, extent)
        return True


class Updates:
    """Updates of any attempt, at most `updates_max` at a time."""

    def __init__(
        self, outbox: Outbox, shard: Shard, steps: Steps, budget: GradientBudget, serving: Serving,
        filling: Filling | None, updates_max: int,
    ) -> None:  # fmt: skip
        """`filling`: at one of several nodes."""
        self._outbox, self._shard, self._steps = outbox, shard, steps
        self._budget, self._serving, self._updates_max = budget, serving, updates_max
        self._filling = filling
        self.under_way: dict[tuple[int, int], Update] = {}
        """(attempt, extent) -> update."""
        self.redone_count = 0
        """Steps that turned out to be clipped when pages of them had been updated."""

    def start(self, step: Step) -> None:
        """Update pages whose gradients are complete."""
        # A read for step t - 1 must end before its side is written again; in place, one for step t.
        ends = step.number + self._shard.is_in_place
        if not step.ready or step.hyper is None or self._serving.reads_before(ends):
            return
        attempt = self._outbox.attempt
        for _ in range(len(step.ready)):
            if len(self.under_way) >= self._updates_max:
                return
            if self._filling is not None and not self._filling.has(step.ready[0]):
                step.ready.rotate(-1)  # its pages are still to come
                continue
            update = step.next_update(attempt, self._serving.awaits)
            self.under_way[attempt, update.extent] = update
            self._outbox.actions.append(update)

    def preview(self, step: Step) -> None:
        """Make weights of the next step that are waited for, and leave their pages as they are."""
        awaited = dict.fromkeys(step.sheet(e)[-1] for e in self._serving.awaited(step.number + 1))
        for extent in (each for each in awaited if each in step.ready):
            if len(self.under_way) >= self._updates_max:
                return
            step.ready.remove(extent)
            step.ready.appendleft(extent)
            attempt = self._outbox.attempt
            update = step.next_update(attempt, self._serving.awaits, is_preview=True)
            self.under_way[update.attempt, update.extent] = update
            self._outbox.actions.append(update)

    def previewed(self, update: Update) -> bool:
        """Weights are made, and no page is written; False if they are of an older attempt."""
        self.under_way.pop((update.attempt, update.extent), None)  # others of a sheet are not there
        if update.attempt != self._outbox.attempt:
            self._release(update.contributions)
            return False
        step = self._steps.by_number[update.step]
        step.put_back(update)
        if update.extent == step.sheet(update.extent)[-1]:
            step.ready.append(update.extent)
        return True

    def updated(self, update: Update, squares: tuple[float, ...]) -> bool:
        """A page has its new values; False if they are of an older attempt."""
        if update.attempt != self._outbox.attempt:
            self._release(update.contributions)
            return False
        step = self._steps.by_number[update.step]
        if step.is_provisional or step.is_void(update):
            step.put_back(update)
        else:
            self._release(update.contributions)
        if not step.folds:
            step.measured(update.extent, {2.0: squares})
        step.updated.add(update.extent)
        return True

    def written(self, update: Update) -> None:
        """The page's new values are on its other side, as are all of a sheet: they can be read."""
        del self.under_way[update.attempt, update.extent]
        if update.attempt != self._outbox.attempt:
            return
        step = self._steps.by_number[update.step]
        for each in (*update.others, update):
            step.written.add(each.extent)
            if step.is_void(each):
                step.redo(each.extent)
            self._serving.serve(each.step + 1, each.extent)

    def judged(self, step: Step) -> None:
        """A step that was provisional is applied: what is updated counts and may be read; or, if it
        is clipped, is updated once more. What remains comes in the order of the next forward."""
        order = step.forward_order(self._shard.trainable)
        if step.is_clipped:
            self.redone_count += bool(step.updated - step.unchanged or self.under_way)
            for extent in step.written - step.unchanged:
                step.redo(extent)
        else:
            for extent in step.updated:
                self._release(step.take_gradient(extent))
            self._serving.serve_all(step.number + 1)
        waiting = set(step.ready)
        step.ready = deque(extent for extent in order if extent in waiting)

    def _release(self, gradient: Sequence[Contribution]) -> None:
        for contribution in gradient:
            self._budget.release(contribution.payload)
