"""The estimate: what a job takes of memory, disk and links. Pure.

Bytes of a step are the least: the first units of a streaming forward are handed out by their
updates, all of an `at_step` one, and sums of a streaming step are not spilled, where the disk is
what others wait for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from luwu.base.errors import ConfigError
from luwu.base.identifiers import by_identifier
from luwu.base.quantities import format_bytes
from luwu.estimate.job import Job, kept_in_ram
from luwu.estimate.uses import (
    SPILLED,
    DiskUse,
    HostUse,
    LinkUse,
    MemoryUse,
    disk_space,
    disk_uses,
    host_use,
    link_uses,
    memory_uses,
)
from luwu.report.table import line_of, widths_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that a job takes, per step unless the name says otherwise."""

    job: Job
    disk: tuple[DiskUse, ...]
    links: tuple[LinkUse, ...]
    memory: tuple[MemoryUse, ...]
    disk_space_bytes: dict[str, int]
    resident_pages_ratio: float
    weights_in_place: bool
    cached_ratio: float
    """Share of the weights that the switch caches."""
    host: HostUse | None
    """The cache and the link of each host, if there are several; else None."""

    @property
    def disk_read_bytes(self) -> int:
        """Bytes read by all uses."""
        return sum(use.read_bytes for use in self.disk)

    @property
    def disk_written_bytes(self) -> int:
        """Bytes written by all uses."""
        return sum(use.written_bytes for use in self.disk)

    @property
    def memory_bytes(self) -> int:
        """Memory of all processes."""
        return sum(use.processes_count * use.nbytes for use in self.memory)

    def document(self) -> dict[str, Any]:
        """For results: every number."""
        return {
            "label": "predicted",
            "parameters": self.job.parameters_count,
            "disk_bytes": {"read": self.disk_read_bytes, "written": self.disk_written_bytes},
            "disk_uses": [asdict(use) for use in self.disk],
            "disk_space_bytes": by_identifier(self.disk_space_bytes),
            "network": [asdict(use) for use in self.links],
            "memory": [asdict(use) for use in self.memory],
            "memory_bytes": self.memory_bytes,
            "resident_pages_ratio": self.resident_pages_ratio,
            "weights_in_place": self.weights_in_place,
            "cached_ratio": self.cached_ratio,
            "host": None if self.host is None else asdict(self.host),
        }

    @property
    def line(self) -> str:
        """The memory and the disk that the job takes, as `luwu run` shows it."""
        memory = ", ".join(
            f"{use.role} {f'{use.processes_count} x ' * (use.processes_count > 1)}"
            f"{format_bytes(use.nbytes)}{' + activations' * (use.role == 'worker')}"
            for use in self.memory
        )
        disk = "no disk"
        if self.disk_space_bytes:
            disk = (
                f"disk {format_bytes(sum(self.disk_space_bytes.values()))}, a step reads "
                f"{format_bytes(self.disk_read_bytes)} and writes "
                f"{format_bytes(self.disk_written_bytes)}"
            )
        return f"plan    memory {memory}; {disk}"

    @property
    def details(self) -> list[str]:
        """The rest: the job, each use, and what a step moves."""
        job, layout, each = self.job, self.job.layout, self.job.parameters_count
        extents = f", which travel as {len(layout.extents):,} extents"
        return [
            f"{each:,} parameters in {len(layout.units)} units and {len(layout.chunks):,} chunks "
            f"of {format_bytes(layout.chunk_bytes)}{extents * (layout.extent_chunks > 1)}; "
            f"{job.workers} workers, {job.transport}, {layout.chunks[0].wire_dtype}, "
            f"{job.description.update}",
            job.plan.line,
            f"{self.resident_pages_ratio:.0%} of the pages stay in RAM; weights are "
            f"{'used in place' if self.weights_in_place else 'sent'}"
            f"{f', {self.cached_ratio:.0%} by the switch alone' * (self.cached_ratio > 0)}",
            *_rows("memory, at most", (
                (use.role, f"{use.processes_count} x {format_bytes(use.nbytes)}", use.text)
                for use in self.memory
            )),
            *_rows("space on disk", (
                (name, format_bytes(nbytes)) for name, nbytes in self.disk_space_bytes.items()
            )),
            *_rows("disk, a step, at least", (
                (use.name, f"{format_bytes(use.read_bytes)} read",
                 f"{format_bytes(use.written_bytes)} written", "a parameter "
                 f"{use.read_bytes / each:.2f} + {use.written_bytes / each:.2f} B")
                for use in self.disk if use.read_bytes or use.written_bytes
            )),
            *_rows("links, a step, each process", (
                (use.role, f"{format_bytes(use.into_bytes)} in",
                 f"{format_bytes(use.out_of_bytes)} out")
                for use in self.links
            )),
            *([] if self.host is None else [
                f"{format_bytes(self.host.weights_twice_bytes)} of the weights pass the link of a "
                "host twice a step; none do if its --switch-memory-budget is "
                f"{format_bytes(self.host.enough_memory_bytes)}"
            ]),
        ]  # fmt: skip


def estimate(job: Job, free_bytes: int | None = None) -> Estimate:
    """The estimate of a job; `free_bytes`: of the disk of its state, where they are known.

    Raises: ConfigError, with the number that would do, if the state fits neither RAM nor disk.
    """
    kept, store = kept_in_ram(job), job.store
    needed, log = job.placement.disk_bytes, job.log
    if free_bytes is not None and job.has_directory and needed > free_bytes:
        also = (
            "" if log is None else ", the log of sums among them: a smaller --log-steps takes less"
        )
        raise ConfigError(
            f"state: two sides and their manifests take {format_bytes(needed)} on disk{also}; "
            f"{format_bytes(free_bytes)} are free; name a directory with as much by --state"
        )
    uses = disk_uses(job, kept)
    spilled_bytes = next(use.written_bytes for use in uses if use.name == SPILLED)
    return Estimate(
        job=job,
        disk=uses,
        links=link_uses(job, kept),
        memory=memory_uses(job, kept),
        disk_space_bytes=disk_space(job, spilled_bytes),
        resident_pages_ratio=len(kept.resident) / store.page_count,
        weights_in_place=kept.places_bytes > 0 or kept.cached_in_place,
        cached_ratio=sum(job.layout.chunks[i].wire_bytes for i in kept.cached) / job.wire_bytes,
        host=None if job.on_host is None else host_use(job, job.on_host),
    )


def _rows(title: str, rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Columns below a title; none without rows."""
    found = list(rows)
    widths = widths_of(found)
    lines = [f"  {line_of(row, widths, left=len(row))}" for row in found]
    return [title, *lines] if lines else []
