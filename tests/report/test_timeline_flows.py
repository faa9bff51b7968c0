"""Arrows, counters and names of the timeline, from records as workers, switch and node make them.

`assert_flows` is the format's rules for arrows; the real run of `tests/processes/test_trace.py` is
held against them too.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.report.aligned import Steps
from luwu.report.event_files import Units, numbers_in, records
from luwu.report.timeline import Rate, write_timeline
from tests.report.test_timeline import Row, clock, lines, span, trace_of, write

UNITS = [["root", 1], ["blocks.0", 2]]
"""Extents 0, and 1 and 2."""
Flow = tuple[int, str]
"""Id and name: what tells the flows of a trace apart."""


def about(**fields: object) -> Row:
    return {"name": "node.about", "units": UNITS, "sums_bytes_max": 1 << 20, "at_ns": 1, **fields}


def assert_flows(events: list[Row]) -> dict[Flow, list[Row]]:
    """The slice that each event of each flow binds to, in order.

    A flow begins with `s`, goes on with `t` and ends with `f`, forward in time; each of its events
    lies in a slice of its row, which the file has before it; and no slice of a flow starts before
    the one before, because Perfetto would draw that arrow backwards.
    """
    slices: dict[tuple[int, int], list[Row]] = defaultdict(list)
    flows: dict[Flow, list[Row]] = defaultdict(list)
    bound: dict[Flow, list[Row]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] in "stf":
            around = [
                each for each in slices[event["pid"], event["tid"]]
                if each["ts"] <= event["ts"] <= each["ts"] + each["dur"]
            ]  # fmt: skip
            assert around, event
            assert event["bp"] == "e"
            flows[event["id"], event["name"]].append(event)
            bound[event["id"], event["name"]].append(max(around, key=lambda each: each["ts"]))
    for key, flow in flows.items():
        assert "".join(event["ph"] for event in flow) == "s" + "t" * (len(flow) - 2) + "f"
        times = [event["ts"] for event in flow]
        starts = [each["ts"] for each in bound[key]]
        assert times == sorted(times), flow
        assert starts == sorted(starts), bound[key]
    return dict(bound)


def words(slices: list[Row]) -> list[str]:
    return [each["name"] for each in slices]


def a_step(folder: Path, *, switch: bool = True) -> Path:
    """Two workers push both extents of a unit; the node updates, and they pull."""
    sums = [span("sum", 30, 35, step=0, extent=1, bytes=8, slots=2),
            span("sum", 40, 45, step=0, extent=2, bytes=8, slots=1)]  # fmt: skip
    return write(
        folder,
        worker_0=[
            clock(),
            span("push", 10, 32, step=0, unit="blocks.0", extents="1-2", bytes=16),
            span("pull", 20, 80, step=1, unit="blocks.0", bytes=160),
            span("pull", 90, 95, step=1, unit="blocks.0", bytes=160),
        ],
        worker_1=[
            clock(),
            span("push", 12, 22, step=0, unit="blocks.0", extents="1", bytes=8),
            span("push", 14, 28, step=0, unit="blocks.0", extents="2", bytes=8),
            span("pull", 70, 84, step=1, unit="blocks.0", bytes=160),
        ],
        switch=[clock(), *(sums if switch else [])],
        node=[
            clock(), about(),
            span("update", 46, 50, step=0, extent=1, chunk=7, bytes=8, held_bytes=16),
            span("update", 50, 54, step=0, extent=2, chunk=8, bytes=4, held_bytes=8),
            span("update", 55, 60, step=0, extent=2, chunk=9, bytes=4, held_bytes=8),
        ],
    )  # fmt: skip


def test_arrows_join_push_sum_update_and_pull(tmp_path: Path) -> None:
    """Goal: one id per step and extent, an arrow per worker, through the last update of an extent
    of several pages, to the pull of the next step: the part of it that starts when the weights
    were made, where it was asked for before."""
    bound = assert_flows(trace_of(a_step(tmp_path)))
    assert len({number for number, _ in bound}) == 2
    assert sorted(name for _, name in bound) == ["worker 0"] * 2 + ["worker 1"] * 2
    for flow in bound.values():
        assert words(flow) == ["push blocks.0", "sum blocks.0", "update blocks.0", "pull blocks.0"]
    first, second = (bound[number, "worker 0"] for number in sorted({n for n, _ in bound}))
    assert [e["args"]["extent"] for e in (*first[1:3], *second[1:3])] == [1, 1, 2, 2]
    assert [each["ts"] for each in first] == [10, 30, 46, 60]
    assert [each["ts"] for each in second] == [10, 40, 55, 60]
    assert [each["ts"] for each in bound[2, "worker 1"]] == [12, 30, 46, 70]


def test_a_gradient_that_no_switch_summed_goes_to_the_update(tmp_path: Path) -> None:
    bound = assert_flows(trace_of(a_step(tmp_path, switch=False)))
    assert {tuple(words(flow)) for flow in bound.values()} == {
        ("push blocks.0", "update blocks.0", "pull blocks.0")
    }


def test_one_step_is_shown_with_the_weights_that_it_made(tmp_path: Path) -> None:
    """Goal: of a single step the arrows end in the pulls of the next, and these are all that is
    shown of it; what step 0 made splits pulls of step 1 though step 0 is not shown."""
    folder = a_step(tmp_path)
    events = trace_of(folder, Steps(0, 1))
    assert all(len(flow) == 4 for flow in assert_flows(events).values())
    assert {e["cat"] for e in events if e["ph"] == "X" and e["args"]["step"] == 1} == {"pull"}
    asked = next(e for e in trace_of(folder, Steps(1, 2)) if e["name"] == "asked blocks.0")
    assert (asked["ts"], asked["dur"], asked["cname"]) == (0, 40, "grey")


def test_a_tree_adds_up_twice(tmp_path: Path) -> None:
    """Goal: a gradient goes through the switches above its worker, and not through their
    neighbours."""
    pushes = {
        f"worker_{rank}": [clock(), span("push", rank, 9, step=0, unit="root", extents="0")]
        for rank in range(2)
    }
    write(
        tmp_path,
        **pushes,
        switch=[clock(), {"name": "switch.about", "ranks": "0-1", "at_ns": 0},
                span("sum", 30, 31, step=0, extent=0)],
        node=[clock(), about(), span("update", 40, 41, step=0, extent=0)],
    )  # fmt: skip
    for name, ranks, start in (("switch-left", "0", 10), ("switch-right", "1", 20)):
        rows = [clock(), {"name": "switch.about", "ranks": ranks, "at_ns": 0},
                span("sum", start, start + 1, step=0, extent=0)]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text(lines(rows))
    bound = assert_flows(trace_of(tmp_path))
    assert [each["ts"] for each in bound[1, "worker 0"]] == [0, 10, 30, 40]
    assert [each["ts"] for each in bound[1, "worker 1"]] == [1, 20, 30, 40]


def test_arrows_do_not_go_back_in_time(tmp_path: Path) -> None:
    """Goal: a step that was lost and made again is joined as it was made at last, and where clocks
    do not agree there is no arrow."""
    write(
        tmp_path,
        worker_0=[
            clock(), span("push", 10, 11, step=0, unit="root", extents="0"),
            span("push", 50, 51, step=0, unit="root", extents="0"),
            span("push", 90, 91, step=1, unit="root", extents="0"),
        ],
        switch=[clock(), span("sum", 20, 21, step=0, extent=0),
                span("sum", 60, 61, step=0, extent=0), span("sum", 80, 81, step=1, extent=0)],
        node=[clock(), about(), span("update", 30, 31, step=0, extent=0)],
    )  # fmt: skip
    (flow,) = assert_flows(trace_of(tmp_path)).values()
    assert [each["ts"] for each in flow] == [50, 60]


def test_each_step_and_extent_has_an_id_and_no_arrow_leaves_out_the_update(tmp_path: Path) -> None:
    """Goal: ids differ, also where a killed node has recorded no update; then the arrows end with
    the sums, and do not reach pulls of weights that the gradient may not be in."""
    places = [(step, extent) for step in range(3) for extent in range(3)]
    rows = [[clock()], [clock()]]
    for at, (step, extent) in enumerate(places):
        rows[0] += [
            span("push", 10 * at, 10 * at + 9, step=step, unit="x", extents=str(extent)),
            span("pull", 10 * at + 7, 10 * at + 8, step=step + 1, unit="root"),
        ]
        rows[1].append(span("sum", 10 * at + 3, 10 * at + 4, step=step, extent=extent))
    write(tmp_path, worker_0=rows[0], switch=rows[1], node=[clock(), about()])
    bound = assert_flows(trace_of(tmp_path))
    assert len({number for number, _ in bound}) == len(places)
    assert all([each["cat"] for each in flow] == ["push", "sum"] for flow in bound.values())


def test_a_run_without_units_has_no_arrows_to_pulls(tmp_path: Path) -> None:
    """Goal: events of before there was such a record are shown, by numbers."""
    write(
        tmp_path,
        worker_0=[clock(), span("push", 1, 2, step=0, unit="root", rank=0),
                  span("pull", 5, 6, step=1, unit="root")],
        switch=[clock(), span("sum", 2, 3, step=0, extent=0)],
        node=[clock(), span("update", 3, 4, step=0, chunk=0)],
    )  # fmt: skip
    events = trace_of(tmp_path)
    assert assert_flows(events) == {}
    assert {"sum 0", "update 0", "pull root"} <= {event["name"] for event in events}


# ---------------------------------------------------------------------- counters, colours


def test_counters_are_rates_and_what_is_held(tmp_path: Path) -> None:
    """Goal: bytes per second over the time in which weights can have moved, not while a pull was
    only asked for; slots and held gradients as they were recorded, with their limits."""
    events = trace_of(a_step(tmp_path))
    found: dict[tuple[int, str, str], list[tuple[int, int]]] = defaultdict(list)
    for event in (event for event in events if event["ph"] == "C"):
        ((unit, value),) = event["args"].items()
        found[event["pid"], event["name"], unit].append((event["ts"], value))
    second = 10**9
    assert found[1, "push", "bytes/s"] == [(10, 16 * second // 22), (32, 0)]
    assert found[1, "pull", "bytes/s"] == [(60, 8 * second), (80, 0), (90, 32 * second), (95, 0)]
    assert found[3, "slots", "in use"] == [(35, 2), (45, 1)]
    assert found[4, "gradients held of 1.00 MiB", "bytes"] == [(50, 16), (54, 8), (60, 8)]
    assert len(found) == 6


def test_rates_of_what_is_under_way_at_once_add_up() -> None:
    rate = Rate()
    rate.add(0, 10, 10)
    rate.add(5, 10, 10)
    assert list(rate.before(5)) == [(0, 10**9)]
    rate.add(7, 7, 99)  # took no time
    rate.add(10, 20, 10)
    assert list(rate.before(None)) == [(5, 3 * 10**9), (10, 10**9), (20, 0)]


def test_waits_have_a_colour(tmp_path: Path) -> None:
    write(tmp_path, worker_0=[clock(), span("pull_wait", 1, 2, step=0, unit="root"),
                              span("pull", 1, 2, step=0, unit="root")])  # fmt: skip
    found = {e["name"]: e.get("cname") for e in trace_of(tmp_path) if e["ph"] == "X"}
    assert found["pull_wait root"] == "terrible"
    assert found["pull root"] is None


# ---------------------------------------------------------------------- units


def test_units_know_their_extents() -> None:
    units = Units([("root", 1), ("empty", 0), ("blocks.0", 2)])
    assert [units.name_of(extent) for extent in (0, 1, 2, 3, -1, None, "1")] == [
        "root", "blocks.0", "blocks.0", None, None, None, None,
    ]  # fmt: skip
    assert [list(units.extents_of(name)) for name in ("root", "empty", "blocks.0", "x", 1)] == [
        [0], [], [1, 2], [], [],
    ]  # fmt: skip
    assert Units().name_of(0) is None
    assert [list(numbers_in(text)) for text in ("0-2,6", "4", "", None, "x-y")] == [
        [0, 1, 2, 6], [4], [], [], [],
    ]  # fmt: skip


@pytest.mark.parametrize("units", [None, {}, [["a"]], [["a", -1]], [[1, "a"]], [["a", True]]])
def test_units_that_are_none_are_refused(tmp_path: Path, units: object) -> None:
    (tmp_path / "node.jsonl").write_text(lines([clock(), about(units=units)]))
    with pytest.raises(ConfigError, match=r"node\.jsonl:2: units are not a list"):
        list(records(tmp_path / "node.jsonl"))
    with pytest.raises(ConfigError, match=r"node\.jsonl:2"):
        write_timeline(tmp_path, tmp_path / "trace.json")
