"""The message of a run whose workers failed."""

from __future__ import annotations

from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.launch.entry import write_error
from luwu.launch.nodes import Replicas
from luwu.launch.processes.failures import worker_failure
from luwu.launch.processes.run_directory import RunDirectory


def raised(error: Exception) -> Exception:
    """The error with a traceback."""
    try:
        raise error
    except type(error) as caught:
        return caught


def hidden(error: Exception) -> Exception:
    """The same, of a frame that asks to be hidden."""
    __tracebackhide__ = True
    try:
        raise error
    except type(error) as caught:
        return caught


def test_workers_that_fail_alike_are_counted(tmp_path: Path) -> None:
    """Goal: one traceback; ranks with the same one are named, each other one gets a line."""
    run = RunDirectory.create(tmp_path / "run")
    for rank in (3, 0, 1, 5):
        write_error(run, f"worker-{rank}", rank, raised(ValueError("bad batch")), exit_code=1)
    write_error(run, "worker-2", 2, raised(ValueError("bad batch of rank 2")), exit_code=1)

    lines = str(worker_failure(run, "", 1)).splitlines()

    assert lines[0].startswith("worker 3 failed with ValueError (exit code 1); log ")
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-3] == "ValueError: bad batch"
    assert lines[-2:] == ["and 3 more: rank 0-1,5", "worker 2: ValueError: bad batch of rank 2"]


def test_a_node_is_lost_where_others_of_the_run_hold_its_pages() -> None:
    """Goal: nobody goes on without a node that was started alone (`luwu up --role node`)."""
    both = Replicas(2, 2)
    assert [both.lose(process, "E505") for process in ("node-1", "node")] == [True, False]
    assert not both.lose("switch", "E505")
    assert not any(Replicas(1, 1).lose(process, "E505") for process in ("node", "node-1"))


def test_an_error_of_ours_without_frames_of_a_script_has_none(tmp_path: Path) -> None:
    """Goal: a refusal of the launcher itself reads as one line; a mistake keeps its frames."""
    run = RunDirectory.create(tmp_path / "run")
    for error, lines_count in ((ConfigError("no such place"), 1), (KeyError("mistake"), 4)):
        text = write_error(run, "worker-0", 0, hidden(error), exit_code=1)
        assert len(text.splitlines()) == lines_count, text
