"""The answer to a question of training: the step, its parts, and the bottleneck.

Operations are counted twice and never mixed: MFU without what is computed again, HFU with it.
"""

from __future__ import annotations

from typing import Any, Final

from luwu.base.identifiers import by_identifier, identifier, words
from luwu.base.quantities import format_bytes
from luwu.predict.ask.answer_parts import (
    SCHEMA,
    doubts_text,
    memory_text,
    nics_text,
    parts_text,
)
from luwu.predict.ask.error_bar import error_bar_text
from luwu.predict.ask.question import Question
from luwu.predict.model.job import StepTime, utilisation
from luwu.predict.model.memory import (
    activation_bytes,
    replicated_state_bytes,
    sharded_state_bytes,
    state_bytes,
)
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.systems.in_network import OptimizerNodes

MFU_SANE: Final = (0.05, 0.85)
"""Outside of this, something of the question or of the model is wrong."""
DIFFERS: Final = 0.1
"""Share of a step by which closed form and cores differ enough to say so."""
EXPOSED: Final = ("exchange", "waiting", "tail", "bubble", "offload", "optimizer")


def training_answer(question: Question) -> dict[str, Any]:
    """Everything that is predicted of a question, as a document."""
    job, step = question.job, question.answer()
    seconds = step.seconds
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "system": question.system,
        "step_s": seconds,
        "parts_s": by_identifier(step.parts),
        "resources_s": by_identifier(step.resources),
        "binding": identifier(step.binding),
        "tokens": job.tokens,
        "tokens_per_s": job.tokens / seconds,
        "tokens_per_s_per_device": job.tokens / seconds / job.devices,
        **utilisation(job, seconds),
        "exposed_ratio": _exposed(step) / seconds,
        "memory_bytes": memory_bytes(question),
        "memory_bytes_max": job.device.memory_bytes,
        "micro_batches": step.micro_batches,
        "extrapolated": step.notes.extrapolated,
    }
    document["warnings"] = _warnings(document)
    document["asked"] = asked(question)
    return document


def _exposed(step: StepTime) -> float:
    """Seconds in which a device waits for something else."""
    return sum(
        seconds for name, seconds in step.parts.items()
        if any(name.startswith(each) or name.endswith(each) for each in EXPOSED)
    )  # fmt: skip


def memory_bytes(question: Question) -> dict[str, float]:
    """Memory of a device by use."""
    job = question.job
    activations = activation_bytes(job)
    if question.system == "3d":
        return {"states": state_bytes(job), "activations": activations}
    if question.system in ("ddp", "atp"):
        return {"states": replicated_state_bytes(job), "activations": activations}
    if question.system == "zero3":
        return {"states": sharded_state_bytes(job), "activations": activations}
    window = 3 * WIRE_BYTES * 2 * job.model.layer_parameters
    own = 0.0 if isinstance(question.part, OptimizerNodes) else (
        WIRE_BYTES * 2 * job.model.parameters / job.devices
    )  # fmt: skip
    return {"states": window + own, "activations": activations}


def _warnings(document: dict[str, Any]) -> list[str]:
    found = []
    low, high = MFU_SANE
    if not low <= document["mfu"] <= high:
        found.append(f"an MFU of {document['mfu']:.1%} is not plausible; look at the question")
    return found


def asked(question: Question) -> dict[str, Any]:
    """The question as it was understood."""
    job = question.job
    return {
        "model": job.model.name, "parameters": job.model.parameters, "device": job.device.name,
        "network": job.network.name, "software": job.software.name, "devices": job.devices,
        "data": job.data, "tensor": job.tensor, "pipeline": job.pipeline, "virtual": job.virtual,
        "context": job.context, "expert": job.expert, "sequence": job.sequence, "batch": job.batch,
        "micro_batch": job.micro_batch, "recompute": job.recompute, "precision": job.precision,
        "sequence_parallel": job.sequence_parallel,
    }  # fmt: skip


def does_not_fit_text(document: dict[str, Any]) -> list[str]:
    """Lines for people: the memory that a device lacks, and the nearest question that fits. None
    if the job fits."""
    if document["fits"]:
        return []
    uses, most = document["memory_bytes"], document["memory_bytes_max"]
    said = ", ".join(f"{words(name)} {format_bytes(nbytes)}" for name, nbytes in uses.items())
    nearest = document["nearest_fit"]
    return [
        f"DOES NOT FIT: {format_bytes(sum(uses.values()))} of {format_bytes(most)} ({said})",
        f"the nearest that fits: {nearest}" if nearest else "nothing near it fits: another system "
        "or device would (luwu plan searches them)",
        "",
    ]  # fmt: skip


def _cores_text(document: dict[str, Any]) -> list[str]:
    """The step as the cores decide it, where that was asked, and which of the two to believe."""
    if "cores_step_s" not in document:
        return []
    cores_s = document["cores_step_s"]
    differs = abs(cores_s / document["step_s"] - 1) > DIFFERS
    said = ": believe the cores, which know what waits for what" if differs else ""
    return [f"by its own cores  {cores_s:.3f} s{said}"]


def training_text(document: dict[str, Any]) -> str:
    """The document for people."""
    asked, step_s = document["asked"], document["step_s"]
    lines = does_not_fit_text(document)
    lines += [
        f"{asked['model']} ({asked['parameters'] / 1e9:.1f} B) by {document['system']} on "
        f"{asked['devices']} x {asked['device']}, {asked['network']}, {asked['software']}",
        f"batch {asked['batch']} x {asked['sequence']} tokens in {document['micro_batches']} "
        f"micro-batches of {asked['micro_batch']}; data {asked['data']}, tensor {asked['tensor']}, "
        f"pipeline {asked['pipeline']} x {asked['virtual']}, context {asked['context']}; "
        f"recompute {asked['recompute']}, {asked['precision']}",
        "",
        f"step              {step_s:.3f} s",
        *_cores_text(document),
        *error_bar_text(document["error"]),
        f"tokens            {document['tokens_per_s']:,.0f} per second, "
        f"{document['tokens_per_s_per_device']:,.0f} per device",
        f"utilisation       MFU {document['mfu']:.1%}, HFU {document['hfu']:.1%}",
        f"bottleneck        {words(document['binding'])}",
        nics_text(document["nics"]),
        "",
    ]
    lines += parts_text(document["parts_s"], step_s)
    if document["resources_s"]:
        lines += ["", "busy per step:"]
        lines += [f"  {words(name):<24} {s:9.3f} s" for name, s in document["resources_s"].items()]
    lines += ["", memory_text(document), *doubts_text(document)]
    return "\n".join(lines)
