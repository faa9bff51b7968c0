"""A step as lanes: shares, the verdict, the picture, and how it is found in a run's events."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from luwu.base.events import LINK
from luwu.base.quantities import format_seconds
from luwu.compare.arm import limit_of
from luwu.monitor.watch import History
from luwu.report import recent
from luwu.report.chart import WIDTH
from luwu.report.intervals import Intervals, union
from luwu.report.lanes import make_lanes
from luwu.report.lanes_chart import lanes_chart
from luwu.report.recent import STEPS_HELD, RecentEvents, ended_steps, lanes_of_step, typical_step
from tests.helpers.written_run import MS, Written


@pytest.mark.parametrize("seed", range(20))
def test_stretches_of_time_are_as_their_instants(seed: int) -> None:
    """Goal: union, intersection and difference of random spans, looked at instant by instant."""
    rng = random.Random(seed)

    def draw() -> list[tuple[int, int]]:
        starts = [rng.randrange(60) for _ in range(rng.randrange(8))]
        return [(start, start + rng.randrange(1, 10)) for start in starts]

    def united(spans: list[tuple[int, int]]) -> Intervals:
        return union(*np.array(spans, np.int64).reshape(-1, 2).T)

    def pairs(found: Intervals) -> list[tuple[int, int]]:
        return list(zip(found.starts_I.tolist(), found.ends_I.tolist(), strict=True))

    def has(spans: list[tuple[int, int]], at: float) -> bool:
        return any(start <= at < end for start, end in spans)

    drawn, others = draw(), united(draw())
    ours = united(drawn)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(pairs(ours)))
    for at in (instant + 0.5 for instant in range(80)):
        is_ours, is_others = has(pairs(ours), at), has(pairs(others), at)
        assert is_ours == has(drawn, at), f"seed {seed}"
        assert has(pairs(ours.within(others)), at) == (is_ours and is_others), f"seed {seed}"
        assert has(pairs(ours.without(others)), at) == (is_ours and not is_others), f"seed {seed}"
    assert ours.total_ns == ours.within(others).total_ns + ours.without(others).total_ns


def test_gaps_that_cannot_be_seen_are_closed() -> None:
    found = union(np.array([0, 12, 30]), np.array([10, 20, 40]), gap_ns=2)
    assert (found.starts_I.tolist(), found.ends_I.tolist()) == ([0, 30], [20, 40])


def test_waits_and_copies_inside_of_compute_are_not_compute() -> None:
    lanes = make_lanes(
        3, 1.0,
        {"compute": [(0.0, 0.9)], "wait": [(0.1, 0.3)], "write": [(0.2, 0.3), (2.0, 3.0)]},
        pale=[(0.0, 0.4)], stolen=[(0.8, 0.9)], others=[(0.0, 0.2)],
    )  # fmt: skip
    assert lanes.busy["compute"] == pytest.approx(0.6)
    assert lanes.busy["write"] == pytest.approx(0.1)
    assert lanes.while_waiting == pytest.approx(
        {"up": 0, "down": 0, "sum": 0, "update": 0, "read": 0, "write": 0.1, "others": 0.1}
    )
    assert lanes.pieces["compute"] == [(0.0, 0.1, True), (0.3, 0.4, True), (0.4, 0.8, False)]


VERDICTS: dict[str, tuple[dict[str, Any], str]] = {
    "Compute-bound: compute is busy 80%; 20% is spent waiting for weights.": (
        {"compute": [(0, 0.8)], "wait": [(0.8, 1)]}, "compute",
    ),
    "mostly while other workers still compute": (
        {"compute": [(0, 0.7)], "wait": [(0.7, 1)], "others": [(0.7, 1)]}, "compute",
    ),
    "Disk-bound: the node reads or writes for 90% of it; workers wait for weights for 70%.": (
        {"write": [(0, 0.5)], "read": [(0.4, 0.9)], "wait": [(0.2, 0.9)]}, "disk",
    ),
    "Link-bound: this host receives for 80% of it; workers wait for weights for 90%.": (
        {"up": [(0, 0.7)], "down": [(0.1, 0.9)], "wait": [(0, 0.9)]}, "down",
    ),
    "Update-bound": ({"update": [(0, 0.6)]}, "update"),
    "meanwhile: node: update 40%. No single engine limits the step.": (
        {"compute": [(0, 0.3)], "wait": [(0.3, 1)], "update": [(0.5, 0.9)]}, "wait",
    ),
    "on messages, on each other, or for a turn on a core": (
        {"compute": [(0, 0.3)], "wait": [(0.3, 1)]}, "wait",
    ),
    "most of the step is spent outside of forward and backward": (
        {"compute": [(0, 0.1)]}, "wait",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", VERDICTS)
def test_the_verdict_names_what_limits_the_step(words: str) -> None:
    spans, limit = VERDICTS[words]
    lanes = make_lanes(0, 1.0, spans, others=spans.get("others", []))
    assert lanes.limit == limit
    assert words in lanes.verdict
    assert lanes.verdict.startswith("1 s. ")


def test_the_picture_has_a_row_for_each_engine_and_tints_the_limit() -> None:
    """Goal: rows, shares and tint; nothing outside of the drawing."""
    busy = {"compute": [(0.01, 0.2)], "wait": [(0.2, 0.27)], "sum": [(0, 0.1)]}
    step = make_lanes(7, 0.27, busy).document()
    drawn = ElementTree.fromstring(lanes_chart(step))
    said = [each.text or "" for each in drawn.iter("text")]
    assert {"compute", "waits for weights", "switch: sum"} <= set(said)
    assert "node: read" not in said
    assert sum("Compute-bound" in each for each in said) == 1
    tints = [each for each in drawn.iter("rect") if each.attrib["fill"] == "var(--tint)"]
    assert len(tints) == 1
    height = float(drawn.attrib["viewBox"].split()[3])
    for each in drawn.iter("rect"):
        x, w = float(each.attrib["x"]), float(each.attrib["width"])
        assert x >= 0
        assert x + w <= WIDTH + 1
        assert float(each.attrib["y"]) + float(each.attrib["height"]) <= height


def test_times_have_three_digits() -> None:
    assert [format_seconds(t) for t in (2e-6, 0.0123456, 0.9999, 12.345)] == [
        "2 us", "12.3 ms", "1 s", "12.3 s",
    ]  # fmt: skip


# ---------------------------------------------------------------------- events of a run


def test_a_run_is_followed_as_it_grows(tmp_path: Path) -> None:
    """Goal: a step shows when the next one has begun, at the worker of median
    compute; a line that is half written counts when it is whole, a restart is a flag."""
    written, history = Written(tmp_path), History()
    events = RecentEvents(tmp_path, history.take)
    events.read()
    assert ended_steps(events) == []
    assert limit_of(tmp_path) is None
    written.step(0)
    written.step(1)
    events.read()
    assert ended_steps(events) == [0]
    lanes = lanes_of_step(events, 0)
    assert lanes.length_s == pytest.approx(0.1)
    assert lanes.busy["compute"] == pytest.approx(0.6)
    assert lanes.busy["update"] == pytest.approx(0.09)
    assert limit_of(tmp_path) == "compute"
    record = {"name": "node.step", "at_ns": 300 * MS, "step": 2, "applied": True}
    half = json.dumps(record)[:20]
    with (tmp_path / "node.jsonl").open("a") as file:
        file.write(half)
    events.read()
    assert sorted(history.decided_ns) == [0, 1]
    with (tmp_path / "node.jsonl").open("a") as file:
        file.write(json.dumps(record)[20:] + "\n")
    written.clock("switch")
    written.append("node", {"name": "node.abort", "at_ns": 250 * MS, "step": 2, "text": "a peer"})
    events.read()
    assert sorted(history.decided_ns) == [0, 1, 2]
    assert history.seconds == pytest.approx([0.1, 0.1])
    assert [(flag.step, flag.text) for flag in history.flags()] == [
        (0, "switch was started again"), (2, "the step was restarted: a peer"),
    ]  # fmt: skip


def test_of_a_long_run_the_end_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: however long the files, few spans are held, and all decisions are known."""
    written, history = Written(tmp_path), History()
    monkeypatch.setattr(recent, "SPANS_MAX", 100)
    count = 200
    for step in range(count):
        written.step(step)
    events = RecentEvents(tmp_path, history.take)
    events.read()
    assert len(history.decided_ns) == count
    assert all(len(each.spans) <= 3 * (STEPS_HELD + 1) for each in events.of("worker"))
    assert ended_steps(events)[-1] == count - 2
    assert lanes_of_step(events, count - 2).busy["compute"] == pytest.approx(0.6)
    steps = ended_steps(events)
    assert typical_step(events, steps, 0.1) in steps


def test_a_link_is_busy_for_its_bytes_at_the_usual_rate(tmp_path: Path) -> None:
    """Goal: half of what a link could carry is busy for half of that time, up to when it was
    counted; a burst beyond the usual rate is no more than the whole time."""
    written, history = Written(tmp_path), History()
    for step in range(2):
        written.step(step)
    carried = {0: (100, 50), 20: (100, 0), 40: (50, 0), 60: (200, 100), 80: (0, 400)}
    for start_ms, (up, down) in carried.items():
        times = {"start_ns": start_ms * MS, "end_ns": (start_ms + 20) * MS}
        written.append("switch", {"name": LINK, **times, "up": up * MS, "down": down * MS})
    events = RecentEvents(tmp_path, history.take)
    events.read()
    lanes = lanes_of_step(events, 0)
    assert lanes.pieces["up"] == [(0.0, 0.04, False), (0.05, 0.08, False)]
    assert lanes.busy == lanes.busy | {"up": 0.7, "down": 0.275}
