"""`luwu predict`: the step time of training jobs on hardware that is not here.

step        one question, of a file or of flags: predict_question.py
compare     several questions, side by side
sweep       one question over values of its keys: predict_sweep.py
timeline    a step as a timeline: predict_timeline.py
catalogue   what has a name: predict_catalogue.py
init        a question file to begin with: predict_init.py
validate    published results beside predictions
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from luwu.commands import form
from luwu.commands.predict_catalogue import catalogue as list_catalogue
from luwu.commands.predict_init import init
from luwu.commands.predict_pictures import compare_timeline, step_timeline
from luwu.commands.predict_question import (
    CATALOGUE,
    FILES,
    SVG,
    Command,
    asked_table,
    over_file,
)
from luwu.commands.predict_sweep import run_sweep
from luwu.commands.predict_timeline import timeline
from luwu.predict.ask.answer import SCHEMA, answer, side_by_side, text
from luwu.predict.ask.one_line import table_of
from luwu.predict.ask.question import make_question
from luwu.predict.check import validate as checked
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
        "luwu predict step llama.toml --batch 256 --svg step.svg",
    ),
)
@FILES
@form.JSON
@click.option("--svg", type=SVG, help="write a picture of the step")
@CATALOGUE
def step(
    asked: Mapping[str, str], files: Sequence[Path], as_json: bool, svg: Path | None,
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
    print(json.dumps(document, indent=1) if as_json else text(document))
    if svg is not None:
        drawn = step_timeline(question, svg)
        if not as_json:
            print(drawn)
    return 0 if document.get("fits", True) else 1


@run.command(
    "compare",
    cls=Command,
    examples=("luwu predict compare luwu.toml zero3.toml 3d.toml --svg steps.svg",),
)
@click.argument("files", nargs=-1, required=True, type=SVG)
@form.JSON
@click.option("--svg", type=SVG, help="write a picture of a step of each")
@CATALOGUE
def compare(
    asked: Mapping[str, str], files: Sequence[Path], as_json: bool, svg: Path | None,
    catalogue: Catalogue,
) -> int:  # fmt: skip
    """Predict the steps of several files and show them side by side. Flags with the names of keys
    replace those of all files."""
    flags = table_of(asked, catalogue)
    questions = {str(each): make_question(over_file(each, flags), catalogue) for each in files}
    found = {name: answer(question, catalogue) for name, question in questions.items()}
    drawn = [] if svg is None else [compare_timeline(questions, svg)]
    if as_json:
        print(json.dumps({"schema": SCHEMA, "answers": found}, indent=1))
    else:
        print("\n".join([side_by_side(found), *drawn]))
    return 0


@run.command("validate", cls=form.Command, examples=("luwu predict validate",))
@form.JSON
@CATALOGUE
def validate(as_json: bool, catalogue: Catalogue) -> int:
    """Compare predictions with published results."""
    document = checked.document(catalogue)
    print(json.dumps(document, indent=1) if as_json else checked.text(document))
    return 0


for each in (run_sweep, timeline, list_catalogue, init):
    run.add_command(each)
