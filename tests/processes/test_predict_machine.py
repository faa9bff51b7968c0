"""`luwu predict validate --machine`: floors are measured, cases predicted, and then really run."""

from __future__ import annotations

import json

import pytest

from luwu.base.limits import MIB
from luwu.commands.predict_machine import OUT_OF_CORE, Case, Shape, machine_text, validate_machine
from luwu.measure.timing import Samples
from tests.schemas import check

TINY = Shape(
    layers=2, width=96, context=16, batch=2, steps=5,
    samples=Samples(copy_bytes=MIB, disk_bytes=8 * MIB, seconds=0.01),
)  # fmt: skip


@pytest.mark.slow
def test_a_tiny_case_is_predicted_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: one case out of core goes all the way. How far off it is says nothing here."""
    case = Case(workers=2, transport="ipc", place=OUT_OF_CORE)
    code = validate_machine(as_json=True, cases=[case], shape=TINY)

    document = json.loads(capsys.readouterr().out)
    check("predict-validate-machine", document)
    (row,) = document["cases"]
    assert (row["workers"], row["transport"], row["place"]) == (2, "ipc", OUT_OF_CORE)
    assert row["predicted_s"] > 0 < row["measured_s"]
    assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert sum(row["parts_s"].values()) == pytest.approx(row["predicted_s"])
    assert all(row["floors"][name] > 0 for name in ("forward_s", "backward_s", "end_s", "cores"))
    assert row["disk_s"] > 0
    assert code == (1 if document["summary"]["max"] > document["summary"]["within"] else 0)
    assert "errors of 1: " in machine_text(document)
