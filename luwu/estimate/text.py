"""An estimate for people: a few lines at the start of a run, tables for `luwu estimate`."""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.quantities import format_bytes, format_seconds
from luwu.estimate.plan import ENDURANCE_WRITES, Estimate
from luwu.estimate.shape import JobShape
from luwu.layout import Layout
from luwu.measure.floors import Floors
from switch_emu.node.plan import NodePlan


def short_lines(found: Estimate) -> list[str]:
    """Lines that `compare` prints before it starts."""
    floors = ", ".join(
        f"{floor.name} {seconds_text(floor.seconds)}" for floor in found.floors if floor.seconds
    )
    read, written = found.disk_read_bytes, found.disk_written_bytes
    lines = [f"plan    {bound_text(found)}; floors: {floors}"]
    each = found.parameters_count
    lines.append(
        f"        on disk a step {read / each:.1f} B read and {written / each:.1f} B written a "
        f"parameter ({format_bytes(read)}, {format_bytes(written)}); "
        f"{format_bytes(sum(found.disk_space_bytes.values()))} of space"
    )
    roles = dict.fromkeys(use.role for use in found.memory)
    memory = ", ".join(_memory_text(found, role) for role in roles)
    lines.append(f"        memory {memory}; {format_bytes(found.memory_bytes)} in all")
    if found.endurance_days is not None and written:
        lines.append(f"        {endurance_text(found)}")
    return lines


def bound_text(found: Estimate) -> str:
    """How long a step takes at least, and why."""
    if found.step_seconds is None:
        return "nothing was measured, so no step time is known"
    step = f"a step takes about {seconds_text(found.step_seconds)} (predicted)"
    return f"{step}, bound by {found.binding}"


def endurance_text(found: Estimate) -> str:
    """How long a drive lasts."""
    assert found.written_bytes_per_day is not None
    days = found.endurance_days
    return (
        f"written a day {format_bytes(found.written_bytes_per_day)}: "
        f"{'-' if days is None else f'{days:,.0f}'} days to the rating of a typical drive of "
        f"this size (assumed: {ENDURANCE_WRITES} bytes written for each it holds)"
    )


def estimate_text(found: Estimate, job: JobShape, plan: NodePlan, floors: Floors) -> str:
    """All of it, as `luwu estimate` prints it."""
    parts = [
        f"{job.parameters_count:,} parameters in {len(job.layout.units)} units and "
        f"{len(job.layout.chunks):,} chunks of {format_bytes(job.layout.chunk_bytes)}"
        f"{_extents_text(job.layout)}; "
        f"{job.workers} workers, {job.transport}, {job.layout.chunks[0].wire_dtype}, "
        f"{job.update}, {job.tokens_per_step:,} tokens a step",
        *plan.lines(),
        f"of the pages {found.resident_pages_ratio:.0%} stay in RAM; weights are "
        f"{'used in place' if found.weights_in_place else 'sent'}"
        f"{f', {found.cached_ratio:.0%} by the switch alone' * (found.cached_ratio > 0)}",
        "",
        *_table([
            ("memory, each process", "processes", "at most", "label", ""),
            *((use.role, str(use.processes_count), format_bytes(use.nbytes), use.label, use.text)
              for use in found.memory),
            ("all", "", format_bytes(found.memory_bytes), "", ""),
        ]),
        "",
        *_table([("threads", "processes", "each", "", ""), *(
            (use.role, str(use.processes_count), str(use.threads_count), "", use.text)
            for use in found.cores
        ), ("cores here", "", str(found.cores_count), "measured", "")]),
        "",
        *_disk_table(found),
        "",
        *_table([
            ("links, a step, each process", "in", "out", "label", ""),
            *((use.role, format_bytes(use.into_bytes), format_bytes(use.out_of_bytes),
               "predicted", "") for use in found.links),
        ]),
        "",
        *_table([
            ("floor of a step", "seconds", "", "label", ""),
            *((floor.name, seconds_text(floor.seconds), "", floor.label, floor.text)
              for floor in found.floors),
        ]),
        "",
        *_machine_lines(floors),
        "",
        bound_text(found),
    ]  # fmt: skip
    if found.written_bytes_per_day:
        parts.append(endurance_text(found))
    return "\n".join(parts)


def _extents_text(layout: Layout) -> str:
    if layout.extent_chunks == 1:
        return ""
    return f", {layout.extent_chunks} to an extent: {len(layout.extents):,} extents travel"


def seconds_text(value: float | None) -> str:
    """Seconds with three digits, in a fitting unit."""
    return "not known" if value is None else format_seconds(value)


def _disk_table(found: Estimate) -> list[str]:
    each = found.parameters_count

    def row(name: str, read: int, written: int) -> tuple[str, ...]:
        share = f"{read / each:.2f} + {written / each:.2f} B a parameter"
        return name, format_bytes(read), format_bytes(written), "predicted", share

    rows = [("disk, a step", "read", "written", "label", "")]
    rows += [row(use.name, use.read_bytes, use.written_bytes)  # type: ignore[misc]
             for use in found.disk]  # fmt: skip
    rows.append(row("all", found.disk_read_bytes, found.disk_written_bytes))  # type: ignore[arg-type]
    space = [
        (f"space: {name}", format_bytes(count), "", "predicted", "")
        for name, count in found.disk_space_bytes.items()
    ]
    return _table([*rows, *space])


def _machine_lines(floors: Floors) -> list[str]:
    lines = []
    if floors.disk is not None:
        lines.append(floors.disk.text)
    if floors.copy_bytes_per_s:
        lines.append(f"copies, measured: {format_bytes(floors.copy_bytes_per_s)}/s")
    if floors.socket_bytes_per_s:
        lines.append(f"a pair of sockets, measured: {format_bytes(floors.socket_bytes_per_s)}/s")
    if floors.update_parameters_per_s:
        rate = floors.update_parameters_per_s / 1e9
        lines.append(f"{floors.update_kernel} update kernel, measured: {rate:.2f} Gparameters/s")
    if floors.matmul_flops_per_s:
        lines.append(f"matrix product, measured: {floors.matmul_flops_per_s / 1e9:.1f} GFLOP/s")
    if floors.device != "cpu":
        lines.append("workers compute on a GPU, whose rate is not measured")
    return lines


def _memory_text(found: Estimate, role: str) -> str:
    use = next(each for each in found.memory if each.role == role)
    many = f"{use.processes_count} x " if use.processes_count > 1 else ""
    return f"{role} {many}{format_bytes(use.nbytes)}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = [f"{row[0]:<{widths[0]}}"]
        cells += [f"{cell:>{width}}" for cell, width in zip(row[1:3], widths[1:3], strict=True)]
        cells += [f"{cell:<{width}}" for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join(cells).rstrip())
        if index == 0:
            lines.append("-" * len(lines[0]))
    return lines
