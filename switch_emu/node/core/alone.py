"""A single node: it decides by itself which attempt counts, and how a step comes out.

An abort between the verdict of a step and its decision waits for the decision; but if what belongs
to the step is lost, only for the store to have time. `joint.py` is one of several nodes. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from luwu.protocol.outbox import Outbox
from luwu.wire.norms import Squares, norms_of
from switch_emu.node.core.results import AbortRequest, Judgement
from switch_emu.node.core.shard import Shard
from switch_emu.node.core.state import State
from switch_emu.node.core.step import Steps


class Alone:
    """See the module."""

    is_enlisted = True
    """It knows which attempt counts."""
    repeated_count = 0
    """Messages that were repeated because no answer came in time."""

    def __init__(self, outbox: Outbox, shard: Shard, state: State, steps: Steps) -> None:
        self._outbox, self._shard = outbox, shard
        self._state, self._steps = state, steps
        self._abort_text: str | None = None
        """An abort that waits for the open step to be decided, ..."""
        self._is_lost = False
        """... or, as what came in for the step is lost, only for the store to have time."""

    # ---------------------------------------------------------------------- the open step

    def measured(self, step: int, squares: Sequence[Squares | None]) -> Judgement | None:
        """All sums are complete: the step is applied if its norm is finite."""
        open_step, norm_type = self._steps.open, self._shard.norm_type
        assert open_step is not None
        norms = norms_of(squares, norm_type, open_step.stated.all_clips(norm_type))
        applied = math.isfinite(norms[0]) and not open_step.skip
        return Judgement(applied, norms, self._outbox.attempt + 1)

    def prepared(self, version: int, digests: bytes) -> AbortRequest | None:
        """A version is durable: decide it; or the abort that had to wait for that."""
        if self._is_lost:
            return self.waiting()
        self._state.decide()
        return None

    # ---------------------------------------------------------------------- attempts

    def request_abort(self, request: AbortRequest) -> bool:
        """True if the attempt may be given up now; else the abort waits."""
        step = self._steps.open
        is_judged = step is not None and step.is_judged
        if self._state.is_sealing or (is_judged and not request.is_lost):  # as good as decided
            self._abort_text, self._is_lost = request.text, self._is_lost or request.is_lost
            return False
        return True

    def waiting(self) -> AbortRequest | None:
        """The abort that waits: the store has time for it."""
        return None if self._abort_text is None else AbortRequest(self._abort_text)

    def forget(self) -> None:
        """A new attempt: no abort waits."""
        self._abort_text, self._is_lost = None, False
