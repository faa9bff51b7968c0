"""Processes of a benchmark that take steps together, told and asked by one JSON line each.

    parent                                      member: python -m benchmarks.exchange_member
    {"do": "open", "kind": ..., ...}     ---->  makes its part, and answers with what it has to say
    {"do": "step", "at_ns": T}           ---->  sleeps until T, takes a step
                                         <----  {"start_ns": ..., "end_ns": ...}

The monotonic clock is one for all processes of a host, so "all start at T" is a barrier that costs
nothing inside the measurement. Standard input is the lifeline: at its end a member is gone, however
its parent ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import benchmarks
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.errors import DeadlineError, WorkerFailed
from luwu.launch.processes.children import WORKER_TUNABLES
from luwu.launch.processes.console import tail
from luwu.launch.supervisor import SPIN_COUNT

ANSWER_S = 180.0
"""How long a member may take to answer."""
LEAD_NS = 3_000_000
"""From the command of a step to its start: every member has read it by then."""
SOURCE = Path(benchmarks.__file__).resolve().parents[1]

Document = dict[str, Any]


class Member:
    """One process."""

    def __init__(self, name: str, threads: int, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
        environ = {key: text for key, text in os.environ.items() if not key.startswith("LUWU_")}
        environ |= {
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": str(threads),
            "GOMP_SPINCOUNT": SPIN_COUNT,
            "GLIBC_TUNABLES": WORKER_TUNABLES,
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.exchange_member"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environ,
            )
        self._received = b""

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    def tell(self, command: Mapping[str, Any]) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as exc:
            raise self._failure() from exc

    def answer(self, watch: Callable[[], object]) -> Document:
        """Its answer to the last command; `watch` is called now and then, and may raise."""
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        end_ns = SYSTEM_CLOCK.now_ns() + int(ANSWER_S * 1e9)
        while b"\n" not in self._received:
            if not select.select([out], [], [], 0.5)[0]:
                watch()
                if SYSTEM_CLOCK.now_ns() > end_ns:
                    raise DeadlineError(f"{self.name} did not answer within {ANSWER_S:.0f} s")
                continue
            piece = os.read(out, 65536)
            if not piece:
                raise self._failure()
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        found: Document = json.loads(line)
        return found

    def close(self) -> None:
        """End it: by the end of its input, else by SIGKILL."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _failure(self) -> WorkerFailed:
        code = self._process.wait()
        return WorkerFailed(f"{self.name} ended with {code}:\n{tail(self.log, lines_max=12)}")


class Crew(Closing):
    """Several members that are asked together."""

    def __init__(self, directory: Path, watch: Callable[[], object] = lambda: None) -> None:
        self._directory, self._watch = directory, watch
        self.members: list[Member] = []

    def add(self, name: str, threads: int, command: Mapping[str, Any]) -> Document:
        """Start a member, and wait until it has done its first command."""
        self.start(name, threads, command)
        return self.members[-1].answer(self._watch)

    def start(self, name: str, threads: int, command: Mapping[str, Any]) -> None:
        """Start a member; its answer is for `answers`."""
        self.members.append(Member(name, threads, self._directory))
        self.members[-1].tell(command)

    def answers(self, first: int = 0) -> list[Document]:
        """One answer of each member, from the `first` on."""
        return [member.answer(self._watch) for member in self.members[first:]]

    def ask(self, do: str, **more: Any) -> list[Document]:
        """Tell all, then hear all."""
        for member in self.members:
            member.tell({"do": do, **more})
        return self.answers()

    def step(self, do: str = "step") -> float:
        """All take one step together: seconds from the first start to the last end."""
        found = self.ask(do, at_ns=SYSTEM_CLOCK.now_ns() + LEAD_NS)
        first = min(each["start_ns"] for each in found)
        return float(max(each["end_ns"] for each in found) - first) / 1e9

    def close(self) -> None:
        for member in self.members:
            member.close()
