"""Which configuration is best: all degrees, micro-batches and recomputations, of the systems asked.

    model = "GPT-175B"              as in a question (`question.py`), without what is searched
    device = "H100-80"
    network = "ib-ndr"
    devices = 512
    sequence = 2048
    batch = 1024
    systems = ["3d", "zero3"]       default: those that are told enough of
    software = "nemo-2024"          or {3d = "nemo-2024", zero3 = "torchtitan-2024"}

`[node]` and `[host]` are those of a question. A configuration whose memory does not fit a device is
left out and counted. What remains is scored by closed forms; the *Pareto set* are those that no
other beats in both tokens a second and memory left on a device. The order of search is fixed, and
of two equal ones the first counts, so two searches are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.predict.answer import memory_bytes
from luwu.predict.catalogue import Catalogue
from luwu.predict.job import StepTime
from luwu.predict.question import SECTIONS, TRAINING, Question
from luwu.predict.question_training import make_training_question

SEARCHED: Final = (
    "tensor", "pipeline", "virtual", "context", "micro_batch", "recompute", "sequence_parallel",
    "system",
)  # fmt: skip
_MICRO_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A configuration that runs."""

    question: Question
    step: StepTime
    left_bytes: float
    """Of a device's memory."""

    @property
    def tokens_per_s(self) -> float:
        """Of all devices."""
        return self.question.job.tokens / self.step.seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """What was searched, and what came of it."""

    best: tuple[Found, ...]
    """The Pareto set, fastest first."""
    tried: int
    too_large: int
    """Configurations whose memory does not fit."""


def plan(table: Mapping[str, Any], catalogue: Catalogue) -> Plan:
    """Search. Raises ConfigError: for a table that means nothing, or where nothing fits."""
    for key in table:
        if key in SEARCHED:
            raise ConfigError(f"{key}: is what a plan searches; leave it out")
    tried, found, least_bytes = 0, [], float("inf")
    for one in _tables(table, catalogue):
        tried += 1
        question = make_training_question(one, catalogue)
        has, needs = question.job.device.memory_bytes, sum(memory_bytes(question).values())
        least_bytes = min(least_bytes, needs)
        if needs <= has:
            step = question.answer()
            found.append(Found(question=question, step=step, left_bytes=has - needs))
    if not tried:
        raise ConfigError(
            "batch: no degrees share it evenly among the devices; a multiple of them fits"
        )
    if not found:
        raise ConfigError(
            f"devices: none of {tried} configurations fits their memory; the least needs "
            f"{least_bytes / 1e9:.0f} GB each, of {has / 1e9:.0f}; take more devices"
        )
    return Plan(tuple(_pareto(found)), tried, tried - len(found))


def _pareto(found: list[Found]) -> Iterator[Found]:
    """Those that nothing beats in both, fastest first."""
    most_left = -1.0
    for each in sorted(found, key=lambda one: (-one.tokens_per_s, -one.left_bytes)):
        if each.left_bytes > most_left:
            most_left = each.left_bytes
            yield each


def _tables(table: Mapping[str, Any], catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Every configuration as a question's table, those alone that share devices and batch."""
    for needed in ("model", "device", "network", "software", "devices", "sequence", "batch"):
        if needed not in table:
            raise ConfigError(f"{needed} is missing")
    layers = catalogue.model(table["model"]).layers
    domain = int(catalogue.device(table["device"]).domain_count)
    for system in _systems(table):
        section = SECTIONS.get(system)
        base = {
            key: value for key, value in table.items()
            if key not in ("systems", "software", "node", "host")
        }  # fmt: skip
        base |= {"system": system, "software": _software(table, system)}
        if section is not None:
            base[section] = table[section]
        for degrees in _degrees(system, int(table["devices"]), layers, domain):
            inner = degrees["tensor"] * degrees["pipeline"]
            data = table["devices"] // inner
            for micro_batch in _MICRO_BATCHES:
                rounds, rest = divmod(table["batch"], data * micro_batch)
                if rest or (degrees["virtual"] > 1 and rounds % degrees["pipeline"]):
                    continue
                for recompute in ("none", "selective", "full"):
                    own = {"micro_batch": micro_batch, "recompute": recompute}
                    if degrees["tensor"] > 1:
                        own["sequence_parallel"] = True
                    yield {**base, **degrees, **own}


def _degrees(system: str, devices: int, layers: int, domain: int) -> Iterator[dict[str, int]]:
    """Tensor ranks within a domain, stages and parts that divide the layers."""
    if system != "3d":
        yield {"tensor": 1, "pipeline": 1, "virtual": 1}
        return
    for tensor in (each for each in (1, 2, 4, 8, 16, 32) if each <= domain):
        for pipeline in range(1, layers + 1):
            if layers % pipeline or devices % (tensor * pipeline):
                continue
            for virtual in range(1, layers // pipeline + 1):
                if (layers // pipeline) % virtual == 0 and (virtual == 1 or pipeline > 1):
                    yield {"tensor": tensor, "pipeline": pipeline, "virtual": virtual}


def _systems(table: Mapping[str, Any]) -> list[str]:
    asked = table.get("systems")
    if asked is None:
        return [name for name in TRAINING if SECTIONS.get(name) is None or SECTIONS[name] in table]
    for name in asked:
        if name not in TRAINING:
            raise ConfigError(
                f"systems: {name!r} is none of {', '.join(TRAINING)}"
                f"{suggestion(str(name), TRAINING)}"
            )
        if SECTIONS.get(name) not in (None, *table):
            raise ConfigError(f"[{SECTIONS[name]}] is missing: {name} needs to know its hosts")
    return list(asked)


def _software(table: Mapping[str, Any], system: str) -> Any:
    chosen = table["software"]
    if not isinstance(chosen, dict):
        return chosen
    if system not in chosen:
        raise ConfigError(f"software.{system} is missing")
    return chosen[system]


def text(found: Plan, shown: int = 12) -> str:
    """For people: the Pareto set as a table."""
    lines = [
        f"{found.tried} configurations, {found.too_large} of them too large for a device; "
        f"{len(found.best)} that no other beats:",
        f"{'tokens/s':>12} {'step':>10} {'left':>8}  {'system':<13}  degrees, micro-batch, again",
    ]
    for each in found.best[:shown]:
        job, left = each.question.job, f"{each.left_bytes / 2**30:4.1f} GiB"
        degrees = f"t{job.tensor} p{job.pipeline} v{job.virtual} d{job.data}"
        lines.append(
            f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {left}  "
            f"{each.question.system:<13}  {degrees}, {job.micro_batch}, {job.recompute}; "
            f"binds: {each.step.binding}"
        )
    return "\n".join(lines)
