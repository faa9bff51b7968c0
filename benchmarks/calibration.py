"""How far off is the performance model? Published results beside predictions of the same.

    python -m benchmarks.calibration [--json]

Each row of `calibration.toml` is a question, and the quantity that was published of it; for a
ratio, `over` is the question of the denominator. The same code answers it that answers a user. All
rows calibrate the model; `python -m benchmarks.blind` shows how good it was at what it had not
seen.
"""

from __future__ import annotations

import json
import math
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any, Final, TypeAlias

from luwu.predict.ask.keys import SECTIONS
from luwu.predict.ask.question import AnyQuestion, Question, make_question
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.hardware.hardware import Host
from luwu.predict.inference.arrivals import arrivals_document
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.model.job import StepTime, TrainingJob, utilisation
from luwu.predict.model.memory import stage_memory

FILE: Final = Path(__file__).with_suffix(".toml")
_Groups: TypeAlias = dict[Any, list[dict[str, Any]]]
_OF_GROUP: Final = ("family", "source", "series")
_OF_SERIES: Final = ("quantity", "over", "keys", "rows")
_NAMED: Final = (
    "system", "model", "precision", "recompute", "devices", "tensor", "pipeline", "sockets",
    "batch", "input_tokens", "output_tokens", "parameters",
)  # fmt: skip
"""Keys that set a row apart from others."""


# ---------------------------------------------------------------------- quantities of a question


def _published_operations(job: TrainingJob) -> float:
    """Operations of a step on each device, as SC'21 counts them, which includes recomputation."""
    forward = job.model.step_operations(job.tokens, job.sequence) / 3
    again = 1.0 if job.recompute == "full" else 0.0
    head = job.model.head_operations(job.tokens)
    return ((3 + again) * forward - again * head) / job.devices


def _teraflops(job: TrainingJob, step: StepTime, seen: float) -> float:
    """The rate of a device with a share `seen` of the scores; none is recomputed."""
    operations = job.model.step_operations(job.tokens, job.sequence, seen)
    return operations / job.devices / step.seconds / 1e12


def _forward_s(step: StepTime) -> float:
    """Seconds of forward, where every layer is recomputed, as only the output layer is not."""
    return step.parts["recomputation"] + step.parts["output layer"] / 3


_TRAINING: Final[dict[str, Callable[[TrainingJob, StepTime], float]]] = {
    "step s": lambda job, step: step.seconds,
    "mfu share": lambda job, step: utilisation(job, step.seconds)["mfu"],
    "hfu share": lambda job, step: utilisation(job, step.seconds)["hfu"],
    "states GiB": lambda job, step: stage_memory(job)[0] / 2**30,
    "activations GiB": lambda job, step: stage_memory(job)[1] / 2**30,
    "forward s": lambda job, step: _forward_s(step),
    "backward s":
        lambda job, step: step.seconds - step.parts["optimizer stage"] - _forward_s(step),
    "optimizer s": lambda job, step: step.parts["optimizer stage"],
    "sequence/s": lambda job, step: job.batch / step.seconds,
    "token/s": lambda job, step: job.tokens / step.seconds,
    "token/s/device": lambda job, step: job.tokens / step.seconds / job.devices,
    "TFLOP/s/device with recomputation":
        lambda job, step: _published_operations(job) / step.seconds / 1e12,
    "TFLOP/s/device, scores in full": lambda job, step: _teraflops(job, step, 1.0),
    "TFLOP/s/device, half of the scores": lambda job, step: _teraflops(job, step, 0.5),
}  # fmt: skip
_INFERENCE: Final[dict[str, Callable[[Any, Any], float]]] = {  # the rows' peaks are known
    "output token/s": lambda job, found: found.tokens_per_s,
    "token/s of prompts and answers":
        lambda job, found: found.tokens_per_s * job.tokens / job.output_tokens,
    "first token ms": lambda job, found: 1e3 * found.first_token.seconds,
    "first token s": lambda job, found: found.first_token.seconds,
    "between tokens ms": lambda job, found: 1e3 * found.decode.seconds,
    "generated token/s": lambda job, found: found.batch / found.decode.seconds,
    "whole answer ms": lambda job, found: 1e3 * job.output_tokens / found.tokens_per_s,
}  # fmt: skip
_USD: Final = "USD/endpoint of the network"
_PRICES: Final = {"QM9700": 36_000.0, "400G": 1_320.0}
"""USD of a switch, and of a link with both ends. Source: public cost sheet of an H100 cluster,
August 2024."""
NETWORK: Final = ("switches", "links between switches", _USD)
"""Quantities that follow from the built network, and from what its parts cost, alone."""
_UNDER_LOAD: Final = {
    "first token under load ms": "first_token_s", "between tokens under load ms": "token_s",
}  # fmt: skip
"""Means of requests that are played."""


def is_rate(quantity: str) -> bool:
    """True of what is less the longer something takes."""
    return "/s" in quantity or quantity.endswith("share")


def signed_error(published: float, value: float, *, rate: bool) -> float:
    """Of predicted over published time, less one: above zero, the model is too slow."""
    return (published / value if rate else value / published) - 1


def predicted(configuration: dict[str, Any], catalogue: Catalogue) -> float:
    """The number that a row's configuration asks for. Raises ConfigError."""
    quantity = configuration["quantity"]
    value = _value(quantity, configuration["question"], catalogue)
    over = configuration.get("over")
    return value if over is None else value / _value(quantity, over, catalogue)


def question_of(table: dict[str, Any], catalogue: Catalogue) -> AnyQuestion:
    """With the section of its system alone."""
    others = {*SECTIONS.values()} - {SECTIONS.get(table["system"])}
    return make_question({k: v for k, v in table.items() if k not in others}, catalogue)


def _value(quantity: str, table: dict[str, Any], catalogue: Catalogue) -> float:
    if quantity in NETWORK:
        return _network_value(quantity, table, catalogue)
    if quantity == "Adam s":  # of a host's processors, whatever its memory
        host = Host(processor=catalogue.find("processor", table["processor"]), memory_bytes=0.0)
        return host.adam(table["parameters"])
    question = question_of(table, catalogue)
    if isinstance(question, Question):
        return _TRAINING[quantity](question.job, question.answer())
    if quantity not in _UNDER_LOAD:
        return _INFERENCE[quantity](question.job, question.answer())
    job, arrivals = question.job, question.arrivals
    assert isinstance(job, InferenceJob)
    assert arrivals is not None
    played = arrivals_document(arrivals, job, arrivals.play(job), math.inf)
    return 1e3 * float(played[_UNDER_LOAD[quantity]]["mean"])


def _network_value(quantity: str, table: dict[str, Any], catalogue: Catalogue) -> float:
    """A count or price of the network that [topology] builds, with the parts that [cost] names."""
    built = make_question({k: v for k, v in table.items() if k != "cost"}, catalogue).build()
    assert built is not None
    parts = built.inventory
    if quantity != _USD:
        return parts.switches if quantity == "switches" else parts.links - built.endpoints
    switch, link = (_PRICES[table["cost"][kind]] for kind in ("switch", "link"))
    return (parts.switches * switch + parts.links * link) / built.endpoints


# ---------------------------------------------------------------------- all rows


@cache
def published() -> dict[str, Any]:
    """The groups of published results."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def rows(catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """All rows, with what is predicted of each. Raises ConfigError."""
    for group, table in published().items():
        shared = {key: value for key, value in table.items() if key not in _OF_GROUP}
        for series in table["series"]:
            keys = {**shared, **series}
            for *values, found in series["rows"]:
                question = {key: value for key, value in keys.items() if key not in _OF_SERIES}
                question |= zip(series.get("keys", ()), values, strict=True)
                row: dict[str, Any] = {"quantity": keys["quantity"], "question": question}
                if "over" in series:
                    row["over"] = {**question, **series["over"]}
                value = predicted(row, catalogue)
                yield {
                    "family": table["family"], "group": group, "name": _name(question), **row,
                    "published": found, "predicted": value, "source": table["source"],
                    "error": signed_error(found, value, rate=is_rate(keys["quantity"])),
                }  # fmt: skip


def _name(question: dict[str, Any]) -> str:
    """The row for people."""
    on = question.get("device", question.get("processor"))
    said = [f"{key} {question[key]}" if type(question[key]) in (int, float) else question[key]
            for key in _NAMED if key in question]  # fmt: skip
    load = question.get("arrivals", {}).get("concurrent")
    return " ".join([*map(str, said), f"on {on}", *([f"users {load}"] if load else [])])


def document(catalogue: Catalogue) -> dict[str, Any]:
    """All rows by family, and a summary of each."""
    families = _grouped(rows(catalogue), lambda row: row.pop("family"))
    summary = {name: _summary(own) for name, own in families.items()}
    return {**families, "summary": summary}


def _grouped(rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> _Groups:
    """Rows by a key, in the order in which they come."""
    found: _Groups = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups = _grouped(rows, itemgetter("group"))
    return {
        **_errors(rows),
        "groups": [{"group": name, **_errors(own)} for name, own in groups.items()],
    }  # fmt: skip


def _errors(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of rows, their mean error and the largest."""
    errors = [abs(row["error"]) for row in rows]
    return {"rows": len(errors), "mean": mean(errors), "max": max(errors)}


def text(found: dict[str, Any]) -> str:
    """The document for people."""
    lines: list[str] = []
    for family in found["summary"]:
        lines += [
            f"{row['group']:<28} {row['name']:<80} {row['published']:>9,.4g} "
            f"{row['predicted']:>9,.4g} {row['quantity']:<20} {row['error']:+7.1%}"
            for row in found[family]
        ]
        lines.append("")
    for name, each in found["summary"].items():
        lines.append(f"{name}: {each['rows']} rows, {_within(each)}")
        for one in each["groups"]:
            lines.append(f"  {one['group']:<28} {one['rows']:>3} rows, {_within(one)}")
    return "\n".join(lines)


def _within(each: dict[str, Any]) -> str:
    return f"{each['mean']:.1%} in the mean, {each['max']:.1%} at most"


def main(arguments: list[str]) -> int:
    """Print all rows; the exit code."""
    found = document(load())
    print(json.dumps(found, indent=1) if "--json" in arguments else text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
