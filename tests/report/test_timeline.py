"""The timeline: rows without partial overlap, one clock, and files as a kill leaves them."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError
from luwu.report.aligned import (
    RESTARTED,
    has_step,
    parse_steps,
    steady_steps,
    steps_text,
    survey,
    timed,
)
from luwu.report.event_files import Units, event_files, records, spans
from luwu.report.timeline import in_order, write_timeline

Row = dict[str, Any]


def clock(at: int = 0, wall: int | None = None, boot: str = "a") -> Row:
    return {"name": "clock", "monotonic_ns": at, "unix_ns": 10**18 + at if wall is None else wall,
            "boot": boot}  # fmt: skip


def span(name: str, start: int, end: int, **fields: object) -> Row:
    return {"name": name, "role": "x", "start_ns": start, "end_ns": end, **fields}


def lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def write(folder: Path, **processes: list[Row]) -> Path:
    """Files of events; `worker_0` becomes `worker-0.jsonl`."""
    for name, rows in processes.items():
        (folder / f"{name.replace('_', '-')}.jsonl").write_text(lines(rows))
    return folder


def trace_of(folder: Path, steps: range | None = None) -> list[Row]:
    """The events of the timeline; times in whole nanoseconds."""
    path = folder / "trace.json"
    write_timeline(folder, path, steps)
    document = json.loads(path.read_text(), parse_constant=pytest.fail)
    for event in document["traceEvents"]:
        for key in {"ts", "dur"} & set(event):
            event[key] = round(event[key] * 1000)
    found: list[Row] = document["traceEvents"]
    return found


def rows_of(events: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Slices and instants by (process, row) name."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    found = defaultdict(list)
    for event in events:
        if event["ph"] in "Xi":
            name = threads[event["pid"], event["tid"]]
            found[processes[event["pid"]], name].append(event)
    return dict(found)


def assert_nested(slices: list[Row]) -> None:
    """No slice overlaps another in part."""
    open_ends: list[int] = []
    for each in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        start, end = each["ts"], each["ts"] + each["dur"]
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], slices
        open_ends.append(end)


# ---------------------------------------------------------------------- rows


def test_each_engine_has_its_rows_from_the_top(tmp_path: Path) -> None:
    """Goal: processes and rows are named and ordered; slices say what they are of."""
    folder = write(
        tmp_path,
        node=[clock(), span("update", 50, 60, step=0, chunk=3), span("novel", 60, 61)],
        worker_10=[clock(), span("forward", 10, 20, step=0, unit="root")],
        worker_2=[
            clock(),
            span("forward", 12, 18, step=0, unit="blocks.0"),
            span("forward", 10, 20, step=0, unit="root"),
            span("push", 21, 30, step=0, unit=0, rank=2),
        ],
        switch=[clock(), span("sum", 40, 45, step=0, chunk=3)],
        other=[clock(), span("forward", 1, 2, step=0, unit="root")],
    )
    events = trace_of(folder)
    places = {
        e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"
    }
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[pid] for pid in sorted(names, key=lambda pid: places[pid])] == [
        "worker 2", "worker 10", "switch", "node", "other",
    ]  # fmt: skip
    found = rows_of(events)
    assert list(name for process, name in sorted(found) if process == "node") == ["novel", "update"]
    (update,) = found["node", "update"]
    assert (update["ph"], update["ts"], update["dur"]) == ("X", 50, 10)
    assert (update["name"], update["cat"]) == ("update 3", "update")
    assert update["args"] == {"step": 0, "chunk": 3}
    assert [e["name"] for e in found["worker 2", "compute"]] == [
        "forward root", "forward blocks.0",
    ]  # fmt: skip
    (step,) = found["worker 2", "step"]
    assert (step["name"], step["ts"], step["dur"]) == ("step 0", 10, 20)
    order = [e["tid"] for e in events if e["name"] == "thread_sort_index" and e["pid"] == 1]
    assert order == sorted(order)


def test_what_is_under_way_at_once_has_numbered_rows(tmp_path: Path) -> None:
    """Goal: first fit by start, though a file is in the order of ends."""
    folder = write(
        tmp_path,
        node=[
            clock(),
            span("update", 10, 15, step=0, chunk=1),
            span("update", 15, 18, step=0, chunk=2),
            span("update", 0, 20, step=0, chunk=0),
            span("read", 0, 1, step=0, chunk=0),
            span("update", 20, 21, step=0, chunk=3),
        ],
    )
    found = rows_of(trace_of(folder))
    chunks = {key[1]: [e["args"]["chunk"] for e in each] for key, each in found.items()}
    assert chunks == {"update 0": [0, 3], "update 1": [1, 2], "read": [0]}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["forward", "pull"])
def test_no_row_overlaps_in_part_whatever_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seed: int
) -> None:
    """Goal: rows are sound and nothing is lost even when spans come far out of order.
    Method: random spans in random order, with a window of 8, then one for all: by start, plain
    rows are as many as spans are under way at once."""
    rng = random.Random(seed)
    rows = []
    for number in range(200):
        start = rng.randrange(1000)
        rows.append(span(name, start, start + rng.choice([0, 1, 10, 300]), step=0, unit=number))
    folder = write(tmp_path, worker_0=[clock(), *rows])
    for held_max in (8, 1000):
        monkeypatch.setattr(in_order, "__defaults__", (held_max,))
        found = rows_of(trace_of(folder))
        found.pop(("worker 0", "step"), None)
        seen = [e["args"]["unit"] for slices in found.values() for e in slices]
        assert sorted(seen) == list(range(200))
        for slices in found.values():
            assert_nested(slices)
    if name == "pull":
        most = max(
            sum(r["start_ns"] <= at < max(r["end_ns"], r["start_ns"] + 1) for r in rows)
            for at in range(1000)
        )
        assert len(found) <= most


def test_times_are_exact_and_numbers_that_json_lacks_are_texts(tmp_path: Path) -> None:
    folder = write(tmp_path, node=[
        clock(), span("update", 1_234_567, 9_007_199_254_740_993, step=0, norm=float("nan")),
    ])  # fmt: skip
    write_timeline(folder, folder / "trace.json")
    text = (folder / "trace.json").read_text()
    assert '"ts":1234.567,"dur":9007199253506.426,' in text
    assert "NaN" not in text
    assert '"norm":"nan"' in text


def test_steps_of_a_worker_begin_with_its_loop(tmp_path: Path) -> None:
    """Goal: a prefetch for the next step does not begin it, a push that ends late belongs to its
    own, and a step that is gone back to shows again."""
    folder = write(tmp_path, worker_0=[
        clock(),
        span("forward", 0, 10, step=0, unit="root"), span("pull", 5, 30, step=1, unit=0),
        span("push", 8, 18, step=0, unit=0), span("pull_wait", 20, 30, step=1, unit="root"),
        span("forward", 30, 40, step=1, unit="root"), span("forward", 50, 60, step=0, unit="root"),
    ])  # fmt: skip
    steps = rows_of(trace_of(folder))["worker 0", "step"]
    assert [(e["name"], e["ts"], e["dur"]) for e in steps] == [
        ("step 0", 0, 18), ("step 1", 20, 20), ("step 0", 50, 10),
    ]  # fmt: skip


def test_what_is_of_an_extent_is_named_by_its_unit(tmp_path: Path) -> None:
    """Goal: names from the node's record; waits are red."""
    folder = write(
        tmp_path,
        worker_0=[clock(), span("pull", 20, 80, step=1, unit="blocks.0"),
                  span("pull_wait", 70, 80, step=1, unit="blocks.0")],
        node=[clock(), {"name": "node.about", "units": [["root", 1], ["blocks.0", 2]], "at_ns": 1},
              span("update", 46, 50, step=0, extent=2, chunk=7),
              span("update", 55, 60, step=0, extent=0, chunk=8)],
    )  # fmt: skip
    found = rows_of(trace_of(folder))
    names = [each["name"] for each in found["node", "update"]]
    assert names == ["update blocks.0", "update root"]
    assert "cname" not in found["worker 0", "pull"][0]
    assert found["worker 0", "pull_wait"][0]["cname"] == "terrible"
    assert [Units([("root", 1)]).name_of(extent) for extent in (1, -1, None, "1")] == [None] * 4


@pytest.mark.parametrize("units", [None, {}, [["a"]], [["a", -1]], [[1, "a"]], [["a", True]]])
def test_units_that_are_none_are_refused(tmp_path: Path, units: object) -> None:
    write(tmp_path, node=[clock(), {"name": "node.about", "units": units, "at_ns": 1}])
    with pytest.raises(ConfigError, match=r"node\.jsonl:2: units are not a list"):
        write_timeline(tmp_path, tmp_path / "trace.json")


# ---------------------------------------------------------------------- clocks


def test_processes_of_one_host_share_the_clock_exactly(tmp_path: Path) -> None:
    """Goal: clocks read a little apart do not move spans; time begins with the first record."""
    folder = write(
        tmp_path,
        node=[clock(100, 5_000_100), span("update", 200, 300, step=0, chunk=0)],
        worker_0=[clock(150, 5_000_157), span("push", 200, 210, step=0, unit=0)],
    )
    found = rows_of(trace_of(folder))
    assert found["node", "update"][0]["ts"] == found["worker 0", "push"][0]["ts"] == 100
    assert survey(folder).notes == []


def test_hosts_are_aligned_by_wall_clocks(tmp_path: Path) -> None:
    """Goal: two hosts with far apart monotonic clocks, one of which is booted anew."""
    folder = write(
        tmp_path,
        node=[
            clock(1000, 50_000, boot="b"),
            span("update", 1500, 1600, step=0, chunk=0),
            clock(5, 51_000, boot="c"),
            span("update", 105, 205, step=1, chunk=0),
        ],
        worker_0=[clock(7_000_000, 50_200), span("push", 7_000_100, 7_000_200, step=0, unit=0)],
    )
    found = rows_of(trace_of(folder))
    assert [e["ts"] for e in found["node", "update"]] == [500, 1100]
    assert found["worker 0", "push"][0]["ts"] == 300
    (again,) = found["node", "events"]
    assert (again["name"], again["ph"], again["ts"]) == (RESTARTED, "i", 1000)
    assert ["3 hosts" in note for note in survey(folder).notes] == [True]


def test_instants_stand_where_they_were(tmp_path: Path) -> None:
    """Goal: those of every step have short names and a row of their own."""
    folder = write(tmp_path, node=[
        clock(0), {"name": "node.opened", "at_ns": 0},
        {"name": "node.step", "step": 0, "at_ns": 30, "applied": True, "grad_norm": float("inf")},
        {"name": "node.verdict", "step": 1, "at_ns": 40},
        {"name": "node.skipped", "step": 1, "at_ns": 44},
        {"name": "node.step", "step": 1, "at_ns": 44, "applied": False},
        {"name": "node.abort", "step": 2, "at_ns": 50, "text": "gone"},
    ])  # fmt: skip
    found = rows_of(trace_of(folder))
    events, decisions = found["node", "events"], found["node", "decisions"]
    assert [(e["name"], e["ts"]) for e in events] == [
        ("node.opened", 0), ("node.skipped", 44), ("node.abort", 50),
    ]  # fmt: skip
    assert [(e["name"], int(e["args"]["step"]), e["ts"]) for e in decisions] == [
        ("decided", 0, 30), ("verdict", 1, 40), ("skipped", 1, 44),
    ]  # fmt: skip
    assert events[-1]["args"] == {"step": 2, "text": "gone"}


# ---------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("3:5", [3, 4], [-1, 2, 5, None]), ("3", [3], [2, 4]),
    ],
)  # fmt: skip
def test_steps_are_a_range(text: str, inside: list[object], outside: list[object]) -> None:
    steps = parse_steps(text, "--step")
    assert all(has_step(steps, step) for step in inside)
    assert not any(has_step(steps, step) for step in outside)


@pytest.mark.parametrize("text", ["", ":", "3:", ":2", "x", "-1", "1:2:3", "5:3", "2:2", "1.5"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--step"):
        parse_steps(text, "--step")


def test_only_the_chosen_steps_are_drawn(tmp_path: Path) -> None:
    """Goal: times begin with the first span of the chosen steps, and instants without a step show
    if they lie among them."""
    folder = write(tmp_path, node=[
        clock(0), span("update", 10, 20, step=0, chunk=0), {"name": "early", "at_ns": 15},
        span("update", 30, 40, step=1, chunk=0), {"name": "near", "at_ns": 35},
        {"name": "node.step", "step": 0, "applied": True, "at_ns": 36},
        span("update", 50, 60, step=2, chunk=0),
    ])  # fmt: skip
    found = rows_of(trace_of(folder, range(1, 2)))
    assert [(e["args"]["step"], e["ts"]) for e in found["node", "update"]] == [(1, 0)]
    assert [e["name"] for e in found["node", "events"]] == ["near"]
    everything = rows_of(trace_of(folder))
    assert [(e["name"], e["ts"]) for e in everything["node", "events"]] == [
        ("early", 15), ("near", 35),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("count", "steps"),
    [(1, "step 0"), (2, "step 1"), (4, "steps 1 to 3"), (6, "steps 1 to 5"), (12, "steps 3 to 7"),
     (900, "steps 447 to 451")],
)  # fmt: skip
@pytest.mark.parametrize("first", [0, 100])
def test_steady_steps_are_in_the_middle(tmp_path: Path, count: int, steps: str, first: int) -> None:
    """Goal: five steps, without the first one, of a run that may have begun at another step; from
    the node's records of steps, or from spans where the node is elsewhere."""
    chosen = re.sub(r"\d+", lambda number: str(int(number[0]) + first), steps)
    numbers = range(first, first + count)
    decided = [{"name": "node.step", "step": step, "at_ns": step} for step in numbers]
    write(tmp_path, node=[clock(), *decided, span("update", 1, 2, step=5_000)])
    assert steps_text(steady_steps(tmp_path)) == chosen
    write(tmp_path, node=[clock()], worker_0=[span("push", 1, 2, step=step) for step in numbers])
    assert steps_text(steady_steps(tmp_path)) == chosen


def test_a_run_without_steps_is_shown_whole(tmp_path: Path) -> None:
    write(
        tmp_path,
        node=[clock(), span("prepare", 1, 2, step=-1), {"name": "node.opened", "at_ns": 0}],
    )
    assert steady_steps(tmp_path) is None
    assert steps_text(None) == "all steps"


# ---------------------------------------------------------------------- what a kill leaves


@pytest.mark.parametrize("kept", [1, 5, 9, 30, 60])
def test_a_line_cut_short_by_a_kill_is_counted(tmp_path: Path, kept: int) -> None:
    """Goal: the rest is read, in a file that ends there and in one that a new start continued."""
    whole = lines([clock(), span("update", 10, 20, step=0, chunk=0)])
    cut = lines([span("update", 20, 30, step=0, chunk=1)])[:kept]
    after = lines([clock(40), span("update", 50, 60, step=1, chunk=0)])
    (tmp_path / "node.jsonl").write_text(whole + cut + after)
    (tmp_path / "switch.jsonl").write_text(whole + cut)
    found = survey(tmp_path)
    assert (found.cut_count, found.span_count) == (2, 3)
    assert found.notes == ["2 lines were cut short by a kill and are left out"]
    node = next(file for file in event_files(tmp_path) if file.kind == "node")
    assert [item.name for item in timed(node, found)] == ["update", RESTARTED, "update"]


@pytest.mark.parametrize(
    "line",
    [
        b"garbage", b"garbage\n", b'{"name":"update","st\n', b"\n", b"[]\n", b'{"role":"x"}\n',
        b'{"name":"x","start_ns":2,"end_ns":1}\n', b'{"name":"x","start_ns":2}\n',
        b'{"name":"x","start_ns":1.5,"end_ns":2}\n', b'{"name":"clock"}\n', b"\xff\n",
        b'{"name":"x","at_ns":"1"}\n', b'{"name":"x"}\n', b'garbage{"name":"clock"}\n',
        b"[" * 100_000 + b"\n",
    ],
)  # fmt: skip
def test_garbage_is_refused_with_file_and_line(tmp_path: Path, line: bytes) -> None:
    whole = lines([clock(), span("update", 10, 20, step=0, chunk=0)]).encode()
    (tmp_path / "node.jsonl").write_bytes(whole + line)
    with pytest.raises(ConfigError, match=re.escape("node.jsonl:3: ")):
        write_timeline(tmp_path, tmp_path / "trace.json")
    assert [path.name for path in tmp_path.iterdir()] == ["node.jsonl"]


def test_a_file_that_begins_without_a_clock_is_refused(tmp_path: Path) -> None:
    write(tmp_path, node=[span("update", 1500, 1600, step=0), clock()])
    with pytest.raises(ConfigError, match=r"node\.jsonl:1: no clock"):
        survey(tmp_path)


def test_a_last_line_without_its_end_may_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "node.jsonl"
    path.write_text(lines([clock(), span("update", 1, 2, step=0)]).rstrip("\n"))
    assert [record["name"] for record in records(path)] == ["clock", "update"]
    assert [record["end_ns"] for record in spans(path, "update")] == [2]
    assert list(spans(tmp_path / "none.jsonl", "update")) == []


def test_a_run_without_events_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no events"):
        write_timeline(tmp_path, tmp_path / "trace.json")


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, node=[clock()])
    with pytest.raises(ConfigError, match="cannot write"):
        write_timeline(folder, folder / "none" / "trace.json")
