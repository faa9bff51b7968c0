"""A run in three sentences: what became of it, what it cost, and what limits its steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luwu.base.quantities import format_bytes, format_duration, format_seconds
from luwu.report.chart import together
from luwu.report.table import names_text, same_weights


def verdict(document: Mapping[str, Any]) -> list[str]:
    """The sentences for a document of a run (`luwu.monitor.watch`)."""
    comparison = document["comparison"]
    if comparison is not None:
        return [_same_training(comparison), _memory_of_arms(comparison), _times(document)]
    steps = document["steps"]
    if not steps["done"]:
        return [f"The run is {document['state']}; no step was decided."]
    found = [_progress(document)]
    if document["step"] is not None:
        found.append(f"A typical step takes {document['step']['verdict']}")
    count = steps["flags_count"]
    found.append(
        "No fault, restart or repeated step."
        if not count
        else f"{count} {'event' if count == 1 else 'events'}: {steps['flags'][-1]['text']} (step "
        f"{steps['flags'][-1]['step']}, the last)."
    )
    return found


def _progress(document: Mapping[str, Any]) -> str:
    steps = document["steps"]
    count = f"{steps['done']:,} steps are decided"
    if steps["median_s"] is not None:
        count += f", {format_seconds(steps['median_s'])} each (median)"
    if document["state"] == "running" and steps["left_s"] is not None:
        count += f"; {format_duration(steps['left_s'])} left"
    return f"{document['text'][0].upper()}{document['text'][1:]}; {count}."


def _same_training(comparison: Mapping[str, Any]) -> str:
    arms = comparison["arms"]
    groups = together({arm["name"]: arm["loss"] for arm in arms})
    parts = []
    if len(groups) == 1 and len(arms) > 1:
        difference = groups[0].largest_difference
        near = "equal in all steps" if difference == 0 else f"within {difference:.1g} in all steps"
        parts.append(f"Same training: losses of {names_text(groups[0].names)} are {near}")
    elif len(arms) > 1:
        texts = [names_text(group.names) for group in groups]
        parts.append(f"Losses differ: {'; '.join(texts)} each have a curve of their own")
    else:
        parts.append(f"{arms[0]['name']} trained {len(arms[0]['loss'])} steps")
    parts += [f"{names_text(each)} end with equal bits" for each in same_weights(comparison)]
    return f"{'; '.join(parts)}."


def _memory_of_arms(comparison: Mapping[str, Any]) -> str:
    held = {
        arm["name"]: arm["worker_optimizer_bytes"]
        for arm in comparison["arms"]
        if arm.get("worker_optimizer_bytes") is not None
    }
    texts = [f"{name} {format_bytes(count) if count else 'none'}" for name, count in held.items()]
    return f"Optimizer state on each worker: {', '.join(texts)}."


def _times(document: Mapping[str, Any]) -> str:
    times = [
        f"{format_seconds(arm['step_seconds_median'])} ({arm['name']})"
        for arm in document["comparison"]["arms"]
    ]
    text = f"Time per step: {times[0]}"
    if len(times) > 1:
        text += f" against {names_text(times[1:])}"
    if document["step"] is not None:
        return f"{text}. A typical step of luwu takes {document['step']['verdict']}"
    return f"{text}."
