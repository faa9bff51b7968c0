"""Tensors that autograd saves for backward, as they go to the store and come back.

A saved tensor is a view of a storage. The storage goes to the store, once however many views of it
are saved; the view is packed as dtype, size, stride and offset, and is laid over the bytes that
come back. So strides, overlaps and alignment are as they were, and so is the arithmetic. Of a
storage of which a tensor sees less than half (a row of the data set, say) only that part goes, as a
copy.

These stay where they are, and nothing but their version is checked, as autograd does:

    weights      of a unit: their memory comes and goes (`weights.py`); parameters and buffers of
                 the module, leaves that need a gradient: somebody else keeps them anyway
    small ones   below `min_bytes`
    strange ones sparse, nested, quantized, conjugated, subclasses, on neither CPU nor GPU

On a CPU the bytes wait where they are, and have a checksum from the start. From a GPU they are
copied to pinned memory by a stream of their own, and come back in the order of the compute stream.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from luwu.activations.store import ActivationStore, Hold, Saved, checksum_of
from luwu.base.errors import LuwuError
from luwu.training.devices.storages import WEIGHTS, Storages
from luwu.training.devices.streams import CudaStream

ALIGNED_BYTES = 64
"""Alignment of torch's storages; kernels may choose another path for others."""


@dataclass(slots=True)
class Left:
    """A tensor that stays where it is. (Not the tensor itself: that would be a cycle.)"""

    tensor: Tensor
    version: int


@dataclass(slots=True)
class Packed:
    """A view of bytes in the store."""

    hold: Hold
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    """In elements, from the first of the bytes."""
    device: torch.device


class SavedTensors:
    """The hooks; one object for all forwards of a module, in any thread."""

    def __init__(self, store: ActivationStore, *, min_bytes: int) -> None:
        self._store, self._min_bytes = store, min_bytes
        self._known: weakref.WeakValueDictionary[Hashable, Saved] = weakref.WeakValueDictionary()
        """By storage, part of it, and what tells whether it is as it was."""
        self._streams: dict[torch.device, CudaStream] = {}

    @torch.no_grad()
    def pack(self, kept: Storages, tensor: Tensor) -> Left | Packed:
        """Make what stands for this tensor in the graph; `kept`: storages the module keeps."""
        part = None if self._stays(tensor, kept) else _part(tensor)
        if part is None or part[1] - part[0] < self._min_bytes:
            return Left(tensor.detach(), tensor._version)
        start, stop = part
        octets = _octets(tensor, start, stop)
        hold = self._hold_cuda(tensor, octets) if tensor.is_cuda else self._hold(tensor, octets)
        offset = int(tensor.storage_offset()) - start // tensor.itemsize
        return Packed(hold, tensor.dtype, tensor.shape, tensor.stride(), offset, tensor.device)

    @torch.no_grad()
    def unpack(self, packed: Left | Packed) -> Tensor:
        """The tensor, with the bytes it had. Raises as `ActivationStore.get` does."""
        if isinstance(packed, Left):
            if packed.tensor._version != packed.version:
                raise LuwuError(
                    f"a tensor of shape {tuple(packed.tensor.shape)} that was saved for backward "
                    f"was changed in place afterwards (it is at version {packed.tensor._version}, "
                    f"expected {packed.version}), so its gradient would be wrong; work on a clone()"
                )
            return packed.tensor
        memory = self._store.get(packed.hold)
        octets = torch.frombuffer(memory, dtype=torch.uint8)
        if packed.device.type == "cuda":
            octets = octets.to(packed.device, non_blocking=True)
        empty = torch.empty(0, dtype=packed.dtype, device=packed.device)
        storage = octets.untyped_storage()
        return empty.set_(storage, packed.offset, packed.size, packed.stride)

    def _stays(self, tensor: Tensor, kept: Storages) -> bool:
        owner = tensor if tensor._base is None else tensor._base
        return (
            type(tensor) is not Tensor
            or isinstance(owner, nn.Parameter)
            or (owner.is_leaf and owner.requires_grad)
            or tensor.layout is not torch.strided
            or tensor.device.type not in ("cpu", "cuda")
            or tensor.is_nested
            or tensor.is_quantized
            or tensor.is_conj()
            or tensor.is_neg()
            or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
            or tensor in kept
            or tensor in WEIGHTS
        )

    def _hold(self, tensor: Tensor, octets: Tensor) -> Hold:
        memory = _view(octets)
        checksum = checksum_of(memory)
        key = (tensor.untyped_storage()._cdata, octets.data_ptr(), len(memory), checksum)
        hold = self._hold_again(key)
        if hold is None:
            if len(memory) < tensor.untyped_storage().nbytes():
                octets = octets.clone()  # else the whole storage would wait, and not be counted
                memory = _view(octets)
            shift = octets.data_ptr() % ALIGNED_BYTES
            allocate = functools.partial(_allocate, shift=shift if shift % 16 == 0 else 0)
            hold = self._store.put(memory, allocate=allocate, checksum=checksum)
            self._known[key] = hold.saved
        return hold

    def _hold_cuda(self, tensor: Tensor, octets: Tensor) -> Hold:
        storage = tensor.untyped_storage()
        key = (storage._cdata, octets.data_ptr(), len(octets), tensor._version)
        hold = self._hold_again(key)
        if hold is None:
            stream = self._stream(tensor.device)
            stream.wait(CudaStream(torch.cuda.current_stream(tensor.device)).record())
            host = torch.empty(len(octets), dtype=torch.uint8, device="cpu", pin_memory=True)
            stream.run(lambda: host.copy_(octets, non_blocking=True))
            stream.keep(octets)
            hold = self._store.put(
                _view(host),
                allocate=functools.partial(_allocate, pin_memory=True),
                ready=stream.record().synchronize,
                # While it is there, no other storage has this number.
                source=StorageWeakRef(storage),
            )
            self._known[key] = hold.saved
        return hold

    def _hold_again(self, key: Hashable) -> Hold | None:
        saved = self._known.get(key)
        return None if saved is None else self._store.hold(saved)

    def _stream(self, device: torch.device) -> CudaStream:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams.setdefault(device, CudaStream(torch.cuda.Stream(device)))
        return stream


def _part(tensor: Tensor) -> tuple[int, int]:
    """First and last byte of its storage that go with it: all, or those it lies in."""
    total = tensor.untyped_storage().nbytes()
    if tensor.numel() == 0:
        return 0, 0
    first = int(tensor.storage_offset())
    sizes_strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = first + sum((size - 1) * stride for size, stride in sizes_strides)
    start, stop = first * tensor.itemsize, (last + 1) * tensor.itemsize
    if 2 * (stop - start) >= total:
        return 0, total
    return start // ALIGNED_BYTES * ALIGNED_BYTES, stop


def _octets(tensor: Tensor, start: int, stop: int) -> Tensor:
    empty = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return empty.set_(tensor.untyped_storage(), start, (stop - start,), (1,))


def _view(octets: Tensor) -> memoryview:
    array: Any = octets.numpy()
    return memoryview(array)


def _allocate(nbytes: int, *, shift: int = 0, pin_memory: bool = False) -> memoryview:
    """Memory as far from a multiple of `ALIGNED_BYTES` as the storage was."""
    octets = torch.empty(nbytes + shift, dtype=torch.uint8, device="cpu", pin_memory=pin_memory)
    return _view(octets[shift:])
