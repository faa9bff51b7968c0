"""Activations out of core: what a module's forward saves for backward waits in memory or on disk.

Both kinds of checkpoints save the inputs of their blocks before they set hooks of their own, so
hooks around the module that calls them get these inputs, and nothing else. What is saved is a
storage, once for all views of it; a view is laid over the bytes that come back, so strides,
overlaps and alignment are as they were. From a GPU, bytes are copied to pinned memory.

The graph keeps each `Saved`, the store weak references: memory and place in the file go with the
graph, whether it ran backward or was lost. What was saved first is written first, for backward
needs it last. Writes and reads go through the page cache: the kernel writes behind the compute, and
reads ahead of backward what will be needed.

    A1  `get` returns the bytes that were put, or raises: they are held against a checksum.
    A2  In memory wait at most the budget and the storage that was saved last; the kernel reads
        ahead the next storage, and more within the budget.
    A3  Memory and place are given back with the last reference to a `Saved`; the file has no name.
    A4  A failed write is raised by `put`, and its bytes are still in memory.
"""

from __future__ import annotations

import functools
import itertools
import operator
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from luwu.base.directories import memory_kind
from luwu.base.errors import ConfigError, LuwuError, StateError, refusal
from luwu.base.quantities import format_bytes, parse_bytes
from luwu.training.base.names import class_name
from luwu.training.base.torch_state import in_backward, uncompiled
from luwu.training.devices.gpu import CudaStream
from luwu.training.devices.weights import WEIGHTS, Storages
from luwu.transport.arena import FreeList

ModuleT = TypeVar("ModuleT", bound=nn.Module)
Octets = npt.NDArray[np.uint8]
ALIGNED_BYTES = 64  # of torch's storages; kernels may choose another path for others
checksum_of: Callable[[Any], int] = xxhash.xxh3_128_intdigest
_NAME = "luwu_offload"  # a module's attribute


def offload_activations(
    module: ModuleT, *, memory_budget: str | int = "256MiB",
    directory: str | Path | None = None, min_bytes: str | int = "64KiB",
) -> ModuleT:  # fmt: skip
    """Move what a module saves for backward out of the way: to memory up to a budget, then to disk.

    Call it on the module that calls `torch.utils.checkpoint`, usually the whole model. Values keep
    their bits. It works before or after `luwu.fully_shard`, and without it.

    Args:
        module: The module; it may be called as before.
        memory_budget: Bytes, or text such as `"256MiB"`, that may wait in memory over all forwards;
            what was saved first goes to disk beyond it.
        directory: Directory on a disk, for a file without a name; by default that of temporary
            files.
        min_bytes: Tensors smaller than this stay where they are.

    Returns:
        The module.

    Raises:
        ConfigError: If it was called on the module before, a size is invalid, or the directory for
            temporary files is in memory.
        TypeError: If `module` is not a module.

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        >>> model = luwu.offload_activations(model, memory_budget=0, directory=".", min_bytes=0)
        >>> model(torch.ones(8, 64)).sum().backward()
        >>> luwu.activation_stats(model).saved_bytes > 0
        True
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"offload_activations takes a module, got {type(module).__name__}")
    if _NAME in module.__dict__:
        raise ConfigError(f"offload_activations was called twice on the same {class_name(module)}")
    place = Path(tempfile.gettempdir() if directory is None else directory)
    if directory is None and (kind := memory_kind(place)) is not None:
        raise ConfigError(
            f"offload_activations: {place}, where temporary files go, is memory ({kind}), so "
            "nothing would be gained; name a directory on a disk with directory="
        )
    limits = (_bytes(memory_budget, "memory_budget"), _bytes(min_bytes, "min_bytes"))
    offload = Offload(place, *limits)
    module.__dict__[_NAME] = offload
    module.register_forward_pre_hook(offload.enter, prepend=True)
    module.register_forward_hook(offload.leave, always_call=True)
    return module


def activation_stats(module: nn.Module) -> ActivationStats:
    """Return counts of what `offload_activations` did for this module.

    Args:
        module: A module that `offload_activations` was called on.

    Returns:
        An object with byte counts: `saved_bytes`, `written_bytes`, `waiting_bytes_peak`, ...

    Raises:
        ConfigError: If `offload_activations` was not called on the module.

    Examples:
        >>> model = luwu.offload_activations(torch.nn.Linear(64, 64), directory=".", min_bytes=0)
        >>> model(torch.ones(8, 64)).sum().backward()
        >>> luwu.activation_stats(model).written_bytes  # all of it fitted into the budget
        0
    """
    offload: Offload | None = module.__dict__.get(_NAME)
    if offload is None:
        what = f"activation_stats: call luwu.offload_activations on this {class_name(module)}"
        raise ConfigError(f"{what} first")
    return offload.store.stats()


class Offload:
    """The store of a module, and the hooks in and around its forward, in any thread."""

    def __init__(self, directory: Path, memory_budget: int, min_bytes: int) -> None:
        self._settings = (directory, memory_budget, min_bytes)
        self.store = ActivationStore(directory, memory_budget)
        self._known: weakref.WeakValueDictionary[Hashable, Saved] = weakref.WeakValueDictionary()
        """Saved tensors by their storage, the part of it, and its version."""
        self._here = threading.local()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy of the module has a store of its own."""
        return Offload, self._settings

    @uncompiled
    def enter(self, module: nn.Module, args: Any) -> None:
        """A forward begins."""
        context: saved_tensors_hooks | None = None
        if not in_backward():
            hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
            if hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint":
                raise ConfigError(
                    f"offload_activations: this {class_name(module)} runs inside of a checkpoint, "
                    "which saves only its inputs, and those outside of it; call it on the module "
                    "that calls the checkpoint, usually the whole model"
                )
            tensors = (*module.parameters(), *module.buffers())
            kept = Storages(each for each in tensors if type(each) in (Tensor, nn.Parameter))
            context = saved_tensors_hooks(functools.partial(self.pack, kept), operator.call)
            context.__enter__()
        self._here.__dict__.setdefault("contexts", []).append(context)

    @uncompiled
    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """A forward ended, well or not; none began if another hook failed before `enter`."""
        contexts = self._here.__dict__.get("contexts")
        if contexts and (context := contexts.pop()) is not None:
            context.__exit__()

    @torch.no_grad()
    def pack(self, kept: Storages, tensor: Tensor) -> Callable[[], Tensor]:
        """Make what returns this tensor in backward; `kept`: storages the module keeps."""
        part = None if _stays(tensor, kept) else _part(tensor)
        if part is None or part[1] - part[0] < self._settings[2]:
            # Not the tensor itself: that would be a cycle.
            return functools.partial(_unchanged, tensor.detach(), tensor._version)
        start, stop = part
        octets = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        octets.set_(tensor.untyped_storage(), start, (stop - start,), (1,))
        saved = self._save(tensor, octets)
        offset = int(tensor.storage_offset()) - start // tensor.itemsize
        view = (offset, tensor.shape, tensor.stride())
        return functools.partial(self._unpack, saved, view, tensor.dtype, tensor.device)

    @torch.no_grad()
    def _unpack(self, saved: Saved, view: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
        octets = torch.from_numpy(self.store.get(saved)).to(device, non_blocking=True)
        return torch.empty(0, dtype=dtype, device=device).set_(octets.untyped_storage(), *view)

    def _save(self, tensor: Tensor, octets: Tensor) -> Saved:
        storage = tensor.untyped_storage()
        version = tensor._version if tensor.is_cuda else checksum_of(octets.numpy())
        # While the reference to the storage is there, no other storage has its number.
        key = (StorageWeakRef(storage), octets.data_ptr(), len(octets), version)
        saved = self._known.get(key)
        if saved is None and tensor.is_cuda:
            saved = self._known[key] = self.store.put(*_to_host(octets))
        elif saved is None:
            if len(octets) < storage.nbytes():
                octets = octets.clone()  # else the whole storage would wait, and not be counted
            saved = self._known[key] = self.store.put(octets.numpy(), version)
        return saved


def _unchanged(tensor: Tensor, version: int) -> Tensor:
    if (now := tensor._version) != version:  # `devices/weights.py` reads it in this text
        raise _changed(f"shape {tuple(tensor.shape)} (it is at version {now}, expected {version})")
    return tensor


def _changed(what: str) -> LuwuError:
    return LuwuError(
        f"a tensor of {what} that was saved for backward was changed in place afterwards, so its "
        "gradient would be wrong; work on a clone() of it"
    )


_stream = functools.cache(lambda device: CudaStream(torch.cuda.Stream(device)))


def _to_host(octets: Tensor) -> tuple[Octets, None, Callable[[], object]]:
    """Pinned memory that a GPU's bytes are being copied to, and what waits for them."""
    stream = _stream(octets.device)
    stream.wait(CudaStream(torch.cuda.current_stream(octets.device)).record())
    host = torch.empty(len(octets), dtype=torch.uint8, device="cpu", pin_memory=True)
    stream.run(lambda: host.copy_(octets, non_blocking=True))
    stream.keep(octets)
    return host.numpy(), None, stream.record().synchronize


def _stays(tensor: Tensor, kept: Storages) -> bool:
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


def _bytes(size: Any, name: str) -> int:
    if isinstance(size, str):
        return parse_bytes(size, name=name)
    if type(size) is not int or size < 0:
        raise ConfigError(f"{name}={size!r}: give a number of bytes from 0, or a text as '256MiB'")
    return size


@dataclass(slots=True)
class ActivationStats:
    """Counts of what a store did; bytes are counted once per storage, not per view of it."""

    saved_bytes: int = 0
    written_bytes: int = 0
    """Bytes that were written to the file."""
    read_bytes: int = 0
    live_bytes: int = 0
    """Bytes that a graph still needs."""
    waiting_bytes: int = 0
    """Bytes of the live ones that are in memory."""
    waiting_bytes_peak: int = 0
    disk_bytes: int = 0
    """Length of the file."""


@dataclass(eq=False)
class Saved:
    """The bytes of one storage; `ready` returns once they are there."""

    gone: deque[tuple[Any, ...]]
    number: int
    memory: Octets | None
    nbytes: int
    shift: int  # of their address, from a multiple of ALIGNED_BYTES
    checksum: int | None
    ready: Callable[[], object] | None
    offset: int | None = None  # in the file
    is_asked_for: bool = False
    """True if the kernel reads them ahead."""
    handed: Callable[[], Octets | None] = lambda: None
    """The bytes that `get` returned, while something uses them."""

    def __del__(self) -> None:
        # It may run within any line, with the store's lock held, so it only leaves a note.
        self.gone.append((self.number, self.nbytes, self.memory is not None, self.offset))


class ActivationStore:
    """See the module. Any thread may call."""

    def __init__(self, directory: Path, memory_budget: int) -> None:
        self._budget = memory_budget
        self._name = f"the file for activations in {directory}"
        try:
            self._file: Any = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115
        except OSError as exc:
            what = f"{self._name} cannot be made: {exc}"
            raise ConfigError(f"{what}; name a directory that can be written to") from exc
        self._lock = threading.Lock()
        self._places = FreeList(1 << 60)
        self._numbers = itertools.count()
        self._held: dict[int, weakref.ref[Saved]] = {}  # in memory only, in order
        self._away: dict[int, weakref.ref[Saved]] = {}  # in the file only, in order
        self._gone: deque[tuple[Any, ...]] = deque()
        self._stats = ActivationStats()

    def put(
        self, memory: Octets, checksum: int | None = None, ready: Callable[[], object] | None = None
    ) -> Saved:
        """Save bytes where they lie; what was saved first is written, if more waits than may.

        Either their `checksum` is known, or `ready` returns once they are in this memory, which is
        pinned, and of no other use. Raises: StoreFullError, StateError if the disk refuses a write.
        """
        with self._lock:
            self._clear_up()
            stats = self._stats
            while self._held and stats.waiting_bytes > self._budget:
                number = next(iter(self._held))
                if (oldest := self._held[number]()) is not None:
                    self._write(oldest)
                del self._held[number], oldest
            nbytes, shift = memory.nbytes, memory.ctypes.data % ALIGNED_BYTES
            saved = Saved(self._gone, next(self._numbers), memory, nbytes, shift, checksum, ready)
            self._held[saved.number] = weakref.ref(saved)
            stats.saved_bytes += nbytes
            stats.live_bytes += nbytes
            stats.waiting_bytes += nbytes
            stats.waiting_bytes_peak = max(stats.waiting_bytes_peak, stats.waiting_bytes)
        return saved

    def get(self, saved: Saved) -> Octets:
        """Return the bytes; they are not to be written to.

        Raises: LuwuError if they were changed where they lay, StateError if the disk lost them.
        """
        with self._lock:
            self._clear_up()
            self._ask_ahead(saved.number)
            memory = saved.handed() if saved.memory is None else saved.memory
            if memory is not None and saved.checksum is None and saved.ready is not None:
                saved.ready()
            elif memory is None or checksum_of(memory) != saved.checksum:
                if saved.memory is not None:
                    raise _changed(format_bytes(saved.nbytes))
                memory = self._read(saved)
                saved.handed = weakref.ref(memory)
            return memory

    def stats(self) -> ActivationStats:
        with self._lock:
            self._clear_up()
            return replace(self._stats)

    def _clear_up(self) -> None:
        """Give back what no backward can read any more."""
        while self._gone:
            number, nbytes, is_in_memory, offset = self._gone.popleft()
            self._held.pop(number, None)
            self._away.pop(number, None)
            self._stats.live_bytes -= nbytes
            self._stats.waiting_bytes -= nbytes if is_in_memory else 0
            if offset is not None:
                self._places.give(offset, nbytes)

    def _write(self, saved: Saved) -> None:
        assert saved.memory is not None
        if saved.ready is not None and saved.checksum is None:
            saved.ready()
            saved.checksum = checksum_of(saved.memory)
        if saved.offset is None:  # else a write failed before
            saved.offset = self._places.take(saved.nbytes)
            assert saved.offset is not None
            self._stats.disk_bytes = max(self._stats.disk_bytes, saved.offset + saved.nbytes)
        self._move(self._file.write, "written", saved.offset, saved.memory)
        if checksum_of(saved.memory) == saved.checksum:  # else it stays: `get` finds the change
            saved.memory = None
            self._away[saved.number] = weakref.ref(saved)
            self._stats.waiting_bytes -= saved.nbytes
            self._stats.written_bytes += saved.nbytes

    def _read(self, saved: Saved) -> Octets:
        assert saved.offset is not None
        length, pin = saved.nbytes + saved.shift, saved.ready is not None
        octets = torch.empty(length, dtype=torch.uint8, device="cpu", pin_memory=pin)
        memory: Octets = octets[saved.shift :].numpy()
        self._move(self._file.readinto, "read", saved.offset, memory)
        self._stats.read_bytes += saved.nbytes
        if (found := checksum_of(memory)) != saved.checksum:
            what = f"{format_bytes(saved.nbytes)} at offset {saved.offset}"
            raise StateError(
                f"{self._name}: checksum {found:#034x} of {what}, expected {saved.checksum:#034x}. "
                "The bytes changed after they were written; check the disk or name another "
                "directory=, and compute the step again"
            )
        return memory

    def _ask_ahead(self, number: int) -> None:
        """Let the kernel read what was saved before this one, latest first."""
        ahead_bytes = 0
        for earlier in reversed(self._away):
            each = self._away[earlier]()
            if each is None or earlier >= number:
                continue
            if ahead_bytes and ahead_bytes + each.nbytes > self._budget:
                return
            ahead_bytes += each.nbytes
            if not each.is_asked_for:
                each.is_asked_for, fd = True, self._file.fileno()
                os.posix_fadvise(fd, each.offset or 0, each.nbytes, os.POSIX_FADV_WILLNEED)

    def _move(self, move: Callable[..., int], verb: str, offset: int, memory: Octets) -> None:
        view, done = memory.data, 0
        try:
            self._file.seek(offset)
            while done < len(view):
                if (count := move(view[done:])) == 0:
                    raise OSError(f"the file ends {len(view) - done} bytes too early")
                done += count
        except OSError as exc:
            what = f"{self._name} cannot be {verb} at offset {offset + done}"
            then = "start again, or name another directory=, or raise memory_budget="
            raise refusal(what, exc, then=then) from exc
