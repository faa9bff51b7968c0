"""`luwu predict`: the step time of training jobs on hardware that is not here.

step        one question, of a file or of flags: predict_question.py
compare     several questions, side by side
sweep       one question over values of its keys: predict_sweep.py
catalogue   what has a name: predict_catalogue.py
init        a question file to begin with: predict_init.py
validate    published results beside predictions
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from luwu.base.errors import ConfigError
from luwu.base.parsers import path
from luwu.commands import form
from luwu.commands.predict_catalogue import catalogue as list_catalogue
from luwu.commands.predict_init import init
from luwu.commands.predict_question import (
    CATALOGUE,
    FILES,
    Command,
    asked_table,
    over_file,
)
from luwu.commands.predict_sweep import run_sweep
from luwu.predict.ask.answer import SCHEMA, answer, side_by_side, text
from luwu.predict.ask.one_line import table_of
from luwu.predict.ask.question import AnyQuestion, Question, make_question
from luwu.predict.check import validate as checked
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue

run = form.Commands(
    "predict",
    text="Predict the step time of a training job on hardware you do not have: the time, the "
    "bottleneck, and which hardware numbers matter most.",
    examples=("luwu predict step llama.toml", "luwu predict step --help"),
)


@run.command(
    "step",
    cls=Command,
    examples=(
        "luwu predict step --system luwu --model llama3-70b --devices 64xh100-80 \\\n"
        "      --network roce-100g",
        "luwu predict step llama.toml --batch 256",
    ),
)
@FILES
@form.JSON
@click.option(
    "--cores", "with_cores", is_flag=True, help="of luwu: its own cores decide steps, too"
)
@CATALOGUE
def step(
    asked: Mapping[str, str], files: Sequence[Path], as_json: bool, with_cores: bool,
    catalogue: Catalogue,
) -> int:  # fmt: skip
    """Predict the step time of a job, its bottleneck and its memory, and show which hardware
    numbers matter most. The exit code is 1 if the job does not fit its devices. The question is in
    FILE, or in flags with the names of its keys; flags replace keys of FILE. Without FILE, keys
    that are left out are assumed, and the answer lists them. docs/predict.md describes the keys,
    luwu predict catalogue lists names."""
    table, assumed = asked_table(asked, files, catalogue)
    question = make_question(table, catalogue)
    document = answer(question, catalogue) | {"assumed": assumed}
    if with_cores:
        document["cores_step_s"] = _cores_step_s(question)
    print(json.dumps(document, indent=1) if as_json else text(document))
    return 0 if document.get("fits", True) else 1


def _cores_step_s(question: AnyQuestion) -> float:
    """Seconds of a step as LuWu's cores decide it. Raises ConfigError for another system."""
    on = question.as_on_topology() if isinstance(question, Question) else None
    if on is None or on.nodes is None:
        raise ConfigError(f"cores: are LuWu's, and the system is {question.system!r}; leave it out")
    return play_driven_steps(on.job, on.nodes).step_s


@run.command(
    "compare",
    cls=Command,
    examples=("luwu predict compare luwu.toml zero3.toml 3d.toml",),
)
@click.argument("files", nargs=-1, required=True, type=form.Value("FILE", path))
@form.JSON
@CATALOGUE
def compare(
    asked: Mapping[str, str], files: Sequence[Path], as_json: bool, catalogue: Catalogue
) -> int:  # fmt: skip
    """Predict the steps of several files and show them side by side. Flags with the names of keys
    replace those of all files."""
    flags = table_of(asked, catalogue)
    found = {
        str(each): answer(make_question(over_file(each, flags), catalogue), catalogue)
        for each in files
    }
    if as_json:
        print(json.dumps({"schema": SCHEMA, "answers": found}, indent=1))
    else:
        print(side_by_side(found))
    return 0


@run.command("validate", cls=form.Command, examples=("luwu predict validate",))
@form.JSON
@CATALOGUE
def validate(as_json: bool, catalogue: Catalogue) -> int:
    """Compare predictions with published results."""
    document = checked.document(catalogue)
    print(json.dumps(document, indent=1) if as_json else checked.text(document))
    return 0


for each in (run_sweep, list_catalogue, init):
    run.add_command(each)
