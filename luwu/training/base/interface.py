"""The NIC, as training needs it: `luwu.nic.shell.Nic`, or a test's substitute.

Every call and every wait raises `StepAborted(step, reason)` once if the attempt was aborted since
the last raise; from then on work of the new attempt is accepted, from `step` on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from luwu.base.events import Recorder
from luwu.nic.core.actions import Joined
from luwu.nic.memory import ExtentGradient
from luwu.nic.reader import StateReader
from luwu.nic.threads import Handle, NicCounters, Ready, StepHandle
from luwu.wire.description import Description


class Nic(Protocol):
    """One worker's way to the network; blocking calls wait in the caller's thread."""

    rank: int
    world_size: int
    chunk_bytes: int
    extent_chunks: int
    """Chunks that travel together at most."""
    prefetch_units: int
    optimizer_nodes: int
    reshard_after_forward: bool | None
    """Default of `fully_shard`; None: free all but the root."""
    recorder: Recorder
    cells: Any
    """Memory for gradients, as `luwu.nic.memory.Cells`."""

    @property
    def counters(self) -> NicCounters:
        """Payload bytes so far: `push_bytes`, `pull_bytes`."""

    def join(self, description: Description) -> Joined:
        """Become a member of the job."""

    @property
    def is_loaded(self) -> bool:
        """True if the network had weights when we joined, or when an attempt was last aborted."""

    @property
    def attempt(self) -> int:
        """The attempt that is under way."""

    @property
    def counted(self) -> int:
        """Bitmap of the ranks that count in the attempt; if left out, of its last one."""

    def load(self, chunks: Iterable[tuple[int, memoryview]]) -> None:
        """Send the float32 weights of every chunk; rank 0, before step 0."""

    def pull(
        self, step: int, part: int, unit: int, memory: Callable[[], memoryview], *,
        in_place: bool = False,
    ) -> Handle:  # fmt: skip
        """Ask for a unit's weights; `part` counts this rank's uses of it within the step.

        `memory` is called, in another thread, where they must be copied; with `in_place` they may
        be left where their sender has them.
        """

    def forget(self, handle: Any) -> None:
        """Give up a pull, done or not; its memory is not written after the return."""

    def push(
        self, step: int, part: int, unit: int, gradients: Sequence[ExtentGradient] | None,
        dtype: str, *, last: bool, weight: float = 1.0, ready: Ready | None = None,
    ) -> Handle:  # fmt: skip
        """Send gradients of a unit's extents; their cells belong to the push from now on.

        None: this rank has no gradient for the unit. The gradients are there once `ready` returns.
        """

    def wait_for_copies(self, until: Callable[[], bool] = ...) -> None:
        """Return when no `ready` of a push is under way, or the condition holds after one."""

    def begin(self, step: int, hyper: bytes) -> None:
        """State a streaming step's hyper-parameters before its first push."""

    def commit(self, step: int, parts: int, hyper: bytes, *, skip: bool = False) -> StepHandle:
        """Every push of the step has been handed over; `skip`: it is left out, on all ranks."""

    def cancel(self, text: str) -> None:
        """Give up what was pushed in this step, on all ranks."""

    def wait(self, handle: Any) -> None:
        """Block until a push or pull is complete."""

    def attach(self, step: int, data: bytes, part: int = 0) -> None:
        """Attach bytes to a step whose hyper-parameters announce it; later parts replace what was
        attached late to a decided step, and block until that is stored."""

    def open_reader(self) -> StateReader:
        """Hold the newest decided step for reading."""

    def leave(self) -> None:
        """Say goodbye."""

    def close(self) -> None:
        """Free everything."""

    @property
    def is_closed(self) -> bool:
        """True if `close` was called."""
