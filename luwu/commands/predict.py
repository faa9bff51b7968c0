"""`luwu predict`: how long a step takes on machines that are not here.

luwu predict step FILE.toml [--json] [--svg FILE]    a question; its form is in
                                               luwu/predict/question.py
luwu predict compare FILE FILE ... [--json]    several, side by side
luwu predict sweep FILE --over KEY=v1,v2,...   one, over values of its keys: predict_sweep.py
luwu predict validate [--json]             published results, predicted
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.commands.predict_pictures import step_timeline
from luwu.commands.predict_sweep import run_sweep
from luwu.predict import validate
from luwu.predict.answer import answer, side_by_side, text
from luwu.predict.catalogue import Catalogue, load
from luwu.predict.question import read_question

VERB: Final = Verb(
    name="predict",
    usage=(
        "luwu predict step FILE | compare FILE... | sweep FILE --over KEY=V,V... | validate "
        "[--json] [--catalogue FILE]"
    ),
    text=(
        "Predict a step of training on machines that are not here: its time, what binds, memory,\n"
        "and which numbers the answer hangs on; or compare predictions with published results."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
        Flag(name="over", shape="KEY=V,V", text="of sweep: values of a key", repeats=True),
        Flag(name="of", shape="METRIC", text="of sweep: a number of the answer; step_s"),
        Flag(name="svg", shape="FILE", text="of step and sweep: write a picture there"),
    ),
    has_keys=False,
    rest="many",
)
_FLAGS_OF: Final = {"over": ("sweep",), "of": ("sweep",), "svg": ("step", "sweep")}
"""Flags that not every word after the verb takes."""


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    does: dict[str, Callable[[Sequence[str], Catalogue, bool], str]] = {
        "step": partial(_step, parsed),
        "compare": _compare,
        "sweep": partial(run_sweep, parsed),
        "validate": _validate,
    }
    verb, *rest = parsed.rest or ("",)
    if verb not in does:
        raise ConfigError(
            f"{verb!r} is not one of {', '.join(does)}{suggestion(verb, does)}; usage: {VERB.usage}"
        )
    for flag, words in _FLAGS_OF.items():
        if flag in parsed.flags and verb not in words:
            raise ConfigError(f"--{flag} belongs to luwu predict {' and '.join(words)}")
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    print(does[verb](rest, catalogue, parsed.has("json")))
    return 0


def _step(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue, as_json: bool) -> str:
    if len(rest) != 1:
        raise ConfigError(f"luwu predict step takes a file; usage: {VERB.usage}")
    question = read_question(Path(rest[0]), catalogue)
    document = answer(question, catalogue)
    said = [json.dumps(document, indent=1) if as_json else text(document)]
    if "svg" in parsed.flags:
        timeline = step_timeline(question, Path(parsed.flags["svg"]))
        said += [] if as_json else [timeline]
    return "\n".join(said)


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
