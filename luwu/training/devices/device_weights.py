"""A unit's weights on a GPU: host memory for the network, and a storage on the device.

    away      `prepare`   host memory of the ring is ours; a pull may be asked for
    asked     `open`      (in the NIC's thread) the network fills the host memory
    came      `fetch`     it is copied to the storage, behind the compute; the host memory goes
    fetched   `publish`   the compute that is queued from now on sees the weights
    any       `free`      nothing queued from now on reads them

As on a CPU, the unit has one storage for its life, resized to zero and back: it is what autograd's
saved views look at. Its bytes come from torch's caching allocator, filed under the pull stream: the
same sizes come again in every step, so after the first no device memory is asked of the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from luwu.base.address_range import Memory
from luwu.nic.memory import SharedWeights
from luwu.training.devices.device import CudaDevice, Device
from luwu.training.devices.streams import Event
from luwu.training.devices.weights import ByteCount, UnitWeights


class DeviceWeights(UnitWeights):
    """See the module."""

    def __init__(
        self, *, elems: int, dtype: torch.dtype, device: CudaDevice, live_bytes: ByteCount,
        places: Sequence[tuple[int, torch.Size, bool]], name: str = "",
    ) -> None:  # fmt: skip
        self._device = device
        super().__init__(elems=elems, dtype=dtype, live_bytes=live_bytes, places=places, name=name)
        self._storage = self._own.flat.untyped_storage()
        with torch.inference_mode(False):
            self._octets = torch.empty(0, dtype=torch.uint8, device=device.where)
            self._octets.set_(self._storage, 0, (self.nbytes,))  # type: ignore[call-overload]
        """The same storage, with a version counter of its own: a copy to it is no change for the
        views that autograd has saved, as it puts back what was there."""
        self._storage.resize_(0)
        self._host: torch.Tensor | None = None
        self._event: Event | None = None
        """Event behind the copy to the device."""

    @property
    def may_be_shared(self) -> bool:
        return self._device.may_share

    @property
    def may_be_shared_next(self) -> bool:
        return self._device.may_share

    def prepare(self, *, wait: bool) -> bool:
        if self._host is None:
            ring = self._device.host
            self._host = ring.wait() if wait else ring.take()
        return self._host is not None

    def open(self) -> memoryview:
        assert self._host is not None
        address = self._host.data_ptr()
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(address)).cast("B")

    def fetch(self, shared: SharedWeights | None = None) -> None:
        if self._event is not None:
            return
        assert self._host is not None
        assert not self._is_open
        self._is_open = True
        self._live_bytes.add(self.nbytes)
        host, self._host = self._host, None
        self._event = self._device.fetch(self._octets, host, shared)

    def publish(self, shared: SharedWeights | None = None) -> None:
        self.fetch(shared)
        self._device.streams.compute().wait(self._event)
        self._own.come()

    def free(self) -> None:
        if self._host is not None:  # nothing was copied from it
            self._device.host.give(self._host)
            self._host = None
        if self._is_open:
            self._is_open = False
            self._live_bytes.add(-self.nbytes)
            self._device.free(self._storage)
            self._own.count_as(self._away)
        self._event = None

    def _allocate(self, elems: int, dtype: torch.dtype) -> torch.Tensor:
        """The flat vector, without bytes."""
        flat = torch.empty(0, dtype=dtype, device=self._device.where)
        storage = flat.untyped_storage()
        self._device.streams.pull.resize(storage, elems * dtype.itemsize)
        flat.set_(storage, 0, (elems,))  # type: ignore[call-overload]
        return flat


def make_weights(device: Device, memory: Memory, **given: Any) -> UnitWeights:
    """The weights of a unit that computes there; `memory`: where that is on the host."""
    if isinstance(device, CudaDevice):
        return DeviceWeights(device=device, **given)
    return UnitWeights(memory=memory, **given)
