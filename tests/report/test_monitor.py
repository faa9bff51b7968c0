"""What a run shows of itself: the document, the status in 80 columns, the report.

The files are those that a run writes; the processes that they name are real ones of this test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from luwu.base.json_file import write_json
from luwu.commands.main import main
from luwu.commands.outcome import write_outcome
from luwu.commands.status import COLUMNS, status_text
from luwu.join.connection import Connection, Leaf, write_connection
from luwu.launch.processes.children import MARK
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.monitor.watch import Watch
from luwu.report.page import report_html
from luwu.wire.link_counts import LinkCount
from tests.helpers.schemas import check
from tests.helpers.written_run import MS, Written


@pytest.fixture
def node() -> Iterator[subprocess.Popen[bytes]]:
    """A process that bears the mark of the run."""
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "run-1"}) as process:
        yield process
        process.kill()


@pytest.fixture
def run(tmp_path: Path, node: subprocess.Popen[bytes]) -> RunDirectory:
    """A run of six steps, under way: its node is alive, its switch is gone."""
    run = RunDirectory.create(tmp_path / "run")
    written = Written(run.path / "events")
    for step in range(6):
        written.step(step)
        written.append("worker-0", {
            "name": "scalars", "at_ns": 100 * MS * step, "step": step,
            "values": {"loss": 5.0 - step, "lr": 0.1},
        })  # fmt: skip
    started = "2026-01-01T00:00:00Z"
    entries = [
        ProcessEntry(role="node", rank=0, pid=node.pid, started=started),
        ProcessEntry(role="switch", rank=0, pid=_ended_pid(), started=started),
    ]
    run.write_processes(entries)
    write_json(run.file("memory.json"), {
        "schema": 1, "peak_bytes": {"node": 3 << 20, "switch": 2 << 20},
        "now_bytes": {"node": 1 << 20}, "peak_bytes_of_all": 5 << 20,
    })  # fmt: skip
    write_json(run.role("node.json"), {"schema": 1, "spec": {"memory_budget_bytes": 4 << 20}})
    keys = {"steps": {"value": "9", "origin": "flag --steps"}}
    keys["workers"] = {"value": "2", "origin": "default"}
    write_json(run.file("resolved.json"), {"schema": 1, "keys": keys})
    return run


def _ended_pid() -> int:
    """The number of a process that was and is no more."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_the_document_of_a_run_under_way(run: RunDirectory) -> None:
    """Goal: steps, rate, time left, the last step's limit, memory beside its budget, numbers of the
    script, and which process is gone."""
    document = Watch(run).document()
    assert document["state"] == "running"
    steps = document["steps"]
    assert (steps["done"], steps["total"], steps["first"]) == (6, 9, 1)
    assert steps["per_s"] == pytest.approx(10)
    assert steps["left_s"] == pytest.approx(0.3)
    assert document["step"]["step"] == 4  # the last one whose end is known: 5 may go on
    assert document["step"]["limit"] == "compute"
    assert [each["is_alive"] for each in document["processes"]] == [True, False]
    switch, node = document["memory"]
    assert (node["now_bytes"], node["peak_bytes"], node["budget_bytes"]) == (
        1 << 20,
        3 << 20,
        4 << 20,
    )
    assert (switch["now_bytes"], switch["budget_bytes"]) == (None, None)
    assert document["scalars"]["loss"] == {"steps": [*range(6)], "values": [5.0, 4, 3, 2, 1, 0]}
    assert document["keys_set"] == ["steps"]
    assert document["waits_for"] == _wait_text(document)
    assert document["hosts"] == []
    check("status", document)


def test_bytes_of_a_link_where_the_node_is_elsewhere(run: RunDirectory) -> None:
    """Goal: on a host without node and switch, too, steps are shown, and bytes are of a step: its
    workers know how many there were."""
    (run.path / "events" / "node.jsonl").unlink()
    written = Written.appending(run.path / "events")
    for step in range(6):
        at_ns = 100 * MS * step
        written.append("worker-1", {"name": "worker.step", "at_ns": at_ns, "step": step})
    steps = Watch(run).document()["steps"]
    assert (steps["done"], steps["per_s"]) == (6, pytest.approx(10))
    link = LinkCount(payload_bytes_sent=600, payload_bytes_received=300).document()
    write_json(run.path / "counters" / "switch-host-0.json", {"links": {"parent": link}})
    (row,) = Watch(run).document()["links"]
    assert row["bytes_per_step"] == 100


@pytest.mark.feature("trees of switches")
def test_all_hosts_of_a_job_are_shown(run: RunDirectory) -> None:
    """Goal: on the host of the node, which has no worker, the ranks of each host, and which of them
    the last step lacks."""
    node = "tcp://127.0.0.1:9"
    hosts = Connection(job=1, chunk_bytes=16384, world_size=4, node=node, switch=node, hosts=2)
    write_connection(run.connect_file, hosts)
    step = {"name": "node.step", "at_ns": 800 * MS, "step": 6, "ranks": "0-1,3"}
    Written.appending(run.path / "events").append("node", step)
    document = Watch(run).document()
    check("status", document)
    said = "\nhost-0    ranks 0-1\nhost-1    ranks 2-3; in the last step 3\n"
    assert said in status_text(document)


@pytest.mark.feature("trees of switches")
def test_all_hosts_are_shown_on_each_of_them(tmp_path: Path, node: subprocess.Popen[bytes]) -> None:
    """Goal: where the node is elsewhere, the switch of the host knows the steps, which ranks they
    have, and what became of them: restarted, skipped, or made without the ranks of this host.
    Method: its events; then what it and the root record of the same on the node's host."""
    run, url = RunDirectory.create(tmp_path / "run"), "tcp://127.0.0.1:9"
    run.write_processes([ProcessEntry(role="switch-host-1", rank=0, pid=node.pid, started="")])
    here = (Leaf(ranks="2-3", endpoint="shm:///w"),)
    job = Connection(job=1, chunk_bytes=16384, world_size=4, node=url, hosts=2, leaves=here)
    write_connection(run.file("connect-host-1.json"), job)
    written = Written.appending(run.path / "events")

    def record(process: str, name: str, at: int, **fields: Any) -> None:
        written.append(process, {"name": name, "at_ns": at * MS, **fields})

    def text() -> str:
        return status_text(Watch(run).document())

    host = "switch-host-1"
    written.clock(host)
    for step in range(4):
        record(host, "switch.step", 100 * step, step=step, applied=step != 1, ranks="0,2-3")
    record(host, "switch.abort", 320, step=4, attempt=2, text="rank 1 is back", ranks="0-3")
    shown = text()
    assert "\nhost-0    ranks 0-1; in the last step 0\nhost-1    ranks 2-3\n" in shown
    assert "steps     4 decided, 10 steps/s" in shown
    assert "problems  2 faults" in shown
    assert "step 1: the step was skipped\n" in shown
    assert "step 3: the step was restarted: rank 1 is back" in shown
    record(host, "switch.abort", 330, step=4, attempt=3, text="ranks 2, 3 are lost", ranks="0-1")
    assert "WAITING   ranks 2-3 of this host are left out since step 4" in text()
    record(host, "switch.step", 400, step=4, applied=True, ranks="0-3")
    assert "WAITING   no step was decided for" in text()
    assert "waiting for other hosts" in " ".join(text().split())

    written.clock("node")
    record("node", "node.step", 100, step=1, applied=False, grad_norm=float("inf"), ranks="0")
    record("node", "node.abort", 331, step=4, attempt=3, text="ranks 2, 3 are lost")
    flags = Watch(run).document()["steps"]["flags"]
    assert [each["step"] for each in flags] == [1, 4, 4]
    assert flags[0]["text"] == "the step was skipped: its gradient norm is inf"


@pytest.mark.feature("luwu status of a run that is over")
def test_a_run_that_is_over_is_neither_running_nor_starting(
    run: RunDirectory, node: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Goal: after SIGKILL, a start that failed, and a reboot that gave its numbers to others.
    Method: a node that ends; a process without the run's mark; launchers that live and do not."""
    run.write_processes([ProcessEntry(role="node", rank=0, pid=os.getpid(), started="")])
    assert Watch(run).document()["state"] == "gone"  # this process is not one of the run
    fresh = RunDirectory.create(tmp_path / "fresh")
    for pid, state in ((_ended_pid(), "gone"), (node.pid, "gone")):
        write_json(fresh.file("resolved.json"), {"schema": 1, "keys": {}, "pid": pid})
        assert Watch(fresh).document()["state"] == state
    command = [sys.executable, "-c", "print(flush=True); input()", "luwu"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as live:
        assert live.stdout is not None
        live.stdout.readline()  # before, its command line may not be there yet
        write_json(fresh.file("resolved.json"), {"schema": 1, "keys": {}, "pid": live.pid})
        assert Watch(fresh).document()["state"] == "starting"
    write_outcome(run, 130, "interrupted")
    assert "stopped at" in status_text(Watch(run).document())


def test_a_role_that_was_stopped_does_not_end_a_run(run: RunDirectory) -> None:
    """Goal: of several commands in one run directory one is stopped, and the others go on."""
    write_outcome(run, 130, "interrupted")
    assert Watch(run).document()["state"] == "running"


def _wait_text(document: dict[str, Any]) -> str:
    since_s = document["at_unix_s"] - document["steps"]["last_decided_unix_s"]
    return f"no step was decided for {since_s:.0f} s; waiting for all processes"


def test_who_is_waited_for_is_named(run: RunDirectory) -> None:
    Written.appending(run.path / "events").span("worker-1", "forward", 6, 0, 10)
    assert str(Watch(run).document()["waits_for"]).endswith("; waiting for worker 0")


def test_a_lost_node_is_named_and_its_job_goes_on_being_shown(run: RunDirectory) -> None:
    """Goal: who is left out, since when and why; steps go on where another node decides them.
    Method: the first node decided six steps, the second the two after them too."""
    written = Written.appending(run.path / "events")
    written.clock("node-1")
    for step in range(8):
        written.append(
            "node-1", {"name": "node.step", "at_ns": 100 * MS * (step + 1), "step": step}
        )
    written.append("switch", {
        "name": "switch.degraded", "at_ns": 650 * MS, "step": 6, "epoch": 2, "left_out": [0],
        "members": [1], "text": "optimizer node 0 lost",
    })  # fmt: skip
    document = Watch(run).document()
    assert document["steps"]["done"] == 8
    assert document["degraded"]["nodes"] == [0]
    check("status", document)
    words = "the job goes on without optimizer node 0: optimizer node 0 lost"
    assert f"DEGRADED since step 6 {words}" in " ".join(status_text(document).split())
    assert document["steps"]["flags"][-1] == {"step": 6, "text": words}

    filling = {"name": "switch.filling", "at_ns": 660 * MS, "node": 0, "step": 6, "bytes": 2 << 20}
    written.append("switch", filling)
    document = Watch(run).document()
    words += "; optimizer node 0 is being filled by the others (2.00 MiB)"
    assert f"DEGRADED since step 6 {words}" in " ".join(status_text(document).split())
    filled = {"name": "switch.filled", "at_ns": 760 * MS, "node": 0, "step": 7, "left_out": []}
    written.append("switch", filled)
    document = Watch(run).document()
    assert document["degraded"] is None
    assert document["steps"]["flags"][-1]["text"] == "optimizer node 0 has all pages again"


def test_the_status_has_80_columns(run: RunDirectory) -> None:
    """Goal: no line is longer, whatever is in it; the state is told in full. Method: a run that
    failed for a long reason."""
    write_outcome(run, 4, "worker 1 failed, and this is told at length: " + "why " * 60, "E300")
    text = status_text(Watch(run).document())
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "luwu explain E300" in " ".join(text.split())
    assert "steps     6 decided of 9, 10 steps/s" in text
    assert re.search(r"compute +60% #+ +< limit", text)
    assert re.search(r"switch +gone", text)
    assert re.search(r"node +pid \d+ +1.00 MiB \(budget 4.00 MiB\)", text)


@pytest.mark.parametrize(
    ("code", "reason", "state"),
    [
        (0, "finished", "finished"),
        (130, "interrupted", "stopped"),
        (4, "a worker failed", "failed"),
    ],
)
def test_a_run_that_ended_in_any_way_has_its_report(
    run: RunDirectory, node: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str],
    code: int, reason: str, state: str,
) -> None:  # fmt: skip
    """Goal: `luwu report` of each makes a page of its state and step, and prints a verdict."""
    node.kill()
    node.wait()
    write_outcome(run, code, reason)
    assert main(["report", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert said.lower().startswith(state)
    assert "6 steps are decided, 100 ms each (median)." in said
    assert "Compute-bound: compute is busy 60%; 10% is spent waiting for weights." in said
    page = run.file("report.html").read_text()
    assert f"LuWu run run: {state}" in page
    ElementTree.fromstring(page)
    assert not re.search(r"(src|href)\s*=|https?://|<script|@import|url\(", page)
    assert page.count('<div class="scroll"><svg') == 5


def test_a_run_without_a_step_has_a_report(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run")
    write_outcome(run, 2, "refused")
    page = report_html(Watch(run).document())
    assert "no step was decided" in page
    ElementTree.fromstring(page)
