"""`luwu predict`: the step time of training jobs on hardware that is not here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from luwu.base.errors import ConfigError
from luwu.base.parsers import path
from luwu.commands import form
from luwu.predict.ask.answer import answer, text
from luwu.predict.ask.keys import SYSTEMS, QuestionKey, assumed_text, keys, table_of, with_assumed
from luwu.predict.ask.question import Question, make_question, read_table
from luwu.predict.ask.sweep import STEP, Axis, parse_axis, sweep, sweep_document, sweep_text
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue, listing, load

CATALOGUE: Final = click.option(
    "--catalogue",
    type=form.Value("FILE", lambda text, name: load(path(text, name))),
    default=load,
    help="TOML file with your own hardware and models",
)
FILE: Final = click.argument("file", required=False, type=form.Value("FILE", path))


class Command(form.Command):
    """A command whose keys are those of a question, each once; it is given their texts."""

    def __init__(
        self, name: str, *, params: list[click.Parameter], is_asked: Callable[[QuestionKey], bool] =
        lambda key: True, **settings: Any,
    ) -> None:  # fmt: skip
        """As that of other commands; `is_asked`: of a key that is a flag."""
        asked = dict[str, click.Parameter]()
        for key in filter(is_asked, keys()):
            flag = form.KeyFlag(key.place, key.shape, key.text, key.title, is_flag=not key.shape)
            asked.setdefault(key.place, flag)
        super().__init__(name, params=[*params, *asked.values()], **settings)

    def take(self, ctx: click.Context, texts: Mapping[str, str]) -> None:
        """Pass the texts on as `asked`."""
        ctx.params["asked"] = texts


def asked_table(
    asked: Mapping[str, str], file: Path | None, catalogue: Catalogue
) -> dict[str, Any]:  # fmt: skip
    """The table of a file, of flags, or of both. Raises ConfigError."""
    flags = table_of(asked, catalogue)
    if file is None and not flags:
        ctx = click.get_current_context()
        raise ConfigError(
            f"{ctx.command_path} takes a file, or a question in flags; {form.usage(ctx)}"
        )
    table = {} if file is None else read_table(file)
    for key, value in flags.items():
        own: Any = table.get(key)
        both = isinstance(own, dict) and isinstance(value, dict)
        table[key] = {**own, **value} if both else value
    return table


def _completed(
    asked: Mapping[str, str], file: Path | None, catalogue: Catalogue
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table; without a file with keys that are left out, and these alone."""
    table = asked_table(asked, file, catalogue)
    return with_assumed(table) if file is None else (table, {})


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
    table, assumed = _completed(asked, file, catalogue)
    question = make_question(table, catalogue)
    document = answer(question) | {"assumed": assumed}
    if with_cores:
        on = question.as_on_topology() if isinstance(question, Question) else None
        if on is None or on.nodes is None:
            raise ConfigError(
                f"cores: are LuWu's, and the system is {question.system!r}; leave it out"
            )
        document["cores_step_s"] = play_driven_steps(on.job, on.nodes)
    form.show(document, text(document), as_json=as_json)
    return 0 if document.get("fits", True) else 1


@run.command(
    "sweep",
    cls=Command,
    examples=("luwu predict sweep llama.toml --over node.disks=2,4,8 --over devices=8,16",),
)
@FILE
@click.option(
    "--over",
    type=form.Value("KEY=V,V", lambda text, _: parse_axis(text)),
    multiple=True,
    help="a key and its values; repeatable",
)
@click.option(
    "--of",
    type=form.Value("METRIC"),
    default=STEP,
    help="number of the answer to show (default: step_s)",
)
@form.JSON
@CATALOGUE
def run_sweep(
    asked: Mapping[str, str], file: Path | None, over: Sequence[Axis], of: str,
    as_json: bool, catalogue: Catalogue,
) -> int:  # fmt: skip
    """Predict a step for each value of one or more keys of a question, as a table. The question
    is in FILE, or in flags, as of luwu predict step."""
    table, assumed = _completed(asked, file, catalogue)
    found = sweep(table, over, catalogue, of)
    document = sweep_document(over, found, of) | {"assumed": assumed}
    shown = "\n".join([*assumed_text(assumed), sweep_text(over, found, of)])
    return form.show(document, shown, as_json=as_json)


@run.command("catalogue", cls=form.Command, examples=("luwu predict catalogue device",))
@click.argument("kind", required=False)
@CATALOGUE
def list_catalogue(kind: str | None, catalogue: Catalogue) -> int:
    """List the systems, models, software, devices, networks and other hardware that a question can
    name, with their main numbers and sources; with KIND one kind alone."""
    print(listing(catalogue, SYSTEMS, kind))
    return 0
