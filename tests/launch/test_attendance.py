"""Workers of one host that are done, and others that would wait for them in vain."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, LuwuError, WorkerFailed
from luwu.base.events import Recorder
from luwu.base.json_file import write_json
from luwu.launch.attendance import BROKEN_OFF, LEAVES, MISSES, Attendance
from luwu.launch.entry import count_start
from luwu.launch.processes.failures import worker_failure
from luwu.launch.processes.run_directory import RunDirectory
from tests.helpers.waiting import ManualClock


class Host:
    """The files of workers, as they write them."""

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory.create(path)

    def start(self, rank: int, pid: int = 1) -> None:
        """As `entry` does it, also for a worker that is started again."""
        for stale in (self.run.error(f"worker-{rank}"), self.run.role(f"worker-{rank}.ended")):
            stale.unlink(missing_ok=True)
        count_start(self.run, f"worker-{rank}")
        write_json(self.run.role(f"worker-{rank}.json"), {"rank": rank, "pid": pid, "started": ""})

    def train(self, rank: int, steps: int, *, leaves: bool = False) -> None:
        path = self.run.events(f"worker-{rank}")
        with Recorder(role="worker", path=path, printed=None) as recorder:
            for step in range(steps):
                now_ns = SYSTEM_CLOCK.now_ns()
                recorder.span("flatten", now_ns, now_ns, step=step, unit="root")
            if leaves:
                recorder.event(LEAVES, rank=rank, step=steps)

    def end(self, rank: int, *, joined: bool, threads: Sequence[str] = ()) -> None:
        document = {"rank": rank, "ended": "", "joined": joined, "threads": [*threads]}
        write_json(self.run.role(f"worker-{rank}.ended"), document)

    def fail(self, rank: int, kind: str, exit_code: int, code: str | None) -> None:
        document = {
            "rank": rank, "unix_ns": rank, "type": kind, "exit_code": exit_code, "code": code,
            "traceback": "allow more with --grace", "message": "waited 9 s",
        }  # fmt: skip
        write_json(self.run.error(f"worker-{rank}"), document)

    def give_up(self, rank: int) -> None:
        self.fail(rank, "DeadlineError", 3, "E303")
        self.end(rank, joined=True)

    def news(self) -> list[str]:
        return Attendance(self.run).news()

    def failure(self) -> LuwuError:
        return worker_failure(self.run, "", 1, Attendance(self.run).vain_waits())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "run")
    for rank in range(3):
        made.start(rank)
    return made


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_a_script_that_never_joins_is_named_when_its_first_worker_ends(host: Host) -> None:
    """Goal: N copies that train side by side are called that, before all of them are done."""
    assert host.news() == []
    host.end(2, joined=False)
    (line,) = host.news()
    assert line.startswith("the script of worker 2 has ended, and no worker has joined the job")
    assert "luwu.init()" in line
    for rank in range(2):
        host.end(rank, joined=False)
    with pytest.raises(ConfigError, match=r"worker 0, 1, 2 has ended, and no worker has joined"):
        Attendance(host.run).check_joined()


@pytest.mark.feature("a rank whose script ends while others wait for it")
def test_a_rank_that_ends_before_it_joined_is_named(host: Host) -> None:
    """Goal: the others wait until all have joined, so say which rank never will."""
    host.train(0, 0)
    host.end(1, joined=False)
    (line,) = host.news()
    assert "worker 1 has ended without joining the job" in line
    assert "worker-1.log" in line


@pytest.mark.feature("a rank whose script ends while others wait for it")
def test_a_rank_with_fewer_steps_is_named(host: Host) -> None:
    """Goal: who left and who waits for which step; nothing while the steps are the same."""
    host.train(0, 3, leaves=True)
    host.train(1, 3)
    host.train(2, 3, leaves=True)
    assert host.news() == []
    host.train(1, 4)
    attendance = Attendance(host.run)
    lines = attendance.news()
    assert lines[0].startswith("worker 0 has left the job after step 2")
    assert "worker 1 waits for its part of step 3" in lines[0]
    assert len(lines) == 2
    assert attendance.news() == []


@pytest.mark.feature("a rank whose script ends while others wait for it")
def test_the_last_error_names_the_rank_that_left(host: Host) -> None:
    """Goal: where waits came to their end because a rank had left, the run ends with that, and not
    with the advice to wait longer; the exit code and the code are those of the wait."""
    host.train(0, 3, leaves=True)
    for rank in (1, 2):
        host.train(rank, 4)
        host.give_up(rank)
    host.give_up(0)
    error = host.failure()
    lines = str(error).splitlines()
    assert lines[0].startswith("worker 0 has left the job after step 2")
    assert "worker 1, 2 waits for its part of step 3" in lines[0]
    assert lines[1].startswith("worker 0 gave up its wait (DeadlineError); log ")
    assert "--grace" not in str(error)
    assert (error.exit_code, error.code) == (3, "E303")


def test_an_error_of_the_script_comes_before_a_wait_in_vain(host: Host) -> None:
    """Goal: who left early is no cause of what a script raised by itself."""
    host.train(0, 3, leaves=True)
    host.train(1, 4)
    host.fail(1, "ValueError", 1, None)
    error = host.failure()
    assert str(error).startswith("worker 1 failed with ValueError")


@pytest.mark.feature("a rank whose script ends while others wait for it")
def test_a_worker_that_left_and_was_started_again_is_there(host: Host) -> None:
    """Goal: what a worker said before it was started again does not count, be it that it had left
    or how far it was; when it leaves early again, that is said again."""
    host.train(0, 3, leaves=True)
    host.train(1, 4)
    host.train(2, 3)
    attendance = Attendance(host.run)
    (line,) = attendance.news()
    assert "worker 0 has left the job after step 2" in line
    host.end(0, joined=True)
    host.start(0)
    assert attendance.vain_waits() == []
    host.train(0, 5, leaves=True)
    assert attendance.vain_waits() == []
    host.train(1, 6)
    (line,) = attendance.vain_waits()
    assert "worker 0 has left the job after step 4" in line
    host.start(1)
    assert attendance.vain_waits() == []


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_a_worker_that_failed_is_no_stranger(host: Host) -> None:
    """Goal: a script that failed before it joined, perhaps to be started again, is not called one
    that has ended without luwu.init()."""
    host.fail(1, "ImportError", 1, None)
    host.end(1, joined=False)
    assert host.news() == []
    host.train(0, 0)
    assert host.news() == []
    host.start(1)
    host.end(1, joined=False)
    (line,) = host.news()
    assert line.startswith("the script of worker 1 has ended without joining the job")


@pytest.mark.feature("a rank that does not join")
def test_ranks_that_have_not_joined_are_named(host: Host) -> None:
    """Goal: what a worker was told is shown, once, and is no cause of what comes later."""
    for rank in range(2):
        events = host.run.events(f"worker-{rank}")
        with Recorder(role="worker", path=events, printed=None) as recorder:
            recorder.event(MISSES, rank=rank, text="ranks 4-5 have not joined")
    attendance = Attendance(host.run)
    (line,) = attendance.news()
    assert line == "ranks 4-5 have not joined yet; the workers of this host wait for them"
    assert attendance.vain_waits() == []


def test_ranks_that_end_one_after_another_are_no_news(host: Host) -> None:
    """Goal: no line in an ordinary end, and an event that is cut is no failure."""
    for rank in range(3):
        host.train(rank, 2, leaves=True)
    with host.run.events("worker-0").open("ab") as file:
        file.write(b'{"name":"flat')
    host.end(0, joined=True)
    assert host.news() == []
    for rank in (1, 2):
        host.end(rank, joined=True)
    Attendance(host.run).check_joined()


def test_a_thread_that_stays_behind_is_named(host: Host) -> None:
    """Goal: one line that names rank and thread, once it stays for two looks; none of a thread
    that ends, or of a worker that has not left yet."""
    clock = ManualClock()
    attendance = Attendance(host.run, clock=clock)
    for rank, leaves in ((0, True), (1, False)):
        host.start(rank, os.getpid())
        host.train(rank, 2, leaves=leaves)
        host.end(rank, joined=True, threads=["uploader"])
    said = []
    for _ in range(4):
        clock.advance(10**9)
        said += attendance.news()
    (line,) = [each for each in said if "thread" in each]
    assert "worker 0 is done and its last step is decided, but its thread uploader" in line


def test_a_worker_that_broke_off_is_lost_once_others_wait_for_it(host: Host) -> None:
    """I6. Goal: exit code 0 before luwu.init() is the end of a script that never begins a job, or a
    loss, once another one has begun it."""
    ended = {"joined": False, BROKEN_OFF: True}
    write_json(host.run.role("worker-1.ended"), ended)
    Attendance(host.run).news()
    host.train(0, 0)
    with pytest.raises(WorkerFailed, match=r"worker 1 .* exit code 0 in the middle of its script"):
        Attendance(host.run).news()
