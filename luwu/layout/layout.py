"""The place of every parameter: parameters -> units -> chunks -> pages -> owning node.

    unit     0                                             1
             |<------ region: trainable ------>|<-frozen->||<---- trainable ...
    values   [ wte ....pad][ bias.pad][ w ....]|[ f .. pad]||[ w ...
    chunks   |   0    |    1    |   2   | 3 |  |  4   | 5 |||  6   | ...
    extents  |        0         |      1    |  |     2    |||  3   | ...
    pages    one a chunk: page i holds the master weights and optimizer state of chunk i

A unit's values lie in one flat vector, its parameters ordered by (trainable first, dtype, dtypes of
what is stored, order of registration). A run of equal ones is a *region*; a chunk never crosses a
region, so frozen bytes are never pushed and page kinds do not mix. A parameter whose update sees it
as a whole is a region of its own. Every parameter starts on a
multiple of 64 elements and is padded to it, and chunks hold a multiple of 4,096 elements (the last
of a region may be shorter): that is what makes results independent of `--chunk`.

A chunk is what is stored: it has a version, a checksum and a place on disk. An *extent* is what
travels: a run of at most `extent_chunks` chunks of one unit and one node, that are pushed, summed,
updated and pulled together. Extents change messages and never a bit, so a state does not know them.
The extents of a parameter that is updated as a whole, and takes several chunks, are a *sheet*: they
have no other chunk, belong to one node, and are updated at once.

Everything here is integer arithmetic on what all ranks agree on; nothing is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TypeVar

from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import NORM_BLOCK_ELEMS, SEGMENTS_MAX
from luwu.layout.parameters import (
    ALL_FLOAT32,
    SUM_BYTES,
    Parameter,
    StoredForm,
    Unit,
    check_chunk_bytes,
    check_model,
    padded,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The place of one parameter in its unit's flat vector."""

    parameter: int
    unit: int
    start: int
    """First element, counted from the unit's start; a multiple of 64."""
    elems: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a unit's flat vector, all of it trained or not, in one dtype on the wire."""

    index: int
    unit: int
    elems: int
    """Elements with padding: a multiple of 64."""
    trainable: bool
    wire_dtype: str
    form: StoredForm = ALL_FLOAT32
    """How its parameters are kept; where their update sees each as a whole, a chunk has only one,
    or a part of one."""

    @property
    def wire_bytes(self) -> int:
        """Payload of its weights, or of one rank's gradient."""
        return self.elems * DTYPES[self.wire_dtype].nbytes

    @property
    def sum_bytes(self) -> int:
        """Payload of the sum over ranks."""
        return self.elems * SUM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk(_Part):
    """The part of a unit that is stored as one page."""

    start: int
    """First element, counted from the unit's start."""
    sheet: range | None = None
    """All chunks of its parameter, if that is updated as a whole and has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent(_Part):
    """Chunks of one unit that travel in one message, meet in one slot and are updated together."""

    chunks: range
    """Their indices: neighbours in the store of their node."""
    runs: tuple[tuple[int, int], ...]
    """(first element, elements) of the unit's flat vector; a single one where there is one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The part of one parameter that lies in one chunk."""

    parameter: int
    parameter_start: int
    chunk_start: int
    elems: int
    """Without padding."""
    padded_elems: int
    """Elements until the next segment starts."""


LabelT = TypeVar("LabelT")

_Region = tuple[bool, str, str, StoredForm, int]
"""(frozen, dtype, wire dtype, how it is kept, 1 + index of a whole parameter)"""


def segment_runs(
    segments: Sequence[Segment], labels: Sequence[LabelT]
) -> tuple[tuple[int, int, LabelT], ...]:
    """(start, stop, label) in elements of a chunk, from one label for each of its segments.

    The runs cover the chunk, padding included, and start on multiples of 64; neighbours of one
    label are one run, since padding is zero and stays zero.
    """
    runs: list[tuple[int, int, LabelT]] = []
    for segment, label in zip(segments, labels, strict=True):
        stop = segment.chunk_start + segment.padded_elems
        start = runs.pop()[0] if runs and runs[-1][2] == label else segment.chunk_start
        runs.append((start, stop, label))
    return tuple(runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Geometry of a model, equal on all ranks. Raises ConfigError if it cannot be."""

    parameters: tuple[Parameter, ...]
    """Parameters in the order of registration, which is that of the weights digest."""
    units: tuple[Unit, ...]
    chunk_bytes: int
    """Bytes of float32 gradient in a full chunk, whatever travels; a multiple of 16 KiB."""
    optimizer_nodes: int = 1
    extent_chunks: int = field(default=1, compare=False)
    """Chunks that travel together at most. Not part of what a job is: two layouts that differ in
    this alone are equal."""

    placements: tuple[Placement, ...] = field(init=False, repr=False, compare=False)
    """One a parameter, same order."""
    chunks: tuple[Chunk, ...] = field(init=False, repr=False, compare=False)
    unit_chunks: tuple[range, ...] = field(init=False, repr=False, compare=False)
    """Indices of each unit's chunks."""
    unit_elems: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """Length of each unit's flat vector, with padding."""
    extents: tuple[Extent, ...] = field(init=False, repr=False, compare=False)
    unit_extents: tuple[range, ...] = field(init=False, repr=False, compare=False)
    """Indices of each unit's extents."""
    sheets: dict[int, range] = field(init=False, repr=False, compare=False)
    """By each of their extents; others are updated alone."""
    stripe_chunks: tuple[Sequence[int], ...] = field(init=False, repr=False, compare=False)
    """The chunks of each stripe, in their order."""
    _sheet_stripes: dict[int, int] = field(init=False, repr=False, compare=False)
    """The stripe of each chunk of a sheet, where there are several nodes."""

    def __post_init__(self) -> None:
        stored_bytes = sum(padded(parameter.elems) for parameter in self.parameters) * SUM_BYTES
        check_chunk_bytes(self.chunk_bytes, stored_bytes)
        check_model(self.parameters, self.units, self.optimizer_nodes)
        chunk_elems = self.chunk_bytes // SUM_BYTES
        placements: dict[int, Placement] = {}
        chunks: list[Chunk] = []
        unit_chunks: list[range] = []
        unit_elems: list[int] = []
        for number, unit in enumerate(self.units):
            chunk_first, cursor = len(chunks), 0
            for (frozen, _, wire_dtype, form, _), members in self._regions(unit):
                region_start = cursor
                for i in members:
                    elems = self.parameters[i].elems
                    placements[i] = Placement(parameter=i, unit=number, start=cursor, elems=elems)
                    cursor += padded(elems)
                starts = range(region_start, cursor, chunk_elems)
                is_sheet = form.whole and len(starts) > 1
                sheet = range(len(chunks), len(chunks) + len(starts)) if is_sheet else None
                for start in starts:
                    elems = min(chunk_elems, cursor - start)
                    chunk = Chunk(
                        index=len(chunks), unit=number, start=start, elems=elems,
                        trainable=not frozen, wire_dtype=wire_dtype, form=form, sheet=sheet,
                    )  # fmt: skip
                    chunks.append(chunk)
            unit_chunks.append(range(chunk_first, len(chunks)))
            unit_elems.append(cursor)
        set_once = object.__setattr__
        set_once(self, "placements", tuple(placements[i] for i in range(len(self.parameters))))
        set_once(self, "chunks", tuple(chunks))
        set_once(self, "unit_chunks", tuple(unit_chunks))
        set_once(self, "unit_elems", tuple(unit_elems))
        set_once(self, "_sheet_stripes", self._choose_stripes())
        set_once(self, "stripe_chunks", self._stripe_chunks())
        self._check_segments()
        extents: list[Extent] = []
        unit_extents: list[range] = []
        for number in range(len(self.units)):
            first = len(extents)
            for run in self._extent_runs(number):
                extents.append(self._extent(len(extents), run))
            unit_extents.append(range(first, len(extents)))
        set_once(self, "extents", tuple(extents))
        set_once(self, "unit_extents", tuple(unit_extents))
        set_once(self, "sheets", self._extent_sheets())

    @property
    def extent_bytes(self) -> int:
        """Bytes of float32 gradient in a full extent, whatever travels."""
        return self.extent_chunks * self.chunk_bytes

    def trainable_extents(self, unit: int) -> tuple[int, ...]:
        """Indices of the extents of `unit` that are pushed."""
        return tuple(i for i in self.unit_extents[unit] if self.extents[i].trainable)

    def unit_wire_bytes(self, unit: int) -> int:
        """Bytes of the unit's weights on the wire and in a worker's storage."""
        return sum(self.chunks[i].wire_bytes for i in self.unit_chunks[unit])

    def stripe(self, chunk: int) -> int:
        """The stripe of a chunk: `share.py` says which optimizer nodes hold it."""
        return self._sheet_stripes.get(chunk, chunk % self.optimizer_nodes)

    def sheet(self, extent: int) -> range:
        """The extents that are updated with this one, itself among them."""
        return self.sheets.get(extent, range(extent, extent + 1))

    def extent_stripe(self, extent: int) -> int:
        """The stripe of an extent's chunks."""
        return self.stripe(self.extents[extent].chunks.start)

    def segments(self, chunk: int) -> Iterator[Segment]:
        """The parts of parameters in a chunk, in order of position; only padding lies between."""
        box = self.chunks[chunk]
        members = (self.placements[i] for i in self.units[box.unit].parameters)
        for place in sorted(members, key=lambda place: place.start):
            start = max(place.start, box.start)
            stop = min(place.start + place.elems, box.start + box.elems)
            if start < stop:
                yield Segment(
                    parameter=place.parameter, parameter_start=start - place.start,
                    chunk_start=start - box.start, elems=stop - start,
                    padded_elems=padded(stop - start),
                )  # fmt: skip

    def pieces(self, parameter: int) -> Iterator[tuple[int, Segment]]:
        """The chunks of a parameter, from its first element on, and its part in each."""
        place = self.placements[parameter]
        chunks, stop = self.unit_chunks[place.unit], place.start + place.elems
        at = place.start
        index = chunks[bisect_right(chunks, at, key=lambda i: self.chunks[i].start) - 1]
        while at < stop:
            box = self.chunks[index]
            elems = min(stop, box.start + box.elems) - at
            yield index, Segment(
                parameter=parameter, parameter_start=at - place.start, chunk_start=at - box.start,
                elems=elems, padded_elems=padded(elems),
            )  # fmt: skip
            at, index = at + elems, index + 1

    def segments_count(self, chunk: int) -> int:
        """How many parameters have a part in a chunk."""
        return sum(1 for _ in self.segments(chunk))

    def extent_segments(self, extent: int) -> Iterator[Segment]:
        """The segments of an extent's chunks, in their order, each where it lies in the extent."""
        start = 0
        for index in self.extents[extent].chunks:
            for part in self.segments(index):
                yield replace(part, chunk_start=start + part.chunk_start)
            start += self.chunks[index].elems

    def extent_segments_count(self, extent: int) -> int:
        """How many segments an extent has: a push of it has a bit for each."""
        return sum(self.segments_count(index) for index in self.extents[extent].chunks)

    def _check_segments(self) -> None:
        """A push has a bit for each segment of its chunk. Raises ConfigError if they are many."""
        for number, unit in enumerate(self.units):
            if len(unit.parameters) <= SEGMENTS_MAX:
                continue
            for index in self.unit_chunks[number]:
                count = self.segments_count(index)
                if count > SEGMENTS_MAX:
                    raise ConfigError(
                        f"chunk: {self.chunk_bytes} bytes hold parts of {count} parameters of unit "
                        f"{unit.name}, at most {SEGMENTS_MAX} may share a chunk; choose a smaller "
                        "chunk (1MiB always fits)"
                    )

    def _choose_stripes(self) -> dict[int, int]:
        """The stripe of each chunk of a sheet: that which has the fewest elements so far."""
        count, found = self.optimizer_nodes, dict[int, int]()
        if count == 1 or not any(chunk.sheet for chunk in self.chunks):
            return found
        loads, stripe = [0] * count, 0
        for chunk in self.chunks:
            if chunk.sheet is None:
                stripe = chunk.index % count
            elif chunk.index == chunk.sheet.start:
                stripe = loads.index(min(loads))
                found |= dict.fromkeys(chunk.sheet, stripe)
            loads[stripe] += chunk.elems
        return found

    def _stripe_chunks(self) -> tuple[Sequence[int], ...]:
        count, every = self.optimizer_nodes, range(len(self.chunks))
        if not self._sheet_stripes:
            return tuple(every[stripe::count] for stripe in range(count))
        return tuple(tuple(c for c in every if self.stripe(c) == s) for s in range(count))

    def _extent_sheets(self) -> dict[int, range]:
        found: dict[int, range] = {}
        for sheet, of_sheet in groupby(self.extents, lambda e: self.chunks[e.chunks.start].sheet):
            if sheet is not None:
                indices = [extent.index for extent in of_sheet]
                found |= dict.fromkeys(indices, range(indices[0], indices[-1] + 1))
        return found

    def _extent_runs(self, unit: int) -> list[range]:
        """The chunks of each extent of a unit; the one with the first chunk first."""
        if self.extent_chunks < 1:
            raise ConfigError(f"extent_chunks must be >= 1, got {self.extent_chunks!r}")
        if self.extent_chunks == 1:
            return [range(i, i + 1) for i in self.unit_chunks[unit]]
        runs = []
        for _, group in groupby(self.unit_chunks[unit], key=self._travels_as):
            members = list(group)
            step = 1 if self.chunks[members[0]].sheet else self.optimizer_nodes
            for first in members[:step]:
                own = members[first - members[0] :: step]
                runs += [range(cut[0], cut[-1] + 1, step) for cut in self._cuts(own)]
        return sorted(runs, key=lambda run: run.start)

    def _travels_as(self, chunk: int) -> tuple[object, ...]:
        c = self.chunks[chunk]
        return c.trainable, c.wire_dtype, c.form, c.sheet

    def _cuts(self, chunks: Sequence[int]) -> Iterator[Sequence[int]]:
        """Runs of at most `extent_chunks`, with no more segments than a push can name.

        A chunk that is no multiple of a block of the norm ends its extent: the blocks of a page
        must be those of the extent.
        """
        members_count = len(self.units[self.chunks[chunks[0]].unit].parameters)
        counts = [0] * len(chunks)  # a parameter counts twice where it goes on in the next chunk
        if members_count + self.extent_chunks > SEGMENTS_MAX:
            counts = [self.segments_count(index) for index in chunks]
        first = segments = 0
        for at, count in enumerate(counts):
            is_full = at - first == self.extent_chunks or segments + count > SEGMENTS_MAX
            if at and (is_full or self.chunks[chunks[at - 1]].elems % NORM_BLOCK_ELEMS):
                yield chunks[first:at]
                first, segments = at, 0
            segments += count
        yield chunks[first:]

    def _extent(self, index: int, chunks: range) -> Extent:
        first = self.chunks[chunks.start]
        runs: list[tuple[int, int]] = []
        for chunk in (self.chunks[i] for i in chunks):
            if runs and sum(runs[-1]) == chunk.start:
                runs[-1] = (runs[-1][0], runs[-1][1] + chunk.elems)
            else:
                runs.append((chunk.start, chunk.elems))
        return Extent(
            index=index, unit=first.unit, chunks=chunks, runs=tuple(runs),
            elems=sum(elems for _, elems in runs),
            trainable=first.trainable, wire_dtype=first.wire_dtype, form=first.form,
        )  # fmt: skip

    def _regions(self, unit: Unit) -> Iterator[tuple[_Region, list[int]]]:
        def region(index: int) -> _Region:
            p = self.parameters[index]
            if not p.trainable:  # they are stored as they came
                return True, p.dtype, p.wire_dtype, ALL_FLOAT32, 0
            return False, p.dtype, p.wire_dtype, p.form, index + 1 if p.form.whole else 0

        for key, members in groupby(sorted(unit.parameters, key=region), key=region):
            yield key, list(members)
