"""The answer for requests that were played: how long they waited, and how many at once.

Percentiles are of all requests of all copies, by nearest rank. Where more come than can be answered
the queue grows as long as they come: waits then hang on how many were played, and the document
says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from luwu.predict.ask.question_arrivals import Arrivals
from luwu.predict.events.serving import Served, percentile

_SHARES: Final = {"median": 0.5, "p95": 0.95, "p99": 0.99}
_TIMES: Final = {
    "first token": "first_token_s", "between tokens": "token_s", "whole answer": "answer_s",
}  # fmt: skip


def arrivals_document(
    arrivals: Arrivals, played: Sequence[Served], bound_per_second: float
) -> dict[str, Any]:
    """Document of a played system; `bound_per_second`: requests by the closed form."""
    answers = [each for copy in played for each in copy.answers]
    end_s = max(copy.end_s for copy in played)
    tokens = sum(each.request.output_tokens for each in answers)
    rounds = [each for copy in played for each in copy.rounds]
    decoding_s = sum(each.decodes * (each.end_s - each.start_s) for each in rounds)
    return {
        "per_second": arrivals.per_second,
        "requests": arrivals.requests,
        "seed": arrivals.seed,
        "bound_per_second": bound_per_second,
        "is_overloaded": arrivals.per_second >= bound_per_second,
        "first_token_s": _percentiles([each.first_token_s for each in answers]),
        "token_s": _percentiles([each for copy in played for each in copy.between_s]),
        "answer_s": _percentiles([each.end_s - each.request.arrive_s for each in answers]),
        "tokens_per_s": tokens / end_s,
        "sequences": decoding_s / len(played) / end_s,
        "memory_bytes_peak": max(copy.peak_bytes for copy in played),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """None: there are none, as answers of one token have no time between tokens."""
    ordered = sorted(values)
    return (
        {name: percentile(ordered, share) for name, share in _SHARES.items()} if ordered else None
    )


def arrivals_text(document: dict[str, Any]) -> list[str]:
    """For people."""
    lines = [
        f"{document['per_second']:g} requests per second, of at most "
        f"{document['bound_per_second']:,.2f} ({document['requests']:,} simulated, "
        f"seed {document['seed']}):",
        f"  {'':<18}" + "".join(f"{name:>14}" for name in _SHARES),
    ]
    for name, key in _TIMES.items():
        found = document[key]
        if found is not None:
            lines.append(
                f"  {name:<18}" + "".join(f"{1e3 * found[share]:>11,.2f} ms" for share in _SHARES)
            )
    return [
        *lines,
        f"  {document['tokens_per_s']:,.0f} tokens per second, to the end of the last answer; "
        f"{document['sequences']:,.1f} concurrent sequences per copy, on average",
    ]
