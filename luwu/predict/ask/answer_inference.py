"""The answer to a question of inference: latency, throughput, and the bottleneck.

The document has the keys of training's where they mean the same: `parts_s` are those of the time
between two tokens of a sequence, `tokens_per_s` are tokens that come out. The first token is that
of a whole batch, which begins as one; in continuous batching that of a request which finds a place
free: at worst it waits for all of the round under way, then for its own prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from luwu.base.identifiers import by_identifier, identifier, words
from luwu.predict.ask.answer_parts import (
    SCHEMA,
    doubts_text,
    memory_text,
    parts_text,
)
from luwu.predict.ask.question import InferenceQuestion, Served, SocketQuestion
from luwu.predict.inference.arrivals import arrivals_document, arrivals_text
from luwu.predict.inference.inference import predict_prefill
from luwu.predict.inference.inference_job import (
    InferenceJob,
    cache_bytes,
    fixed_bytes,
    sequence_bytes,
    weight_bytes,
)
from luwu.predict.inference.inference_sockets import (
    SocketJob,
    socket_cache_bytes,
    socket_weight_bytes,
)


def inference_answer(question: InferenceQuestion) -> dict[str, Any]:
    """Everything that is predicted of a question on devices, as a document."""
    served = question.answer()
    job, found = served.job, served.inference
    prefill = first_token_parts(served)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "system": question.system,
        "first_token_s": sum(prefill.values()),
        "token_s": found.token_s,
        "parts_s": by_identifier(found.decode.parts),
        "prefill_parts_s": by_identifier(prefill),
        "binding": identifier(found.decode.binding),
        "prefill_binding": _largest(prefill),
        "tokens_per_s": served.tokens_per_s,
        "tokens_per_s_per_device": served.tokens_per_s / question.devices,
        "decode_tokens_per_s": question.replicas * found.batch / found.token_s,
        "batch": found.batch,
        "batch_max": found.maximum_batch,
        "memory_bytes": memory_of_inference(job),
        "memory_bytes_max": job.device.memory_bytes,
        "extrapolated": {**found.prefill.notes.extrapolated, **found.decode.notes.extrapolated},
        "unknown": {},
    }
    warnings = []
    if found.batch < job.batch:
        warnings.append(
            f"budget_tokens: a round of {job.budget_tokens} tokens has place for "
            f"{found.batch:.0f} of {job.batch} sequences"
        )
    if question.arrivals is not None:
        bound = served.tokens_per_s / job.output_tokens
        played = question.arrivals.play(job, question.replicas)
        document["arrivals"] = arrivals_document(question.arrivals, job, played, bound)
        if document["arrivals"]["is_overloaded"]:
            warnings.append(
                "arrivals: more come than can be answered, so waits hang on how many are played"
            )
    return document | {
        "warnings": warnings,
        "asked": {
            "model": job.model.name, "parameters": job.model.parameters,
            "device": job.device.name, "network": job.network.name,
            "devices": question.devices, "replicas": question.replicas, "tensor": job.tensor,
            "pipeline": job.pipeline, "precision": job.precision,
            "kv_precision": job.kv_precision, "batch": job.batch,
            "largest_batch": question.is_largest, "batching": job.batching,
            "budget_tokens": job.budget_tokens, "input_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
        }
    }  # fmt: skip


def first_token_parts(served: Served) -> dict[str, float]:
    """Seconds to a first token, by what they go to."""
    if served.job.batching == "static":
        return served.inference.prefill.parts
    alone = predict_prefill(replace(served.job, batch=1))
    return {"round under way": served.inference.decode.seconds, **alone.parts}


def socket_answer(question: SocketQuestion) -> dict[str, Any]:
    """Everything that is predicted of a question on sockets, as a document."""
    served = question.answer()
    job, rate, sockets = served.job, served.tokens_per_s, question.replicas * served.job.sockets
    decode = served.token.parts
    unknown, prefill = {}, served.prefill
    if prefill is None:
        why = (
            f"processor.{job.processor.name}.bf16 is not known, and it limits prefill; "
            "give the peak of its matrix products"
        )
        unknown = dict.fromkeys(("first_token_s", "tokens_per_s"), why)
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "system": question.system,
        "first_token_s": None if prefill is None else prefill.seconds,
        "token_s": served.token.seconds,
        "parts_s": by_identifier(decode),
        "prefill_parts_s": None if prefill is None else by_identifier(prefill.parts),
        "binding": _largest(decode),
        "prefill_binding": None if prefill is None else _largest(prefill.parts),
        "tokens_per_s": rate,
        "tokens_per_s_per_device": None if rate is None else rate / sockets,
        "decode_tokens_per_s": question.replicas * job.batch / served.token.seconds,
        "batch": job.batch,
        "memory_bytes": memory_of_sockets(job),
        "memory_bytes_max": job.memory_bytes,
        "extrapolated": {},
        "unknown": unknown,
    }
    warnings = [f"{', '.join(unknown)}: {next(iter(unknown.values()))}"] if unknown else []
    if prefill is not None:
        warnings.append("first_token_s: at the peak of the processor, so a bound from below")
    if job.memory_bytes is None:
        warnings.append("memory_bytes is not given, so whether sockets hold this was not asked")
    return document | {
        "warnings": warnings,
        "asked": {
            "model": job.model.name, "parameters": job.model.parameters,
            "device": job.processor.name, "network": job.network.name, "devices": sockets,
            "replicas": question.replicas, "sockets": job.sockets,
            "host_sockets": job.host_sockets, "inside": job.inside.name,
            "precision": job.precision, "kv_precision": job.kv_precision, "batch": job.batch,
            "largest_batch": question.is_largest, "batching": "static",
            "parallel_blocks": job.parallel_blocks, "input_tokens": job.input_tokens,
            "output_tokens": job.output_tokens,
        }
    }  # fmt: skip


def _largest(parts: dict[str, float]) -> str:
    return identifier(max(parts, key=lambda name: parts[name]))


def memory_of_inference(job: InferenceJob) -> dict[str, float]:
    """Memory of a device by use, with all sequences at their end (F1 to F3)."""
    cache = cache_bytes(job, job.tokens)
    return {
        "weights": weight_bytes(job),
        "cache": job.batch * cache,
        "work_space": fixed_bytes(job) + job.batch * (sequence_bytes(job) - cache),
    }


def memory_of_sockets(job: SocketJob) -> dict[str, float]:
    """Memory of a socket."""
    tokens = job.input_tokens + job.output_tokens
    cache = job.batch * socket_cache_bytes(job, tokens)
    return {"weights": socket_weight_bytes(job), "cache": cache}


def inference_text(document: dict[str, Any]) -> str:
    """The document for people."""
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
        f"{asked['replicas']} copies; {asked['precision']}, cache in {asked['kv_precision']}",
        "",
        f"first token       {_seconds(document['first_token_s'])}",
        f"between tokens    {_seconds(document['token_s'])}",
        "tokens            "
        + (
            f"{rate:,.0f} per second, {document['tokens_per_s_per_device']:,.1f} per {each}"
            if rate is not None
            else f"{document['decode_tokens_per_s']:,.1f} per second in decode; total: not known"
        ),
        f"bottleneck        {words(document['binding'])}",
        "",
        "between tokens:",
        *parts_text(document["parts_s"], document["token_s"]),
    ]
    if document["prefill_parts_s"] is not None:
        lines += ["", f"to the first token, limited by {words(document['prefill_binding'])}:"]
        lines += parts_text(document["prefill_parts_s"], document["first_token_s"])
    if "arrivals" in document:
        lines += ["", *arrivals_text(document["arrivals"])]
    lines += ["", memory_text(document, f"a {each}")]
    return "\n".join([*lines, *doubts_text(document)])


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value * 1e3:,.2f} ms"
