"""`luwu predict`: the step time of training jobs on hardware that is not here.

step        one question, of a file or of flags: predict_question.py
compare     several questions, side by side
sweep       one question over values of its keys: predict_sweep.py
timeline    a step as a timeline: predict_timeline.py
flows       its exchanges, link by link: predict_flows.py
catalogue   what has a name: predict_catalogue.py
init        a question file to begin with: predict_init.py
validate    published results beside predictions
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.commands.flags import CATALOGUE_FLAG, JSON_FLAG, Flag, Parsed, Verb
from luwu.commands.predict_catalogue import CATALOGUE, run_catalogue
from luwu.commands.predict_flows import FLOWS, flows
from luwu.commands.predict_init import INIT, run_init
from luwu.commands.predict_pictures import compare_timeline, step_timeline
from luwu.commands.predict_question import QUESTION_FLAGS, asked_table, over_file
from luwu.commands.predict_sweep import SWEEP, run_sweep
from luwu.commands.predict_timeline import TIMELINE, timeline
from luwu.predict.ask.answer import SCHEMA, answer, side_by_side, text
from luwu.predict.ask.one_line import table_of
from luwu.predict.ask.question import make_question
from luwu.predict.check import validate
from luwu.predict.hardware.catalogue import Catalogue, load

STEP: Final = Verb(
    name="predict step",
    usage="luwu predict step [FILE] [--KEY VALUE ...] [--json] [--svg FILE] [--catalogue FILE]",
    text="Predict the step time of a job, its bottleneck and its memory, and show which hardware "
    "numbers matter most. The exit code is 1 if the job does not fit its devices. The question is "
    "in FILE, or in flags with the names of its keys; flags replace keys of FILE. Without FILE, "
    "keys that are left out are assumed, and the answer lists them. docs/predict.md describes the "
    "keys, luwu predict catalogue lists names.",
    examples=(
        "luwu predict step --system luwu --model llama3-70b --devices 64xh100-80 \\\n"
        "      --network roce-100g",
        "luwu predict step llama.toml --batch 256 --svg step.svg",
    ),
    flags=(
        JSON_FLAG,
        Flag(name="svg", shape="FILE", text="write a picture of the step"),
        CATALOGUE_FLAG,
        *QUESTION_FLAGS,
    ),
    has_keys=False,
    rest="many",
)
COMPARE: Final = Verb(
    name="predict compare",
    usage="luwu predict compare FILE... [--KEY VALUE ...] [--json] [--svg FILE] [--catalogue FILE]",
    text="Predict the steps of several files and show them side by side. Flags with the names of "
    "keys replace those of all files.",
    examples=("luwu predict compare luwu.toml zero3.toml 3d.toml --svg steps.svg",),
    flags=(
        JSON_FLAG,
        Flag(name="svg", shape="FILE", text="write a picture of a step of each"),
        CATALOGUE_FLAG,
        *QUESTION_FLAGS,
    ),
    has_keys=False,
    rest="many",
)
VALIDATE: Final = Verb(
    name="predict validate",
    usage="luwu predict validate [--json] [--catalogue FILE]",
    text="Compare predictions with published results.",
    examples=("luwu predict validate",),
    flags=(JSON_FLAG, CATALOGUE_FLAG),
    has_keys=False,
    rest="many",
)
VERB: Final = Verb(
    name="predict",
    usage="luwu predict COMMAND ...",
    text="Predict the step time of a training job on hardware you do not have: the time, the "
    "bottleneck, and which hardware numbers matter most.",
    examples=("luwu predict step llama.toml", "luwu predict step --help"),
    commands={
        "step": STEP, "compare": COMPARE, "sweep": SWEEP, "timeline": TIMELINE, "flows": FLOWS,
        "catalogue": CATALOGUE, "init": INIT, "validate": VALIDATE,
    },
    has_keys=False,
)  # fmt: skip


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    own = parsed.flags.get("catalogue")
    catalogue = load(*([Path(own)] if own else []))
    said = _DOES[parsed.verb.name](parsed, parsed.rest, catalogue)
    text, code = said if isinstance(said, tuple) else (said, 0)
    print(text)
    return code


def _step(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> tuple[str, int]:
    """The answer, and 1 if the job does not fit its devices."""
    table, assumed = asked_table(parsed, catalogue)
    question = make_question(table, catalogue)
    document = answer(question, catalogue) | {"assumed": assumed}
    as_json = parsed.has("json")
    said = [json.dumps(document, indent=1) if as_json else text(document)]
    if "svg" in parsed.flags:
        timeline = step_timeline(question, Path(parsed.flags["svg"]))
        said += [] if as_json else [timeline]
    return "\n".join(said), 0 if document.get("fits", True) else 1


def _compare(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    if not rest:
        raise ConfigError(f"luwu predict compare takes files; usage: {COMPARE.usage}")
    flags = table_of(parsed.flags, catalogue)
    questions = {name: make_question(over_file(Path(name), flags), catalogue) for name in rest}
    found = {name: answer(question, catalogue) for name, question in questions.items()}
    drawn = []
    if "svg" in parsed.flags:
        drawn = [compare_timeline(questions, Path(parsed.flags["svg"]))]
    if parsed.has("json"):
        return json.dumps({"schema": SCHEMA, "answers": found}, indent=1)
    return "\n".join([side_by_side(found), *drawn])


def _validate(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    if rest:
        raise ConfigError(f"luwu predict validate takes no {rest[0]!r}; usage: {VALIDATE.usage}")
    document = validate.document(catalogue)
    return json.dumps(document, indent=1) if parsed.has("json") else validate.text(document)


_DOES: Final[dict[str, Callable[[Parsed, Sequence[str], Catalogue], str | tuple[str, int]]]] = {
    STEP.name: _step, COMPARE.name: _compare, SWEEP.name: run_sweep, TIMELINE.name: timeline,
    FLOWS.name: flows, CATALOGUE.name: run_catalogue, INIT.name: run_init,
    VALIDATE.name: _validate,
}  # fmt: skip
