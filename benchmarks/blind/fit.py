"""Fits the numbers of luwu/predict/data/fitted.toml to the rows of benchmarks/calibration.toml.

    python -m benchmarks.blind.fit          print them
    python -m benchmarks.blind.fit --write  and put them into the file, to three digits

Least squares of e (1 + (e/0.2)^2), e the logarithm of predicted over published, so that large
misses count more, by Gauss and Newton with a damped step; each series of n rows counts as the root
of n.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.calibration import rows
from luwu.predict.hardware import software
from luwu.predict.hardware.catalogue import Catalogue, load

FILE: Final = Path(software.__file__).parents[1] / "data" / "fitted.toml"
STEP: Final = 0.01
"""Relative change of a number for its derivative."""
LARGE: Final = 0.2
"""A miss that counts twice."""


def put(names: list[str], values: Any) -> None:
    """Make these the fitted numbers of this process."""
    known = software.data(FILE.name)
    for name, value in zip(names, values, strict=True):
        known[name]["value"] = float(value)
    software.fitted.cache_clear()


def residuals(catalogue: Catalogue) -> Any:
    """The weighted error of each row."""
    found = list(rows(catalogue))
    series = [
        (
            row["group"],
            row["quantity"],
            row["question"].get("model"),
            row["question"].get("pipeline"),
        )
        for row in found
    ]
    counts = Counter(series)
    return np.array(
        [
            error * (1 + (error / LARGE) ** 2) * counts[of] ** -0.25
            for row, of in zip(found, series, strict=True)
            for error in [math.log1p(row["error"])]
            if row["family"] != "memory"
        ]
    )


def fit(names: list[str], catalogue: Catalogue, rounds: int = 6) -> Any:
    """The values with the least squares."""
    known = software.data(FILE.name)
    values = np.array([known[name]["value"] for name in names])
    found, damping = residuals(catalogue), 1e-3
    for _ in range(rounds):
        columns = []
        for index in range(len(names)):
            moved = values.copy()
            moved[index] *= 1 + STEP
            put(names, moved)
            columns.append((residuals(catalogue) - found) / math.log1p(STEP))
        slopes = np.array(columns).T
        while damping < 1e3:
            left = slopes.T @ slopes + damping * np.eye(len(names))
            change = np.clip(np.linalg.solve(left, -slopes.T @ found), -0.3, 0.3)
            moved = values * np.exp(change)
            put(names, moved)
            after = residuals(catalogue)
            if after @ after < found @ found - 1e-9:
                values, found, damping = moved, after, damping / 3
                break
            damping *= 4
        else:
            break
    put(names, values)
    return values


def main(arguments: list[str]) -> int:
    """Fit, print, write; the exit code."""
    names = list(software.data(FILE.name))
    values = fit(names, load())
    text = FILE.read_text(encoding="utf-8")
    for name, value in zip(names, values, strict=True):
        print(f"{name:<36} {value:.3g}")
        text = re.sub(
            rf"(\[{re.escape(name)}\]\nvalue = )\S+", lambda m, v=value: f"{m[1]}{v:.3g}", text
        )
    if "--write" in arguments:
        FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
