"""A plan of training as a document, and as text."""

from __future__ import annotations

from typing import Any

from luwu.predict.ask.answer import asked
from luwu.predict.ask.break_even import break_even_text
from luwu.predict.model.job import TrainingJob
from luwu.predict.plan.plan_columns import ORDERS, SCHEMA, SHOWN, Columns, Shared
from luwu.predict.plan.planner import Found, Plan


def plan_document(found: Plan) -> dict[str, Any]:
    """For JSON."""
    return {
        "schema": SCHEMA, "tried": found.tried, "too_large": found.too_large,
        "refused": found.refused, "first_refusal": found.first_refusal,
        "beyond_budget": found.beyond_budget, "device_counts": list(found.device_counts),
        "goal": found.goal,
        "best": [_document(each) for each in found.best],
        "break_even_tokens": {name: each.document for name, each in found.break_even.items()},
    }  # fmt: skip


def _document(found: Found) -> dict[str, Any]:
    job = found.question.job
    said: dict[str, Any] = {
        "system": found.question.system, "step_s": found.step.seconds,
        "tokens_per_s": found.tokens_per_s, "left_bytes": found.left_bytes,
        "binding": found.step.binding,
        "asked": asked(found.question)
        | {"expert_tensor": job.expert_width, "ends_as_layers": job.ends_as_layers},
    }  # fmt: skip
    if found.replay is not None:
        said |= {"played_step_s": found.replay.step_s, "not_played": found.replay.why}
    return said | _shared(found).document


def _shared(found: Found) -> Shared:
    return Shared(
        devices=found.question.job.devices, price=found.dollars_per_million_tokens,
        expense=found.expense, topology=found.question.topology,
    )  # fmt: skip


def plan_text(found: Plan, shown: int = SHOWN) -> str:
    """For people: the Pareto set as a table, and the tokens that hide what is exchanged."""
    refused = f", {found.refused} that cannot be" if found.refused else ""
    refused += f", {found.beyond_budget} beyond the budget" if found.beyond_budget else ""
    columns = Columns.of(map(_shared, found.best), devices=len(found.device_counts) > 1)
    lines = [
        f"{found.tried} configurations, {found.too_large} of them too large for a device{refused}; "
        f"{len(found.best)} that no other beats{ORDERS[found.goal]}:",
        _head(columns),
        *(_line(each, columns) for each in found.best[:shown]),
    ]
    if len(found.best) > shown:
        lines.append(f"and {len(found.best) - shown} more; --json shows all")
    if found.refused:
        lines.append(f"the first that cannot be: {found.first_refusal}")
    lines += _not_played(found)
    for name, each in found.break_even.items():
        lines += ["", f"{name}, {break_even_text(each.document)[0]}"]
        lines += break_even_text(each.document)[1:]
    return "\n".join(lines)


def _not_played(found: Plan) -> list[str]:
    """A line for each reason: how many have it, and what it says of the first."""
    why: dict[str, list[str]] = {}
    for each in found.best:
        if each.replay is not None and each.replay.why:
            why.setdefault(each.replay.why.partition(":")[0], []).append(each.replay.why)
    return [f"{len(said)} not played: {said[0]}" for said in why.values()]


def _head(columns: Columns) -> str:
    own = f"{'tokens/s':>12} {'step':>10} {'played':>10} {'left':>8}"
    return "  ".join([own, *columns.head, f"{'system':<13}", "degrees, micro-batch, again"])


def _line(each: Found, columns: Columns) -> str:
    job, played = each.question.job, each.replay.step_s if each.replay is not None else None
    again = "-" if played is None else f"{played:.3f} s"
    left = f"{each.left_bytes / 2**30:4.1f} GiB"
    own = f"{each.tokens_per_s:12,.0f} {each.step.seconds:8.3f} s {again:>10} {left}"
    what = f"{_degrees(job)}, {job.micro_batch}, {job.recompute}; binds: {each.step.binding}"
    shared = columns.cells(_shared(each))
    return "  ".join([own, *shared, f"{each.question.system:<13}", what])


def _degrees(job: TrainingJob) -> str:
    """Tensor, pipeline, virtual, data; context (c), experts (e, of width w) and ends as layers
    where there are any."""
    more = f" c{job.context}" if job.context > 1 else ""
    more += f" e{job.expert} w{job.expert_width}" if job.spreads_experts else ""
    more += " ends" if job.ends_as_layers else ""
    return f"t{job.tensor} p{job.pipeline} v{job.virtual} d{job.data}{more}"
