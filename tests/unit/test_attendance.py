"""Workers of one host that are done, and others that would wait for them in vain."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.json_file import write_json
from luwu.launch.attendance import LEAVES, Attendance
from luwu.launch.run_directory import RunDirectory


class Host:
    """The files of workers, as they write them."""

    def __init__(self, path: Path) -> None:
        self.run = RunDirectory.create(path)

    def start(self, rank: int) -> None:
        write_json(self.run.role(f"worker-{rank}.json"), {"rank": rank, "pid": 1, "started": ""})

    def train(self, rank: int, steps: int, *, leaves: bool = False) -> None:
        path = self.run.events(f"worker-{rank}")
        with Recorder(role="worker", path=path, printed=None) as recorder:
            for step in range(steps):
                recorder.span("flatten", 1, 2, step=step, unit="root")
            if leaves:
                recorder.event(LEAVES, rank=rank, step=steps)

    def end(self, rank: int, *, joined: bool) -> None:
        document = {"rank": rank, "ended": "", "joined": joined}
        write_json(self.run.role(f"worker-{rank}.ended"), document)

    def news(self) -> list[str]:
        return Attendance(self.run).news()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path / "run")
    for rank in range(3):
        made.start(rank)
    return made


@pytest.mark.feature("a script without luwu.init() under luwu run")
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
