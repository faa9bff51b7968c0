"""The command line of torchrun on a host of several, and what is made of its words."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.errors import ConnectionFailed
from luwu.base.json_file import write_json
from luwu.launch.processes.failures import worker_failure
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.torchrun import Meeting, torchrun_command


def value_of(flag: str, command: list[str]) -> str:
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_host_knows_whether_it_is_the_place(tmp_path: Path, host: str) -> None:
    """Goal: the address that others are told is that of the way to the meeting, and the host that
    has the meeting's address listens there: torchrun itself goes by host names. (Of the other host,
    tests/processes/test_many_hosts.py.)"""
    meeting = Meeting(endpoint=f"{host}:29400", hosts=2, name="luwu-7")
    command = torchrun_command(RunDirectory(tmp_path), 3, meeting, 1)
    assert value_of("--nproc-per-node", command) == "3"
    assert value_of("--max-restarts", command) == "1"
    assert value_of("--rdzv-conf", command) == "is_host=True"
    assert value_of("--local-addr", command) in ("127.0.0.1", "::1")
    assert value_of("--nnodes", command) == "2"
    assert value_of("--rdzv-endpoint", command) == f"{host}:29400"
    assert value_of("--rdzv-id", command) == "luwu-7"


def test_a_meeting_nowhere_is_an_error() -> None:
    meeting = Meeting(endpoint="nowhere.invalid:29400", hosts=2, name="luwu-7")
    with pytest.raises(ConnectionFailed, match="no way leads from here to --rendezvous nowhere"):
        meeting.ways()


def test_failures_name_ranks_of_the_job(tmp_path: Path) -> None:
    """Goal: torchrun prints ranks of its own host; the message has those of the job, and which
    ranks other hosts had. Method: the second host of two, with two workers each."""
    run = RunDirectory.create(tmp_path / "run")
    for rank, pid in ((2, 70), (3, 71)):
        write_json(run.role(f"worker-{rank}.json"), {"rank": rank, "pid": pid})
    write_json(run.role("workers.json"), {"workers": 2, "world_size": 4})
    run.log("torchrun").write_text("failed (exitcode: -9) local_rank: 1 (pid: 71) of binary\n")
    text = str(worker_failure(run, "", 1))
    assert text.startswith("worker 3 (pid 71) was lost: signal SIGKILL")
    assert "this host had rank 2, 3 and other hosts rank 0, 1" in text
    run.log("torchrun").write_text("wait timeout after 60000ms\n")
    text = str(worker_failure(run, "", 1))
    assert "other hosts rank 0, 1: if one of these hosts was lost" in text
    assert "wait timeout" in text
