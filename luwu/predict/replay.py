"""A question once more, by the event core, where that can play it.

LuWu's steps are played unit by unit (`events/in_network.py`). What is not played says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from luwu.base.errors import ConfigError
from luwu.predict.events.in_network import play_steps
from luwu.predict.question_training import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of it."""

    step_s: float | None
    """None: it was not played."""
    why: str = ""
    """It was not."""


def replay(question: Question) -> Replay:
    """Play a step on the ports that the network leaves."""
    on = question.as_on_topology()
    if on.nodes is None:
        return Replay(step_s=None, why="the event core plays steps of luwu alone")
    try:
        return Replay(step_s=play_steps(on.job, on.nodes).step_s)
    except ConfigError as exc:
        return Replay(step_s=None, why=str(exc))
