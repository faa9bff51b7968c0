"""The streams of a GPU on a CPU: each is a thread that does its work in order, with times.

So a worker without a GPU goes the way of one with a GPU: host memory is registered, copies are
queued behind one another, and compute waits for them where it needs what they bring.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from luwu.base.clock import SYSTEM_CLOCK


class ThreadEvent:
    """A point in the order of a stream, as `torch.cuda.Event`."""

    def __init__(self) -> None:
        self._passed = threading.Event()

    def query(self) -> bool:
        return self._passed.is_set()

    def synchronize(self) -> None:
        self._passed.wait()

    def pass_(self) -> None:
        """Everything before it is done."""
        self._passed.set()


class ThreadStream:
    """Work that its thread does in order."""

    def __init__(self, name: str) -> None:
        self.spans: list[tuple[int, int]] = []
        """(start, end) of all that was run."""
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def run(self, work: Callable[[], object]) -> None:
        def timed() -> None:
            start_ns = SYSTEM_CLOCK.now_ns()
            work()
            self.spans.append((start_ns, SYSTEM_CLOCK.now_ns()))

        self._work.put(timed)

    def record(self) -> ThreadEvent:
        event = ThreadEvent()
        self._work.put(event.pass_)
        return event

    def wait(self, event: Any) -> None:
        self._work.put(event.synchronize)

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Memory is taken, and never given back: a copy may still be on its way to it."""
        if nbytes > storage.nbytes():
            storage.resize_(nbytes)

    def _serve(self) -> None:
        while True:
            self._work.get()()


class _Host:
    """The host computes itself: what it waits for is there at once, what it did is done."""

    def record(self) -> ThreadEvent:
        event = ThreadEvent()
        event.pass_()
        return event

    def wait(self, event: Any) -> None:
        event.synchronize()


class ThreadStreams:
    """`luwu.training.devices.gpu.CudaStreams`."""

    def __init__(self) -> None:
        self.pull, self.push = ThreadStream("luwu-pull-stream"), ThreadStream("luwu-push-stream")
        self._host = _Host()

    def compute(self) -> _Host:
        return self._host

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def device_buffer(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def register(self, address: int, nbytes: int, *, read_only: bool) -> str | None:
        return None

    def unregister(self, address: int) -> None:
        pass
