"""`luwu predict validate --machine`: floors are measured, cases predicted, and then really run."""

from __future__ import annotations

import json

import pytest

from luwu.base.limits import MIB
from luwu.commands.predict_machine import Case, Shape, machine_text, validate_machine
from luwu.measure.timing import Samples
from tests.schemas import check

TINY = Shape(
    layers=2, width=96, context=16, batch=2, steps=5,
    samples=Samples(copy_bytes=MIB, disk_bytes=8 * MIB, seconds=0.01),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.feature("runs on this machine, predicted before they are measured")
@pytest.mark.parametrize("case", [
    Case(workers=2, transport="ipc", parts=4),
    Case(workers=2, transport="shm", parts=2, nodes=2, replicas=2),
], ids=["one-node", "replicas"])  # fmt: skip
def test_a_tiny_case_is_predicted_and_run(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: cases out of core go all the way, with one node and with two that hold each page. How
    far off they are says nothing here."""
    code = validate_machine(as_json=True, cases=[case], shape=TINY)

    document = json.loads(capsys.readouterr().out)
    check("predict-validate-machine", document)
    (row,) = document["cases"]
    assert (row["workers"], row["transport"], row["place"]) == (2, case.transport, case.place)
    assert (row["nodes"], row["replicas"]) == (case.nodes, case.replicas)
    assert row["predicted_s"] > 0 < row["measured_s"]
    assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert sum(row["parts_s"].values()) == pytest.approx(row["predicted_s"])
    assert all(row["floors"][name] > 0 for name in ("forward_s", "backward_s", "end_s", "cores"))
    assert row["disk_s"] > 0
    summary = document["summary"]
    is_near = summary["max"] <= summary["within"] and summary["mean"] <= summary["mean_within"]
    assert code == (0 if is_near else 1)
    assert "errors of 1: " in machine_text(document)
