"""`[arrivals]` of a question of inference: requests that come one by one, and are played.

    [arrivals]
    per_second = 8.0     requests that come to all copies, on the mean; independent of each other
    requests = 500       how many are played
    seed = 0             the same seed, the same arrivals

Copies take requests in turn. All have the tokens in and out that the question says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.predict.events.serving import Served, requests_at_random, serve
from luwu.predict.hardware.keys import check_keys, whole_of
from luwu.predict.inference.inference_job import InferenceJob

_PLACE: Final = "arrivals."
_KEYS: Final = ("per_second", "requests", "seed")
REQUESTS: Final = 500
"""Played unless told; 150,000 rounds of a copy take some 8 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Requests that come to all copies of a model."""

    per_second: float
    requests: int = REQUESTS
    seed: int = 0

    def play(self, job: InferenceJob, replicas: int) -> list[Served]:
        """Play the requests of each copy. Raises ConfigError."""
        if self.requests < replicas:
            raise ConfigError(
                f"{_PLACE}requests: {self.requests} for {replicas} copies; {replicas} or more fit"
            )
        requests = requests_at_random(
            self.requests, self.per_second, self.seed, job.input_tokens, job.output_tokens
        )
        return [serve(job, requests[copy::replicas]) for copy in range(replicas)]


def make_arrivals(table: Mapping[str, Any], job: InferenceJob) -> Arrivals:
    """Arrivals of a table. Raises ConfigError, which names the key."""
    check_keys(_PLACE, table, _KEYS, ("per_second",))
    if job.batching != "continuous":
        raise ConfigError(
            f"[arrivals] with batching {job.batching!r}, of which all begin as one: only "
            'batching = "continuous" takes requests as they come'
        )
    rate, seed = table["per_second"], table.get("seed", 0)
    if type(rate) not in (int, float) or not 0 < rate < math.inf:
        raise ConfigError(f"{_PLACE}per_second: {rate!r}; a number above 0 fits")
    if type(seed) is not int:
        raise ConfigError(f"{_PLACE}seed: {seed!r} is not a whole number")
    requests = whole_of(_PLACE, table, "requests") if "requests" in table else REQUESTS
    return Arrivals(per_second=float(rate), requests=requests, seed=seed)
