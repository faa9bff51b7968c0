"""The storage of a unit's weights: one for the unit's life, freed by resizing it to zero.

Autograd saves views of parameters in forward and reads them in backward. They all look at the same
storage object, so its bytes may be freed between and filled again in place: the views then see the
new bytes, wherever they lie. (Swapping `.data` instead would leave them with the old ones.) Writing
through a memoryview does not raise autograd's version counter, which guards against changes that
the script makes; this change puts back what was there.

On a GPU the network fills a pinned buffer of the host, and `publish` copies it over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import nn

from luwu.training.heap import own_mapping


class ByteCount:
    """Bytes of weights in this process, now and at most."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def add(self, count: int) -> None:
        """Count bytes taken, or given back if negative."""
        self.now += count
        self.peak = max(self.peak, self.now)


class UnitWeights:
    """One flat vector in the wire dtype, and the parameters that are views of it."""

    def __init__(
        self, *, elems: int, dtype: torch.dtype, device: torch.device, live_bytes: ByteCount,
        places: Sequence[tuple[int, torch.Size, bool]],
    ) -> None:  # fmt: skip
        """`places`: first element, shape and requires_grad of each parameter."""
        self._live_bytes = live_bytes
        with own_mapping():
            self._flat = torch.empty(elems, dtype=dtype, device=device)
        self._storage = self._flat.untyped_storage()
        self._host: torch.Tensor | None = None
        self._is_open = False
        self.nbytes = elems * dtype.itemsize
        self.parameters = [
            nn.Parameter(self._flat[start : start + shape.numel()].view(shape), requires_grad)
            for start, shape, requires_grad in places
        ]
        self._version = self._flat._version
        self._storage.resize_(0)

    def open(self) -> memoryview:
        """Take memory; the caller fills it, then calls `publish`."""
        assert not self._is_open
        self._is_open = True
        self._live_bytes.add(self.nbytes)
        if self._flat.device.type == "cpu":
            with own_mapping():
                self._storage.resize_(self.nbytes)
            address = self._storage.data_ptr()
        else:
            self._host = torch.empty(self.nbytes, dtype=torch.uint8, pin_memory=True)
            address = self._host.data_ptr()
        # Not through numpy: a tensor that numpy has seen cannot be resized any more.
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(address)).cast("B")

    def publish(self) -> None:
        """The memory is filled: from now on the parameters may be read."""
        if self._host is None:
            return
        self._storage.resize_(self.nbytes)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(self._flat):
            self._flat.copy_(self._host.view(self._flat.dtype), non_blocking=True)
        self._host = None

    def was_written(self) -> bool:
        """Whether somebody changed a parameter in place since the last look."""
        before, self._version = self._version, self._flat._version
        return self._version != before

    def free(self) -> None:
        """Give the memory back; the parameters must not be read until it is filled again."""
        if self._is_open:
            self._is_open = False
            self._live_bytes.add(-self.nbytes)
            self._storage.resize_(0)
            self._host = None
