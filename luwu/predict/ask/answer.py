"""The answer to a question: the time, its parts, the bottleneck, and what the answer depends on.

`answer` makes a document (one JSON schema for all systems, with what a system does not have left
out), `text` the same for people.
"""

from __future__ import annotations

from typing import Any

from luwu.base.errors import ConfigError
from luwu.predict.ask.answer_inference import inference_answer, inference_text, socket_answer
from luwu.predict.ask.answer_parts import SCHEMA, nics, nics_text
from luwu.predict.ask.answer_training import asked, memory_bytes, training_answer, training_text
from luwu.predict.ask.cost import cost_document, cost_text, expense
from luwu.predict.ask.error_bar import error_bar, error_bar_text
from luwu.predict.ask.fitting import fits, nearest_fit
from luwu.predict.ask.keys import assumed_text
from luwu.predict.ask.question import AnyQuestion, InferenceQuestion, Question, SocketQuestion
from luwu.predict.ask.whole_training import whole_training, whole_training_text
from luwu.predict.networks import on_topology

__all__ = ["SCHEMA", "answer", "asked", "memory_bytes", "text"]


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
        spent = expense(question.costs, question.place, built)
        document["cost"] = cost_document(spent, rate, document.get("step_s"))
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
        lines += ["", *cost_text(document["cost"])]
    return "\n".join(lines)
