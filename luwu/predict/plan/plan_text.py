"""A plan of training or of inference as a document, and as a table for people."""

from __future__ import annotations

from typing import Any

from luwu.base.identifiers import identifier
from luwu.predict.ask.answer import asked
from luwu.predict.ask.question_sockets import SocketQuestion
from luwu.predict.model.job import TrainingJob
from luwu.predict.plan.plan_columns import ORDERS, SCHEMA, SHOWN, Columns, shared_document
from luwu.predict.plan.planner import Found
from luwu.predict.plan.planner_inference import FoundInference
from luwu.predict.plan.search import Plan


def plan_document(found: Plan[Any]) -> dict[str, Any]:
    """For JSON."""
    document: dict[str, Any] = {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal,
        "beyond_budget": found.beyond_budget, "device_counts": list(found.device_counts),
        "goal": found.goal,
    }  # fmt: skip
    if isinstance(found.best[0], FoundInference):
        document["beyond_limits"] = found.beyond_limits
        return document | {"best": [_inference_document(each) for each in found.best]}
    return document | {
        "systems": [
            {
                "system": each.system,
                "why": each.why,
                "tokens_per_s": None if each.best is None else each.best.tokens_per_s,
            }
            for each in found.systems
        ],
        "best": [_training_document(each) for each in found.best],
    }


def _training_document(found: Found) -> dict[str, Any]:
    job = found.question.job
    said: dict[str, Any] = {
        "system": found.question.system, "step_s": found.step.seconds,
        "tokens_per_s": found.tokens_per_s, "left_bytes": found.left_bytes,
        "binding": identifier(found.step.binding),
        "asked": asked(found.question)
        | {"expert_tensor": job.expert_width, "ends_as_layers": job.ends_as_layers},
    }  # fmt: skip
    return said | shared_document(found)


def _inference_document(found: FoundInference) -> dict[str, Any]:
    job, question = found.question.job, found.question
    said: dict[str, Any] = {
        "system": question.system, "tokens_per_s": found.tokens_per_s,
        "first_token_s": found.first_token_s, "token_s": found.token_s,
        "binding": identifier(found.binding),
        "devices": found.devices, "replicas": question.replicas, "batch": job.batch,
        "precision": job.precision, "kv_precision": job.kv_precision,
    }  # fmt: skip
    if isinstance(question, SocketQuestion):
        said["sockets"] = question.job.sockets
    else:
        own = question.job
        said |= {"tensor": own.tensor, "pipeline": own.pipeline, "batching": own.batching}
    return said | shared_document(found)


def plan_text(found: Plan[Any], shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    is_inference = isinstance(found.best[0], FoundInference)
    left_out = {
        "that cannot be": found.refused, "beyond the budget": found.beyond_budget,
        **{f"beyond {name}_max": count for name, count in found.beyond_limits.items()},
    }  # fmt: skip
    more = "".join(f", {count} {what}" for what, count in left_out.items() if count)
    columns = Columns.of(found.best, devices=len(found.device_counts) > 1)
    head, line = (_inference_head, _inference_line) if is_inference else (_head, _line)
    lines = _systems(found)
    lines += [
        f"{found.tried} configurations, {found.too_large} of them too large for "
        f"{'memory' if is_inference else 'a device'}{more}; {len(found.best)} that no other beats"
        f"{ORDERS[found.goal]}:",
        head(columns),
        *(line(each, columns) for each in found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first rejected: {found.first_refusal}")
    return "\n".join(lines)


def _systems(found: Plan[Any]) -> list[str]:
    """A line for each system that was asked for, if there are several."""
    if len(found.systems) < 2:
        return []
    return [
        f"{each.system:<13} "
        + ("" if each.best is None else f"{each.best.tokens_per_s:,.0f} tokens/s at best, ")
        + (each.why or "shown below")
        for each in found.systems
    ] + [""]


# ---------------------------------------------------------------------- rows of training


def _head(columns: Columns) -> str:
    own = f"{'tokens/s':>12} {'step':>10} {'left':>8}"
    return "  ".join([own, *columns.head, f"{'system':<13}", "degrees, micro-batch, again"])


def _line(each: Found, columns: Columns) -> str:
    job = each.question.job
    left = f"{each.left_bytes / 2**30:4.1f} GiB"
    own = f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {left}"
    what = f"{_degrees(job)}, {job.micro_batch}, {job.recompute}; bottleneck: {each.step.binding}"
    shared = columns.cells(each)
    return "  ".join([own, *shared, f"{each.question.system:<13}", what])


def _degrees(job: TrainingJob) -> str:
    """Tensor, pipeline, virtual, data; context (c), experts (e, of width w) and ends as layers
    where there are any."""
    more = f" c{job.context}" if job.context > 1 else ""
    more += f" e{job.expert} w{job.expert_width}" if job.spreads_experts else ""
    more += " ends" if job.ends_as_layers else ""
    return f"t{job.tensor} p{job.pipeline} v{job.virtual} d{job.data}{more}"


# ---------------------------------------------------------------------- rows of inference


def _inference_head(columns: Columns) -> str:
    own = f"{'tokens/s':>12} {'first token':>12} {'between':>10}"
    return "  ".join([own, *columns.head, "degrees, batch, precisions"])


def _inference_line(each: FoundInference, columns: Columns) -> str:
    first, between = 1e3 * each.first_token_s, 1e3 * each.token_s
    own = f"{each.tokens_per_s:12,.0f} {first:9,.1f} ms {between:7,.2f} ms"
    shared = columns.cells(each)
    return "  ".join([own, *shared, f"{_what(each)}; bottleneck: {each.binding}"])


def _what(found: FoundInference) -> str:
    """Ranks of a copy, copies, sequences at once of each, precisions of weights and of the cache;
    batching where there is a choice."""
    question, job = found.question, found.question.job
    rest = f"{job.batch}, {job.precision}/{job.kv_precision}"
    if isinstance(question, SocketQuestion):
        return f"s{question.job.sockets} r{question.replicas}, {rest}"
    own = question.job
    return f"t{own.tensor} p{own.pipeline} r{question.replicas}, {rest}, {own.batching}"
