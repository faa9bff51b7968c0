"""A service: one switch and one node process, job after job and several at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.json_file import read_json
from luwu.base.socket_directory import private_directory
from luwu.base.tree import one_switch
from luwu.launch.processes.children import wait_for_end
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.roles import SwitchEnds, ended_file, job_spec, ready_file, switch_spec, write_role
from luwu.launch.service import Service, ServiceJob
from luwu.testing.leftovers import memory_files, until_empty

MIB = 1024 * 1024


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "service") as service:
        yield service
    assert not service.jobs


def open_job(
    service: Service, folder: Path, *, chunk: int = MIB, transport: str = "auto"
) -> ServiceJob:
    config = RunConfig(
        memory_budget=128 * MIB, durability="process", transport=transport, chunk=chunk
    )
    return service.open_job(RunDirectory.create(folder / "run"), config, state=folder / "state")


@pytest.mark.feature("one service for many jobs")
def test_jobs_share_the_processes_and_nothing_else(service: Service, tmp_path: Path) -> None:
    """Goal: jobs that are open at once have ids, endpoints and directories of their own, one that
    is refused or dropped leaves the others alone, and a dropped one leaves nothing."""
    first = open_job(service, tmp_path / "1")
    pids = service.pids
    with pytest.raises(ConfigError, match="node: memory_budget"):
        open_job(service, tmp_path / "refused", chunk=64 * MIB)
    second = open_job(service, tmp_path / "2")
    third = open_job(service, tmp_path / "3", transport="tcp")

    assert service.jobs == [first, second, third]
    connections = [job.connection for job in service.jobs]
    for value in ("job", "node", "switch"):
        assert len({getattr(each, value) for each in connections}) == 3
    first.close()
    second.look()
    third.look()
    second.close()
    third.close()

    assert service.pids == pids
    assert not [job.left_sockets for job in (first, second, third) if job.left_sockets]
    assert until_empty(lambda: ["held"] * memory_files(pids.values())) == []
    for job in (first, second, third):
        assert job.private_directory is None or not job.private_directory.exists()
        assert not job.run.connect_file.exists()
        assert read_json(ended_file(job.run, "node")) == {"schema": 1, "exit_code": 143}
        job.close()  # may be repeated


def test_a_role_that_died_is_named(service: Service, tmp_path: Path) -> None:
    """I6. Goal: no wait for a process that is gone, and the service can be closed after it."""
    job = open_job(service, tmp_path / "1")
    service._children["switch"].signal(9)
    wait_for_end(service._children["switch"], 10)
    with pytest.raises(LuwuError, match="the switch ended with signal SIGKILL; no job can be"):
        job.wait_until_over(10)
    with pytest.raises(LuwuError, match="the switch ended with signal SIGKILL; no job can be"):
        open_job(service, tmp_path / "2")
    job.close()


@pytest.mark.parametrize("how", ["end of input", "line that is no order", "SIGTERM"])
def test_the_end_of_its_input_is_its_end(tmp_path: Path, how: str) -> None:
    """I8. Goal: without whoever tells it what to do a role ends, and its sockets go with it."""
    sockets = private_directory()
    run = RunDirectory.create(tmp_path / "run")
    spec = switch_spec(
        RunConfig(), run, job_spec(RunConfig(), job=1, chunk_bytes=MIB),
        SwitchEnds(listen=f"ipc://{sockets}/switch", parent=f"ipc://{sockets}/node"),
        tree=(tree := one_switch(2)), place=tree.root,
    )  # fmt: skip
    order = {"do": "open", "config": str(write_role(run, "switch", spec, sockets))}
    process = subprocess.Popen(
        [sys.executable, "-m", "switch_emu", "switch", "--jobs"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        waiting = lambda: [] if ready_file(run, "switch").exists() else ["not yet"]  # noqa: E731
        assert until_empty(waiting, 30) == []
        assert any(path.is_socket() for path in sockets.iterdir())
        if how == "SIGTERM":
            process.terminate()
        elif how == "end of input":
            process.stdin.close()
        else:
            process.stdin.write(b"{}\n")
            process.stdin.flush()
        assert process.wait(timeout=10) == 0
    assert read_json(ended_file(run, "switch")) == {"schema": 1, "exit_code": 143}
    if how == "SIGTERM":  # whoever started it is there to remove them
        sockets.rmdir()
    assert not sockets.exists()
