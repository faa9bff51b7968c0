"""`luwu predict`: the step time of training jobs on hardware that is not here.

step        one question, of a file or of flags: predict_question.py
sweep       one question over values of its keys: predict_sweep.py
catalogue   what has a name
init        a question file to begin with
validate    published results beside predictions
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import click

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands import form
from luwu.commands.predict_question import CATALOGUE, FILE, Command, asked_table
from luwu.commands.predict_sweep import run_sweep
from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.keys import SYSTEMS
from luwu.predict.ask.question import AnyQuestion, Question, make_question
from luwu.predict.check import validate as checked
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.listing import listing, listing_text

run = form.Commands(
    "predict",
    text="Predict the step time of a training job on hardware you do not have, and its bottleneck.",
    examples=("luwu predict step llama.toml", "luwu predict step --help"),
)


@run.command(
    "step",
    cls=Command,
    examples=(
        "luwu predict step --system luwu --model llama3-70b --devices 64xh100-80 \\\n"
        "      --network roce-100g",
        "luwu predict step llama.toml --batch 256",
    ),
)
@FILE
@form.JSON
@click.option(
    "--cores", "with_cores", is_flag=True, help="of luwu: its own cores decide steps, too"
)
@CATALOGUE
def step(
    asked: Mapping[str, str], file: Path | None, as_json: bool, with_cores: bool,
    catalogue: Catalogue,
) -> int:  # fmt: skip
    """Predict the step time of a job, its bottleneck and its memory. The exit code is 1 if the job
    does not fit its devices. The question is in FILE, or in flags with the names of its keys; flags
    replace keys of FILE. Without FILE, keys that are left out are assumed, and the answer lists
    them. docs/predict.md describes the keys, luwu predict catalogue lists names."""
    table, assumed = asked_table(asked, file, catalogue)
    question = make_question(table, catalogue)
    document = answer(question) | {"assumed": assumed}
    if with_cores:
        document["cores_step_s"] = _cores_step_s(question)
    print(json.dumps(document, indent=1) if as_json else text(document))
    return 0 if document.get("fits", True) else 1


def _cores_step_s(question: AnyQuestion) -> float:
    """Seconds of a step as LuWu's cores decide it. Raises ConfigError for another system."""
    on = question.as_on_topology() if isinstance(question, Question) else None
    if on is None or on.nodes is None:
        raise ConfigError(f"cores: are LuWu's, and the system is {question.system!r}; leave it out")
    return play_driven_steps(on.job, on.nodes).step_s


@run.command("validate", cls=form.Command, examples=("luwu predict validate",))
@form.JSON
@CATALOGUE
def validate(as_json: bool, catalogue: Catalogue) -> int:
    """Compare predictions with published results."""
    document = checked.document(catalogue)
    print(json.dumps(document, indent=1) if as_json else checked.text(document))
    return 0


@run.command(
    "catalogue",
    cls=form.Command,
    examples=("luwu predict catalogue device", "luwu predict catalogue model --json"),
)
@click.argument("kind", required=False)
@form.JSON
@CATALOGUE
def list_catalogue(kind: str | None, as_json: bool, catalogue: Catalogue) -> int:
    """List the systems, models, software, devices, networks and other hardware that a question can
    name, with their main numbers and sources; with KIND one kind alone."""
    document = listing(catalogue, SYSTEMS, kind)
    print(json.dumps(document, indent=1) if as_json else listing_text(document))
    return 0


def presets() -> dict[str, str]:
    """The texts of the files by name; the first line of each says what it asks."""
    folder = resources.files("luwu.predict") / "data" / "presets"
    return {
        each.name.removesuffix(".toml"): each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
    }


@run.command(
    "init",
    cls=form.Command,
    examples=("luwu predict init", "luwu predict init luwu-64xh100"),
)
@click.argument("name", required=False)
def init(name: str | None) -> int:
    """Write the question file NAME.toml, with a comment for each key, to be changed into your own;
    an existing file is left as it is. Without NAME, list the names."""
    known = presets()
    if name is None:
        width = max(map(len, known))
        for each, text in known.items():
            print(f"{each:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
        return 0
    if name not in known:
        raise ConfigError(
            f"no preset is called {name!r}{suggestion(name, known)}; they are {', '.join(known)}"
        )
    path = Path(f"{name}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(known[name])
    except FileExistsError:
        raise ConfigError(f"{path} exists; move it away, or work on it") from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    command = "plan" if "\nsystems = " in known[name] else "predict step"
    print(f"wrote {path}; luwu {command} {path} answers it")
    return 0


run.add_command(run_sweep)
