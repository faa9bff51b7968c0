"""What comes in for a step at the node: gradients, hyper-parameters, the word that all is out.

A gradient is a sum that a switch made, or raw from one rank; it is held, in RAM or spilled, until
its page is updated. Where the order of work is `at_step`, the parts of a chunk are folded into one
total as they become complete. Begin and each gradient are answered once they are held.

Where encoded sums may overflow, a part whose contributions are all in is looked at first. If it is
no sum, nothing of it stays, and all ranks push it again as it was (`RESENT_PART`). Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from luwu.base.limits import KEEP_PIECES_MAX
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import Payload
from luwu.protocol.contribution import Contribution, OverlapError, contribution_of
from luwu.protocol.members import ranks_text
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.node.core.actions import Fold, Inspect, KeepPiece, NodeLimits, NodePlace
from switch_emu.node.core.held import HeldSums
from switch_emu.node.core.membership import Action
from switch_emu.node.core.serving import NodeServing
from switch_emu.node.core.step import Step


class NodeGathering(NodeServing):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, ranks: int, place: NodePlace, limits: NodeLimits,
        retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, ranks, place, limits, retry)
        self.held = HeldSums(self._actions, limits.sum_bytes_max, limits.raw_bytes_max)
        self.duplicates: Counter[str] = Counter()
        """Gradients that had been taken in before, and came again, by child."""
        self.overflow_count = 0
        """Chunks whose encoded sum was none: they were sent again as they were."""

    def _forget(self) -> None:
        for step in self._steps.values():
            self._let_go(step)
        super()._forget()

    def _let_go(self, step: Step) -> None:
        """Drop all gradients of a step."""
        for payload in step.sums.payloads():
            self.held.let_go(payload)

    def _gather(self, m: wire.Push, payload: Payload | None, payload_bytes: int) -> Step | None:
        """Hold a gradient and say so; the step it belongs to, if it is new."""
        receipt = self._receipt(m, Verb.PUSH, m.contributors)
        if not self._takes(m, payload, payload_bytes):
            self._drop(payload)
            if m.step < self._step:  # a repetition of what is in the state
                self._count_duplicate(m)
                self._tell_all(receipt)
            return None
        step = self._step_of(m.step)
        is_resent, number = m.part >= wire.RESENT_PART, m.part % wire.RESENT_PART
        fits = step.sums.part(m.chunk, number).fits
        if is_resent != (fits is False):  # integers of what overflowed; or nobody asked for floats
            self._drop(payload)
            if not is_resent:
                self._tell_all(receipt)
            return None
        said = contribution_of(m, payload, payload_bytes)
        try:
            is_new = step.sums.add(m.chunk, number, said)
        except OverlapError as exc:
            self._drop(payload)
            self._request_abort(f"chunk {m.chunk}: {exc}")
            return None
        self._tell_all(receipt)
        if not is_new:
            self._count_duplicate(m)
            self._drop(payload)
            return None
        self.held.hold(payload, payload_bytes, is_raw=m.raw)
        return step

    def _count_duplicate(self, m: wire.Push) -> None:
        peer = self._members.peer_of(m.contributors)
        self.duplicates["others" if peer is None else self._members.name_of(peer)] += 1

    def _takes(self, m: wire.Push, payload: Payload | None, payload_bytes: int) -> bool:
        """Whether a gradient is of an open step, of our layout and of ranks of the job."""
        if not self._loaded or not self._step <= m.step <= self._step + 1:
            return False
        assert self._form is not None
        fault = self._form.fault(m, payload_bytes, has_payload=payload is not None)
        is_of_ranks = m.contributors and not m.contributors & ~self._members.ranks
        if not fault and is_of_ranks and self._owns(m.chunk):
            return True
        misfit = {
            "chunk": m.chunk, "dtype": m.dtype, "bytes": payload_bytes,
            "ranks": ranks_text([m.contributors]), "text": fault,
        }  # fmt: skip
        self._note("node.misfit", level="WARNING", **misfit)
        return False

    def _propose(self, m: wire.Propose, statement: bytes) -> None:
        """All ranks have said what they need to know of a chunk; the fold of it is the answer."""
        if not self._loaded or not self._step <= m.step <= self._step + 1:
            return
        chunks = self._layout.chunks
        sizes = {0}
        if m.chunk < len(chunks) and self._owns(m.chunk) and self.aggregator.asks_first:
            sizes.add(self.aggregator.statement_bytes(chunks[m.chunk].elems))
        if len(statement) in sizes:
            agreed = self._ours(wire.Agreed, step=m.step, part=m.part, chunk=m.chunk)
            self._announce(self._members.peers, agreed, statement)
        else:
            self._note("node.misfit", level="WARNING", chunk=m.chunk, bytes=len(statement))

    def _inspect(self, step: Step, chunk: int, number: int) -> None:
        """All ranks' encoded contributions to a part are in: look whether they are a sum."""
        part = step.sums.part(chunk, number)
        inspect = Inspect(chunk, step.number, self._attempt, number, tuple(part.contributions))
        part.contributions = [replace(c, payload=None) for c in part.contributions]
        self._actions.append(inspect)

    def _looked_at(self, done: Inspect, *, fits: bool) -> Step | None:
        """Say whether a part fits; its step, if it still counts."""
        is_current = done.attempt == self._attempt
        if not (is_current and fits):
            for said in done.contributions:
                self.held.let_go(said.payload)
        if not is_current:
            return None
        step = self._steps[done.step]
        part = step.sums.part(done.chunk, done.part)
        if fits:
            part.contributions, part.fits, part.complete = list(done.contributions), True, True
        else:
            part.overflow()
            self.overflow_count += 1
            self._note("node.overflow", level="DEBUG", step=done.step, chunk=done.chunk)
        confirmed = self._ours(
            wire.Confirmed, step=done.step, part=done.part, chunk=done.chunk, fits=fits
        )
        self._tell_all(confirmed)
        return step

    def _confirm(self, peer: str, m: wire.Confirm) -> None:
        """Say again whether a sum was one, if that is known; else all are told when it is."""
        fits: bool | None = True
        if m.step >= self._step:
            step = self._steps.get(m.step)
            entry = None if step is None else step.sums.chunks.get(m.chunk)
            part = None if entry is None else entry.parts.get(m.part)
            fits = None if part is None else part.fits
        if fits is not None:
            confirmed = self._ours(
                wire.Confirmed, step=m.step, part=m.part, chunk=m.chunk, fits=fits
            )
            self._tell(peer, confirmed)

    def _begin(self, m: wire.Begin, hyper: bytes) -> None:
        if m.step > self._step + 1:
            return
        if m.step >= self._step:  # also before the initial weights are durable
            step = self._step_of(m.step)
            step.hyper = hyper if step.hyper is None else step.hyper
        self._tell_all(self._receipt(m, Verb.BEGIN))
        self._settle()

    def _commit(self, peer: str, m: wire.Commit, hyper: bytes) -> None:
        if self._answer_commit(peer, m.step) or not self._loaded or m.step != self._step:
            return
        step = self._step_of(m.step)
        if step.parts is None:
            step.parts, step.skip = m.parts, m.skip
            if not self._streaming:
                step.hyper = hyper
        self._settle()

    def _keep(self, m: wire.Keep, payload: Payload) -> None:
        """Put a piece aside that a rank keeps beside a step; it is received when it is there."""
        key = (m.contributors, m.chunk)
        is_one_rank = m.contributors and not m.contributors & (m.contributors - 1)
        if m.step < self._step:
            self._drop(payload)
            self._tell_all(self._receipt(m, Verb.KEEP, m.contributors))
            return
        fits = is_one_rank and not m.contributors & ~self._members.active
        fits = fits and m.chunk < m.pieces <= KEEP_PIECES_MAX and m.step <= self._step + 1
        if not fits or not self._loaded:
            self._drop(payload)
            return
        step = self._step_of(m.step)
        if m.chunk in step.kept.get(m.contributors, ()):
            self._drop(payload)
            self._tell_all(self._receipt(m, Verb.KEEP, m.contributors))
        elif key in step.keeping or step.pieces_count.setdefault(key[0], m.pieces) != m.pieces:
            self._drop(payload)
        else:
            step.keeping.add(key)
            piece = KeepPiece(m.step, step.attempt, m.contributors, m.chunk, m.pieces, payload)
            self._actions.append(piece)

    def piece_kept(self, piece: KeepPiece) -> list[Action]:
        """A piece is put aside."""
        self._drop(piece.payload)
        step = self._steps.get(piece.step)
        if step is not None and (piece.ranks, piece.piece) in step.keeping:
            step.keeping.discard((piece.ranks, piece.piece))
            step.kept.setdefault(piece.ranks, set()).add(piece.piece)
            receipt = self._ours(
                wire.Received, step=piece.step, chunk=piece.piece, part=0, verb=Verb.KEEP,
                contributors=piece.ranks,
            )  # fmt: skip
            self._tell_all(receipt)
        self._settle()
        return self._take()

    def folded(
        self, fold: Fold, squares: tuple[float, ...], payload: Payload, payload_bytes: int
    ) -> list[Action]:
        """A part was added to a chunk's total; `payload` is the new total."""
        for said in (fold.total, *fold.contributions):
            self.held.let_go(None if said is None else said.payload)
        if fold.attempt != self._attempt:
            self._drop(payload)
        else:
            step, ranks = self._steps[fold.step], self._members.active
            total = Contribution(ranks, 0.0, True, "float32", payload, payload_bytes, fold.absent)
            step.folded(fold.chunk, squares, total)
            self.held.hold(payload, payload_bytes, is_raw=False)
            self._fold_next(step, fold.chunk)
        self._settle()
        return self._take()

    def _fold_next(self, step: Step, chunk: int) -> None:
        fold = step.next_fold(chunk, self._attempt)
        if fold is not None:
            self._actions.append(fold)
