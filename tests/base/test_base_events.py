"""Events: one line for people, one JSON line for programs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from luwu.base.clock import SYSTEM_CLOCK, unix_ns
from luwu.base.events import CLOCK, Recorder


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The records of a file, without those of clocks and without the times of instants."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for record in records:
        record.pop("at_ns", None)
    return [record for record in records if record["name"] != CLOCK]


def test_one_event_two_lines(tmp_path: Path) -> None:
    """Goal: the same fields for people and for programs."""
    printed, path = io.StringIO(), tmp_path / "made" / "node.jsonl"
    with Recorder(role="node", path=path, printed=printed) as recorder:
        recorder.event("node.step", step=41, read_s=0.4123456789, applied=True, text="two words")
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d\.\d\d\d INFO node\.step "
        r'step=41 read_s=0\.412346 applied=True text="two words"\n',
        printed.getvalue(),
    )
    assert lines_of(path) == [
        {"name": "node.step", "role": "node", "step": 41, "read_s": 0.4123456789,
         "applied": True, "text": "two words"}
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["a\nb", "a\tb", "a\r", "\x1b[31m", "a b\nc"])
def test_an_event_is_one_line(text: str) -> None:
    """Goal: no text, a peer's included, can begin a line of its own or steer a terminal."""
    printed = io.StringIO()
    Recorder(role="node", printed=printed).event("node.refused", text=text)
    (line,) = printed.getvalue().splitlines()
    assert line.isprintable()


def test_debug_goes_to_the_file_alone(tmp_path: Path) -> None:
    """Goal: what happens once a chunk does not flood a terminal; a line ends without a blank."""
    printed, path = io.StringIO(), tmp_path / "a.jsonl"
    with Recorder(role="nic", path=path, printed=printed) as recorder:
        recorder.event("nic.push", level="DEBUG", chunk=3)
        assert printed.getvalue() == ""
        recorder.event("nic.ready", level="WARNING")
    assert printed.getvalue().endswith(" WARNING nic.ready\n")
    assert lines_of(path)[0] == {"name": "nic.push", "role": "nic", "chunk": 3}


def test_spans_carry_both_times(tmp_path: Path) -> None:
    """Goal: a timeline can be drawn from the file."""
    path = tmp_path / "a.jsonl"
    with Recorder(role="nic", path=path, printed=None) as recorder:
        recorder.span("pull", 10, 25, unit=2)
    assert lines_of(path) == [
        {"name": "pull", "role": "nic", "start_ns": 10, "end_ns": 25, "unit": 2}
    ]


def test_info_is_on_disk_at_once(tmp_path: Path) -> None:
    """I2. Goal: after a crash the file tells of every INFO event before it; DEBUG may be lost."""
    path = tmp_path / "a.jsonl"
    recorder = Recorder(role="node", path=path, printed=None)
    recorder.event("small", level="DEBUG")
    assert path.read_text() == ""
    recorder.event("large")
    assert [record["name"] for record in lines_of(path)] == ["small", "large"]
    recorder.event("later", level="DEBUG")
    recorder.flush()
    assert len(lines_of(path)) == 3
    recorder.close()


def test_each_start_begins_with_its_clock(tmp_path: Path) -> None:
    """Goal: timelines of several hosts can be aligned. Method: the record lies between two reads
    of both clocks, and stands before everything else of its start."""
    path = tmp_path / "a.jsonl"
    before = SYSTEM_CLOCK.now_ns(), unix_ns()
    for number in range(2):
        with Recorder(role="node", path=path, printed=None) as recorder:
            recorder.event("node.ready", start=number)
    after = SYSTEM_CLOCK.now_ns(), unix_ns()
    assert before[0] <= json.loads(path.read_text().splitlines()[1])["at_ns"] <= after[0]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["name"] for record in records] == [CLOCK, "node.ready"] * 2
    for clock in records[::2]:
        assert before <= (clock["monotonic_ns"], clock["unix_ns"]) <= after
        assert clock["role"] == "node"
        assert clock["boot"] == records[0]["boot"] != ""


def test_after_close_events_are_printed_only(tmp_path: Path) -> None:
    """Goal: the last words of a process that is shutting down do not raise."""
    printed, path = io.StringIO(), tmp_path / "a.jsonl"
    recorder = Recorder(role="node", path=path, printed=printed)
    recorder.close()
    recorder.close()
    recorder.flush()
    recorder.event("node.gone")
    recorder.span("late", 0, 1)
    assert "node.gone" in printed.getvalue()
    assert lines_of(path) == []


def test_threads_do_not_mix_lines(tmp_path: Path) -> None:
    """Goal: several threads share a recorder and every line is whole."""
    printed, path = io.StringIO(), tmp_path / "a.jsonl"
    with Recorder(role="node", path=path, printed=printed) as recorder:

        def work(number: int) -> None:
            for index in range(50):
                recorder.event("tick", thread=number, index=index, text="x" * 100)
                recorder.span("work", 0, 1, thread=number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = lines_of(path)
    assert len(records) == 4 * 50 * 2
    for number in range(4):
        mine = [r["index"] for r in records if r["thread"] == number and r["name"] == "tick"]
        assert mine == list(range(50))
    assert all(" INFO tick " in line for line in printed.getvalue().splitlines())


def test_a_full_disk_costs_the_events_alone(tmp_path: Path) -> None:
    """I6. Goal: where the file cannot be written any more, that is said once, with the directory;
    what happens later is printed as before, and nothing raises. Method: a link to /dev/full."""
    path = tmp_path / "node.jsonl"
    path.symlink_to("/dev/full")
    printed = io.StringIO()
    with Recorder(role="node", path=path, printed=printed) as recorder:
        recorder.event("node.step", step=1)
        recorder.event("node.step", step=2)
        recorder.span("sum", 1, 2)
    lines = printed.getvalue().splitlines()
    assert [line.split()[-1] for line in lines if "node.step" in line] == ["step=1", "step=2"]
    [warning] = [line for line in lines if "WARNING" in line]
    assert f"node.jsonl cannot be written in {tmp_path}: No space left on device" in warning


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    """Goal: the same of what is printed, which goes to a log of the same run."""
    with Path("/dev/full").open("w") as full, Recorder(role="node", printed=full) as recorder:
        recorder.event("node.step", step=1)
        with contextlib.suppress(OSError):
            full.close()  # tries again
