"""Command lines of workers: our guard, what starts this host's share of them, our entry.

Over several hosts, torchrun makes the ranks, and starts all workers again when one was lost. Its
agents meet at one address (`Meeting`); what they exchange there is who is in and how many
workers each host has. Nothing of the training passes between them.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from luwu.base.errors import ConnectionFailed
from luwu.launch.processes.run_directory import RunDirectory

TORCHRUN_ENVIRON: Final = {
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
"""Variables of torchrun's environment.

Without them it keeps the address of its first meeting's store: when a host takes the place of a
lost one, those that stayed do not send it theirs, and all end after a minute of waiting for
MASTER_ADDR.
"""
TORCHRUN_FOLDER: Final = ".torchrun"
"""The folder for torchrun's own folders; removed at the end."""


def guarded(run_id: str, command: Sequence[str]) -> list[str]:
    """A command under the guard of a run."""
    return [sys.executable, "-m", "luwu.launch.processes.guard", run_id, *command]


def entry_arguments(run: RunDirectory, prefix: str, script: Sequence[str]) -> list[str]:
    """What Python, or torchrun, runs as a worker: our entry, and the script."""
    return ["-m", "luwu.launch.entry", str(run.path), prefix, *script]


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The endpoint where the torchruns of several hosts meet."""

    endpoint: str
    """HOST:PORT; torchrun on the host whose address that is listens there."""
    hosts: int
    name: str
    """The same on all hosts, and of this job alone."""

    def ways(self) -> tuple[str, bool]:
        """The address by which this host reaches the meeting, and whether it is its place.

        torchrun goes by the host's name for itself, which often leads elsewhere: then no process
        listens, or others get a wrong address. Raises ConnectionFailed.
        """
        host, _, port = self.endpoint.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
            family, kind, protocol, _, address = found[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing: the kernel only picks the way
                own = str(probe.getsockname()[0])
                return own, own == address[0]
        except OSError as exc:
            raise ConnectionFailed(
                f"no way leads from here to --rendezvous {self.endpoint}: {exc}; name an address "
                "of one of the hosts that all of them reach"
            ) from exc


def torchrun_command(
    run: RunDirectory, workers: int, meeting: Meeting, restarts_max: int
) -> list[str]:
    """torchrun for the workers of this host, one of several."""
    own_address, is_place = meeting.ways()
    where = [
        "--nnodes", str(meeting.hosts), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", meeting.endpoint, "--rdzv-id", meeting.name,
        "--rdzv-conf", f"is_host={is_place}", "--local-addr", own_address,
    ]  # fmt: skip
    return [
        sys.executable, "-m", "torch.distributed.run", *where, "--nproc-per-node", str(workers),
        "--max-restarts", str(restarts_max), "--monitor-interval", "0.1",
        "--log-dir", str(run.path / TORCHRUN_FOLDER),
    ]  # fmt: skip
