"""A question once more, played in virtual time, where that can be done.

LuWu's steps are decided by its own cores, with a chunk for each unit (`driven/driven.py`), steps of
3-D training go task by task through their pipeline's schedule (`events/pipeline_training.py`), here
by its longest path (E6), and those of all other systems unit by unit (`events/data_parallel.py`);
on a network that is known link by link with the ports that each exchange has there. A replay that
is left out has its reason. The work is counted in *tasks*, forwards and backwards of a pipeline: m
micro-batches, p stages and v parts are 2 m p v. A micro-batch of a unit takes as long as
UNIT_TASKS, of LuWu as LUWU_TASKS. A plan that would play more than TASKS_MAX in all leaves out what
does not fit into the rest.

Where play and closed form differ by more than DIFFERS, the play is to be believed: it knows the
order of work, and what waits for what; the closed form knows how long each resource works.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_training import Question
from luwu.predict.driven.driven import play_driven_steps, quick_playing
from luwu.predict.events.data_parallel import data_parallel_step, play_data_parallel
from luwu.predict.events.engines import Record
from luwu.predict.events.pipeline_training import (
    ClosedForm,
    PlayedTraining,
    play_training_step,
    played_step_s,
)
from luwu.predict.model.units import units_of
from luwu.predict.networks.on_topology import on_topology, three_d_step
from luwu.predict.systems.offload import Offload
from luwu.predict.systems.training import predict_step

TASKS_MAX: Final = 1_000_000
"""Played for one plan in all: at most some five to ten seconds. A task of a pipeline takes 1 us,
those that a unit counts for 5 to 10 us each."""
UNIT_TASKS: Final = 40
"""Tasks of a unit and micro-batch: its gathers, its reduction and its compute."""
LUWU_TASKS: Final = 300
"""The same of LuWu: its pulls and its push, at worker, switch and node, in all steps."""
DIFFERS: Final = 0.1
"""Share of the closed form's step by which a play differs enough to be marked."""


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
    job = question.job
    if question.system == "3d":
        return 2 * job.pipeline * job.virtual * job.micro_batches
    each = LUWU_TASKS if question.nodes is not None else UNIT_TASKS
    return each * len(units_of(job)) * job.micro_batches


def _step_s(question: Question, on: Question) -> float:
    if on.nodes is not None:
        return play_driven_steps(on.job, on.nodes, quick_playing(on.job)).step_s
    if question.system == "3d":
        return played_step_s(question.job, predict=_closed_form(question))
    return play_units(question).end_s


def play_units(question: Question) -> Record:
    """A step of a question of data parallel training without a node, on its network. Raises
    ConfigError."""
    on = question.as_on_topology()
    offload = on.part if isinstance(on.part, Offload) else None
    return play_data_parallel(data_parallel_step(on.system, on.job, offload, on.answer()))


def play_three_d(question: Question) -> PlayedTraining:
    """A step of a question of 3-D training, on its network. Raises ConfigError."""
    return play_training_step(question.job, predict=_closed_form(question))


def agreement(played_s: float, closed_s: float) -> str:
    """For people: the closed form beside a play, and which of the two to believe."""
    said = f"; the closed form has {closed_s:.3f} s"
    if abs(played_s / closed_s - 1) <= DIFFERS:
        return said
    return f"{said}: believe the play, which knows what waits for what"


def _closed_form(question: Question) -> ClosedForm:
    if question.topology is None:
        return predict_step
    _, _, found = on_topology(question.topology, question.system, question.job, None)
    return partial(three_d_step, found=found)
