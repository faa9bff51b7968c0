"""A GPU, as the engines need it: work in order on a few streams, and events between them.

    compute   the stream the script's own kernels run on; never waited for by the host
    pull      host to device copies of weights
    push      gradients: packed on the device, then copied to the host

`run` does work "in the order of the stream": on a GPU it is queued and the call returns at once.
An event that is recorded behind it shows that it is done. `tests/helpers/fake_streams.py` does
the same on a CPU, as late as the events allow, so that what is read or reused too early shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in the order of a stream."""

    def query(self) -> bool:
        """True if everything before it is done; never waits."""

    def synchronize(self) -> None:
        """Block this thread until everything before it is done."""


class Stream(Protocol):
    """Work that is done in the order in which it is given."""

    def run(self, work: Callable[[], object]) -> None:
        """Do it behind what was given before."""

    def record(self) -> Event:
        """The point behind everything given so far."""

    def wait(self, event: Any) -> None:
        """Do what is given from now on after the event; the host goes on at once."""

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Take or give back device memory in the order of this stream."""


class Streams(Protocol):
    """The streams of one worker, and memory for what passes between host and device."""

    pull: Any
    push: Any

    def compute(self) -> Any:
        """The stream that this thread's kernels run on now."""

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Bytes of the host that a copy need not wait for."""

    def device_buffer(self, nbytes: int) -> torch.Tensor:
        """Bytes of the device, for the push stream alone."""

    def register(self, address: int, nbytes: int, *, read_only: bool) -> str | None:
        """Make memory of the host such that copies need not wait; the reason if it is rejected."""

    def unregister(self, address: int) -> None:
        """Undo `register` before the memory goes."""


_REGISTER_READ_ONLY = 0x08
"""cudaHostRegisterReadOnly, of driver_types.h."""


class CudaStream:
    """A `Stream`."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def record(self) -> torch.cuda.Event:
        # blocking: the thread that waits sleeps; otherwise it takes a core from the node
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream)
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        self._stream.wait_event(event)

    def keep(self, tensor: torch.Tensor) -> None:
        """Its memory is not used again before what this stream was given so far is done."""
        tensor.record_stream(self._stream)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        # The caching allocator files memory under the stream that is current when it is taken.
        with torch.cuda.stream(self._stream):
            storage.resize_(nbytes)


class CudaStreams:
    """`Streams` of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.pull = CudaStream(torch.cuda.Stream(device))
        self.push = CudaStream(torch.cuda.Stream(device))

    def compute(self) -> CudaStream:
        return CudaStream(torch.cuda.current_stream(self._device))

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def device_buffer(self, nbytes: int) -> torch.Tensor:
        made: list[torch.Tensor] = []
        self.push.run(
            lambda: made.append(torch.empty(nbytes, dtype=torch.uint8, device=self._device))
        )
        return made[0]

    def register(self, address: int, nbytes: int, *, read_only: bool) -> str | None:
        flags = _REGISTER_READ_ONLY if read_only else 0
        with torch.cuda.device(self._device):
            cudart: Any = torch.cuda.cudart()
            error = int(cudart.cudaHostRegister(address, nbytes, flags))
            if error == 0:
                return None
            self._forget_error()
        return f"cudaHostRegister gave error {error}"

    def unregister(self, address: int) -> None:
        with torch.cuda.device(self._device):
            cudart: Any = torch.cuda.cudart()
            if int(cudart.cudaHostUnregister(address)) != 0:
                self._forget_error()

    def _forget_error(self) -> None:
        """CUDA keeps the last error, and torch would raise it from the next kernel it launches."""
        try:
            torch.zeros(1, device=self._device)
        except RuntimeError:
            pass
