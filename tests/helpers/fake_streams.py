"""Streams on a CPU whose work is done as late as the events allow, and by whoever waits for it.

What is read before its event was waited for, or written over before, shows as wrong numbers.
`query` never does any work. With `hold`, a wait blocks until `let_go`: a GPU that is behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from tests.helpers.fake_nic import WAIT_S_MAX


class FakeEvent:
    """A point in a `FakeStream`."""

    def __init__(self, stream: FakeStream, position: int) -> None:
        self._stream, self._position = stream, position

    def query(self) -> bool:
        return self._stream.done_count >= self._position

    def synchronize(self) -> None:
        self._stream.do_until(self._position)


class FakeStream:
    """Does what it was given when somebody waits for it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open = threading.Event()
        self._open.set()
        self._work: list[Callable[[], object]] = []
        self.done_count = 0
        self.waited_for: list[object] = []

    def run(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def record(self) -> FakeEvent:
        return FakeEvent(self, len(self._work))

    def wait(self, event: FakeEvent) -> None:
        self.waited_for.append(event)
        self._work.append(event.synchronize)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        if nbytes == 0:  # what was given before is done before
            self.do_until(len(self._work))
        storage.resize_(nbytes)

    def do_until(self, position: int) -> None:
        while self.done_count < position:
            assert self._open.wait(WAIT_S_MAX), "the test never let go"
            with self._lock:
                if self.done_count < position:
                    self._work[self.done_count]()
                    self._work[self.done_count] = _nothing  # its tensors may go
                    self.done_count += 1

    def hold(self) -> None:
        self._open.clear()

    def let_go(self) -> None:
        self._open.set()


class FakeCompute(FakeStream):
    """The host computes itself: what it waits for is done at once, what it did is done."""

    def wait(self, event: FakeEvent) -> None:
        event.synchronize()


class FakeStreams:
    """What `luwu.training.devices.gpu.CudaStreams` does, on a CPU."""

    def __init__(self, *, refuse: str | None = None) -> None:
        self.pull, self.push = FakeStream(), FakeStream()
        self.compute_stream = FakeCompute()
        self.refuse = refuse
        self.registered: dict[int, int] = {}
        self.read_only_count = 0
        self.host_buffers_count = 0
        self.device_buffers_count = 0

    def compute(self) -> FakeCompute:
        return self.compute_stream

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        self.host_buffers_count += 1
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def device_buffer(self, nbytes: int) -> torch.Tensor:
        self.device_buffers_count += 1
        return torch.full((nbytes,), 0xA5, dtype=torch.uint8)

    def register(self, address: int, nbytes: int, *, read_only: bool) -> str | None:
        if self.refuse is None:
            assert address not in self.registered
            self.registered[address] = nbytes
            self.read_only_count += read_only
        return self.refuse

    def unregister(self, address: int) -> None:
        del self.registered[address]


def _nothing() -> None:
    pass
