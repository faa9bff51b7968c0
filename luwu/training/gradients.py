"""Gradients as flat vectors in the wire dtype, in a bounded number of buffers.

A buffer belongs to its push until the network has received it. `GradientBuffers` holds at most
`limit_bytes` (or one buffer, if that is larger): then the next push waits for the oldest one, which
no other rank can hold up. A buffer is used again when its push was received and nobody looks at its
bytes any more: where both ends share memory, a receiver may read them later than it says.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from luwu.layout import padded
from luwu.training.heap import own_mapping
from luwu.training.interface import Handle
from luwu.training.unit import Unit


@dataclass(frozen=True, slots=True)
class _Lent:
    """A buffer that belongs to a push."""

    handle: Handle
    buffer: torch.Tensor
    reader: weakref.ref[Any]
    """Dead as soon as nobody looks at the bytes any more."""


class GradientBuffers:
    """Host memory for pushes under way."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lent: deque[_Lent] = deque()
        self._spare: list[torch.Tensor] = []
        self._held_bytes = 0

    def take(
        self, elems: int, dtype: torch.dtype, *, pinned: bool, wait: Callable[[Any], None]
    ) -> torch.Tensor:
        """A buffer of this size; waits for the oldest pushes while there are too many."""
        nbytes = elems * dtype.itemsize
        while self._lent and self._lent[0].handle.done:
            self._take_back()
        while True:
            for index, spare in enumerate(self._spare):
                if spare.numel() == elems and spare.dtype == dtype:
                    return self._spare.pop(index)
            while self._spare and self._held_bytes + nbytes > self._limit_bytes:
                self._held_bytes -= self._spare.pop(0).nbytes
            if not self._lent or self._held_bytes + nbytes <= self._limit_bytes:
                break
            wait(self._lent[0].handle)
            self._take_back()
        self._held_bytes += nbytes
        with own_mapping():
            return torch.empty(elems, dtype=dtype, device="cpu", pin_memory=pinned)

    def lend(self, handle: Handle, buffer: torch.Tensor, data: memoryview) -> None:
        """The buffer belongs to this push, which was given `data`, its bytes."""
        self._lent.append(_Lent(handle, buffer, weakref.ref(data.obj)))

    def clear(self) -> None:
        """Forget all buffers: a void push may still be read, so none is used again."""
        self._lent.clear()
        self._spare.clear()
        self._held_bytes = 0

    def _take_back(self) -> None:
        lent = self._lent.popleft()
        if lent.reader() is None:
            self._spare.append(lent.buffer)
        else:
            self._held_bytes -= lent.buffer.nbytes  # its reader frees it


@torch.no_grad()
def flatten(unit: Unit, into: torch.Tensor) -> None:
    """Write the unit's gradients to their places in `into`: zeros where there is none."""
    flat = into if unit.session.device.type == "cpu" else torch.empty_like(into, device="cuda")
    for member, gradient in zip(unit.members, unit.gradients(), strict=True):
        if not member.trainable:
            continue
        end = member.start + member.placeholder.numel()
        place = flat[member.start : end]
        if gradient is None:
            place.zero_()
        else:
            dense = gradient.to_dense() if gradient.layout != torch.strided else gradient
            place.view(member.placeholder.shape).copy_(dense)
        flat[end : member.start + padded(member.placeholder.numel())].zero_()
    if flat is not into:
        into.copy_(flat)  # waits for the copy: the network reads host memory right away


def bytes_of(buffer: torch.Tensor) -> memoryview:
    """The bytes of a host tensor, through an object of their own that keeps the tensor alive."""
    return buffer.view(torch.uint8).numpy().data
