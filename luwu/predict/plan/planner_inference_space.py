"""Configurations that a plan of inference searches, each as a question's table, with batches.

Tensor ranks are powers of two that share a model's heads: of devices within a domain, of sockets as
many as there are. Stages (of devices alone) are no more than layers, and copies of the model take
the rest of the devices: tensor x pipeline x replicas are all of them. Batches are powers of two
below the largest that memory holds (F3), and that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Final, TypeAlias

from luwu.base.errors import ConfigError
from luwu.predict.ask.question_cost import Costs
from luwu.predict.ask.question_inference import InferenceQuestion, make_inference_question
from luwu.predict.ask.question_keys import INFERENCE, keys_of
from luwu.predict.ask.question_sockets import SocketQuestion, make_socket_question
from luwu.predict.hardware import units
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.keys import text_of, whole_of
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.units import Dimension
from luwu.predict.inference.inference_job import (
    check_tensor,
    fixed_bytes,
    sequence_bytes,
    weight_bytes,
)
from luwu.predict.inference.inference_sockets import socket_cache_bytes, socket_weight_bytes
from luwu.predict.plan.planner_budget import KEYS
from luwu.predict.plan.planner_space import asked_systems

AnyQuestion: TypeAlias = InferenceQuestion | SocketQuestion
LIMITS: Final = ("first_token_s", "token_s")
"""Each is a goal, and with `_max` a key of a plan."""
_SEARCHED: Final = ("tensor", "pipeline", "replicas", "batch", "sockets", "system")
_CHOICES: Final = {
    "inference": ("precision", "kv_precision", "batching"),
    "inference-sockets": ("precision", "kv_precision"),
}
_OWN: Final = {
    name: [key for key in keys_of(name) if any(key not in keys_of(each) for each in INFERENCE)]
    for name in INFERENCE
}
"""Keys that are not those of the other system."""
_OF_PLANS: Final = ("systems", "topology", "cost", *KEYS, *(f"{each}_max" for each in LIMITS))
_ROOMY_BYTES: Final = 1e30
"""More than anything needs."""
_HOST_SOCKETS: Final = 2
"""Sockets of a host by default; as in a question."""


def is_of_inference(table: Mapping[str, Any]) -> bool:
    """True if a plan's table asks for inference, by its systems or by its tokens."""
    asked = table.get("systems")
    if isinstance(asked, list):
        return any(each in tuple(INFERENCE) for each in asked)
    return asked is None and "input_tokens" in table


def systems_of(table: Mapping[str, Any]) -> list[str]:
    """Those asked; by default those that have a device or a processor. Raises ConfigError."""
    asked = asked_systems(table, INFERENCE, "; a plan is for inference or for training")
    if asked is None:
        return [name for name, keys in _OWN.items() if keys[0] in table] or ["inference"]
    return asked


def limits_of(table: Mapping[str, Any]) -> dict[str, float]:
    """Seconds that are the most. Raises ConfigError."""
    return {
        name: units.parse(f"{name}_max", table[f"{name}_max"], Dimension.SECONDS)
        for name in LIMITS
        if f"{name}_max" in table
    }


def configurations(table: Mapping[str, Any], catalogue: Catalogue) -> Iterator[dict[str, Any]]:
    """Every one of a number of devices, without network and costs. Raises ConfigError."""
    for key in ("batch_per_device", *_SEARCHED):
        if key in table:
            raise ConfigError(f"{key}: is what a plan searches; leave it out")
    systems = systems_of(table)
    for needed in ("model", "network", "input_tokens", "output_tokens"):
        if needed not in table:
            raise ConfigError(f"{needed} is missing")
    model = catalogue.model(text_of("", table, "model"))
    for system in systems:
        if _OWN[system][0] not in table:
            raise ConfigError(f"{_OWN[system][0]} is missing: {system} runs on one")
        others = [key for name in systems if name != system for key in _OWN[name]]
        skipped = {*_OF_PLANS, *_CHOICES[system], *others}
        base = {key: value for key, value in table.items() if key not in skipped}
        base |= {"system": system}
        chosen = list(_chosen(table, system))
        for degrees in _degrees(table, system, model, catalogue):
            for own in chosen:
                yield {**base, **degrees, **own}


def _chosen(table: Mapping[str, Any], system: str) -> Iterator[dict[str, Any]]:
    """Precisions and batchings, each with each."""
    keys = [key for key in _CHOICES[system] if key in table]
    for values in product(*(_several(table, key, system) for key in keys)):
        yield dict(zip(keys, values, strict=True))


def _several(table: Mapping[str, Any], key: str, system: str) -> list[Any]:
    """To choose from."""
    found = table[key]
    if isinstance(found, dict):
        if system not in found:
            raise ConfigError(f"{key}.{system} is missing")
        found = found[system]
    several = found if isinstance(found, list) else [found]
    if not several:
        raise ConfigError(f"{key}: an empty list; one or more to choose from fit")
    return several


def _degrees(
    table: Mapping[str, Any], system: str, model: Transformer, catalogue: Catalogue
) -> Iterator[dict[str, int]]:
    devices = table["devices"]
    is_sockets = system == "inference-sockets"
    key = "host_sockets"
    host = whole_of("", table, key) if key in table else _HOST_SOCKETS
    domain = (
        devices if is_sockets else int(catalogue.device(text_of("", table, "device")).domain_count)
    )
    tensor = 1
    while tensor <= min(domain, devices):
        if devices % tensor == 0 and _shares(tensor, model):
            if is_sockets:
                if tensor <= host or tensor % host == 0:
                    yield {"sockets": tensor, "replicas": devices // tensor}
            else:
                for pipeline in range(1, min(model.layers, devices // tensor) + 1):
                    if devices // tensor % pipeline == 0:
                        copies = devices // tensor // pipeline
                        yield {"tensor": tensor, "pipeline": pipeline, "replicas": copies}
        tensor *= 2


def questions_by_batch(
    table: Mapping[str, Any], catalogue: Catalogue, costs: Costs | None
) -> list[AnyQuestion]:
    """Questions of a configuration, by batch to try: powers of two below the largest, and the
    largest. None if memory does not hold one sequence. Raises ConfigError for keys that no plan can
    have.
    """
    if table["system"] == "inference":
        return list(_on_devices(table, catalogue, costs))
    return list(_on_sockets(table, catalogue, costs))


def _on_devices(
    table: Mapping[str, Any], catalogue: Catalogue, costs: Costs | None
) -> Iterator[InferenceQuestion]:
    device = catalogue.device(text_of("", table, "device"))
    roomy = replace(device, memory_bytes=_ROOMY_BYTES)
    devices = {**catalogue.entries["device"], device.name: roomy}
    endless = replace(catalogue, entries={**catalogue.entries, "device": devices})
    question = make_inference_question(table, endless, costs=costs)
    own = question.job  # on a device whose memory refuses nothing
    left = device.memory_bytes - weight_bytes(own) - fixed_bytes(own)
    for batch in _batches(int(left // sequence_bytes(own))):
        yield replace(question, job=replace(own, device=device, batch=batch))


def _on_sockets(
    table: Mapping[str, Any], catalogue: Catalogue, costs: Costs | None
) -> Iterator[SocketQuestion]:
    key = "memory_bytes"
    if key not in table:
        raise ConfigError(f'{key} is missing: of a socket, which holds the batch; "256 GiB" or so')
    endless = {name: value for name, value in table.items() if name != key}
    question = make_socket_question(endless, catalogue, costs=costs)
    job, memory = question.job, units.parse(key, table[key], Dimension.BYTES)
    if job.processor.bf16 is None:
        raise ConfigError(
            f"processor.{job.processor.name}.bf16 is not known, and first tokens and tokens a "
            "second hang on it; give the peak of its matrix products"
        )
    each = socket_cache_bytes(job, job.input_tokens + job.output_tokens)
    for batch in _batches(int((memory - socket_weight_bytes(job)) // each)):
        yield replace(question, job=replace(job, memory_bytes=memory, batch=batch))


def _batches(largest: int) -> list[int]:
    """To be tried, if memory holds so many sequences."""
    if largest < 1:
        return []
    return sorted({*(1 << k for k in range(largest.bit_length())), largest})


def _shares(tensor: int, model: Transformer) -> bool:
    """True if so many ranks can share its heads."""
    try:
        check_tensor("tensor", tensor, model)
    except ConfigError:
        return False
    return True
