"""The answer to a question: the time, its parts, the bottleneck, memory, and costs.

`answer` makes a document, with one JSON schema for all systems; `text` shows it to people. In
inference `parts_s` are those of the time between two tokens of a sequence, and `tokens_per_s`
tokens that come out. MFU leaves recomputation out, HFU counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from luwu.base.identifiers import by_identifier, identifier, words
from luwu.base.quantities import format_bytes
from luwu.predict.ask.cost import HOUR_S, cost_document, cost_text
from luwu.predict.ask.interval import error_bar, error_bar_text, never_compared_text
from luwu.predict.ask.keys import assumed_text
from luwu.predict.ask.question import AnyQuestion, InferenceQuestion, Question
from luwu.predict.inference import inference_job as on_devices
from luwu.predict.inference import inference_sockets as on_sockets
from luwu.predict.inference.arrivals import arrivals_document, arrivals_text
from luwu.predict.inference.inference import Inference
from luwu.predict.inference.inference_job import InferenceJob
from luwu.predict.inference.inference_sockets import SocketJob
from luwu.predict.model.job import utilisation
from luwu.predict.model.placement import domain_count
from luwu.predict.networks import on_topology

SCHEMA: Final = 7
"""7: of a network its switches and links."""
DAY_S: Final = 86_400.0
MFU_SANE: Final = (0.05, 0.85)
"""Outside of this, something of the question or of the model is wrong."""
DIFFERS: Final = 0.1
"""Share of a step by which closed form and cores differ enough to say so."""
_OF_TRAINING: Final = (
    "devices", "data", "tensor", "pipeline", "virtual", "context", "expert", "sequence", "batch",
    "micro_batch", "recompute", "layers_in_hosts", "precision", "sequence_parallel",
)  # fmt: skip


def answer(question: AnyQuestion) -> dict[str, Any]:
    """Everything that is predicted of a question, as a document."""
    if isinstance(question, Question):
        document = _training_answer(question)
    else:
        document = _inference_answer(question)
    dollars_per_s = question.dollars_per_s
    if dollars_per_s is not None:
        document["cost"] = cost_document(document["tokens_per_s"], dollars_per_s)
    document["error"] = error_bar(question)
    document["nics"] = _nics(question)
    if isinstance(question, Question) and question.tokens is not None:
        document["whole_training"] = whole_training(question, document["step_s"], dollars_per_s)
    return document


def _training_answer(question: Question) -> dict[str, Any]:
    job, step = question.job, question.answer()
    seconds = step.seconds
    document: dict[str, Any] = {
        "schema": SCHEMA, "system": question.system, "step_s": seconds,
        "parts_s": by_identifier(step.parts), "resources_s": by_identifier(step.resources),
        "binding": identifier(step.binding), "binding_port": step.port or None,
        "tokens": job.tokens,
        "tokens_per_s": job.tokens / seconds,
        "tokens_per_s_per_device": job.tokens / seconds / job.devices,
        **utilisation(job, seconds),
        "memory_bytes": question.memory_bytes,
        "memory_bytes_max": job.device.memory_bytes,
        "micro_batches": job.micro_batches,
        "extrapolated": step.notes,
    }  # fmt: skip
    mfu, (low, high), warnings = document["mfu"], MFU_SANE, []
    if not low <= mfu <= high:
        warnings.append(f"an MFU of {mfu:.1%} is not plausible; look at the question")
    is_gathered = question.nodes is not None and job.micro_batches > 1
    if is_gathered and step.binding in ("push", "disk write"):
        warnings.append("what several micro-batches push has its order: believe the cores")
    built = question.build()
    if question.topology is not None and built is not None:
        kind = question.topology.kind
        document["topology"] = on_topology.document(built, kind, question.exchanges())
    return document | {"warnings": warnings, "asked": asked(question), "fits": question.fits}


def asked(question: Question) -> dict[str, Any]:
    """The question as it was understood."""
    job = question.job
    return {
        "model": job.model.name, "parameters": job.model.parameters, "device": job.device.name,
        "network": job.network.name, "software": job.software.name,
        **{key: getattr(job, key) for key in _OF_TRAINING},
    }  # fmt: skip


def whole_training(
    question: Question, step_s: float, dollars_per_s: float | None
) -> dict[str, Any]:  # fmt: skip
    """Steps, days, GPU-hours and dollars of all tokens, without restarts and checkpoints."""
    assert question.tokens is not None
    steps = math.ceil(question.tokens / question.job.tokens)
    seconds = steps * step_s
    return {
        "tokens": question.tokens, "steps": steps, "days": seconds / DAY_S,
        "device_hours": question.job.devices * seconds / HOUR_S,
        "dollars": None if dollars_per_s is None else dollars_per_s * seconds,
    }  # fmt: skip


def _inference_answer(question: InferenceQuestion) -> dict[str, Any]:
    served, job = question.answer(), question.job
    rate, first = served.tokens_per_s, served.first_token
    if isinstance(job, InferenceJob):
        own, device = _of_devices(question, job, served), job.device.name
        ranks: dict[str, Any] = {"tensor": job.tensor, "pipeline": job.pipeline}
        settings = {"batching": job.batching, "budget_tokens": job.budget_tokens}
    else:
        own, device = _of_sockets(job, served), job.processor.name
        ranks = {"sockets": job.sockets, "host_sockets": job.host_sockets}
        ranks |= {"inside": job.inside.name}
        settings = {"batching": "static"}
    return {
        "schema": SCHEMA, "system": question.system,
        "first_token_s": first.seconds,
        "token_s": served.decode.seconds,
        "parts_s": by_identifier(served.decode.parts),
        "prefill_parts_s": by_identifier(first.parts),
        "binding": identifier(served.decode.binding),
        "prefill_binding": identifier(first.binding),
        "tokens_per_s": rate,
        "tokens_per_s_per_device": rate / job.devices,
        "decode_tokens_per_s": served.batch / served.decode.seconds,
        "batch": served.batch,
        **own,
        "asked": {
            "model": job.model.name, "parameters": job.model.parameters, "device": device,
            "network": job.network.name, "devices": job.devices,
            **ranks, "precision": job.precision,
            "kv_precision": job.kv_precision, "batch": job.batch,
            "largest_batch": question.is_largest, **settings, "input_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
        },
    }  # fmt: skip


def _of_devices(
    question: InferenceQuestion, job: InferenceJob, served: Inference
) -> dict[str, Any]:
    """What only devices have; memory is of one, with all sequences at their end (F1 to F3)."""
    cache = on_devices.cache_bytes(job, job.tokens)
    work = on_devices.fixed_bytes(job) + job.batch * (on_devices.sequence_bytes(job) - cache)
    document: dict[str, Any] = {
        "batch_max": on_devices.maximum_batch(job),
        "memory_bytes": {
            "weights": on_devices.weight_bytes(job), "cache": job.batch * cache, "work_space": work,
        },
        "memory_bytes_max": job.device.memory_bytes,
        "extrapolated": served.notes,
    }  # fmt: skip
    warnings = []
    if served.batch < job.batch:
        warnings.append(
            f"budget_tokens: a round of {job.budget_tokens} tokens has place for "
            f"{served.batch:.0f} of {job.batch} sequences"
        )
    if question.arrivals is not None:
        bound = served.tokens_per_s / job.output_tokens
        played = question.arrivals.play(job)
        document["arrivals"] = arrivals_document(question.arrivals, job, played, bound)
        if document["arrivals"]["is_overloaded"]:
            warnings.append(
                "arrivals: more come than can be answered, so waits hang on how many are played"
            )
    return document | {"warnings": warnings}


def _of_sockets(job: SocketJob, served: Inference) -> dict[str, Any]:
    """What only sockets have; memory is of one."""
    warnings = ["first_token_s: at the peak of the processor, so a bound from below"]
    if job.memory_bytes is None:
        warnings.append("memory_bytes is not given, so whether sockets hold this was not asked")
    cache = job.batch * on_sockets.socket_cache_bytes(job, job.tokens)
    return {
        "memory_bytes": {"weights": on_sockets.socket_weight_bytes(job), "cache": cache},
        "memory_bytes_max": job.memory_bytes, "extrapolated": served.notes,
        "warnings": warnings,
    }  # fmt: skip


def _nics(question: Any) -> dict[str, Any]:
    """NICs of a host, and what a device has of one."""
    job, network = question.job, question.job.network
    if isinstance(job, SocketJob):
        devices, sharing, is_assumed = job.host_sockets, float(job.host_sockets), True
    else:
        sharing, is_assumed = network.devices_count, question.nics_per_host is None
        is_training = isinstance(question, Question)
        places = domain_count(job) if is_training else int(job.device.domain_count)
        devices = min(places, job.devices)
    nic_rate = network.flow_rate(0.0)
    return {
        "per_host": question.nics_per_host or round(devices / sharing), "host_devices": devices,
        "is_assumed": is_assumed,
        "rate": nic_rate, "device_rate": min(network.port_rate, nic_rate / sharing),
    }  # fmt: skip


# ---------------------------------------------------------------------- for people


def text(document: dict[str, Any]) -> str:
    """The document for people."""
    lines = [*never_compared_text(document["error"]), *assumed_text(document.get("assumed", {}))]
    lines += _training_text(document) if "step_s" in document else _inference_text(document)
    for key, shown in _SECTIONS.items():
        if key in document:
            lines += ["", *shown(document[key])]
    return "\n".join(lines)


def _training_text(document: dict[str, Any]) -> list[str]:
    asked, step_s = document["asked"], document["step_s"]
    lines = [
        *_does_not_fit_text(document),
        f"{asked['model']} ({asked['parameters'] / 1e9:.1f} B) by {document['system']} on "
        f"{asked['devices']} x {asked['device']}, {asked['network']}, {asked['software']}",
        f"batch {asked['batch']} x {asked['sequence']} tokens in {document['micro_batches']} "
        f"micro-batches of {asked['micro_batch']}; data {asked['data']}, tensor {asked['tensor']}, "
        f"pipeline {asked['pipeline']} x {asked['virtual']}, context {asked['context']}; "
        f"recompute {asked['recompute']}, {asked['precision']}",
        "",
        f"step              {step_s:.3f} s",
        *_cores_text(document),
        *error_bar_text(document["error"], "step", step_s),
        f"tokens            {document['tokens_per_s']:,.0f} per second, "
        f"{document['tokens_per_s_per_device']:,.0f} per device",
        f"utilisation       MFU {document['mfu']:.1%}, HFU {document['hfu']:.1%}",
        f"bottleneck        {binding_text(document)}",
        _nics_text(document["nics"]),
        "",
        *_parts_text(document["parts_s"], step_s),
    ]
    if document["resources_s"]:
        lines += ["", "busy per step:"]
        lines += [f"  {words(name):<24} {s:9.3f} s" for name, s in document["resources_s"].items()]
    return [*lines, "", *_memory_text(document, "device")]


def binding_text(document: dict[str, Any]) -> str:
    """The bottleneck, and whose port limits it."""
    port = document.get("binding_port")
    return words(document.get("binding", "-")) + (f", by the port of {port}" if port else "")


def _does_not_fit_text(document: dict[str, Any]) -> list[str]:
    """The memory that a device lacks; none if the job fits."""
    if document["fits"]:
        return []
    uses, most = document["memory_bytes"], document["memory_bytes_max"]
    return [
        f"DOES NOT FIT: {format_bytes(sum(uses.values()))} of {format_bytes(most)} "
        f"({_uses_text(uses)}); luwu plan searches what does",
        "",
    ]


def _cores_text(document: dict[str, Any]) -> list[str]:
    """The step as the cores decide it, where that was asked, and which of the two to believe."""
    if "cores_step_s" not in document:
        return []
    cores_s = document["cores_step_s"]
    differs = abs(cores_s / document["step_s"] - 1) > DIFFERS
    said = ": believe the cores, which know what waits for what" if differs else ""
    return [f"by its own cores  {cores_s:.3f} s{said}"]


def _whole_training_text(found: dict[str, Any]) -> list[str]:
    dollars = found["dollars"]
    spent = "dollars are not known without [cost]" if dollars is None else f"{dollars:,.0f} USD"
    return [
        f"{found['tokens'] / 1e9:,.6g} billion tokens: {found['steps']:,} steps, "
        f"{found['days']:,.1f} days, {found['device_hours']:,.0f} GPU-hours, {spent}"
    ]


def _inference_text(document: dict[str, Any]) -> list[str]:
    asked, rate = document["asked"], document["tokens_per_s"]
    each = "socket" if "sockets" in asked else "device"
    ranks = (
        f"{asked['sockets']} sockets, {asked['host_sockets']} a host"
        if each == "socket"
        else f"tensor {asked['tensor']}, pipeline {asked['pipeline']}"
    )
    largest = ", which is the largest" if asked["largest_batch"] else ""
    lines = [
        f"{asked['model']} ({asked['parameters'] / 1e9:.1f} B) answers on {asked['devices']} x "
        f"{asked['device']}, {asked['network']}",
        f"{asked['input_tokens']} tokens in, {asked['output_tokens']} out, batch "
        f"{document['batch']:.0f}{largest}, {asked['batching']}; {ranks}, "
        f"{asked['precision']}, cache in {asked['kv_precision']}",
        "",
        f"first token       {document['first_token_s'] * 1e3:,.2f} ms",
        f"between tokens    {document['token_s'] * 1e3:,.2f} ms",
        *error_bar_text(document["error"], "token", document["token_s"], document["first_token_s"]),
        f"tokens            {rate:,.0f} per second, {document['tokens_per_s_per_device']:,.1f} per "
        f"{each}",
        f"bottleneck        {words(document['binding'])}",
        "",
        "between tokens:",
        *_parts_text(document["parts_s"], document["token_s"]),
    ]
    lines += ["", f"to the first token, limited by {words(document['prefill_binding'])}:"]
    lines += _parts_text(document["prefill_parts_s"], document["first_token_s"])
    if "arrivals" in document:
        lines += ["", *arrivals_text(document["arrivals"])]
    return [*lines, "", *_memory_text(document, each), _nics_text(document["nics"])]


def _nics_text(found: dict[str, Any]) -> str:
    count, devices = found["per_host"], found["host_devices"]
    of = f"{devices} devices" if devices > 1 else "one device"
    return (
        f"NICs              {count} per host of {of}{' (assumed)' if found['is_assumed'] else ''}: "
        f"{found['device_rate'] * 8e-9:,.4g} Gbit/s per device"
    )


def _parts_text(parts: dict[str, float], whole_s: float) -> list[str]:
    """Seconds by what they go to, a line each."""
    unit, scale = ("s", 1.0) if whole_s >= 1 else ("ms", 1e3)
    return [
        f"  {words(name):<24} {seconds * scale:9.3f} {unit}  {seconds / whole_s:6.1%}"
        for name, seconds in parts.items()
        if seconds
    ]


def _memory_text(document: dict[str, Any], of: str) -> list[str]:
    """Memory of a device or socket, look-ups beyond what was measured, and warnings."""
    has, uses = document["memory_bytes_max"], _uses_text(document["memory_bytes"])
    return [
        f"memory of a {of}: {uses}{'' if has is None else f'; it has {format_bytes(has)}'}",
        *(f"beyond what was measured: {k}: {v}" for k, v in document["extrapolated"].items()),
        *(f"warning: {each}" for each in document["warnings"]),
    ]


def _uses_text(memory: dict[str, float]) -> str:
    return ", ".join(f"{words(name)} {format_bytes(nbytes)}" for name, nbytes in memory.items())


_SECTIONS: Final[dict[str, Callable[[Any], list[str]]]] = {
    "whole_training": _whole_training_text,
    "topology": on_topology.document_text,
    "cost": cost_text,
}
"""Parts of a document that not each has, and their lines."""
