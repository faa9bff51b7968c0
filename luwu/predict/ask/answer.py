"""The answer to a question: the time, its parts, the bottleneck, and what the answer depends on.

`answer` makes a document (one JSON schema for all systems, with what a system does not have left
out), `text` the same for people, `side_by_side` a table of several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.identifiers import words
from luwu.base.quantities import format_bytes
from luwu.predict.ask import question_cost
from luwu.predict.ask.answer_inference import inference_answer, inference_text, socket_answer
from luwu.predict.ask.answer_parts import SCHEMA, nics, nics_text
from luwu.predict.ask.answer_training import asked, memory_bytes, training_answer, training_text
from luwu.predict.ask.error_bar import error_bar, error_bar_text
from luwu.predict.ask.fitting import fits, nearest_fit
from luwu.predict.ask.one_line import assumed_text
from luwu.predict.ask.question import AnyQuestion, InferenceQuestion, Question, SocketQuestion
from luwu.predict.ask.whole_training import whole_training, whole_training_text
from luwu.predict.networks import on_topology

__all__ = ["SCHEMA", "answer", "asked", "memory_bytes", "side_by_side", "text"]


def answer(question: AnyQuestion) -> dict[str, Any]:
    """Everything that is predicted of a question, as a document."""
    if isinstance(question, InferenceQuestion):
        document = inference_answer(question)
    elif isinstance(question, SocketQuestion):
        document = socket_answer(question)
    else:
        document = training_answer(question)
        document["fits"] = fits(question)
        nearest = None if document["fits"] else nearest_fit(question)
        document["nearest_fit"] = None if nearest is None else nearest.text
    built = question.build()
    if question.topology is not None and built is not None:
        kind = question.topology.kind
        document["topology"] = on_topology.document(built, kind, question.exchanges())
    if question.costs is not None:
        rate = document["tokens_per_s"]
        if rate is None:
            raise ConfigError(f"[cost]: tokens_per_s: {document['unknown']['tokens_per_s']}")
        spent = question_cost.expense(question.costs, question.place, built)
        document["cost"] = question_cost.document(spent, rate, document.get("step_s"))
    document["error"] = error_bar(question)
    document["nics"] = nics(question)
    if isinstance(question, Question) and question.tokens is not None:
        document["whole_training"] = whole_training(question, document)
    return document


def text(document: dict[str, Any]) -> str:
    """The document for people."""
    is_training = "step_s" in document
    said = training_text(document) if is_training else inference_text(document)
    lines = [said, *([] if is_training else error_bar_text(document["error"]))]
    lines += [] if is_training else [nics_text(document["nics"])]
    lines = [*assumed_text(document.get("assumed", {})), *lines]
    if "whole_training" in document:
        lines += ["", *whole_training_text(document["whole_training"])]
    if "topology" in document:
        lines += ["", *on_topology.document_text(document["topology"])]
    if "cost" in document:
        lines += ["", *question_cost.document_text(document["cost"])]
    return "\n".join(lines)


_TABLE: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "system": lambda a: a["system"],
    "model": lambda a: a["asked"]["model"],
    "devices": lambda a: f"{a['asked']['devices']} x {a['asked']['device']}",
    "tokens per step": lambda a: f"{a['tokens']:,}",
    "step": lambda a: f"{a['step_s']:.3f} s",
    "batch": lambda a: f"{a['batch']:.0f}",
    "first token": lambda a: f"{1e3 * a['first_token_s']:,.2f} ms",
    "between tokens": lambda a: f"{1e3 * a['token_s']:,.2f} ms",
    "first token, p95": lambda a: f"{1e3 * a['arrivals']['first_token_s']['p95']:,.2f} ms",
    "whole answer, p95": lambda a: f"{1e3 * a['arrivals']['answer_s']['p95']:,.2f} ms",
    "tokens/s per device": lambda a: f"{a['tokens_per_s_per_device']:,.0f}",
    "MFU, HFU": lambda a: f"{a['mfu']:.1%}, {a['hfu']:.1%}",
    "exposed": lambda a: f"{a['exposed_ratio']:.1%}",
    "bottleneck": lambda a: words(a["binding"]),
    "memory": lambda a: format_bytes(sum(a["memory_bytes"].values())),
    "network": lambda a: f"{a['topology']['kind']}, {a['topology']['switches']} switches",
    "to buy": lambda a: f"{a['cost']['capex']:,.0f} USD",
    "power": lambda a: f"{a['cost']['watts'] / 1e3:,.1f} kW",
    "per million tokens": lambda a: f"{a['cost']['dollars_per_million_tokens']:,.3g} USD",
    "tokens per dollar": lambda a: f"{a['cost']['tokens_per_dollar']:,.0f}",
    "fits": lambda a: "yes" if a["fits"] else "NO",
    "warnings": lambda a: str(len(a["warnings"]) or "none"),
}
_NEEDS: Final = {
    "tokens per step": ("tokens",), "step": ("step_s",), "batch": ("batch",),
    "first token": ("first_token_s",), "between tokens": ("token_s",),
    "first token, p95": ("arrivals",), "whole answer, p95": ("arrivals",), "MFU, HFU": ("mfu",),
    "exposed": ("exposed_ratio",), "tokens/s per device": ("tokens_per_s_per_device",),
    "network": ("topology",), "to buy": ("cost", "capex"), "power": ("cost", "watts"),
    "per million tokens": ("cost",), "tokens per dollar": ("cost",), "fits": ("fits",),
}  # fmt: skip
"""Keys that a row needs in a document."""
_NOT_THERE: Final = object()


def side_by_side(documents: dict[str, dict[str, Any]]) -> str:
    """Several answers as a table, a column each; the first is what the others are compared with.
    Rows that nobody has are left out, and training is not compared with inference."""
    columns = list(documents.values())
    rows = {
        name: [_cell(name, each) for each in columns]
        for name in _TABLE
        if any(_found(each, _NEEDS.get(name, ())) is not _NOT_THERE for each in columns)
    }
    rows["relative to the first"] = [_against(columns[0], each) for each in columns]
    rows = {"": list(documents), **rows}
    widths = [max(map(len, column)) for column in zip(*rows.values(), strict=True)]
    return "\n".join(
        f"{name:<22}" + "  ".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
        for name, cells in rows.items()
    )


def _cell(name: str, document: dict[str, Any]) -> str:
    found = _found(document, _NEEDS.get(name, ()))
    if found is _NOT_THERE:
        return "-"
    return "not known" if found is None else _TABLE[name](document)


def _found(document: dict[str, Any], place: tuple[str, ...]) -> Any:
    found: Any = document
    for key in place:
        found = found.get(key, _NOT_THERE)
        if found is _NOT_THERE:
            break
    return found


def _against(first: dict[str, Any], other: dict[str, Any]) -> str:
    rates = [each["tokens_per_s_per_device"] for each in (first, other)]
    if None in rates or ("step_s" in first) != ("step_s" in other):
        return "-"
    return f"{rates[1] / rates[0]:.2f}"
