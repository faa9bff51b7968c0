"""`luwu plan`: the best configuration of a job on machines that are not here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from luwu.commands import form
from luwu.commands.predict import CATALOGUE, FILE, Command, asked_table
from luwu.predict.ask.configurations import SEARCHED
from luwu.predict.ask.keys import TRAINING, value_of
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.plan import plan, plan_document, plan_text


@click.command(
    "plan",
    cls=Command,
    is_asked=lambda key: key.name not in SEARCHED and any(s in TRAINING for s in key.systems),
    examples=(
        "luwu plan --model llama3-70b --devices 64xh100-80 --network roce-100g \\\n"
        "      --tokens 1T --cost.device-rental 3USD/h --cost.node-rental 2USD/h",
        "luwu plan llama.toml --catalogue ours.toml --json",
    ),
)
@FILE
@click.option(
    "--systems", type=form.Value("NAME,NAME"), help="those to compare, such as luwu,fsdp,3d"
)
@form.JSON
@CATALOGUE
def run(
    asked: Mapping[str, str], file: Path | None, systems: str | None, as_json: bool,
    catalogue: Catalogue,
) -> int:  # fmt: skip
    """Search the best configurations of a job on hardware you do not have: systems, degrees
    of parallelism, micro-batches and recomputation. Show those that no other beats in speed, free
    memory and cost; with --tokens, the days and dollars of a whole training.
    The question is in FILE, or in flags, as of luwu predict step. docs/predict.md describes it."""
    table = asked_table(asked, file, catalogue)
    if file is None:
        table["node"] = {  # which is there, so that luwu takes part
            key: [*map(value_of, value.split(","))] if "," in str(value) else value
            for key, value in table.get("node", {}).items()
        }
    table |= {} if systems is None else {"systems": systems.lower().replace(" ", "").split(",")}
    found = plan(table, catalogue)
    return form.show(plan_document(found), plan_text(found), as_json=as_json)
