"""A service: one switch and one node process, job after job and several at once.

Several jobs in protocol fidelity: `pytest -k two_jobs`. The processes are real, and so is the
transport; workers are threads of the test, or processes where they are killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

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
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.nic.threads import StepHandle
from luwu.testing.leftovers import memory_files, until_empty
from luwu.transport.opening import open_transport
from tests.helpers.local_job import MIB, Job, Worker, plain

DEADLINE_S = 150.0
STREAMING = Job(steps=5)
AT_STEP = Job(steps=5, world_size=3, update="at_step")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "service", slot_count=10) as service:
        yield service
    assert not service.jobs


def open_job(service: Service, folder: Path, **changes: Any) -> ServiceJob:
    config = RunConfig(
        **{"memory_budget": 128 * MIB, "durability": "process", "chunk": MIB, **changes}
    )
    return service.open_job(RunDirectory.create(folder / "run"), config, state=folder / "state")


def open_for(service: Service, folder: Path, job: Job, *, slots: int, **changes: Any) -> ServiceJob:
    """Open a job in protocol fidelity."""
    return open_job(
        service, folder, workers=job.world_size, transport="ipc", chunk=job.layout.chunk_bytes,
        fidelity="protocol", slots=slots, **changes,
    )  # fmt: skip


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


class Gated(Worker):
    """Waits before one of its steps until it may go on."""

    def __init__(self, job: Job, before_step: int, gate: Callable[[int], None]) -> None:
        super().__init__(job)
        self._before_step, self._gate = before_step, gate

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> StepHandle:
        if step == self._before_step:
            self._gate(nic.rank)
        return super()._step(nic, step, may_cancel)


def train(pool: ThreadPoolExecutor, opened: ServiceJob, worker: Worker) -> list[Future[None]]:
    """Start all ranks of a job."""

    def one(rank: int) -> None:
        found = opened.connection
        nic = Nic(
            open_transport(found.endpoint, arena_bytes=found.arena_bytes),
            WorkerIdentity(job=found.job, rank=rank, world_size=found.world_size),
            NicSettings(chunk_bytes=found.chunk_bytes),
            endpoint=found.endpoint,
            grace_s=60.0,
        )
        with closing(nic):
            worker(nic)
            nic.leave()

    return [pool.submit(one, rank) for rank in range(worker.job.world_size)]


def finish(opened: ServiceJob, workers: list[Future[None]]) -> dict[str, Any]:
    """Wait for the end of a job; its node's summary, and its slots' account."""
    for each in workers:
        each.result(timeout=DEADLINE_S)
    opened.wait_until_over(DEADLINE_S)
    opened.close()
    node = read_json(opened.run.result("node.json"))
    assert node is not None
    switch = read_json(opened.run.result("switch.json")) or node
    return {**node, "pool": switch["pool"]}


@pytest.mark.feature("several jobs on one switch")
@pytest.mark.parametrize("no_switch", [False, True], ids=["switch", "no-switch"])
def test_two_jobs_at_once_have_the_digests_of_each_alone(
    service: Service, tmp_path: Path, no_switch: bool
) -> None:
    """I3, F4. Goal: jobs of different sizes and orders of work on one pool, in slots of their own,
    end with the bits that each has alone, and that the plain loop has.
    Method: one alone, then both; in the middle each waits until the other is there too."""
    with ThreadPoolExecutor(5) as pool:
        alone = open_for(service, tmp_path / "alone", STREAMING, slots=3, no_switch=no_switch)
        expected = finish(alone, train(pool, alone, Worker(STREAMING)))["weights_digest"]
        both = threading.Barrier(STREAMING.world_size + AT_STEP.world_size)

        def gate(rank: int) -> None:
            both.wait(DEADLINE_S)

        opened, workers = [], []
        for name, job, slots in (("a", STREAMING, 3), ("b", AT_STEP, 7)):
            opened.append(
                open_for(service, tmp_path / name, job, slots=slots, no_switch=no_switch)
            )  # fmt: skip
            workers.append(train(pool, opened[-1], Gated(job, 2, gate)))
        first, second = (finish(*each) for each in zip(opened, workers, strict=True))

    assert first["weights_digest"] == expected == plain(STREAMING).digest
    assert second["weights_digest"] == plain(AT_STEP).digest
    for found, slots in ((first, 3), (second, 7)):
        assert found["pool"]["slots_limit"] == slots
        assert 1 <= found["pool"]["slots_peak"] <= slots
        assert found["pool"]["slots_opened_count"] > 0


def test_two_jobs_one_killed_does_not_disturb_the_other(service: Service, tmp_path: Path) -> None:
    """I2, I3, I8. Goal: the workers of one job die in the middle of a step and the job is dropped;
    the other, which is between two of its steps, goes on to the digest that it has alone, and the
    slots of the dead are there for the next job.
    Method: SIGKILL after the third step has begun; a third job that needs those slots."""
    killed = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        survivor = open_for(service, tmp_path / "a", STREAMING, slots=4)
        reached = threading.Semaphore(0)

        def gate(rank: int) -> None:
            reached.release()
            assert killed.wait(DEADLINE_S)

        training = train(pool, survivor, Gated(STREAMING, 2, gate))
        victim = open_for(service, tmp_path / "b", STREAMING, slots=6)
        with pytest.raises(ConfigError, match="switch: slots: 1 asked for, but 0 of this switch's"):
            open_for(service, tmp_path / "refused", STREAMING, slots=1)
        connect = {"LUWU_CONNECT": str(victim.run.connect_file)}
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.light_job", "--steps", "1000000"],
                env={**os.environ, **connect, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(STREAMING.world_size)
        ]  # fmt: skip
        try:
            for _ in range(STREAMING.world_size):
                assert reached.acquire(timeout=DEADLINE_S)
            for process in processes:
                assert process.stderr is not None
                assert any(line == "light step=2 \n" for line in process.stderr)
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        victim.close()
        killed.set()
        found = finish(survivor, training)
        third = open_for(service, tmp_path / "c", STREAMING, slots=10)
        again = finish(third, train(pool, third, Worker(STREAMING)))

    assert found["weights_digest"] == again["weights_digest"] == plain(STREAMING).digest
