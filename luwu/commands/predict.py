"""`luwu predict`: how long a step takes on machines that are not here.

luwu predict step FILE.toml [--json]       a question; luwu/predict/question.py says its form
luwu predict validate [--json]             published results, predicted
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.predict.answer import answer, text
from luwu.predict.calibration import compare, compare_memory, training_rows
from luwu.predict.catalogue import Catalogue, load
from luwu.predict.question import read_question

VERB: Final = Verb(
    name="predict",
    usage="luwu predict step FILE.toml | validate [--json] [--catalogue FILE]",
    text=(
        "Predict a step of training on machines that are not here: its time, what binds, memory,\n"
        "and which numbers the answer hangs on; or compare predictions with published results."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
    ),
    has_keys=False,
    rest="two",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    does = {"step": _step, "validate": _validate}
    verb, *rest = parsed.rest or ("",)
    if verb not in does:
        raise ConfigError(
            f"{verb!r} is not one of {', '.join(does)}{suggestion(verb, does)}; usage: {VERB.usage}"
        )
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    print(does[verb](rest, catalogue, parsed.has("json")))
    return 0


def _step(rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if len(rest) != 1:
        raise ConfigError(f"luwu predict step takes a file; usage: {VERB.usage}")
    document = answer(read_question(Path(rest[0]), catalogue), catalogue)
    return json.dumps(document, indent=1) if as_json else text(document)


def _validate(rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if rest:
        raise ConfigError(f"luwu predict validate takes no {rest[0]!r}; usage: {VERB.usage}")
    rows: list[dict[str, Any]] = [
        {
            "group": each.row.group, "model": each.row.job.model.name, "system": each.row.system,
            "device": each.row.job.device.name, "devices": each.row.job.devices,
            "precision": each.row.job.precision, "recompute": each.row.job.recompute,
            "unit": each.row.unit, "published": each.row.published, "predicted": each.predicted,
            "error": each.error, "source": each.row.source,
        }
        for each in map(compare, training_rows(catalogue))
    ]  # fmt: skip
    memory: list[dict[str, Any]] = [
        {"name": each.name, "published": each.published, "predicted": each.predicted,
         "error": each.error}
        for each in compare_memory(catalogue)
    ]  # fmt: skip
    groups = {
        "training": [row["error"] for row in rows],
        "memory": [row["error"] for row in memory],
    }
    summary = {
        name: {
            "rows": len(errors), "mean": mean(map(abs, errors)), "max": max(map(abs, errors)),
        }
        for name, errors in groups.items()
    }  # fmt: skip
    if as_json:
        return json.dumps(
            {"schema": 1, "training": rows, "memory": memory, "summary": summary}, indent=1
        )
    lines = [
        f"{row['group']:<3} {row['model']:<14} {row['system']:<6} {row['devices']:>5} x "
        f"{row['device']:<13} {row['precision']} {row['recompute']:<9} {row['published']:>9,.2f} "
        f"{row['predicted']:>9,.2f} {row['unit']:<8} {row['error']:+7.1%}"
        for row in rows
    ]
    lines += ["", *(f"{row['name']:<34} {row['error']:+7.2%}" for row in memory), ""]
    lines += [
        f"{name}: {each['rows']} rows, {each['mean']:.1%} in the mean, {each['max']:.1%} at most"
        for name, each in summary.items()
    ]
    return "\n".join(lines)
