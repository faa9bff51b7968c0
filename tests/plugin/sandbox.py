"""A pytest of its own, in its own process, whose leftovers can be seen."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from luwu.launch.processes.children import command_of, is_alive
from luwu.testing.cluster import SOURCE
from luwu.testing.leftovers import until_empty
from switch_emu.native.build import user_cache
from tests.processes.commands import environ_of, every_process

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 200.0
_NOT_OF_A_USER = ("-p", "no:anyio", "-p", "no:hypothesispytest")
"""Plugins that our own development tools bring: half the time that pytest takes to start."""


class Sandbox:
    """Runs pytest on the files of `path`."""

    def __init__(self, path: Path, temporary: Path) -> None:
        self.path = path
        self.temporary = temporary
        """Receives temporary files and sockets."""
        self.basetemp = path / "base"
        self._mark = uuid.uuid4().hex
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("LUWU_", "PYTEST_"))},
            "LUWUTESTS_MARK": self._mark,
            "LUWU_PRELOAD": "0",
            "PYTHONPATH": os.pathsep.join([str(SOURCE), str(_entry_points(path))]),
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(user_cache().parent),
            "XDG_RUNTIME_DIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(path),  # torch makes it when imported
        }

    def write(self, text: str, name: str = "test_it.py") -> Path:
        """Write a file of the suite."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start pytest, as its command does: the directory we are in is not imported from."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "pytest", "-c", str(self._ini()),
             "--rootdir", str(self.path), f"--basetemp={self.basetemp}", *_NOT_OF_A_USER,
             "-p", "no:cacheprovider", *arguments],
            cwd=self.path, env=self.environ, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0) -> str:
        """Run pytest; what it printed. Its exit code must be `code`, and nothing may be left."""
        process = self.start(*arguments)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
            process.wait()
        print(output)  # a test that fails shows all of it
        assert process.returncode == code
        assert self.leftovers() == []
        return output

    def processes(self) -> list[str]:
        """What was started from here, by whomever, and is alive."""
        return [
            f"process {pid} ({command_of(pid)})"
            for pid in every_process()
            if environ_of(pid).get("LUWUTESTS_MARK") == self._mark and is_alive(pid)
        ]

    def leftovers(self, limit_s: float = 3.0) -> list[str]:
        """Processes, sockets and temporary files that are there after `limit_s`.

        Segments with names are not ours (those of LuWu have none), and may be anybody's.
        """
        return until_empty(
            lambda: [*self.processes(), *map(str, self.temporary.rglob("*"))], limit_s
        )

    def _ini(self) -> Path:
        file = self.path / "pytest.ini"
        if not file.exists():
            file.write_text("[pytest]\n")
        return file


def _entry_points(path: Path) -> Path:
    """A folder that offers our plugin to pytest as pyproject.toml says, installed or not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["pytest11"].items()
    folder = path / "installed"
    info = folder / "luwu_of_this_checkout-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: luwu_of_this_checkout\nVersion: 0\n"
    )
    (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")
    return folder


@contextmanager
def make_sandbox(path: Path) -> Iterator[Sandbox]:
    """A sandbox; its temporary files are in a short path, for sockets."""
    temporary = Path(tempfile.mkdtemp(prefix="luwutest-", dir="/tmp"))
    made = Sandbox(path, temporary)
    try:
        yield made
    finally:
        for text in made.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(text.split()[1]), signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


def section(output: str, title: str) -> str:
    """The part of a report under a title."""
    found = re.split(r"^(?:_{3,} (.*?) _{3,}|={3,} .*? ={3,})$", output, flags=re.MULTILINE)
    for name, text in zip(found[1::2], found[2::2], strict=False):
        if name in (title, f"ERROR at {title}"):
            return text
    raise AssertionError(f"no section {title!r} in\n{output}")
