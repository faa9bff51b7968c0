"""Whole `luwu` commands as a user types them: what they say, how they end and what they leave."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.torch_import import PRELOAD
from luwu.launch.processes.children import is_alive
from luwu.testing.cluster import clean_environ
from luwu.testing.leftovers import until_empty

POLL_S = 0.02
DEADLINE_S = 180.0

TINY = """
import torch
import luwu

luwu.init()
model = torch.nn.Linear(WIDTH, 8)
luwu.fully_shard(model)
optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
for _ in range(optimizer.next_step, STEPS):
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
luwu.finish()
"""
"""The smallest script that trains."""


def write_tiny(path: Path, *, width: str = "16", steps: int = 1, first: str = "") -> Path:
    """Write the smallest script; `width` is an expression, `first` stands before everything."""
    path.write_text(first + TINY.replace("WIDTH", f"({width})").replace("STEPS", str(steps)))
    return path


LIGHT = """
import os
from tests.light_job import train

RANK = int(os.environ["RANK"])
train(STEPS, shape=(8, WIDTH))
"""
"""The same without torch, for what switch, node and launcher make of it."""


def write_light(path: Path, *, width: str = "16", steps: int = 1, first: str = "") -> Path:
    """As `write_tiny`; the expression may depend on RANK."""
    path.write_text(first + LIGHT.replace("WIDTH", f"({width})").replace("STEPS", str(steps)))
    return path


ATTACHED = """
import os
import sys
import time
import torch
import luwu

torch.manual_seed(3)
luwu.init()
model = torch.nn.Linear(4096, 32)
luwu.fully_shard(model)
optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(luwu.rank())
luwu.attach("generator", generator, per_rank=True)
for step in range(optimizer.next_step, int(sys.argv[1])):
    model(torch.rand(2, 4096, generator=generator)).square().mean().backward()
    result = optimizer.step()
    optimizer.zero_grad()
    result.wait()
    if luwu.rank() == 0:
        print(f"done {step}", flush=True)
    DISTURB
luwu.finish()
"""
"""A script with something attached: 131,104 parameters, 1.6 MB of state, 33 chunks of 16 KiB. With
the least budget its pages are read every step."""


@dataclass(slots=True)
class Command:
    """A `luwu` command that runs, or has run."""

    arguments: Sequence[str]
    output: Path
    """Where its output goes: with `.out` and `.err` behind it."""
    process: subprocess.Popen[bytes]
    started_ns: int = field(default_factory=SYSTEM_CLOCK.now_ns)
    seconds: float = 0.0

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return Path(f"{self.output}.out").read_text(errors="replace")

    @property
    def err(self) -> str:
        """Its standard error so far."""
        return Path(f"{self.output}.err").read_text(errors="replace")

    def wait(self, limit_s: float = DEADLINE_S) -> int:
        """Its exit code. Fails if it runs longer."""
        try:
            code = self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} ran more than {limit_s:.0f} s:\n{self.err}") from None
        self.seconds = (SYSTEM_CLOCK.now_ns() - self.started_ns) / 1e9
        return code

    def wait_for(
        self, pattern: str, limit_s: float = 120.0, *, of: Literal["out", "err"] | Path = "err"
    ) -> re.Match[str]:
        """The first match in its standard error, or a log. Fails if it ends, or `limit_s` is over,
        first."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while True:
            has_ended = self.process.poll() is not None
            text = self.err if of == "err" else self.out if of == "out" else _text(of)
            found = re.search(pattern, text, flags=re.MULTILINE)
            if found is not None:
                return found
            assert not has_ended, f"{self} ended before it said {pattern!r}:\n{self.err}"
            assert SYSTEM_CLOCK.now_ns() < end_ns, f"{self} never said {pattern!r}:\n{self.err}"
            sleep(POLL_S)

    def interrupt(self, limit_s: float = 10.0) -> int:
        """Ctrl-C; its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(limit_s)

    def __str__(self) -> str:
        return " ".join(self.arguments)


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


class Terminal:
    """Where commands are typed: a directory, a clean environment, and a mark on all they start."""

    def __init__(self, directory: Path, temporary: Path) -> None:
        self.directory = directory
        self.temporary = temporary
        """Receives temporary files and sockets."""
        self._outputs = temporary.with_name(temporary.name + ".out")
        self._outputs.mkdir()
        self._mark = {"LUWUTESTS_MARK": uuid.uuid4().hex}
        self._count = 0

    def start(self, *arguments: str, **environ: str) -> Command:
        """Type a `luwu` command."""
        return self.start_program([sys.executable, "-m", "luwu"], arguments, environ)

    def start_program(
        self, program: Sequence[str], arguments: Sequence[str], environ: Mapping[str, str]
    ) -> Command:
        """Type another one, or one with something before it."""
        self._count += 1
        output = self._outputs / str(self._count)
        is_light = any(Path(each).name in ("tests.light_job", "light.py") for each in arguments)
        places = {
            PRELOAD: str(int(not is_light)),
            "TMPDIR": str(self.temporary),
            "XDG_RUNTIME_DIR": str(self.temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(self._outputs),  # torch makes it when imported
        }
        with open(f"{output}.out", "wb") as out, open(f"{output}.err", "wb") as err:
            process = subprocess.Popen(
                [*program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=self.directory,
                env={**clean_environ(), **places, "OMP_NUM_THREADS": "1", **self._mark, **environ},
                start_new_session=True,
            )  # fmt: skip
        return Command([Path(program[-1]).name, *arguments], output, process)

    def run(self, *arguments: str, **environ: str) -> Command:
        """Type a command and wait for its end."""
        command = self.start(*arguments, **environ)
        command.wait()
        return command

    def succeed(self, *arguments: str, **environ: str) -> Command:
        """The same, of a command that ends well."""
        command = self.run(*arguments, **environ)
        assert command.process.returncode == 0, f"{command}:\n{command.err}"
        return command

    def processes(self) -> list[int]:
        """What was started here, by whomever, and is alive."""
        mark = self._mark.items()
        return [pid for pid in every_process() if mark <= environ_of(pid).items() and is_alive(pid)]

    def leftovers(self, limit_s: float = 3.0) -> list[str]:
        """Processes, sockets and temporary files that are there after `limit_s` (I8)."""
        return until_empty(
            lambda: [
                *(f"process {pid}" for pid in self.processes()),
                *(str(path) for path in self.temporary.rglob("*")),
                *(str(path) for path in self.directory.rglob("*.partial")),
                *(str(path) for path in self.directory.rglob(".*.creating")),
            ],
            limit_s,
        )

    def close(self) -> None:
        """Kill what is left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self._outputs, ignore_errors=True)


def every_process() -> list[int]:
    """Every process there is."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def environ_of(pid: int) -> dict[str, str]:
    """The environment of a process when it began; empty if it is gone or somebody else's."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(each.partition("=")[::2] for each in text.split("\0"))


def summary(run: Path) -> dict[str, Any]:
    """What the node of a run left."""
    document: dict[str, Any] = json.loads((run / "results" / "node.json").read_text())
    return document
