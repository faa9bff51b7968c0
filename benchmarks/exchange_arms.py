"""The arms of the exchange benchmark, as their parent sees them: started, told, closed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.crew import Crew, Document
from benchmarks.exchange_luwu import Network
from benchmarks.exchange_model import Job
from benchmarks.harness import copy_bytes_per_s, core_count, threads_per_worker
from luwu.base.closing import Closing
from luwu.base.errors import LuwuError
from luwu.base.socket_directory import private_directory

FRAME_BYTES = 1024 * 1024
"""Of hub and pair: LuWu's chunk, in float32."""
PREFIX = "luwu-exchange-"


class Arm(Closing):
    """One way to do the exchange, with its processes running."""

    def __init__(self, job: Job, watch: Callable[[], object] = lambda: None) -> None:
        self.job = job
        self._temporary = tempfile.TemporaryDirectory(prefix=PREFIX)
        self.directory = Path(self._temporary.name)
        self._sockets: Path | None = None
        self.crew = Crew(self.directory, watch)

    def start(self, kind: str, ranks: range, threads: int, **more: object) -> list[Document]:
        """Start a member for each rank, all at once; what each says."""
        first = len(self.crew.members)
        for rank in ranks:
            command = {"do": "open", "kind": kind, "job": asdict(self.job), "rank": rank, **more}
            self.crew.start(f"{kind}-{rank}", threads, command)
        return self.crew.answers(first)

    def step(self) -> float:
        """Seconds of one exchange."""
        return self.crew.step()

    def read(self) -> float:
        """Seconds of one reading of all weights by every worker at once."""
        return self.crew.step("read")

    def check(self) -> str:
        """How the weights compare with the reference; all workers must have the same."""
        found = [each for each in self.crew.ask("check") if each]
        if len({each["digest"] for each in found}) != 1:
            raise LuwuError("the workers ended with different weights")
        return str(next(each["equal"] for each in found if each["equal"] is not None))

    def leave(self) -> None:
        """Let the members part in peace."""
        self.crew.ask("leave")

    def close(self) -> None:
        self.crew.close()
        self._temporary.cleanup()
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)

    @property
    def sockets(self) -> Path:
        """A directory whose path is short enough for sockets."""
        if self._sockets is None:
            self._sockets = private_directory()
        return self._sockets


class LuwuArm(Arm):
    """Node, switch and workers."""

    def __init__(
        self, job: Job, *, transport: str, switch: bool, chunk_bytes: int | None = None
    ) -> None:
        super().__init__(job, watch=self._watch)
        try:
            self.network = Network(
                job, self.directory, transport=transport, switch=switch, chunk_bytes=chunk_bytes
            )
        except BaseException:
            super().close()
            raise
        try:
            ranks, connect = range(job.workers), str(self.network.connect_file)
            self.start("luwu", ranks, threads_per_worker(job.workers), connect=connect)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.network.close()
        super().close()

    def _watch(self) -> None:
        self.network.supervisor.poll()


def luwu_arm(job: Job, transport: str, switch: bool, chunk_bytes: int | None = None) -> Arm:
    """LuWu over one transport; every arm of LuWu is made here."""
    return LuwuArm(job, transport=transport, switch=switch, chunk_bytes=chunk_bytes)


def gloo_arm(job: Job, kind: str) -> Arm:
    """`fsdp`, `ddp` or `exchange-only`."""
    arm = Arm(job)
    try:
        ranks = range(job.workers)
        store = str(arm.directory / "store")
        arm.start(kind, ranks, threads_per_worker(job.workers), store=store)
    except BaseException:
        arm.close()
        raise
    return arm


def hub_arm(job: Job, transport: str) -> Arm:
    """The hub and its workers; the hub is the last member."""
    arm = Arm(job)
    try:
        endpoint = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{arm.sockets}/hub"
        hub = range(job.workers, job.workers + 1)
        (said,) = arm.start("hub", hub, 1, endpoint=endpoint, frame_bytes=FRAME_BYTES)
        for rank in range(job.workers):
            arm.start(
                "spoke",
                range(rank, rank + 1),
                1,
                endpoint=said["endpoints"][rank],
                frame_bytes=FRAME_BYTES,
            )
    except BaseException:
        arm.close()
        raise
    return arm


def update_arm(job: Job) -> Arm:
    """The page update alone, with all cores."""
    arm = Arm(job)
    try:
        arm.start("update", range(1), core_count())
    except BaseException:
        arm.close()
        raise
    return arm


class CopyArm(Closing):
    """Seconds the floor's bytes take at the speed of a plain copy; measured here, in the parent."""

    def __init__(self, nbytes: int, copied_bytes: int) -> None:
        self._nbytes, self._copied_bytes = nbytes, copied_bytes

    def step(self) -> float:
        """One measurement of the copy."""
        return self._nbytes / copy_bytes_per_s(core_count(), self._copied_bytes, repeats=3)

    def leave(self) -> None:
        """Nothing to part from."""

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arm that can be opened."""

    name: str
    open: Callable[[], Arm | CopyArm]
    nbytes: int
    """That leave or reach a worker, summed over workers; of the floor: what crosses memory."""
    memory_bytes: int
    """About what its processes need while it is open."""
    switch: bool | None = None
    workers: int
    has_read: bool = False
    """True if reading all weights is worth timing."""
