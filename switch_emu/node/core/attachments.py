"""The pieces that ranks attach to a step: put aside beside it, confirmed when they are there. Pure.

Keep    KeepPiece -> piece_kept: Received
        ReplaceAttached, Received    of a step that is decided: in place of what was attached late
"""

from __future__ import annotations

from luwu.base.limits import KEEP_PIECES_MAX
from luwu.protocol.actions import Payload
from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire
from luwu.wire.messages import Verb
from switch_emu.node.core.actions import KeepPiece, ReplaceAttached
from switch_emu.node.core.step import Steps


class Attachments:
    """Pieces on their way to the disk."""

    def __init__(self, outbox: Outbox, children: Children, steps: Steps) -> None:
        self._outbox, self._children, self._steps = outbox, children, steps
        self._replaced: dict[tuple[int, int, int], int] = {}
        """(attempt, step, ranks) -> the last part that replaced another."""

    def keep(self, peer: str, m: wire.Keep, payload: Payload, *_: object) -> None:
        """A piece that a rank attaches to a step."""
        is_one_rank = m.contributors and not m.contributors & (m.contributors - 1)
        fits = is_one_rank and not m.contributors & ~self._children.members.active
        is_piece = not m.part and m.index < m.pieces <= KEEP_PIECES_MAX
        is_kept = m.step < self._outbox.step
        if is_kept and fits:
            self._replace(m, payload)
        # The step waits for what every rank that counts attaches, and for nothing else.
        elif fits and is_piece and self._steps.takes(m.step):
            step, key = self._steps.at(m.step), (m.contributors, m.index)
            is_kept = m.index in step.kept.get(m.contributors, ())
            is_known = is_kept or key in step.keeping
            if not is_known and step.pieces_count.setdefault(key[0], m.pieces) == m.pieces:
                step.keeping.add(key)
                piece = KeepPiece(m.step, step.attempt, m.contributors, m.index, m.pieces, payload)
                self._outbox.actions.append(piece)
                return
        self._outbox.drop(payload)
        if is_kept:
            self._children.send_all(self._outbox.receipt(m, Verb.KEEP, m.contributors))

    def _replace(self, m: wire.Keep, payload: Payload) -> None:
        """Replace what a rank attached late; not by an older part, nor beside an older version."""
        of_now = (self._outbox.attempt, self._outbox.step - 1)
        key = (*of_now, m.contributors)
        if m.step == of_now[1] and m.part > self._replaced.get(key, 0):
            self._replaced = {k: part for k, part in self._replaced.items() if k[:2] == of_now}
            self._replaced[key] = m.part
            rank = m.contributors.bit_length() - 1
            self._outbox.actions.append(ReplaceAttached(self._outbox.step, rank, payload))

    def piece_kept(self, piece: KeepPiece) -> None:
        """A piece is put aside."""
        self._outbox.drop(piece.payload)
        step = self._steps.by_number.get(piece.step)
        if step is not None and (piece.ranks, piece.piece) in step.keeping:
            step.keeping.discard((piece.ranks, piece.piece))
            step.kept.setdefault(piece.ranks, set()).add(piece.piece)
            receipt = self._outbox.receipt_of(
                Verb.KEEP, piece.step, piece.piece, contributors=piece.ranks
            )
            self._children.send_all(receipt)
