"""`luwu predict`: how long a step takes on machines that are not here.

luwu predict step FILE.toml [--json]       a question; luwu/predict/question.py says its form
luwu predict compare FILE FILE ... [--json]    several, side by side
luwu predict validate [--json]             published results, predicted
luwu predict validate --machine [--json]   runs on this machine, predicted and measured
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.predict import validate
from luwu.predict.answer import answer, side_by_side, text
from luwu.predict.catalogue import Catalogue, load
from luwu.predict.question import read_question

VERB: Final = Verb(
    name="predict",
    usage="luwu predict step FILE | compare FILE... | validate [--machine] [--json] "
    "[--catalogue FILE]",
    text=(
        "Predict a step of training on machines that are not here: its time, what binds, memory,\n"
        "and which numbers the answer hangs on; or compare predictions with published results."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="machine", text="of validate: predict runs on this machine, and run them"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
    ),
    has_keys=False,
    rest="many",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    does = {"step": _step, "compare": _compare, "validate": _validate}
    verb, *rest = parsed.rest or ("",)
    if verb not in does:
        raise ConfigError(
            f"{verb!r} is not one of {', '.join(does)}{suggestion(verb, does)}; usage: {VERB.usage}"
        )
    if parsed.has("machine"):
        return _machine(verb, rest, parsed)
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    print(does[verb](rest, catalogue, parsed.has("json")))
    return 0


def _machine(verb: str, rest: Sequence[str], parsed: Parsed) -> int:
    from luwu.commands.predict_machine import run_validate_machine

    if verb != "validate" or "catalogue" in parsed.flags:
        raise ConfigError(f"--machine is of luwu predict validate alone; usage: {VERB.usage}")
    return run_validate_machine(rest, as_json=parsed.has("json"))


def _step(rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if len(rest) != 1:
        raise ConfigError(f"luwu predict step takes a file; usage: {VERB.usage}")
    document = answer(read_question(Path(rest[0]), catalogue), catalogue)
    return json.dumps(document, indent=1) if as_json else text(document)


def _compare(rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if not rest:
        raise ConfigError(f"luwu predict compare takes files; usage: {VERB.usage}")
    found = {name: answer(read_question(Path(name), catalogue), catalogue) for name in rest}
    return json.dumps({"schema": 1, "answers": found}, indent=1) if as_json else side_by_side(found)


def _validate(rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if rest:
        raise ConfigError(f"luwu predict validate takes no {rest[0]!r}; usage: {VERB.usage}")
    document = validate.document(catalogue)
    return json.dumps(document, indent=1) if as_json else validate.text(document)
