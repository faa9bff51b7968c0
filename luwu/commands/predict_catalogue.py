"""`luwu predict catalogue`: the names that a question can use."""

from __future__ import annotations

import json

import click

from luwu.commands import form
from luwu.commands.predict_question import CATALOGUE
from luwu.predict.ask.question_keys import SYSTEMS
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.listing import listing, listing_text


@click.command(
    "catalogue",
    cls=form.Command,
    examples=("luwu predict catalogue device", "luwu predict catalogue model --json"),
)
@click.argument("kind", required=False)
@form.JSON
@CATALOGUE
def catalogue(kind: str | None, as_json: bool, catalogue: Catalogue) -> int:
    """List the systems, models, software, devices, networks and other hardware that a question can
    name, with their main numbers and sources; with KIND one kind alone."""
    document = listing(catalogue, SYSTEMS, kind)
    print(json.dumps(document, indent=1) if as_json else listing_text(document))
    return 0
