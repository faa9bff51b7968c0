"""The story of every trial: two workers train three pages for three steps on a real node process.

The node is what `python -m switch_emu node` runs, from its document to its exit code: shell, core,
pipeline, store, real sockets. Only its start is not: processes are forks of one that has imported
torch, which a trial would otherwise wait 2 s for, twice. It has one update thread and no compiler,
because strace counts calls by thread, and what is compiled is not the state. Workers keep something
beside every step, wait for each step but the last to be decided, and say so.

`reference()` is the same training in a loop over torch.optim: the digest of every version.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import multiprocessing.context
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from luwu.base import failpoints
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import DeadlineError, StepAborted
from luwu.base.json_file import read_json
from luwu.layout import Layout, Parameter, Unit
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.nic.threads import StepHandle
from luwu.transport.opening import open_transport
from luwu.wire.hyper import StepHyper
from switch_emu.node import spec
from switch_emu.roles import attend
from tests.helpers import local_job
from tests.helpers.local_job import KIB, MIB, Worker

WORKERS, STEPS = 2, 3
JOB_NUMBER = 42
LIMIT_S = 60.0
"""For anything that is waited for."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class StoryJob(local_job.Job):
    """Every rank keeps something beside every step."""

    def hyper(self, step: int) -> StepHyper:
        """With the promise to keep."""
        return replace(super().hyper(step), keeps=True)


def story_job(steps: int = STEPS) -> StoryJob:
    """Three units of one page: a whole chunk, a ragged one, a small one."""
    shapes = ((64, 64), (30, 50), (33,))
    layout = Layout(
        parameters=tuple(
            Parameter(name=f"p{i}", shape=shape, trainable=True, group=i % 2)
            for i, shape in enumerate(shapes)
        ),
        units=tuple(Unit(name=f"u{i}", parameters=(i,)) for i in range(len(shapes))),
        chunk_bytes=16 * KIB,
    )
    return StoryJob(layout=layout, world_size=WORKERS, steps=steps)


@functools.cache
def reference() -> tuple[str, ...]:
    """Digest of each version, 0 to STEPS."""
    return tuple(
        local_job.plain_of(story_job(steps), [range(WORKERS)] * steps).digest
        for steps in range(STEPS + 1)
    )


@dataclass(frozen=True)
class Place:
    """Where a trial happens; the same names in each, so that strace can be told them."""

    root: Path

    @property
    def state(self) -> Path:
        """The node's directory."""
        return self.root / "state"

    @property
    def endpoint(self) -> str:
        """Where it listens; a short path."""
        return f"ipc://{self.root}/node"

    def node_file(self, number: int, name: str) -> Path:
        """A file of the node's n-th start."""
        return self.root / f"node-{number}.{name}"


class Child(multiprocessing.context.ForkProcess):
    """A fork of this process, which writes to a file."""

    def __init__(self, work: Callable[[], int], log: Path) -> None:
        super().__init__(daemon=True)
        self._work, self._log = work, log
        sys.stdout.flush()
        sys.stderr.flush()
        self.start()

    def run(self) -> None:
        """Do the work; what it returns is the exit code."""
        # A campaign that is killed leaves nothing.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.exit(self._work())

    def wait(self, what: str) -> int:
        """Exit code at its end, or minus the signal. Raises DeadlineError."""
        self.join(LIMIT_S)
        if self.exitcode is None:
            raise DeadlineError(f"waited {LIMIT_S:.0f} s for the end of {what}")
        return self.exitcode

    def end(self) -> None:
        """Kill it, if it still runs."""
        self.kill()
        self.join()


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Poll. Raises DeadlineError."""
    end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
    while not condition():
        if SYSTEM_CLOCK.now_ns() > end_ns:
            raise DeadlineError(f"waited {limit_s:.0f} s for {what}")
        select.select([], [], [], 0.002)


# ---------------------------------------------------------------------- the node


def start_node(place: Place, number: int, *, gate: int | None = None, crash: str = "") -> Child:
    """The node's n-th start; it begins when a byte comes from `gate`. `crash`: a failpoint."""
    document: dict[str, Any] = {
        "spec": {
            "job": JOB_NUMBER,
            "world_size": WORKERS,
            "listen": place.endpoint,
            "state": str(place.state),
            "durability": "step",
            "memory_budget_bytes": 4 * MIB,
            "chunk_bytes": 16 * KIB,
            "has_switch": False,
            "resume": True,
            "summary": str(place.node_file(number, "summary")),
        },
        "ready": str(place.node_file(number, "ready")),
        "error": str(place.node_file(number, "error")),
    }

    def work() -> int:
        if gate is not None:
            os.read(gate, 1)
        failpoints._armed.update(failpoints.parse_failpoints(crash))
        os.environ["PATH"] = ""
        plan_node = spec.plan_node
        spec.plan_node = lambda **values: replace(  # type: ignore[assignment]
            plan_node(**values), updates_count=1, reads_count=1
        )
        return attend("node", document, threading.Event())

    return Child(work, place.node_file(number, "log"))


def said_at_the_end(place: Place, number: int) -> dict[str, Any]:
    """What the n-th start wrote about its end, if anything."""
    return read_json(place.node_file(number, "error")) or {}


def digest_at_the_end(place: Place, number: int) -> str | None:
    """Of the weights in the account of the n-th start."""
    summary = read_json(place.node_file(number, "summary"))
    return None if summary is None else summary["weights_digest"]


# ---------------------------------------------------------------------- the workers


class Workers:
    """The process of the workers, and what they have said."""

    def __init__(self, place: Place) -> None:
        self._heard, said = multiprocessing.Pipe(duplex=False)
        self._may_load = multiprocessing.get_context("fork").Event()
        self.lines: list[str] = []
        worker = _StoryWorker(said, self._may_load)
        self.child = Child(lambda: _work(place, worker), place.root / "workers.log")
        said.close()

    @property
    def decided(self) -> int:
        """The highest version that any of them was told to be decided; -1: none."""
        self._hear()
        return max((int(line.split()[1]) for line in self.lines if "decided" in line), default=-1)

    @property
    def joined_count(self) -> int:
        """How many have joined."""
        self._hear()
        return sum(line.startswith("joined") for line in self.lines)

    def go_on(self) -> None:
        """Let the one who has the first weights send them."""
        self._may_load.set()

    def end(self) -> None:
        """Whatever they do."""
        self.child.end()
        self._heard.close()

    def _hear(self) -> None:
        with contextlib.suppress(EOFError):
            while self._heard.poll():
                self.lines.append(self._heard.recv())


class _StoryWorker(Worker):
    """Says what was decided, as soon as it knows."""

    def __init__(self, said: Connection, may_load: Event) -> None:
        super().__init__(story_job())
        self._said, self._may_load, self._turn = said, may_load, threading.Lock()

    def say(self, text: str) -> None:
        with self._turn:
            self._said.send(text)

    def train(self, nic: Nic) -> None:
        joined = nic.join(self.job.description)
        self.say(f"joined {nic.rank}")
        if nic.rank == 0:
            self._may_load.wait()
            self._load(nic, is_needed=not joined.loaded)
        step, before = joined.step, None
        while True:
            try:
                while step < STEPS:
                    handle = self._step(nic, step, False)
                    nic.attach(step, b"beside step %d: rank %d" % (step, nic.rank))
                    self._await_decision(before)
                    step, before = step + 1, handle
                self._await_decision(before)
                nic.leave()
                return
            except StepAborted as exc:
                step, before = exc.step, None
                self._load(nic, is_needed=nic.rank == 0 and not nic.is_loaded)

    def _load(self, nic: Nic, *, is_needed: bool) -> None:
        """As a session does: until the network has weights as a whole."""
        while is_needed:
            try:
                nic.load(self._initial_chunks())
                return
            except StepAborted:
                is_needed = not nic.is_loaded

    def _await_decision(self, handle: StepHandle | None) -> None:
        if handle is not None:
            handle.decision()
            self.say(f"decided {handle.step + 1}")


def _work(place: Place, worker: _StoryWorker) -> int:
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with Nic(
                open_transport(place.endpoint),
                WorkerIdentity(job=JOB_NUMBER, rank=rank, world_size=WORKERS),
                NicSettings(chunk_bytes=16 * KIB),
                endpoint=place.endpoint, connect_timeout_s=LIMIT_S, grace_s=LIMIT_S,
            ) as nic:  # fmt: skip
                worker.train(nic)
        except BaseException as exc:
            worker.say(f"failed {rank}: {exc}")
            failures.append(exc)
            raise

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(WORKERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not failures:
        for thread in threads:
            thread.join(timeout=0.02)
    return len(failures)
