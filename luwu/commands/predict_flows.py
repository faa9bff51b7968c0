"""`luwu predict flows FILE [--channels N]`: exchanges of a step, flow by flow through `[topology]`.

Closed forms spread what is sent evenly over all links that could take it. Switches send a flow over
one of them, chosen by a hash; here both are played, one exchange of the step at a time.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from luwu.base.errors import ConfigError
from luwu.base.parsers import path, whole
from luwu.commands import form
from luwu.commands.predict_question import CATALOGUE
from luwu.predict.ask.question import Question, read_question
from luwu.predict.events.exchanges import PlayedExchange, play_exchanges
from luwu.predict.hardware.catalogue import Catalogue


@click.command("flows", cls=form.Command, examples=("luwu predict flows llama.toml --channels 4",))
@click.argument("file", type=form.Value("FILE", path))
@click.option(
    "--channels",
    type=form.Value("N", whole(1)),
    default=1,
    help="connections between two ranks, each hashed (default: 1)",
)
@form.JSON
@CATALOGUE
def flows(file: Path, channels: int, as_json: bool, catalogue: Catalogue) -> int:
    """Simulate the exchanges of a step flow by flow through [topology], where switches choose links
    by a hash, and compare with the closed form, which uses all links evenly."""
    question = read_question(file, catalogue)
    if not isinstance(question, Question):
        raise ConfigError(
            f"system: {question.system!r} has closed forms alone; flows are training's"
        )
    built = question.build()
    if built is None:
        raise ConfigError("topology: without one no link is known; give [topology]")
    played = play_exchanges(built, question.exchanges(), question.job.devices, channels)
    if as_json:
        found = {name: asdict(each) for name, each in played.items()}
        print(json.dumps({"schema": 1, "channels": channels, "exchanges": found}, indent=1))
    else:
        print("\n".join(_line(name, each) for name, each in played.items()))
    return 0


def _line(name: str, each: PlayedExchange) -> str:
    return (
        f"{name:<10} {each.flows} flows: {each.closed_s:.3g} s by the closed form, "
        f"{each.spread_s:.3g} s spread over all links, {each.hashed_s:.3g} s hashed "
        f"({each.hashed_s / each.spread_s:.2f}x), most of them over {each.busiest}"
    )
