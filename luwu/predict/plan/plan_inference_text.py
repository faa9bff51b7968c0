"""A plan of inference as a document, and as text."""

from __future__ import annotations

from typing import Any

from luwu.predict.ask.question_sockets import SocketQuestion
from luwu.predict.plan.plan_columns import ORDERS, SCHEMA, SHOWN, Columns, Shared
from luwu.predict.plan.planner_inference import FoundInference, InferencePlan


def inference_plan_document(found: InferencePlan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal,
        "beyond_budget": found.beyond_budget, "beyond_limits": found.beyond_limits,
        "device_counts": list(found.device_counts), "goal": found.goal,
        "best": [_document(each) for each in found.best],
    }  # fmt: skip


def _document(found: FoundInference) -> dict[str, Any]:
    job, question = found.question.job, found.question
    said: dict[str, Any] = {
        "system": question.system, "tokens_per_s": found.tokens_per_s,
        "first_token_s": found.first_token_s, "token_s": found.token_s, "binding": found.binding,
        "devices": found.devices, "replicas": question.replicas, "batch": job.batch,
        "precision": job.precision, "kv_precision": job.kv_precision,
    }  # fmt: skip
    if isinstance(question, SocketQuestion):
        said["sockets"] = question.job.sockets
    else:
        own = question.job
        said |= {"tensor": own.tensor, "pipeline": own.pipeline, "batching": own.batching}
    return said | _shared(found).document


def _shared(found: FoundInference) -> Shared:
    return Shared(
        devices=found.devices, price=found.dollars_per_million_tokens, expense=found.expense,
        topology=found.question.topology,
    )  # fmt: skip


def inference_plan_text(found: InferencePlan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table."""
    left_out = {
        "that cannot be": found.refused, "beyond the budget": found.beyond_budget,
        **{f"beyond {name}_max": count for name, count in found.beyond_limits.items()},
    }  # fmt: skip
    more = "".join(f", {count} {what}" for what, count in left_out.items() if count)
    columns = Columns.of(map(_shared, found.best), devices=len(found.device_counts) > 1)
    lines = [
        f"{found.tried} configurations, {found.too_large} of them too large for memory{more}; "
        f"{len(found.best)} that no other beats{ORDERS[found.goal]}:",
        _head(columns),
        *(_line(each, columns) for each in found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first that cannot be: {found.first_refusal}")
    return "\n".join(lines)


def _head(columns: Columns) -> str:
    own = f"{'tokens/s':>12} {'first token':>12} {'between':>10}"
    return "  ".join([own, *columns.head, "degrees, batch, precisions"])


def _line(each: FoundInference, columns: Columns) -> str:
    first, between = 1e3 * each.first_token_s, 1e3 * each.token_s
    own = f"{each.tokens_per_s:12,.0f} {first:9,.1f} ms {between:7,.2f} ms"
    shared = columns.cells(_shared(each))
    return "  ".join([own, *shared, f"{_what(each)}; binds: {each.binding}"])


def _what(found: FoundInference) -> str:
    """Ranks of a copy, copies, sequences at once of each, precisions of weights and of the cache;
    batching where there is a choice."""
    question, job = found.question, found.question.job
    rest = f"{job.batch}, {job.precision}/{job.kv_precision}"
    if isinstance(question, SocketQuestion):
        return f"s{question.job.sockets} r{question.replicas}, {rest}"
    own = question.job
    return f"t{own.tensor} p{own.pipeline} r{question.replicas}, {rest}, {own.batching}"
