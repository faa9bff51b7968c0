"""The estimate: what a job takes of memory, disk and links, and the least time of its disk. Pure.

    disk_s     2 min(R, W) / mixed + (R - W) / read, or (W - R) / write, of what updates and spilled
               sums read and write; pulls are reads alone, smaller and fewer at once: pulled / pull.
               With `--durability step` three flushes at least

A step takes as long, whatever else it does. Bytes are the least as well: the first units of a
streaming forward are handed out by their updates, all of an `at_step` one, and sums of a streaming
step are not spilled, where the disk is what others wait for.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from luwu.base.identifiers import by_identifier
from luwu.estimate.disk import DiskRates
from luwu.estimate.shape import JobShape, check_fits, kept_in_ram
from luwu.estimate.uses import (
    DiskUse,
    LinkUse,
    MemoryUse,
    disk_space,
    disk_uses,
    link_uses,
    memory_uses,
    use_document,
)
from switch_emu.node.plan import NodePlan

FLUSHES_A_STEP: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that a job takes, per step unless the name says otherwise."""

    parameters_count: int
    disk: tuple[DiskUse, ...]
    links: tuple[LinkUse, ...]
    memory: tuple[MemoryUse, ...]
    disk_space_bytes: dict[str, int]
    resident_pages_ratio: float
    weights_in_place: bool
    cached_ratio: float
    """Share of the weights that the switch caches."""
    disk_s: float | None
    """Seconds of the disk; 0 without one, None where it was not measured."""

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
            "parameters": self.parameters_count,
            "disk_bytes": {"read": self.disk_read_bytes, "written": self.disk_written_bytes},
            "disk_uses": [use_document(use, self.parameters_count) for use in self.disk],
            "disk_space_bytes": by_identifier(self.disk_space_bytes),
            "disk_s": self.disk_s,
            "network": [asdict(use) for use in self.links],
            "memory": [asdict(use) for use in self.memory],
            "memory_bytes": self.memory_bytes,
            "resident_pages_ratio": self.resident_pages_ratio,
            "weights_in_place": self.weights_in_place,
            "cached_ratio": self.cached_ratio,
        }


def estimate(job: JobShape, plan: NodePlan, disk: DiskRates | None = None) -> Estimate:
    """What `job` takes with `plan`; `disk`: the rates of its directory, where they were measured.

    Raises: ConfigError, with the number that would do, if the state fits neither RAM nor disk.
    """
    check_fits(job, plan, disk_free_bytes=None if disk is None else disk.free_bytes)
    store = job.store
    kept = kept_in_ram(job, plan, store)
    uses = disk_uses(job, plan, kept, store)
    spilled_bytes = next(use.written_bytes for use in uses if use.name == "spilled sums")
    return Estimate(
        parameters_count=job.parameters_count,
        disk=uses,
        links=link_uses(job, kept),
        memory=memory_uses(job, plan, kept),
        disk_space_bytes=disk_space(job, store, spilled_bytes),
        resident_pages_ratio=len(kept.resident) / store.page_count,
        weights_in_place=kept.places_bytes > 0 or kept.cached_in_place,
        cached_ratio=sum(job.layout.chunks[i].wire_bytes for i in kept.cached) / job.wire_bytes,
        disk_s=_disk_seconds(job, uses, disk),
    )


def _disk_seconds(
    job: JobShape, uses: tuple[DiskUse, ...], disk: DiskRates | None
) -> float | None:  # fmt: skip
    if not any(use.read_bytes or use.written_bytes for use in uses):
        return 0.0
    if disk is None:
        return None
    seconds = sum(
        use.read_bytes / disk.pull_bytes_per_s
        if use.is_pull
        else disk.seconds(use.read_bytes, use.written_bytes)
        for use in uses
    )
    is_flushed = job.durability == "step" and not job.is_in_ram
    return max(seconds, FLUSHES_A_STEP * disk.flush_s if is_flushed else 0.0)
