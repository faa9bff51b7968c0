"""`luwu predict`: how long a step takes on machines that are not here.

luwu predict step FILE.toml [--json] [--svg FILE]    a question; its form is in
                                               luwu/predict/ask/question.py
luwu predict compare FILE FILE ... [--json]    several, side by side
luwu predict sweep FILE --over KEY=v1,v2,...   one, over values of its keys: predict_sweep.py
luwu predict timeline FILE --out FILE          a step as a timeline: predict_timeline.py
luwu predict flows FILE [--channels N]         its exchanges, link by link: predict_flows.py
luwu predict validate [--json]                 published results, predicted
luwu predict validate --machine [--json]       runs on this machine, predicted and measured
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb
from luwu.commands.predict_flows import flows
from luwu.commands.predict_pictures import step_timeline
from luwu.commands.predict_sweep import run_sweep
from luwu.commands.predict_timeline import timeline
from luwu.predict.ask.answer import answer, side_by_side, text
from luwu.predict.ask.question import read_question
from luwu.predict.check import validate
from luwu.predict.hardware.catalogue import Catalogue, load

VERB: Final = Verb(
    name="predict",
    usage=(
        "luwu predict step FILE | compare FILE... | sweep FILE --over KEY=V,V... | timeline FILE "
        "--out FILE | flows FILE | validate [--json] [--catalogue FILE]"
    ),
    text=(
        "Predict a step of training on machines that are not here: its time, what binds, memory,\n"
        "and which numbers the answer hangs on; or compare predictions with published results."
    ),
    flags=(
        Flag(name="json", text="print JSON"),
        Flag(name="machine", text="of validate: predict runs on this machine, and run them"),
        Flag(name="catalogue", shape="FILE", text="TOML with your own hardware and models"),
        Flag(name="over", shape="KEY=V,V", text="of sweep: values of a key", repeats=True),
        Flag(name="of", shape="METRIC", text="of sweep: a number of the answer; step_s"),
        Flag(name="svg", shape="FILE", text="of step and sweep: write a picture there"),
        Flag(name="out", shape="FILE", text="of timeline: a Chrome trace"),
        Flag(name="channels", shape="N", text="of flows: between two ranks, each hashed; 1"),
        Flag(name="run_dir", shape="DIR", text="of timeline: keep the events for luwu trace DIR"),
    ),
    has_keys=False,
    rest="many",
)
_FLAGS_OF: Final = {
    "over": ("sweep",), "of": ("sweep",), "svg": ("step", "sweep"),
    "out": ("timeline",), "run_dir": ("timeline",), "machine": ("validate",),
    "channels": ("flows",),
}  # fmt: skip
"""Flags that not every word after the verb takes."""


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    verb, *rest = parsed.rest or ("",)
    if verb not in _DOES:
        raise ConfigError(
            f"{verb!r} is not one of {', '.join(_DOES)}{suggestion(verb, _DOES)}; usage: "
            f"{VERB.usage}"
        )
    for flag, words in _FLAGS_OF.items():
        if flag in parsed.flags and verb not in words:
            raise ConfigError(
                f"--{flag.replace('_', '-')} belongs to luwu predict {' and '.join(words)}"
            )
    if parsed.has("machine"):
        return _machine(rest, parsed)
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    print(_DOES[verb](parsed, rest, catalogue))
    return 0


def _machine(rest: Sequence[str], parsed: Parsed) -> int:
    from luwu.commands.predict_machine import run_validate_machine  # it imports torch

    if "catalogue" in parsed.flags:
        raise ConfigError("--catalogue: a machine that is here is measured; leave it out")
    return run_validate_machine(rest, as_json=parsed.has("json"))


def _step(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    if len(rest) != 1:
        raise ConfigError(f"luwu predict step takes a file; usage: {VERB.usage}")
    question = read_question(Path(rest[0]), catalogue)
    document = answer(question, catalogue)
    as_json = parsed.has("json")
    said = [json.dumps(document, indent=1) if as_json else text(document)]
    if "svg" in parsed.flags:
        timeline = step_timeline(question, Path(parsed.flags["svg"]))
        said += [] if as_json else [timeline]
    return "\n".join(said)


def _compare(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    if not rest:
        raise ConfigError(f"luwu predict compare takes files; usage: {VERB.usage}")
    found = {name: answer(read_question(Path(name), catalogue), catalogue) for name in rest}
    if parsed.has("json"):
        return json.dumps({"schema": 1, "answers": found}, indent=1)
    return side_by_side(found)


def _validate(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    if rest:
        raise ConfigError(f"luwu predict validate takes no {rest[0]!r}; usage: {VERB.usage}")
    document = validate.document(catalogue)
    return json.dumps(document, indent=1) if parsed.has("json") else validate.text(document)


_DOES: Final[dict[str, Callable[[Parsed, Sequence[str], Catalogue], str]]] = {
    "step": _step, "compare": _compare, "sweep": run_sweep, "timeline": timeline,
    "flows": flows, "validate": _validate,
}  # fmt: skip
