"""A GPU, as the engines need it: work in order on a few streams, and events between them.

    compute   the stream the script's own kernels run on; never waited for by the host
    pull      host to device copies of weights
    push      gradients: packed on the device, then copied to the host

`run` does work "in the order of the stream": on a GPU it is queued and the call returns at once.
An event that is recorded behind it shows that it is done. `tests/helpers/fake_streams.py` does
the same on a CPU, as late as the events allow, so that what is read or reused too early shows.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from luwu.base.address import address_of

_REGISTER_READ_ONLY = 0x08
"""cudaHostRegisterReadOnly, of driver_types.h."""


class CudaStream:
    """Work that is done in the order in which it is given."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def run(self, work: Callable[[], object]) -> None:
        """Do it behind what was given before."""
        with torch.cuda.stream(self.stream):
            work()

    def record(self) -> torch.cuda.Event:
        """The point behind everything given so far."""
        # blocking: the thread that waits sleeps; otherwise it takes a core from the node
        event = torch.cuda.Event(blocking=True)
        event.record(self.stream)
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        """Do what is given from now on after the event; the host goes on at once."""
        self.stream.wait_event(event)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Take or give back device memory in the order of this stream."""
        # The caching allocator files memory under the stream that is current when it is taken.
        with torch.cuda.stream(self.stream):
            storage.resize_(nbytes)


class CudaStreams:
    """The streams of one GPU's worker, and memory for what passes between host and device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.pull = CudaStream(torch.cuda.Stream(device))
        self.push = CudaStream(torch.cuda.Stream(device))

    def compute(self) -> CudaStream:
        """The stream that this thread's kernels run on now."""
        return CudaStream(torch.cuda.current_stream(self._device))

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Bytes of the host that a copy need not wait for."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def device_buffer(self, nbytes: int) -> torch.Tensor:
        """Bytes of the device, for the push stream alone."""
        with torch.cuda.stream(self.push.stream):
            return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def register(self, address: int, nbytes: int, *, read_only: bool) -> str | None:
        """Make memory of the host such that copies need not wait; the reason if it is rejected."""
        flags = _REGISTER_READ_ONLY if read_only else 0
        with torch.cuda.device(self._device):
            cudart: Any = torch.cuda.cudart()
            error = int(cudart.cudaHostRegister(address, nbytes, flags))
            if error == 0:
                return None
            self._forget_error()
        return f"cudaHostRegister gave error {error}"

    def unregister(self, address: int) -> None:
        """Undo `register` before the memory goes."""
        with torch.cuda.device(self._device):
            cudart: Any = torch.cuda.cudart()
            if int(cudart.cudaHostUnregister(address)) != 0:
                self._forget_error()

    def _forget_error(self) -> None:
        """CUDA keeps the last error, and torch would raise it from the next kernel it launches."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


class Ring:
    """A bounded number of buffers, used again when the event behind their last use has passed.

        free -> taken      `take`, `wait`     its holder fills it
        taken -> pending   `give`             a copy from it is under way
        pending -> free    its event is over  seen at the next `take`

    A buffer is never handed out while a copy may read or write it. Two threads may use it.
    """

    def __init__(self, make: Callable[[], torch.Tensor], count_max: int) -> None:
        self._make = make
        self._count_max = count_max
        self._made_count = 0
        self._free: list[torch.Tensor] = []
        self._pending: deque[tuple[torch.Tensor, torch.cuda.Event]] = deque()
        """Buffers given back, in the order of one stream."""
        self._lock = threading.Lock()

    def has_free(self) -> bool:
        """True if `take` would give one."""
        with self._lock:
            self._collect()
            return bool(self._free) or self._made_count < self._count_max

    def take(self) -> torch.Tensor | None:
        """A buffer; None if all are in use."""
        with self._lock:
            self._collect()
            if self._free:
                return self._free.pop()
            if self._made_count == self._count_max:
                return None
            self._made_count += 1
            return self._make()

    def wait(self) -> torch.Tensor:
        """A buffer, if need be the one that is given back next: the host waits for its event."""
        found = self.take()
        while found is None:
            assert self._pending, "all buffers are held by their users, and none is on its way back"
            self._pending[0][1].synchronize()
            found = self.take()
        return found

    def give(self, buffer: torch.Tensor, event: torch.cuda.Event | None = None) -> None:
        """It is free once the event has passed; at once without one."""
        with self._lock:
            if event is None:
                self._free.append(buffer)
            else:
                self._pending.append((buffer, event))

    def _collect(self) -> None:
        while self._pending and self._pending[0][1].query():
            self._free.append(self._pending.popleft()[0])


class HostPins:
    """Memory of the host that is registered with the GPU: once for each piece, while it is there.

    A copy between a GPU and memory it does not know is made through a buffer of the driver's, and
    the host waits for it. Registered memory is copied at once, behind the compute.

    What may be registered: memory that this process writes, and memory of another process that is
    mapped shared (`Access.READ_ONLY`), a unit's weights at a time: the rest of the mapping may
    never have been used, and would come into being by being pinned. A *private* mapping of
    another's memory must never be: to pin its pages the kernel gives us copies of them (it breaks
    copy-on-write), and from then on we see nothing of what the owner writes. The weights would stay
    those of the first step, without an error.

    What is registered must stay mapped: a copy from the same addresses would read the memory that
    was there before. So a reference to the mapping is kept with it.
    """

    def __init__(self, streams: CudaStreams, refused: Callable[[str], None]) -> None:
        """`refused` is called with the reason, once: when something cannot be registered."""
        self._streams, self._refused = streams, refused
        self._ends: dict[int, int] = {}
        """Start -> end of each piece that this process writes."""
        self._shared_ends: dict[int, int] = {}
        """Start -> end of each piece of `_mapping`."""
        self._mapping: object = None
        """The mapping of another process's memory."""
        self._was_refused = False

    def add(self, memory: memoryview) -> None:
        """Register memory that this process writes."""
        self._register(self._ends, address_of(memory), memory.nbytes, read_only=False)

    def drop(self, memory: memoryview) -> None:
        """This memory is about to go."""
        address = address_of(memory)
        if self._ends.pop(address, None) is not None:
            self._streams.unregister(address)

    def has(self, address: int, nbytes: int) -> bool:
        """True if these bytes start where a registered piece does, and lie in it."""
        return address + nbytes <= self._ends.get(address, 0)

    def has_shared(self, address: int, nbytes: int, mapping: memoryview) -> bool:
        """True if these bytes are registered, as a piece of this mapping."""
        is_known = mapping.obj is self._mapping
        return is_known and address + nbytes <= self._shared_ends.get(_page_of(address), 0)

    def add_shared(self, address: int, nbytes: int, mapping: memoryview) -> bool:
        """Register the pages of another process's memory, if that is safe.

        What is registered of another mapping, as of a sender that ended, is let go: no copy from it
        may be under way.
        """
        found = mapping_at(address)
        if found is None or address + nbytes > found[1] or "s" not in found[2]:
            self._report("weights of another process are mapped private")
            return False
        if mapping.obj is not self._mapping:
            self._drop_shared()
            self._mapping = mapping.obj
        start = _page_of(address)
        end = -(-(address + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        read_only = "w" not in found[2]
        return self._register(self._shared_ends, start, end - start, read_only=read_only)

    def close(self) -> None:
        """Undo everything."""
        self._drop_shared()
        for address in list(self._ends):
            self._streams.unregister(address)
        self._ends.clear()

    def _drop_shared(self) -> None:
        for address in self._shared_ends:
            self._streams.unregister(address)
        self._shared_ends.clear()
        self._mapping = None

    def _register(
        self, ends: dict[int, int], address: int, nbytes: int, *, read_only: bool
    ) -> bool:  # fmt: skip
        why = self._streams.register(address, nbytes, read_only=read_only)
        if why is None:
            ends[address] = address + nbytes
            return True
        self._report(why)
        return False

    def _report(self, why: str) -> None:
        if not self._was_refused:
            self._was_refused = True
            self._refused(why)


def _page_of(address: int) -> int:
    return address // mmap.PAGESIZE * mmap.PAGESIZE


def mapping_at(address: int) -> tuple[int, int, str] | None:
    """(start, end, access such as `rw-s`) of the mapping there; None if none is listed."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        bounds, access, *_ = line.split(maxsplit=2)
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if start <= address < end:
            return start, end, access
    return None
