"""The software whose efficiency an answer assumes, and the step by others that apply.

Those apply that were fitted to rows of the same kind of system: of 3-D training, or of data
parallel ranks alone. Software of the testbed, with one device per host, applies to nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import Question
from luwu.predict.hardware.software import data, software


def other_software(question: Question) -> dict[str, float]:
    """Seconds of the step by each of them; none for what has no answer, as without a precision."""
    found = {}
    for name in data("errors.toml")["3d" if question.system == "3d" else "sharded"]["software"]:
        if name != question.job.software.name:
            try:
                other = replace(question, job=replace(question.job, software=software(name)))
                found[name] = other.answer().seconds
            except ConfigError:
                continue
    return found


def software_text(document: dict[str, Any]) -> str:
    """A line for people, of an answer."""
    others = ", ".join(f"{name} {s:.3f} s" for name, s in document["other_software_s"].items())
    name = document["asked"]["software"]
    return f"software          the efficiency of {name} is assumed; by others: {others or 'none'}"
