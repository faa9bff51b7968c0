"""The node's memory plan: the uses of `--memory-budget`, fixed before the run.

The budget covers all allocations of a node for a job: pipeline buffers, the window of pushes it
grants, waiting sums, outgoing weights, slots if it is its own switch, and resident pages with the
rest. A budget that is too small raises ConfigError with one that suffices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from luwu.base.errors import ConfigError
from luwu.base.limits import CHUNK_BYTES_STEP, MIB, POOL_BYTES_DEFAULT
from luwu.base.quantities import format_bytes
from luwu.layout import Layout, padded
from switch_emu.switch.capacity import slot_memory

_RECORD_CHUNKS = 3
"""Record of the largest page in chunks of float32: weights, m and v."""
_UPDATE_CHUNKS = _RECORD_CHUNKS + 1
"""Buffers of one update for each page that it works on at once, beside an extent of weights to
publish, or of the sum that a fold makes: the record, and the page's part of a spilled sum."""
_READ_CHUNKS = 1
"""Buffer of one read of weights, as they are stored, beside the extent that is sent."""
_SHARED_CHUNKS = 1
"""Buffers of all threads together, for each such page: the sum of contributions that are added one
by one."""
_THREADS_MANY = (6, 2)
"""(updates, reads) in flight where they take at most a quarter of the budget: they update a state
that is in RAM on as many cores."""
_THREADS_ENOUGH = (3, 2)
"""They keep a disk busy while some compute. More of them wait for one another, and larger groups of
pages are worth more than that (design note 0009)."""
_THREADS_SINGLE = (4, 2)
"""Threads where each works on one page at a time."""
_THREADS_FEW = ((2, 2), (2, 1), (1, 1))
"""Threads where there is no room for those: the disk is idle while they compute."""
_OUTGOING_EXTENTS = 6
"""Weights wait there until all workers have copied them. With two chunks of 16 MiB the disk was
idle for two fifths of a forward of a billion parameters: one was read while another was copied."""
_TOGETHER_BYTES_MAX = 12 * MIB
"""Records that one request reads: up to there a larger one costs less processor time."""
_SPILL_BUFFERS_MAX = 2
"""One is filled while the other is written."""
_WHOLE_ELEM_BYTES = 48
"""Memory of the update of a parameter as a whole, beside its pages: sums, squares, products, and
what several pages hold in one piece."""
EXTENT_AUTO_BYTES_MAX = 4 * MIB
"""Beyond it the memory is worth more: pages that stay in RAM are not read."""
_CHUNK_AUTO_BYTES_MAX = 16 * MIB
"""Largest chunk chosen. In shared memory a chunk costs messages, not bytes: design note 0011."""
_SMALL_CHUNK_BYTES = 256 * 1024
"""Chunks up to this are a 32nd of the budget, as each page costs the program; larger ones a 64th,
as several travel and are written together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """Bytes of the budget, by use."""

    budget_bytes: int
    extent_chunks: int
    """Chunks that travel together at most."""
    updates_count: int
    """Updates in flight, one thread each."""
    pages_together: int
    """Pages of an extent that a thread reads, updates and writes at once, at most."""
    reads_count: int
    pipeline_bytes: int
    window_bytes: int
    """Credit of the child: payload it may have under way to us; 0 where that is not our memory."""
    sums_bytes: int
    """Gradient sums in RAM; more are spilled."""
    spill_bytes: int
    """Buffers of sums that are being spilled."""
    outgoing_bytes: int
    """Weights handed to the transport and not sent yet."""
    slots_bytes: int
    """Slots of the node's own switch, with --no-switch; else 0."""
    copies_bytes: int
    resident_bytes: int
    """Resident pages, and weights that workers read in place."""

    @property
    def updates_max(self) -> int:
        """Limit of updates under way: some wait, so that no thread is idle."""
        return self.updates_count + 2

    def in_place_bytes(self, wanted_bytes: int, *, state_in_ram_bytes: int = 0) -> int:
        """Shared memory for weights that workers read in place; 0 where there is no room.

        It comes out of the memory of resident pages: up to half of it, or the rest beside a state
        in RAM.
        """
        most = min(self.resident_bytes // 2, self.resident_bytes - state_in_ram_bytes)
        return wanted_bytes if wanted_bytes <= most else 0

    @property
    def shared_bytes(self) -> int:
        """Shared memory of the node: weights in place, and outgoing copies."""
        return self.resident_bytes // 2 + self.outgoing_bytes

    @property
    def line(self) -> str:
        """The plan as text."""
        threads = f"{self.updates_count} updates, {self.reads_count} reads"
        if self.pages_together > 1:
            threads += f", {self.pages_together} pages at once"
        uses = {
            f"pipeline ({threads})": self.pipeline_bytes,
            "pushes under way": self.window_bytes,
            "sums in RAM": self.sums_bytes,
            "sums being spilled": self.spill_bytes,
            "weights going out": self.outgoing_bytes,
            "slots": self.slots_bytes + self.copies_bytes,
            "resident pages": self.resident_bytes,
        }
        text = ", ".join(f"{name} {format_bytes(count)}" for name, count in uses.items() if count)
        line = f"memory budget {format_bytes(self.budget_bytes)}: {text}"
        if self.extent_chunks > 1:
            line += f"; {self.extent_chunks} chunks travel together"
        return line


def whole_bytes(layout: Layout) -> int:
    """Memory that updates take which see a parameter as a whole, one at a time: it comes out of
    that of resident pages. 0: there are none."""
    wholes = (each for each in layout.parameters if each.form.whole and each.trainable)
    return _WHOLE_ELEM_BYTES * max((padded(each.elems) for each in wholes), default=0)


def default_chunk_bytes(
    budget_bytes: int, *, world_size: int, has_switch: bool, slot_count: int = 0
) -> int:  # fmt: skip
    """The chunk for a budget: a power of two from 16 KiB to 16 MiB, up to a 32nd of it, and from
    512 KiB on up to a 64th.

    Smaller if two pages in flight would not fit. Small chunks cost messages; with few chunks the
    disk waits (design note 0009).
    """
    most = min(budget_bytes // 32, max(budget_bytes // 64, _SMALL_CHUNK_BYTES))
    chunk_bytes = CHUNK_BYTES_STEP
    while chunk_bytes * 2 <= min(most, _CHUNK_AUTO_BYTES_MAX):
        leasts = _leasts(chunk_bytes * 2, world_size, has_switch, slot_count)
        room = _pipeline_room(budget_bytes, leasts)
        if _pipeline_bytes(chunk_bytes * 2, chunk_bytes * 2, (2, 2)) > room:
            break
        chunk_bytes *= 2
    return chunk_bytes


def default_extent_chunks(
    budget_bytes: int, chunk_bytes: int, bytes_max: int, *, world_size: int, has_switch: bool,
    in_arenas: bool = False, levels: int = 0,
) -> int:  # fmt: skip
    """The chunks that travel together, for a budget: a power of two, up to `bytes_max`.

    As many as leave room for the updates that single chunks would have under way, up to three; and,
    beyond four chunks, half of the budget for resident pages.
    """

    def planned(count: int) -> NodePlan:
        return plan_node(
            budget_bytes=budget_bytes, chunk_bytes=chunk_bytes, world_size=world_size,
            has_switch=has_switch, extent_chunks=count, in_arenas=in_arenas, levels=levels,
        )  # fmt: skip

    best = 1
    try:
        updates_count = min(planned(1).updates_count, 3)
    except ConfigError:
        return best  # whoever makes the plan raises it
    while best * 2 * chunk_bytes <= bytes_max:
        try:
            plan = planned(best * 2)
        except ConfigError:
            break
        is_lavish = best > 2 and plan.resident_bytes < budget_bytes // 2
        if is_lavish or plan.updates_count < updates_count:
            break
        best *= 2
    return best


def plan_node(
    *, budget_bytes: int, chunk_bytes: int, world_size: int, has_switch: bool, slot_count: int = 0,
    extent_chunks: int = 1, in_arenas: bool = False, levels: int = 0,
) -> NodePlan:  # fmt: skip
    """Divide the budget. Raises ConfigError, with the least that would do.

    `slot_count`: the fixed slots that a switch of our own has at least, in protocol fidelity.
    `in_arenas`: what children push lies in shared memory of theirs. `levels`: of a tree of switches
    whose sums are made again, in an array each (`scratch.Adder`).
    """
    extent_bytes = extent_chunks * chunk_bytes
    leasts = _leasts(extent_bytes, world_size, has_switch, slot_count, in_arenas=in_arenas)
    pipeline = partial(_pipeline_bytes, chunk_bytes, extent_bytes, levels=levels)
    least = pipeline((1, 1)) + leasts.total
    if budget_bytes < least:
        raise ConfigError(
            f"memory_budget: {format_bytes(budget_bytes)} is too small for "
            f"{f'{extent_chunks} at once of the ' * (extent_chunks > 1)}chunks of "
            f"{format_bytes(chunk_bytes)} and {world_size} workers; give at least "
            f"{-(-least // 1024)}KiB, or a smaller --chunk{' or --extent' * (extent_chunks > 1)}"
            f"{' or fewer --slots' * (slot_count > 1)}",
            code="E205",
        )
    room = _pipeline_room(budget_bytes, leasts, is_single=extent_chunks == 1)
    together_max = min(extent_chunks, _TOGETHER_BYTES_MAX // (_RECORD_CHUNKS * chunk_bytes))
    fitting = (
        (threads, together)
        for threads, together, share in _choices(together_max)
        if pipeline(threads, together=together) <= min(room, share * budget_bytes)
    )
    threads, pages_together = next(fitting, ((1, 1), 1))
    pipeline_bytes = pipeline(threads, together=pages_together)
    share = partial(_share, budget_bytes - pipeline_bytes - leasts.total)
    has_slots = not has_switch and not in_arenas
    outgoing_most = max(32 * MIB, _OUTGOING_EXTENTS * extent_bytes)
    uses = {
        "pipeline_bytes": pipeline_bytes,
        "window_bytes": 0 if in_arenas else share(0.15, leasts.window, 32 * MIB),
        "sums_bytes": share(0.25, leasts.sums, 1024 * MIB),
        "spill_bytes": share(0.05, leasts.spill, _SPILL_BUFFERS_MAX * extent_bytes),
        "outgoing_bytes": share(0.15, leasts.outgoing, outgoing_most),
        "slots_bytes": share(0.2, leasts.slots, POOL_BYTES_DEFAULT) if has_slots else 0,
        "copies_bytes": 0 if has_switch else share(0.1, leasts.copies, POOL_BYTES_DEFAULT),
    }
    resident_bytes = budget_bytes - sum(uses.values())
    assert resident_bytes >= 0
    return NodePlan(
        budget_bytes=budget_bytes,
        extent_chunks=extent_chunks,
        updates_count=threads[0],
        pages_together=pages_together,
        reads_count=threads[1],
        resident_bytes=resident_bytes,
        **uses,
    )


def budget_for_pages(
    needed_bytes: Callable[[int], int], *, budget_bytes: int, chunk_bytes: int, world_size: int,
    has_switch: bool, slot_count: int = 0, extent_chunks: int = 1, in_arenas: bool = False,
) -> int:  # fmt: skip
    """The budget, raised in whole KiB until it suffices for pages; other uses grow with it.

    `needed_bytes`: bytes of pages for a chunk size. The budget suffices for the given chunk and
    extent, and for the defaults of the new budget. Raises ConfigError as `plan_node` does.
    """

    def resident_bytes(chunk: int, extent: int) -> int:
        plan = plan_node(
            budget_bytes=budget_bytes, chunk_bytes=chunk, world_size=world_size,
            has_switch=has_switch, slot_count=slot_count, extent_chunks=extent, in_arenas=in_arenas,
        )  # fmt: skip
        return plan.resident_bytes

    while True:
        missing = 0
        follows = default_chunk_bytes(
            budget_bytes, world_size=world_size, has_switch=has_switch, slot_count=slot_count
        )
        for each in {chunk_bytes, follows}:
            extents = {1, extent_chunks} if each == chunk_bytes else {1}
            if not slot_count:  # a fixed slot holds a chunk
                follows_extent = default_extent_chunks(
                    budget_bytes, each, EXTENT_AUTO_BYTES_MAX, world_size=world_size,
                    has_switch=has_switch, in_arenas=in_arenas,
                )  # fmt: skip
                extents.add(follows_extent)
            least = min(resident_bytes(each, extent) for extent in extents)
            missing = max(missing, needed_bytes(each) - least)
        if not missing:
            return budget_bytes
        budget_bytes = -(-(budget_bytes + missing) // 1024) * 1024


def _choices(together_max: int) -> Iterator[tuple[tuple[int, int], int, float]]:
    """Threads, the pages that each of them works on at once, and the share of the budget that they
    may take: the best first."""
    groups = [1 << bits for bits in reversed(range(max(1, together_max).bit_length()))]
    yield _THREADS_MANY, groups[0], 0.25
    if groups == [1]:
        yield _THREADS_SINGLE, 1, 1.0
    for group in groups:
        yield _THREADS_ENOUGH, group, 1.0
    for threads in _THREADS_FEW:
        for group in groups:
            yield threads, group, 1.0


def _pipeline_bytes(
    chunk_bytes: int, extent_bytes: int, threads: tuple[int, int], *, together: int = 1,
    levels: int = 0,
) -> int:  # fmt: skip
    updates_count, reads_count = threads
    chunks = together * (updates_count * _UPDATE_CHUNKS + _SHARED_CHUNKS + levels)
    chunks += reads_count * _READ_CHUNKS
    return chunks * chunk_bytes + (updates_count + reads_count) * extent_bytes


def _pipeline_room(budget_bytes: int, leasts: _Leasts, *, is_single: bool = True) -> int:
    """What the pipeline may take: half, and what the other uses do not need at least. Of extents of
    several chunks two thirds: half of the messages are worth more than a few resident pages."""
    most = budget_bytes // 2 if is_single else budget_bytes * 2 // 3
    return min(most, budget_bytes - leasts.total)


class _Leasts(NamedTuple):
    """Minimum bytes of each use except the pipeline."""

    window: int
    outgoing: int
    sums: int
    spill: int
    slots: int
    copies: int

    @property
    def total(self) -> int:
        return sum(self)


def _leasts(
    extent_bytes: int, world_size: int, has_switch: bool, slot_count: int, *,
    in_arenas: bool = False,
) -> _Leasts:  # fmt: skip
    two = 2 * extent_bytes
    if has_switch or in_arenas:
        return _Leasts(
            window=0 if in_arenas else two, outgoing=two, sums=extent_bytes, spill=extent_bytes,
            slots=0, copies=0 if has_switch else two,
        )  # fmt: skip
    all_ranks = world_size * extent_bytes  # each worker may have one under way, and in a slot
    slots = slot_memory(slot_count, child_count=world_size, chunk_bytes=extent_bytes)
    return _Leasts(
        window=max(two, all_ranks), outgoing=two, sums=extent_bytes, spill=extent_bytes,
        slots=max(all_ranks, slots), copies=two,
    )  # fmt: skip


def _share(spare: int, ratio: float, least: int, most: int) -> int:
    """The minimum plus a share of the spare bytes, up to `most`."""
    return max(least, min(least + int(spare * ratio), most))
