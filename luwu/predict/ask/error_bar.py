"""The error of an answer: that of the calibration rows of its kind, and what they do not cover.

`data/errors.toml` has both, made from `luwu predict validate`. An answer with something that no row
has may be off by as much as those that were predicted before their results were seen, or more.
"""

from __future__ import annotations

from typing import Any, Final

from luwu.predict.ask.question import AnyQuestion
from luwu.predict.hardware.software import data
from luwu.predict.inference.inference_sockets import SocketJob

_KIND: Final = {
    "3d": "3d", "zero3": "sharded", "inference": "inference", "inference-sockets": "inference",
}  # fmt: skip
"""Kind of system in the file; LuWu and what offloads have their testbed."""


def error_bar(question: AnyQuestion) -> dict[str, Any]:
    """As a document: shares of the time, and what is outside of what was fitted."""
    kind = _KIND.get(question.system, "testbed")
    known = data("errors.toml")[kind]
    return {
        "of": kind, "rows": known["rows"], "mean": known["mean"], "max": known["max"],
        "blind_rows": known["blind_rows"], "blind_max": known["blind_max"],
        "outside": _outside(question, known),
    }  # fmt: skip


def _outside(question: AnyQuestion, known: dict[str, Any]) -> list[str]:
    if isinstance(question.job, SocketJob):
        return []
    job: Any = question.job
    found = []
    software = None if question.system == "inference" else job.software.name
    names = (("devices", job.device.name), ("software", software), ("precisions", job.precision))
    for key, value in names:
        if key in known and value is not None and value not in known[key]:
            found.append(f"{value}: rows have {', '.join(known[key])}")
    for key, value, unit, scale in (
        ("device_count", job.devices, "devices", 1),
        ("sequence", getattr(job, "sequence", None), "tokens of a sequence", 1),
        ("port_rate", job.network.port_rate, "Gbit/s of a port", 8e-9),
    ):
        if key in known and value is not None and not known[key][0] <= value <= known[key][1]:
            said, low, high = (f"{each * scale:,.6g}" for each in (value, *known[key]))
            found.append(f"{said} {unit}: rows have {low} to {high}")
    if job.model.experts > 1:
        found.append("experts: no row has any")
    if question.topology is not None:
        found.append(f"{question.topology.kind}: no row is of a network that is known link by link")
    return found


def error_bar_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    lines = [
        f"error             +- {found['max']:.0%} at most, {found['mean']:.0%} in the mean, in the "
        f"{found['rows']} rows that it is fitted to; {found['blind_max']:.0%} at most in the "
        f"{found['blind_rows']} predicted blind"
    ]
    return lines + [f"outside of what was fitted: {each}" for each in found["outside"]]
