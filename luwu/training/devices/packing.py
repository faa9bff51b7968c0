"""Packing on a GPU: the gradients of neighbouring extents of a unit, in one buffer by one call.

Every call to a GPU costs the host some 10 us, however little it does, and an extent has parts of
several parameters. So the parts of neighbouring extents are packed by one call, in the dtype of the
push, and what a boundary between extents cuts in two is copied in one piece. Each extent then goes
to its cell in one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from luwu.base.limits import MIB
from luwu.training.devices.gradients import ExtentPlan

_PACKED_BYTES_MAX = 64 * MIB
"""Memory on the device, unless one extent is larger."""


class Packing:
    """Neighbouring extents, one behind the other in a buffer."""

    def __init__(self, plans: Sequence[ExtentPlan]) -> None:
        self.nbytes = sum(plan.nbytes for plan in plans)
        self._bounds: dict[int, tuple[int, int]] = {}
        """Extent -> its first element in the buffer and the first behind it."""
        self._pieces: list[tuple[int, int, int, int]] = []
        """(parameter, its first element, first element in the buffer, count)."""
        self.elems = covered = 0
        for plan in plans:
            self._bounds[plan.extent] = (self.elems, self.elems + plan.elems)
            for piece in plan.pieces:
                self._add(piece.parameter, piece.source, self.elems + piece.start, piece.elems)
                covered += piece.elems
            self.elems += plan.elems
        self._has_padding = covered < self.elems

    def _add(self, parameter: int, source: int, start: int, count: int) -> None:
        if self._pieces:
            last = self._pieces[-1]
            if (last[0], last[1] + last[3], last[2] + last[3]) == (parameter, source, start):
                self._pieces[-1] = (*last[:3], last[3] + count)
                return
        self._pieces.append((parameter, source, start, count))

    @property
    def extents(self) -> Sequence[int]:
        """Their indexes."""
        return tuple(self._bounds)

    def part(self, extent: int, packed: torch.Tensor) -> torch.Tensor:
        """An extent, in the buffer."""
        start, stop = self._bounds[extent]
        return packed[start:stop]

    @torch.no_grad()
    def pack(self, flat: Sequence[torch.Tensor | None], packed: torch.Tensor) -> None:
        """Fill the buffer: zeros where a parameter has no gradient, and in the padding."""
        targets, sources = [], []
        for parameter, source, start, count in self._pieces:
            gradient = flat[parameter]
            if gradient is not None:
                targets.append(packed[start : start + count])
                is_whole = gradient.numel() == count
                sources.append(gradient if is_whole else gradient[source : source + count])
        if self._has_padding or len(targets) < len(self._pieces):
            packed.zero_()
        if targets:
            torch._foreach_copy_(targets, sources)


def packings(plans: Sequence[ExtentPlan]) -> list[Packing]:
    """A unit's extents, in groups that are packed at once."""
    groups: list[list[ExtentPlan]] = []
    nbytes = 0
    for plan in plans:
        nbytes += plan.nbytes
        if not groups or nbytes > _PACKED_BYTES_MAX:
            groups.append([])
            nbytes = plan.nbytes
        groups[-1].append(plan)
    return [Packing(group) for group in groups]
