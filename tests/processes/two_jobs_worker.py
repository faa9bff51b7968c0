"""A worker of a job that will be killed: `python -m tests.processes.two_jobs_worker FILE RANK`.

It says each step that it begins, on standard output, and would train for ever.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from luwu.join.connection import Connection, read_connection
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.nic.threads import StepHandle
from luwu.transport.opening import open_transport
from tests.light_job import Job, Worker

ENDLESS = Job(steps=1_000_000)


class SayingWorker(Worker):
    """Says each step."""

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        print(f"step {step}", flush=True)
        return super()._step(nic, step, may_cancel)


def make_nic(connection: Connection, rank: int) -> Nic:
    """A worker's NIC, by what a connection file says."""
    nic = Nic(
        open_transport(connection.endpoint, arena_bytes=connection.arena_bytes),
        WorkerIdentity(job=connection.job, rank=rank, world_size=connection.world_size),
        NicSettings(chunk_bytes=connection.chunk_bytes),
        endpoint=connection.endpoint,
        grace_s=60.0,
    )
    nic.connect()
    return nic


def main() -> None:
    """Train until somebody kills us."""
    connection = read_connection(Path(sys.argv[1]))
    assert connection is not None
    with closing(make_nic(connection, int(sys.argv[2]))) as nic:
        SayingWorker(ENDLESS)(nic)


if __name__ == "__main__":
    main()
