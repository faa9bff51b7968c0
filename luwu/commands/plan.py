"""`luwu plan`: the best configuration of a job on machines that are not here.

luwu plan FILE.toml [--json] [--catalogue FILE]      its form: luwu/predict/plan/planner.py
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from luwu.base.parsers import path
from luwu.commands import form
from luwu.commands.predict import CATALOGUE
from luwu.predict.ask.question import read_table
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.plan.planner import plan, plan_document, plan_text


@click.command(
    "plan",
    cls=form.Command,
    examples=("luwu plan llama.toml", "luwu plan llama.toml --catalogue ours.toml --json"),
)
@click.argument("file", type=form.Value("FILE.toml", path))
@form.JSON
@CATALOGUE
def run(file: Path, as_json: bool, catalogue: Catalogue) -> int:
    """Search the best configurations of a job on hardware you do not have: systems, networks,
    degrees of parallelism, micro-batches and recomputation. Show those that no other beats in
    speed, free memory, cost and power. docs/predict.md describes FILE."""
    found = plan(read_table(file), catalogue)
    print(json.dumps(plan_document(found), indent=1) if as_json else plan_text(found))
    return 0
