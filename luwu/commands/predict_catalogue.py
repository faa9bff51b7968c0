"""`luwu predict catalogue`: the names that a question can use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from luwu.commands.flags import CATALOGUE_FLAG, JSON_FLAG, Parsed, Verb
from luwu.predict.ask.question_keys import SYSTEMS
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.listing import listing, listing_text

CATALOGUE: Final = Verb(
    name="predict catalogue",
    usage="luwu predict catalogue [KIND] [--json] [--catalogue FILE]",
    text="List the systems, models, software, devices, networks and other hardware that a question "
    "can name, with their main numbers and sources; with KIND one kind alone.",
    examples=("luwu predict catalogue device", "luwu predict catalogue model --json"),
    flags=(JSON_FLAG, CATALOGUE_FLAG),
    has_keys=False,
    rest="one",
)


def run_catalogue(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """The output of the command. Raises ConfigError."""
    document = listing(catalogue, SYSTEMS, rest[0] if rest else None)
    return json.dumps(document, indent=1) if parsed.has("json") else listing_text(document)
