"""A whole training: the steps that its tokens are, and their days, GPU-hours and dollars.

    CT1  steps      tokens / tokens of a step, rounded up

Without restarts, evaluations and checkpoints. Dollars are those of [cost]. Derived.
"""

from __future__ import annotations

import math
from typing import Any, Final

from luwu.predict.ask.question import Question

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0


def whole_training(question: Question, document: dict[str, Any]) -> dict[str, Any]:
    """The question's tokens as a document (CT1); `document` is the answer to its step."""
    tokens, job = question.tokens, question.job
    assert tokens is not None
    steps = math.ceil(tokens / job.tokens)
    seconds = steps * document["step_s"]
    cost = document.get("cost", {})
    return {
        "tokens": tokens, "steps": steps, "days": seconds / DAY_S,
        "device_hours": job.devices * seconds / HOUR_S,
        "dollars": cost["dollars_per_h"] * seconds / HOUR_S if cost else None,
    }  # fmt: skip


def whole_training_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    dollars = found["dollars"]
    parts = [
        f"{found['days']:,.1f} days", f"{found['device_hours']:,.0f} GPU-hours",
        "dollars are not known without [cost]" if dollars is None else f"{dollars:,.0f} USD",
    ]  # fmt: skip
    head = f"{found['tokens'] / 1e9:,.6g} billion tokens: {found['steps']:,} steps"
    return [f"{head}, {', '.join(parts)}"]
