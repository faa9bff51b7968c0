"""A question once more, played in virtual time, where that can be done.

LuWu's steps are decided by its own cores, with a chunk for each unit (`driven/driven.py`), steps of
3-D training go task by task through their pipeline's schedule (`events/pipeline_training.py`), here
by its longest path (E6), on a network that is known link by link with the ports that each exchange
has there. A replay that is left out has its reason. The work is counted in *tasks*, forwards and
backwards of a pipeline: m micro-batches, p stages and v parts are 2 m p v. A micro-batch of a unit
of LuWu takes as long as UNIT_TASKS. A plan that would play more than TASKS_MAX in all leaves out
what does not fit into the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_training import Question
from luwu.predict.driven.driven import play_driven_steps, quick_playing
from luwu.predict.driven.units import units_of
from luwu.predict.events.pipeline_training import (
    ClosedForm,
    PlayedTraining,
    play_training_step,
    played_step_s,
)
from luwu.predict.networks.on_topology import on_topology, three_d_step
from luwu.predict.systems.training import predict_step

TASKS_MAX: Final = 1_000_000
"""Played for one plan in all: some five to ten seconds, as a task takes 5 to 10 us."""
UNIT_TASKS: Final = 200
"""Tasks of a unit and micro-batch: its pulls and its push, at worker, switch and node, in all
steps."""
PLAYED: Final = ("luwu", "3d")
"""Systems whose steps can be played."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of a replay."""

    step_s: float | None
    """None: it was not played."""
    tasks: int = 0
    """Played, or too many to be played."""
    why: str = ""
    """It was not: a few words, a colon, and what this one has."""


def replay(question: Question, *, tasks_max: int = TASKS_MAX) -> Replay:
    """Play a step on the ports that the network leaves, if it has so many tasks at most."""
    if question.system not in PLAYED:
        return Replay(step_s=None, why=f"no steps of that system are played: {question.system}")
    on = question.as_on_topology()
    tasks = tasks_of(on)
    if tasks > tasks_max:
        why = f"too many tasks: {tasks:,}, while {tasks_max:,} of {TASKS_MAX:,} were left"
        return Replay(step_s=None, tasks=tasks, why=why)
    try:
        return Replay(step_s=_step_s(question, on), tasks=tasks)
    except ConfigError as exc:
        return Replay(step_s=None, why=str(exc))


def tasks_of(question: Question) -> int:
    """Tasks of a replay."""
    job, nodes = question.job, question.nodes
    if nodes is not None:
        return UNIT_TASKS * len(units_of(job)) * job.micro_batches
    return 2 * job.pipeline * job.virtual * job.micro_batches


def _step_s(question: Question, on: Question) -> float:
    if on.nodes is not None:
        return play_driven_steps(on.job, on.nodes, quick_playing(on.job)).step_s
    return played_step_s(question.job, predict=_closed_form(question))


def play_three_d(question: Question) -> PlayedTraining:
    """A step of a question of 3-D training, on its network. Raises ConfigError."""
    return play_training_step(question.job, predict=_closed_form(question))


def _closed_form(question: Question) -> ClosedForm:
    if question.topology is None:
        return predict_step
    _, _, found = on_topology(question.topology, question.system, question.job, None)
    return partial(three_d_step, found=found, predict=predict_step)
