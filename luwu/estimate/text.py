"""An estimate for people: a few lines at the start of a run, tables for `luwu estimate`."""

from __future__ import annotations

from collections.abc import Sequence

from luwu.base.quantities import format_bytes, format_seconds
from luwu.estimate.disk import DiskRates
from luwu.estimate.plan import Estimate
from luwu.estimate.shape import JobShape
from luwu.layout import Layout
from switch_emu.node.plan import NodePlan


def short_lines(found: Estimate) -> list[str]:
    """Lines that `compare` writes before it starts."""
    read, written = found.disk_read_bytes, found.disk_written_bytes
    each = found.parameters_count
    roles = dict.fromkeys(use.role for use in found.memory)
    memory = ", ".join(_memory_text(found, role) for role in roles)
    lines = [
        f"plan    memory {memory}; {format_bytes(found.memory_bytes)} in all",
        f"        on disk a step {read / each:.1f} B read and {written / each:.1f} B written a "
        f"parameter ({format_bytes(read)}, {format_bytes(written)}); "
        f"{format_bytes(sum(found.disk_space_bytes.values()))} of space",
    ]
    return [*lines, f"        {disk_text(found)}"]


def disk_text(found: Estimate) -> str:
    """The least time of a step."""
    if found.disk_s is None:
        return "the disk was not measured, so its part of a step is not known"
    if not found.disk_s:
        return "a step waits for no disk"
    return f"a step takes at least {format_seconds(found.disk_s)}, for the disk"


def estimate_text(found: Estimate, job: JobShape, plan: NodePlan, disk: DiskRates | None) -> str:
    """All of it, as `luwu estimate` prints it."""
    return "\n".join([
        f"{job.parameters_count:,} parameters in {len(job.layout.units)} units and "
        f"{len(job.layout.chunks):,} chunks of {format_bytes(job.layout.chunk_bytes)}"
        f"{_extents_text(job.layout)}; "
        f"{job.workers} workers, {job.transport}, {job.layout.chunks[0].wire_dtype}, {job.update}",
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
        *_disk_table(found),
        "",
        *_table([
            ("links, a step, each process", "in", "out", "label", ""),
            *((use.role, format_bytes(use.into_bytes), format_bytes(use.out_of_bytes),
               "predicted", "") for use in found.links),
        ]),
        "",
        *([] if disk is None else [disk.text]),
        disk_text(found),
    ])  # fmt: skip


def _extents_text(layout: Layout) -> str:
    if layout.extent_chunks == 1:
        return ""
    return f", {layout.extent_chunks} to an extent: {len(layout.extents):,} extents travel"


def _disk_table(found: Estimate) -> list[str]:
    each = found.parameters_count

    def row(name: str, read: int, written: int) -> tuple[str, ...]:
        share = f"{read / each:.2f} + {written / each:.2f} B a parameter"
        return name, format_bytes(read), format_bytes(written), "predicted", share

    space = [
        (f"space: {name}", format_bytes(count), "", "predicted", "")
        for name, count in found.disk_space_bytes.items()
    ]
    return _table([
        ("disk, a step, at least", "read", "written", "label", ""),
        *(row(use.name, use.read_bytes, use.written_bytes) for use in found.disk),
        row("all", found.disk_read_bytes, found.disk_written_bytes),
        *space,
    ])  # fmt: skip


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
