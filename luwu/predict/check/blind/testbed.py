"""The testbed of arXiv 2409.00918, eight workers with an A100-40 each, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from luwu.predict.ask.question import Question, make_question
from luwu.predict.check.blind.rows import BlindRow
from luwu.predict.check.offload_calibration import DEVICES, MICRO_BATCH, testbed_question
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.curves import Notes
from luwu.predict.hardware.hosts import STATE_BYTES
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import software
from luwu.predict.model import collectives
from luwu.predict.model.collectives import Path
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.predict.model.memory import WINDOW_LAYERS, layer_activation_bytes
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.placement import network_path

_GROUP: Final = "LuWu testbed"
_MODEL: Final = "GPT-175B"
_LAYERS_IN_FLIGHT: Final = 2
_RANKS: Final = 256
_MICRO_BATCHES: Final = 16
_PAT_SHARE: Final = 0.75
"""Of the bus bandwidth that NCCL's trees reach; its own tuning has this number."""
_PAT_LATENCY_SHARE: Final = 3.5
_MESSAGE_BYTES: Final = 2e6
"""Of a collective in a step of many ranks: 1 to 2 MB is what 15.1 says of a ring's latency."""
_BUFFERS: Final = 1.5
"""Bytes of a host's memory for each that ZeRO-Infinity keeps there. Source: the factor for buffers
in DeepSpeed's estimate of memory."""
_HOST_BYTES: Final = 256e9


def rows(catalogue: Catalogue) -> Iterator[BlindRow]:
    """All of them."""
    yield _largest(catalogue, "luwu")
    yield _largest(catalogue, "zero-infinity")
    yield _step_centric(catalogue)
    yield from _many_ranks(catalogue)
    yield _dollars(catalogue)


def _asked(catalogue: Catalogue, system: str, model: str, micro_batch: int) -> Question:
    batch = {"micro_batch": micro_batch, "batch": DEVICES * micro_batch}
    return testbed_question(catalogue, system, model, **batch)


# ---------------------------------------------------------------------- the largest model


def _largest(catalogue: Catalogue, system: str) -> BlindRow:
    """More layers of GPT-3's width until devices, memory of hosts or drives are full."""
    base = _asked(catalogue, system, _MODEL, 1).job
    layers = 1
    while _fits(base, replace(base.model, layers=layers + 1), system):
        layers += 1
    model = replace(base.model, layers=layers)
    return BlindRow(
        group=_GROUP, name=f"largest model by {system} on {DEVICES} workers",
        value=model.parameters / 1e9, unit="billion parameters",
        configuration={"system": system, "devices": DEVICES, "hidden": model.hidden,
                       "layers": layers},
        assumptions=(
            "layers of GPT-3's width are added; micro-batch 1, sequences of 2,048 tokens",
            "inputs of layers go to 256 GB of the host; three layers with gradients are on the "
            "device",
            "node: 12 drives of 3.84 TB, 16 bytes a parameter" if system == "luwu" else
            "ZeRO-Infinity: 16-bit weights, 32-bit gradients and half as much again of buffers in "
            "the host, states on a drive of 3.84 TB",
        ),
    )  # fmt: skip


def _fits(base: TrainingJob, model: Transformer, system: str) -> bool:
    job = replace(base, model=model)
    window = WINDOW_LAYERS * 2 * WIRE_BYTES * model.layer_parameters
    at_work = layer_activation_bytes(replace(job, recompute="none"))
    if window + at_work > job.device.memory_bytes:
        return False
    drives = 12 if system == "luwu" else DEVICES
    on_drives = STATE_BYTES + (4 if system == "luwu" else 0)
    if on_drives * model.parameters > drives * 3.84e12:
        return False
    in_host = model.layers * layer_activation_bytes(job)
    if system != "luwu":
        in_host += _BUFFERS * (WIRE_BYTES + 4) * model.parameters / DEVICES
    return in_host <= _HOST_BYTES


# ---------------------------------------------------------------------- pipelines of the optimizer


def layer_centric_s(stages_s: list[float], in_flight: int) -> float:
    """Seconds of many equal layers that pass all stages, `in_flight` layers at once: limited by the
    slowest stage, or by the buffers."""
    return max(*stages_s, sum(stages_s) / in_flight)


def _step_centric(catalogue: Catalogue) -> BlindRow:
    """A step whose node opens its pipeline for each layer, over one for the whole step: the former
    takes the time of its optimizer where that is more than all else, which hides the rest."""
    question = _asked(catalogue, "luwu", _MODEL, MICRO_BATCH)
    found = question.answer()
    send_s = found.resources["pull"] / 2
    stages_s = [found.resources[each] for each in ("disk read", "disk write", "node memory")]
    by_layer = layer_centric_s([*stages_s, send_s], _LAYERS_IN_FLIGHT) + found.parts["tail"]
    return BlindRow(
        group=_GROUP, name=f"{_MODEL}, optimizer of the node: step-centric over layer-centric",
        value=max(found.seconds, by_layer) / found.seconds, unit="ratio",
        configuration={"model": _MODEL, "layers_in_flight": _LAYERS_IN_FLIGHT},
        assumptions=("two layers in flight where pipelines are opened for each layer",
                     "stages: read, update, write, send; of a whole step, compute included"),
    )  # fmt: skip


# ---------------------------------------------------------------------- at scale


def _pat_all_gather(ranks: int, nbytes: float, path: Path) -> float:
    """Parallel aggregated trees, one rank a host: latency grows with the logarithm of the ranks.
    Source: NCCL's tuning, whose 2.8 us for each rank would forbid what was published."""
    latency_s = math.log2(ranks) * path.latency_s / _PAT_LATENCY_SHARE
    return latency_s + path.seconds((ranks - 1) / ranks * nbytes / _PAT_SHARE)


def _many_ranks(catalogue: Catalogue) -> Iterator[BlindRow]:
    """256 data parallel ranks of TP8 x PP16: a step's exchange by rings and PAT, over LuWu's."""
    job = TrainingJob(
        model=catalogue.model(_MODEL), device=catalogue.device("A100-80"),
        network=catalogue.network("roce-100g"), software=software("megatron-2023"),
        devices=_RANKS * 8 * 16, batch=_RANKS * _MICRO_BATCHES, sequence=2048, tensor=8,
        pipeline=16, recompute="full", sequence_parallel=True,
    )  # fmt: skip
    stage = job.model.parameters / (job.tensor * job.pipeline)
    layers, path = job.model.layers // job.pipeline, network_path(job.network)
    layer_bytes = WIRE_BYTES * stage / layers
    messages = math.ceil(layer_bytes / _MESSAGE_BYTES)
    nbytes = layer_bytes / messages
    luwu = 2 * layers * (4 * job.network.hop_s + path.seconds(layer_bytes))  # down; up beside it
    times = 3 * layers * messages  # two gathers and a reduction of each layer
    ring = times * collectives.ring_all_gather(_RANKS, nbytes, path)
    pat = times * _pat_all_gather(_RANKS, nbytes, path)
    computing = sum(compute_time(job, operators_of(job, Notes())).values()) / job.pipeline
    whole = computing * (_MICRO_BATCHES + job.pipeline - 1)
    for name, exchange in (("ring", ring), ("PAT", pat)):
        for what, value in (
            ("exchange", exchange / luwu),
            ("step", (whole + exchange) / max(whole, luwu)),
        ):
            yield BlindRow(
                group=_GROUP, name=f"256 data parallel x TP8 x PP16: {what}, {name} over LuWu",
                value=value, unit="ratio",
                configuration={"model": _MODEL, "data": _RANKS, "tensor": 8, "pipeline": 16},
                assumptions=(
                    "sharded by layers: two gathers and a reduction of each layer a step, of "
                    "16-bit values, one port of 100 Gbit/s a device", "rings and PAT in the open, "
                    "LuWu's exchange beside compute",
                    "messages of 2 MB, one after the other",
                    f"{_MICRO_BATCHES} micro-batches of one sequence",
                ),
            )  # fmt: skip


_PRICES: Final = {
    "worker host with one A100-40": 15_000.0, "SmartNIC": 2_500.0, "switch": 20_000.0,
    "node with 12 drives": 30_000.0, "DGX A100": 199_000.0,
}  # fmt: skip
"""Dollars; assumed: list prices as remembered, not looked up."""


def _dollars(catalogue: Catalogue) -> BlindRow:
    """32 workers with LuWu against four DGX A100 with ZeRO-Infinity, GPT-175B."""
    table: dict[str, Any] = {
        "model": _MODEL, "device": "A100-40", "devices": 32, "sequence": 2048, "batch": 256,
        "micro_batch": 8, "recompute": "full",
    }  # fmt: skip
    node = {"processor": "Xeon-5320", "memory_bytes": "512 GB", "disk": "P5510-3.84T", "disks": 12}
    ours = make_question(
        {**table, "system": "luwu", "network": "roce-100g", "software": "deepspeed-2023",
         "node": node}, catalogue,
    )  # fmt: skip
    host = {"processor": "Xeon-8168", "memory_bytes": "1 TB", "disk": "P5510-3.84T", "disks": 4,
            "devices": 8}  # fmt: skip
    theirs = make_question(
        {**table, "system": "zero-infinity", "network": "ib-hdr", "software": "composer-2023",
         "host": host}, catalogue,
    )  # fmt: skip
    luwu = 32 * (_PRICES["worker host with one A100-40"] + _PRICES["SmartNIC"])
    luwu += _PRICES["switch"] + _PRICES["node with 12 drives"]
    dgx = 4 * _PRICES["DGX A100"]
    ratio = theirs.answer().seconds / ours.answer().seconds * dgx / luwu
    return BlindRow(
        group=_GROUP, name="throughput per dollar, LuWu over DGX A100 with ZeRO-Infinity, 32 GPUs",
        value=ratio, unit="ratio",
        configuration={"model": _MODEL, "devices": 32, "micro_batch": 8, "prices_usd": _PRICES},
        assumptions=("prices are assumed", "DGX: ports of 200 Gbit/s, four drives a host, kernels "
                     "of 2023 that hide gathers", "purchase alone, no energy"),
    )  # fmt: skip
