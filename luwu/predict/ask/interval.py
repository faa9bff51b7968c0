"""How far off an answer may be: the interval where 80 % of what was predicted unseen would lie.

`data/errors.toml` has the factor of each kind of answer, and of what makes it wider: a device that
no row has in its precision, software that none has, experts, and above alone a first token in a
queue. The interval goes from the answer over the factor to the answer times it.
"""

from __future__ import annotations

from typing import Any, Final

from luwu.predict.ask.question import AnyQuestion, InferenceQuestion
from luwu.predict.hardware.software import data
from luwu.predict.inference.inference_sockets import SocketJob

INTERVAL_SHARE: Final = 0.8
_SEEN: Final = ("3d", "zero3")
"""Systems of training that others have measured; LuWu and what offloads have one testbed."""


def error_bar(question: AnyQuestion) -> dict[str, Any]:
    """As a document: the factor of time, that of first tokens, and what is outside of all rows."""
    serving = isinstance(question, InferenceQuestion)
    kind, factors = "serving" if serving else "training", data("errors.toml")["factor"]
    wider = _wider(question, data("errors.toml")[kind])
    found = {
        "share": INTERVAL_SHARE, "kind": kind,
        "wider": list(wider), "outside": list(wider.values()),
        "factor": max(factors[name] for name in (kind, *wider)),
    }  # fmt: skip
    if isinstance(question, InferenceQuestion) and not isinstance(question.job, SocketJob):
        waits = question.job.batching == "continuous" and question.arrivals is None
        first = factors["queueing"] if waits else 1.0
        found["first_token_factor"] = max(found["factor"], first)
    return found


def _wider(question: AnyQuestion, known: dict[str, Any]) -> dict[str, str]:
    """Each thing of the question that no row has, with a text that says so."""
    job: Any = question.job
    found = dict[str, str]()
    on = f"{(job.processor if isinstance(job, SocketJob) else job.device).name} {job.precision}"
    if on not in known["devices"]:
        found["device"] = f"{on}: rows have {', '.join(known['devices'])}"
    if question.system in _SEEN and job.software.name not in known["software"]:
        found["framework"] = f"{job.software.name}: rows have {', '.join(known['software'])}"
    elif not isinstance(question, InferenceQuestion) and question.system not in _SEEN:
        found["framework"] = f"{question.system}: rows are of one testbed of eight devices"
    if job.model.experts > 1:
        found["experts"] = "experts: no row has any"
    return found


def error_bar_text(
    found: dict[str, Any], of: str, seconds: float, first_token_s: float | None = None
) -> list[str]:
    """The interval for people, of an answer of so many seconds and of its first token."""
    factor = found["factor"]
    lines = [f"{INTERVAL_SHARE:.0%} interval      {_span_text(seconds, factor, factor)} a {of}"]
    if first_token_s is not None and "first_token_factor" in found:
        span = _span_text(first_token_s, factor, found["first_token_factor"])
        queue = ": with [arrivals] a queue is known" if found["first_token_factor"] > factor else ""
        lines.append(f"                  {span} to a first token{queue}")
    return [*lines, *(f"never compared    {each}" for each in found["outside"])]


def _span_text(seconds: float, below: float, above: float) -> str:
    scale, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms")
    return f"{seconds / below * scale:,.4g} to {seconds * above * scale:,.4g} {unit}"


def never_compared_text(found: dict[str, Any]) -> list[str]:
    """The first line of an answer that is outside of everything; none of another."""
    said = f"NOTHING LIKE THIS WAS COMPARED: by {', '.join(found['wider'])} no row is near"
    return [said, ""] if len(found["wider"]) > 1 else []
