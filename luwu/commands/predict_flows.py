"""`luwu predict flows FILE [--channels N]`: exchanges of a step, flow by flow through `[topology]`.

Closed forms spread what is sent evenly over all links that could take it. Switches send a flow over
one of them, chosen by a hash; here both are played, one exchange of the step at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.parsers import whole
from luwu.commands.flags import CATALOGUE_FLAG, JSON_FLAG, Flag, Parsed, Verb
from luwu.predict.ask.question import Question, read_question
from luwu.predict.events.exchanges import PlayedExchange, play_exchanges
from luwu.predict.hardware.catalogue import Catalogue

FLOWS: Final = Verb(
    name="predict flows",
    usage="luwu predict flows FILE [--channels N] [--json] [--catalogue FILE]",
    text="Simulate the exchanges of a step flow by flow through [topology], where switches choose "
    "links by a hash, and compare with the closed form, which uses all links evenly.",
    examples=("luwu predict flows llama.toml --channels 4",),
    flags=(
        Flag(
            name="channels",
            shape="N",
            text="connections between two ranks, each hashed (default: 1)",
        ),
        JSON_FLAG,
        CATALOGUE_FLAG,
    ),
    has_keys=False,
    rest="many",
)


def flows(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """Play the exchanges of a file's question. Raises ConfigError."""
    if len(rest) != 1:
        raise ConfigError(f"luwu predict flows takes a file; usage: {FLOWS.usage}")
    question = read_question(Path(rest[0]), catalogue)
    if not isinstance(question, Question):
        raise ConfigError(
            f"system: {question.system!r} has closed forms alone; flows are training's"
        )
    built = question.build()
    if built is None:
        raise ConfigError("topology: without one no link is known; give [topology]")
    channels = whole(1)(parsed.flags.get("channels", "1"), "--channels")
    played = play_exchanges(built, question.exchanges(), question.job.devices, channels)
    if parsed.has("json"):
        found = {name: asdict(each) for name, each in played.items()}
        return json.dumps({"schema": 1, "channels": channels, "exchanges": found}, indent=1)
    return "\n".join(_line(name, each) for name, each in played.items())


def _line(name: str, each: PlayedExchange) -> str:
    return (
        f"{name:<10} {each.flows} flows: {each.closed_s:.3g} s by the closed form, "
        f"{each.spread_s:.3g} s spread over all links, {each.hashed_s:.3g} s hashed "
        f"({each.hashed_s / each.spread_s:.2f}x), most of them over {each.busiest}"
    )
