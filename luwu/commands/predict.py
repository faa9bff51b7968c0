"""`luwu predict`: how long a step takes on machines that are not here.

luwu predict step FILE.toml [--json]       a question; luwu/predict/question.py says its form
luwu predict compare FILE FILE ... [--json]    several, side by side
luwu predict timeline FILE --out FILE      a step as a timeline; predict_timeline.py
luwu predict validate [--json]             published results, predicted
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.commands.predict_timeline import timeline
from luwu.predict import validate
from luwu.predict.answer import answer, side_by_side, text
from luwu.predict.catalogue import Catalogue, load
from luwu.predict.question import read_question

VERB: Final = Verb(
    name="predict",
    usage=(
        "luwu predict step FILE | compare FILE... | timeline FILE --out FILE | validate "
        "[--json] [--catalogue FILE]"
    ),
    text=(
        "Predict a step of training on machines that are not here: its time, what binds, memory,\n"
        "and which numbers the answer hangs on; or compare predictions with published results."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
        Flag(name="out", shape="FILE", text="of timeline: a Chrome trace, as luwu trace writes it"),
        Flag(name="run_dir", shape="DIR", text="of timeline: keep the events for luwu trace DIR"),
    ),
    has_keys=False,
    rest="many",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    does: dict[str, Callable[[Sequence[str], Catalogue, bool], str]] = {
        "step": _step,
        "compare": _compare,
        "timeline": lambda rest, catalogue, _: timeline(parsed, rest, catalogue),
        "validate": _validate,
    }
    verb, *rest = parsed.rest or ("",)
    if verb not in does:
        raise ConfigError(
            f"{verb!r} is not one of {', '.join(does)}{suggestion(verb, does)}; usage: {VERB.usage}"
        )
    for flag in ("out", "run_dir"):
        if flag in parsed.flags and verb != "timeline":
            raise ConfigError(f"--{flag.replace('_', '-')} belongs to luwu predict timeline")
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    print(does[verb](rest, catalogue, parsed.has("json")))
    return 0


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
