"""The report: one file that needs nothing else, and says what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from luwu.base import own
from luwu.base.config import RunConfig
from luwu.base.errors import LuwuError
from luwu.base.json_file import write_json
from luwu.compare.arm import ArmRun, config_of_arm, script_arguments, updated_before_last_push_ratio
from luwu.compare.comparison import comparison, job_step_seconds
from luwu.launch.processes.children import DiskBytes
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from luwu.report.chart import (
    Bar,
    StepFlag,
    bar_chart,
    line_chart,
    nice_ticks,
    strip_chart,
    together,
)
from luwu.report.page import report_html, write_report
from luwu.report.table import grouped_rows, spread, table_text
from tests.helpers.schemas import check


def worker(rank: int, **changes: Any) -> dict[str, Any]:
    return {
        "rank": rank, "first_step": 0, "measured_steps": [0, 1, 2], "steps": 3,
        "loss": [5.0 + rank, 4.0 + rank, 3.0 + rank],
        "step_seconds": [0.5, 0.2, 0.1 + rank], "tokens": 300, "parameters_count": 1000,
        "step_ended_ns": [9_500_000_000 - rank, 9_700_000_000, 9_800_000_000 + rank * 10**9],
        "data_digest": "d", "seed": 0, "dtype": "float32", "torch_version": "2",
        "cpu_capability": "AVX2", "device": "cpu", "compute_threads": 1, "aborts_count": 0,
        "private_bytes_max": 1 << 20, "weights_digest": "w" if rank == 0 else None, **changes,
    }  # fmt: skip


def arm(name: str, **changes: Any) -> ArmRun:
    node = None
    if name == "luwu":
        node = {
            "node_state_bytes": 12000, "memory_budget_bytes": 1 << 20, "disk_space_bytes": 24000,
            "network_bytes": {"into_node": 4000, "out_of_node": 8000, "headers": 10},
            "disk_bytes": {"read": 1, "written": 2}, "weights_digest": "n", "chunk_bytes": 16384,
        }  # fmt: skip
    values: dict[str, Any] = {
        "name": name,
        "workers": [worker(0), worker(1)],
        "node": node,
        "memory_peaks": {"worker-0": 2 << 20, "node": 3 << 20, "switch": 5 << 20},
        "memory_peak_of_all": 9 << 20,
        "kernel_disk": DiskBytes(3, 4) if name == "luwu" else None,
        "threads": 1,
        "updated_before_last_push_ratio": 0.5 if name == "luwu" else None,
    }
    return ArmRun(**{**values, **changes})


@pytest.fixture
def document() -> dict[str, Any]:
    return comparison(RunConfig(), [arm("luwu"), arm("fsdp")])


def of_run(compared: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The document of a run that has only a result."""
    run = RunDirectory.create(tmp_path / "run")
    write_json(run.file("result.json"), compared)
    return Watch(run).document()


def test_a_worker_late_in_one_step_and_early_in_the_next_costs_no_time() -> None:
    """Goal: step times add up to the time that went by. Method: two workers of 3 and 1 seconds, in
    turn: the slowest takes 3 s in each step, but two steps end every 4 s."""
    ends = ([3, 4, 7, 8, 11], [1, 4, 5, 8, 9])
    lasts = [
        {"step_seconds": [float(end[0])], "step_ended_ns": [each * 10**9 for each in end]}
        for end in ends
    ]
    assert job_step_seconds(lasts) == [3.0, 1.0, 3.0, 1.0, 3.0]
    assert job_step_seconds([{"step_seconds": [], "step_ended_ns": []}]) == []


def test_a_comparison_says_what_was_agreed(document: dict[str, Any]) -> None:
    luwu, fsdp = document["arms"]
    assert document["schema"] == 5
    assert document["job"]["tokens_per_step"] == 200
    assert document["environment"]["luwu"] == own.version()
    assert luwu["loss"] == [5.5, 4.5, 3.5]
    assert luwu["step_seconds"] == [0.5, 0.2, 1.1]  # from last worker's end to last worker's end
    assert luwu["step_seconds_median"] == 0.5
    assert luwu["tokens_per_second"] == 400
    assert luwu["worker_peak_rss_bytes"] == [2 << 20, 1 << 20]
    assert luwu["node_peak_rss_bytes"] == 3 << 20
    assert luwu["switch_peak_rss_bytes"] == [5 << 20]
    assert luwu["memory_peak_bytes"] == 9 << 20
    assert luwu["weights_digest"] == "n"
    assert luwu["network_bytes"]["into_node"] == 4000
    assert luwu["disk_bytes_kernel"] == {"read": 3, "written": 4}
    assert fsdp["network_bytes"] is None
    assert fsdp["weights_digest"] == "w"
    check("compare", document)


def test_arms_of_different_jobs_are_not_compared() -> None:
    other = arm("fsdp", workers=[worker(0, data_digest="x"), worker(1, data_digest="x")])
    with pytest.raises(LuwuError, match="data_digest"):
        comparison(RunConfig(), [arm("luwu"), other])


def test_the_page_needs_nothing_else(document: dict[str, Any], tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", of_run(document, tmp_path))
    text = path.read_text()
    assert not re.search(r"(src|href)\s*=|https?://|<script|@import|url\(", text)
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 2  # times and losses
    ElementTree.fromstring(text)  # the whole page is XML too, so every tag is closed
    assert sorted(each.name for each in tmp_path.iterdir()) == ["report.html", "run"]


def test_what_comes_from_outside_is_escaped(document: dict[str, Any], tmp_path: Path) -> None:
    document["environment"]["cpu"] = "<b>&"
    document["arms"][0]["name"] = "<i>"
    text = report_html(of_run(document, tmp_path))
    assert "<b>" not in text
    assert "<i>" not in text


def test_the_table_leaves_out_what_nobody_has_or_one_arm_alone(document: dict[str, Any]) -> None:
    text = table_text(document)
    assert "node state, one side" not in text  # luwu's alone
    assert "4.5000" in text
    groups = {name: rows for name, rows, _ in grouped_rows(document)}
    assert "node state, one side" in [row[0] for row in groups["Inside luwu"]]
    assert not any("pulls there before use" in row for rows in groups.values() for row in rows)
    alone = comparison(RunConfig(), [arm("luwu")])
    assert "node state, one side" in table_text(alone)


def test_arms_that_end_with_the_same_bits_are_named(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """I4. Goal: the table and the page say which arms have the same weights, and only these."""
    assert "same weights" not in table_text(document)
    twice = comparison(RunConfig(), [arm("luwu"), arm("luwu_ram", node=arm("luwu").node)])
    said = "luwu and luwu_ram end with the same weights, bit for bit."
    assert said in table_text(twice)
    assert said in report_html(of_run(twice, tmp_path))


def test_every_plan_belongs_to_its_own_arm(tmp_path: Path) -> None:
    """Goal: two arms of LuWu, each with the memory that was planned beside its peak."""
    plans = [{"memory": [{"role": "node", "nbytes": nbytes << 30}]} for nbytes in (3, 5)]
    first = dataclasses.replace(arm("luwu"), estimate=plans[0])
    second = dataclasses.replace(arm("luwu_ram", node=arm("luwu").node), estimate=plans[1])
    document = comparison(RunConfig(), [first, second, arm("fsdp")])
    assert [each["estimate"] for each in document["arms"]] == [*plans, None]
    text = report_html(of_run(document, tmp_path))
    assert "of 3.00 GiB" in text
    assert "of 5.00 GiB" in text


def test_charts_take_what_is_not_finite() -> None:
    ElementTree.fromstring(line_chart({"a": [1.0, math.nan, 2.0], "b": []}, y_name=""))
    ElementTree.fromstring(line_chart({"a": [math.nan]}, y_name="y"))
    ElementTree.fromstring(line_chart({"a": [2.0, 2.0]}, y_name="y"))
    ElementTree.fromstring(bar_chart([Bar("<a>", 0.0, "0 s", "red", 0.0, 0.0)], name="y"))
    ElementTree.fromstring(bar_chart([], name="y"))
    ElementTree.fromstring(strip_chart([]))
    ElementTree.fromstring(strip_chart([0.0], [StepFlag(0, "<x>")]))
    ElementTree.fromstring(strip_chart([0.1] * 5000, [StepFlag(4999, "late")], first=7))


def test_curves_that_coincide_are_one_line_that_says_how_near_they_are() -> None:
    """Goal: nobody looks for a curve that another one hides. Method: three curves, of which two
    differ by less than the eye sees."""
    near = [5.0, 4.0 + 1e-6, 3.0]
    curves = {"luwu": [5.0, 4.0, 3.0], "fsdp": near, "single": [5.0, 4.5, 3.0]}
    found = together(curves)
    assert [each.names for each in found] == [("luwu", "fsdp"), ("single",)]
    assert found[0].text == "luwu = fsdp (within 1e-06)"
    chart = line_chart(curves, y_name="loss")
    assert chart.count('stroke-width="2"><title>') + chart.count('"7 4"><title>') == 2
    assert together({"a": [1.0, math.nan], "b": [1.0, 2.0]})[1].names == ("b",)
    assert together({"a": [1.0], "b": [1.0]})[0].text == "a = b (equal)"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (2.4, 5.8), (-3, 1e-6), (7, 7), (0, 0)])
def test_ticks_cover_the_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 12


def test_spread_is_of_the_middle_steps() -> None:
    assert spread([1.0]) == (1.0, 1.0)
    assert spread([float(n) for n in range(11)]) == (1.0, 9.0)


def test_early_pages_are_those_updated_before_the_last_push(tmp_path: Path) -> None:
    """Goal: the share of pages whose update ended before their step's last push began, over all
    ranks; a line cut short by a kill does no harm."""
    lines = [
        {"name": "update", "step": 0, "chunk": c, "start_ns": 0, "end_ns": end}
        for c, end in enumerate([10, 20, 30, 40])
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (tmp_path / "node.jsonl").write_text(text + '\n{"name":"update","st')
    for rank, start in enumerate([15, 25]):
        span = {"name": "push", "step": 0, "start_ns": start, "end_ns": 99}
        (tmp_path / f"worker-{rank}.jsonl").write_text(json.dumps(span, separators=(",", ":")))
    assert updated_before_last_push_ratio(tmp_path) == 0.5
    assert updated_before_last_push_ratio(tmp_path / "none") is None


def test_the_script_keeps_its_own_defaults() -> None:
    given = script_arguments("single", RunConfig(layers=3), Path("r.json"))
    assert given == [
        "--arm", "single", "--layers", "3", "--seed", "0", "--dtype", "float32",
        "--global-workers", "2", "--result", "r.json",
    ]  # fmt: skip
    assert script_arguments("luwu_ram", RunConfig(), Path("r.json"))[:2] == ["--arm", "luwu"]


def test_the_arm_in_ram_has_no_disk_and_a_budget_of_its_own() -> None:
    asked = RunConfig(state=Path("kept"), memory_budget=1 << 20, disk_rate=1e9, durability="step")
    in_ram = config_of_arm("luwu_ram", asked)
    assert (in_ram.state, in_ram.memory_budget, in_ram.disk_rate) == (None, None, None)
    assert in_ram.durability == "none"
    assert config_of_arm("luwu", asked) is config_of_arm("fsdp", asked) is asked


def test_emulated_links_are_said_apart() -> None:
    """Goal: their bytes stand beside the host's own, and arms without them are named."""
    counts = {"sent": 10, "repeated": 1, "received": 9, "dropped": 2}
    rows = [{"link": "worker (ranks 0)", "direction": "up", "messages": counts, "bytes": counts}]
    document = comparison(RunConfig(), [arm("luwu", links=rows), arm("fsdp")])
    assert document["arms"][0]["links"] == rows
    inside = next(rows for _, rows, is_inside in grouped_rows(document) if is_inside)
    assert ["emulated links, dropped", "2 of 10 messages", "-"] in inside
    assert "Only luwu ran over them" in table_text(document)
    assert "emulated links" not in table_text(comparison(RunConfig(), [arm("luwu"), arm("fsdp")]))
