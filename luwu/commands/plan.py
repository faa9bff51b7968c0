"""`luwu plan`: the best configuration of a job on machines that are not here.

luwu plan FILE.toml [--json] [--catalogue FILE]      luwu/predict/planner.py says the file's form
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.predict.answer import asked
from luwu.predict.catalogue import load
from luwu.predict.planner import Found, plan, text
from luwu.predict.question import read_table

VERB: Final = Verb(
    name="plan",
    usage="luwu plan FILE.toml [--json] [--catalogue FILE]",
    text=(
        "Search the degrees, micro-batches and recomputations of a job on machines that are not\n"
        "here, and show those that no other beats in speed and in memory left."
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
        document = {
            "schema": 1, "tried": found.tried, "too_large": found.too_large,
            "best": [_document(each) for each in found.best],
        }  # fmt: skip
        print(json.dumps(document, indent=1))
    else:
        print(text(found))
    return 0


def _document(found: Found) -> dict[str, Any]:
    return {
        "system": found.question.system, "step_s": found.step.seconds,
        "tokens_per_s": found.tokens_per_s, "left_bytes": found.left_bytes,
        "binding": found.step.binding, "asked": asked(found.question),
    }  # fmt: skip
