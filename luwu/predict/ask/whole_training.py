"""A whole training: the steps that its tokens are, and their days, GPU-hours, dollars and energy.

    CT1  steps      tokens / tokens of a step, rounded up
    CT2  energy     power times their time: that of everything that is bought and of its site (PUE),
                    where [cost] says it, else of the devices alone

Without restarts, evaluations and checkpoints. Dollars are those of [cost]. Derived.
"""

from __future__ import annotations

import math
from typing import Any, Final

from luwu.predict.ask.question_training import Question

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
JOULES_PER_MWH: Final = 3.6e9


def whole_training(question: Question, document: dict[str, Any]) -> dict[str, Any]:
    """The question's tokens as a document (CT1, CT2); `document` is the answer to its step."""
    tokens, job = question.tokens, question.job
    assert tokens is not None
    steps = math.ceil(tokens / job.tokens)
    seconds = steps * document["step_s"]
    cost = document.get("cost", {})
    found: dict[str, Any] = {
        "tokens": tokens, "steps": steps, "days": seconds / DAY_S,
        "device_hours": job.devices * seconds / HOUR_S,
        "dollars": cost["dollars_per_h"] * seconds / HOUR_S if cost else None,
    }  # fmt: skip
    watts, of = None, "devices alone"
    if "watts" in cost and question.costs is not None and question.costs.tariff is not None:
        watts, of = cost["watts"] * question.costs.tariff.pue, "all that is bought, and its site"
    elif job.device.power is not None:
        watts = job.devices * job.device.power
    found["energy_mwh"] = None if watts is None else watts * seconds / JOULES_PER_MWH
    return found | {"energy_of": of}


def whole_training_text(found: dict[str, Any]) -> list[str]:
    """The same for people."""
    dollars, energy = found["dollars"], found["energy_mwh"]
    parts = [
        f"{found['days']:,.1f} days", f"{found['device_hours']:,.0f} GPU-hours",
        "dollars are not known without [cost]" if dollars is None else f"{dollars:,.0f} USD",
        "the energy is not known without the power of the device"
        if energy is None else f"{energy:,.1f} MWh ({found['energy_of']})",
    ]  # fmt: skip
    head = f"{found['tokens'] / 1e9:,.6g} billion tokens: {found['steps']:,} steps"
    return [f"{head}, {', '.join(parts)}"]
