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
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from luwu.base.errors import ConfigError, ConnectionFailed, Interrupted
from luwu.base.socket_directory import shared_directory
from luwu.base.tree import ranges_text, tree_of_hosts
from luwu.join.connection import Connection, join

RUNS: Final = Path("luwu-runs")
ENDING_S: Final = 5.0
"""Time for the switch to end once its workers have left."""


def connection_of_host(where: str, connection: Connection, rank: int) -> Connection:
    """The connection to this host's switch; `where`: the file or URL of the job.

    Raises ConfigError if the ranks of this host are not those of one, ConnectionFailed.
    """
    local_rank, count = (_number(name, rank) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    tree = tree_of_hosts(connection.world_size, connection.hosts)
    place = tree.leaf_above(range(rank - local_rank, rank - local_rank + count))
    run = RUNS / f"{connection.job}-{place.name}"
    file, timeout_s = str(run / f"connect-{place.name}.json"), connection.connect_timeout_s
    if local_rank:
        return join(file, timeout_s=timeout_s, say=lambda text: None)
    sockets = shared_directory(f"{connection.job}-{place.name}")
    with tempfile.TemporaryFile() as said:
        switch = _start(where, connection, place.name, run, f"shm://{sockets}/w", said)
        try:
            return join(file, timeout_s=timeout_s, should_stop=lambda: switch.poll() is not None)
        except Interrupted as error:
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
            ranks = ranges_text(place.workers)
            raise ConnectionFailed(
                f"the switch of this host, for ranks {ranks}, did not start:\n{text}"
            ) from error


def _number(name: str, rank: int) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(
            f"{name} is {text!r} in the environment of rank {rank}: a job of several hosts needs "
            "it to know the ranks of this host; start the workers with torchrun or luwu run"
        )
    return int(text)


def _start(
    where: str, connection: Connection, name: str, run: Path, listen: str, said: IO[bytes]
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start the switch under a guard, which ends it with this process; `said`: for what it says,
    which is in a log of `run` too."""
    flags = ["--on-worker-loss", connection.on_worker_loss]
    if connection.on_worker_loss == "drop":
        flags += ["--drop-after", f"{connection.drop_after_s}s"]
    if connection.insecure:
        flags.append("--insecure")
    guard = ["-m", "luwu.launch.processes.guard", f"{connection.job}-{os.getpid()}"]
    command = [
        sys.executable, *guard, sys.executable, "-m", "luwu", "up", "--role", "switch",
        "--name", name, "--join", where, "--bind", listen, "--run-dir", str(run), *flags,
    ]  # fmt: skip
    switch = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said
    )
    atexit.register(_end, switch)
    return switch


def _end(switch: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        switch.wait(ENDING_S)
    switch.terminate()
    switch.wait()
