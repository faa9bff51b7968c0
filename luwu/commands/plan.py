"""`luwu plan`: the best configuration of a job on machines that are not here.

luwu plan FILE.toml [--json] [--catalogue FILE]      luwu/predict/planner.py says the file's form
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.predict.catalogue import load
from luwu.predict.plan_text import plan_document, plan_text
from luwu.predict.planner import plan
from luwu.predict.question import read_table

VERB: Final = Verb(
    name="plan",
    usage="luwu plan FILE.toml [--json] [--catalogue FILE]",
    text=(
        "Search the degrees, micro-batches and recomputations of a job on machines that are not\n"
        "here, of systems and networks to choose from, and show those that no other beats in\n"
        "speed, memory left, costs and power; and how many tokens hide what is exchanged."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    if not parsed.rest:
        raise ConfigError(f"which file? usage: {VERB.usage}")
    own = parsed.flags.get("catalogue")
    table = read_table(Path(parsed.rest[0]))
    found = plan(table, load(*([Path(own)] if own else [])))
    if parsed.has("json"):
        print(json.dumps(plan_document(found), indent=1))
    else:
        print(plan_text(found))
    return 0
