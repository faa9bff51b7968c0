"""The switch of this host, where another launcher than `luwu run` starts the workers, as torchrun.

The first of the host's ranks starts `luwu up --role switch --name host-N`, which ends with that
rank. All ranks read the file that it writes. The path of its socket follows from the job and the
host's number, so a switch that is started again listens where the ranks look for it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from luwu.base.directories import RUNS_DIRECTORY
from luwu.base.errors import ConfigError, ConnectionFailed, Interrupted
from luwu.base.socket_directory import shared_endpoint
from luwu.base.tree import ranges_text, tree_of_hosts
from luwu.join.connection import Connection, join, switch_file
from luwu.nic.shell import Nic

STARTING_S: Final = 60.0
"""Time beyond that of the job for the switch to start, or to report why it cannot."""
ENDING_S: Final = 5.0
"""Time for the switch to end once its workers have left."""


def _number(name: str, rank: int) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(
            f"{name} is {text!r} in the environment of rank {rank}: a job of several hosts needs "
            "it to know the ranks of this host; start the workers with torchrun or luwu run"
        )
    return int(text)


class HostSwitch:
    """The switch of this host, as one of its ranks sees it; the first one starts it."""

    def __init__(self, where: str, connection: Connection, rank: int) -> None:
        """`where`: the file or URL of the job. Raises ConfigError, ConnectionFailed."""
        local_rank, count = (_number(name, rank) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        tree = tree_of_hosts(connection.world_size, connection.hosts)
        self._place = tree.leaf_above(range(rank - local_rank, rank - local_rank + count))
        runs = Path(os.environ.get("LUWU_RUN_DIR") or RUNS_DIRECTORY)
        self._run = runs / f"{connection.job}-{self._place.name}"
        self._pid, self._process = os.getpid(), None
        self._nic: Nic | None = None
        file = self._run / switch_file(self._place.name)
        if local_rank == 0:
            file.unlink(missing_ok=True)  # of one that was killed
            self._output = tempfile.TemporaryFile()  # noqa: SIM115  it is read when the switch ends
            self._process = self._start(where, connection)
            atexit.register(self._end)
        try:
            self.connection = join(
                str(file), timeout_s=connection.connect_timeout_s + STARTING_S,
                should_stop=self._has_ended, say=lambda text: None,
            )  # fmt: skip
            """By which its workers join."""
        except Interrupted as error:
            raise self._failed() from error

    def watch(self, nic: Nic) -> None:
        """End this worker, with the reason, if the switch ends before it has left the job."""
        self._nic = nic
        if self._process is not None:
            threading.Thread(target=self._watch, args=[self._process, nic], daemon=True).start()

    def _watch(self, process: subprocess.Popen[bytes], nic: Nic) -> None:
        process.wait()
        if not nic.has_left:
            nic.fail(self._failed())

    def _start(self, where: str, connection: Connection) -> subprocess.Popen[bytes]:
        """Start it under a guard, which ends it with this process."""
        name = self._place.name
        flags = ["--on-worker-loss", connection.on_worker_loss]
        if connection.on_worker_loss == "drop":
            flags += ["--drop-after", f"{connection.drop_after_s}s"]
        if connection.insecure:
            flags.append("--insecure")
        guard = ["-m", "luwu.launch.processes.guard", f"{connection.job}-{self._pid}"]
        command = [
            sys.executable, *guard, sys.executable, "-m", "luwu", "up", "--role", "switch",
            "--name", name, "--join", where, "--run-dir", str(self._run),
            "--bind", shared_endpoint(f"{connection.job}-{name}"), *flags,
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._output
        )
        assert process.stdin is not None
        # The end of this pipe ends the switch; what the script forks must not hold it open.
        os.register_at_fork(after_in_child=process.stdin.close)
        return process

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _failed(self) -> ConnectionFailed:
        self._output.seek(0)
        text = self._output.read().decode(errors="replace").strip()
        ranks = ranges_text(self._place.workers)
        return ConnectionFailed(
            f"the switch of this host, for ranks {ranks}, has ended; its logs are in "
            f"{self._run.absolute() / 'logs'}\n{text}"
        )

    def _end(self) -> None:
        if self._process is None or os.getpid() != self._pid:
            return
        if self._nic is not None and self._nic.has_left:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_S)
        self._process.terminate()
        self._process.wait()
