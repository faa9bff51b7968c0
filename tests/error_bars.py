"""luwu/predict/data/errors.toml: errors of the calibration by system, and what its rows cover.

python -m tests.error_bars            write it
python -m tests.error_bars --check    fail if it is not what `luwu predict validate` says
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any, Final

from benchmarks.blind.score import counting, scored
from luwu.predict.check.calibration import (
    compare,
    compare_inference,
    compare_offload,
    training_rows,
)
from luwu.predict.hardware.catalogue import Catalogue, load

FILE: Final = Path(__file__).resolve().parents[1] / "luwu" / "predict" / "data" / "errors.toml"
HEAD: Final = """\
# Errors of the calibration by kind of system, and what its rows cover: the error of an answer of
# `luwu predict step`. `blind_max` is of predictions that were frozen before their results were
# seen. Made by `python -m tests.error_bars`; do not edit.
"""


def families(catalogue: Catalogue) -> dict[str, dict[str, Any]]:
    """Errors and coverage by kind of system."""
    seen = counting(scored(catalogue))
    rows = training_rows(catalogue)
    found = {}
    for name, of in (("3d", ("3d",)), ("sharded", ("zero3",))):
        own = [row for row in rows if row.system in of]
        blind = [row for row in seen if row["family"] == "training" and (" zero3" in row["name"])
                 == (name == "sharded") and row["unit"] != "ratio"]  # fmt: skip
        errors = [compare(row).error for row in own]
        found[name] = _errors(errors, blind) | _covered(catalogue, own, blind)
    testbed = [row for row in seen if row["family"] == "testbed"]
    found["testbed"] = _errors([each.error for each in compare_offload(catalogue)], testbed) | {
        "devices": ["A100-40"],
        "device_count": [8, 8],
        "software": ["deepspeed-2023"],
    }
    inference = [row for row in seen if row["family"] == "inference"]
    found["inference"] = _errors(
        [each.error for each in compare_inference(catalogue)], inference
    ) | {"devices": ["A100-80", "H100-80", "H200-141", "RTX-Pro-6000"], "device_count": [1, 8]}
    return found


def _errors(errors: list[float], blind: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the calibration and, where rows are questions, of what was predicted blind, today."""
    errors = [*errors, *(row["error"] for row in blind if row["error"] is not None)]
    return {
        "rows": len(errors), "mean": round(mean(map(abs, errors)), 4),
        "max": round(max(map(abs, errors)), 4), "blind_rows": len(blind),
        "blind_max": round(max(abs(row["frozen_error"]) for row in blind), 4),
    }  # fmt: skip


def _covered(catalogue: Catalogue, own: list[Any], blind: list[dict[str, Any]]) -> dict[str, Any]:
    """Devices, their number, software, precisions and sequences of all rows."""
    jobs = [row["question"] for row in blind]
    counts = [row.job.devices for row in own] + [job["devices"] for job in jobs]
    lengths = [row.job.sequence for row in own] + [job["sequence"] for job in jobs]
    return {
        "devices": sorted({row.job.device.name for row in own} | {job["device"] for job in jobs}),
        "device_count": [min(counts), max(counts)],
        "software": sorted(
            {row.job.software.name for row in own} | {job["software"] for job in jobs}
        ),
        "precisions": sorted(
            {row.job.precision for row in own} | {job.get("precision", "bf16") for job in jobs}
        ),
        "sequence": [min(lengths), max(lengths)],
        "port_rate": _span(catalogue, own, jobs),
    }


def _span(catalogue: Catalogue, own: list[Any], jobs: list[dict[str, Any]]) -> list[float]:
    """Bytes per second of a port, least and most."""
    rates = [row.job.network.port_rate for row in own]
    rates += [catalogue.network(job["network"]).port_rate for job in jobs]
    return [min(rates), max(rates)]


def text() -> str:
    """The file."""
    lines = [HEAD]
    for name, each in families(load()).items():
        lines.append(f"[{name}]" if name != "3d" else '["3d"]')
        lines += [f"{key} = {json.dumps(value)}" for key, value in each.items()]
        lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Write or check the file; the exit code."""
    if "--check" not in arguments:
        FILE.write_text(text(), encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != text():
        print(f"{FILE.name} is not up to date: run python -m tests.error_bars", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
