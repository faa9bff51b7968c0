"""Geometry: chunks, segments and runs of any model, and the models that cannot be."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.base.errors import ConfigError
from luwu.base.limits import (
    ALIGN_ELEMS,
    CHUNK_BYTES_STEP,
    CHUNK_COUNT_MAX,
    NORM_BLOCK_ELEMS,
    PAYLOAD_BYTES_MAX,
    SEGMENTS_MAX,
)
from luwu.layout import Layout, Parameter, Share, StoredForm, Unit, owners_of, padded, segment_runs

FIXED = settings(derandomize=True, deadline=None, max_examples=80)

SHAPES = (
    st.lists(st.integers(1, 200), max_size=3).map(tuple).filter(lambda s: math.prod(s) < 60_000)
)
OF_WIRE = st.sampled_from(sorted(WIRE_DTYPES))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any small model: several units, dtypes, groups, frozen parameters, empty units."""
    count = draw(st.integers(1, 12))
    parameters = tuple(
        Parameter(
            name=f"p{index}",
            shape=draw(SHAPES),
            dtype=draw(OF_WIRE),
            wire_dtype=draw(OF_WIRE),
            trainable=draw(st.booleans()),
            group=draw(st.integers(0, 2)),
        )
        for index in range(count)
    )
    unit_count = draw(st.integers(1, 4))
    unit_of = draw(st.lists(st.integers(0, unit_count - 1), min_size=count, max_size=count))
    units = tuple(
        Unit(name=f"u{unit}", parameters=tuple(i for i in range(count) if unit_of[i] == unit))
        for unit in range(unit_count)
    )
    chunk_bytes = CHUNK_BYTES_STEP * draw(st.sampled_from([1, 1, 2, 3, 7, 64]))
    return Layout(
        parameters=parameters,
        units=units,
        chunk_bytes=chunk_bytes,
        optimizer_nodes=draw(st.integers(1, 3)),
    )


def region_of(layout: Layout, parameter: int) -> tuple[bool, str, str]:
    """What must not be mixed in one chunk."""
    chosen = layout.parameters[parameter]
    return (not chosen.trainable, chosen.dtype, chosen.wire_dtype)


@FIXED
@given(layout=layouts())
def test_chunks_cover_each_unit_exactly(layout: Layout) -> None:
    """Goal: every element of a unit lies in one chunk; chunks start and end on multiples of 64
    and none is larger than asked."""
    assert [chunk.index for chunk in layout.chunks] == list(range(len(layout.chunks)))
    assert len(layout.unit_chunks) == len(layout.unit_elems) == len(layout.units)
    for unit, indices in enumerate(layout.unit_chunks):
        chunks = [layout.chunks[i] for i in indices]
        assert all(chunk.unit == unit for chunk in chunks)
        ends = [0, *(chunk.start + chunk.elems for chunk in chunks)]
        assert [chunk.start for chunk in chunks] == ends[:-1]
        assert ends[-1] == layout.unit_elems[unit]
    assert [i for indices in layout.unit_chunks for i in indices] == list(range(len(layout.chunks)))
    for chunk in layout.chunks:
        assert chunk.start % ALIGN_ELEMS == chunk.elems % ALIGN_ELEMS == 0
        assert 0 < chunk.elems <= layout.chunk_bytes // 4
        assert chunk.sum_bytes == 4 * chunk.elems
        assert chunk.wire_bytes == DTYPES[chunk.wire_dtype].nbytes * chunk.elems


@FIXED
@given(layout=layouts())
def test_no_chunk_crosses_a_region(layout: Layout) -> None:
    """Goal: a chunk is of one dtype and trainable or frozen as a whole, so that frozen bytes are
    never pushed; frozen chunks follow the trainable ones of their unit."""
    for chunk in layout.chunks:
        regions = {region_of(layout, s.parameter) for s in layout.segments(chunk.index)}
        assert len(regions) == 1
        ((frozen, _, wire_dtype),) = regions
        assert (chunk.trainable, chunk.wire_dtype) == (not frozen, wire_dtype)
    for unit, indices in enumerate(layout.unit_chunks):
        flags = [layout.chunks[i].trainable for i in indices]
        assert flags == sorted(flags, reverse=True)
        assert layout.trainable_extents(unit) == tuple(indices)[: sum(flags)]


@FIXED
@given(layout=layouts())
def test_only_the_last_chunk_of_a_region_is_short(layout: Layout) -> None:
    """I3. Goal: chunk borders lie on multiples of 4,096 elements from the region's start."""
    for one, other in pairwise(layout.chunks):
        first_of_one = next(layout.segments(one.index)).parameter
        first_of_other = next(layout.segments(other.index)).parameter
        is_same = region_of(layout, first_of_one) == region_of(layout, first_of_other)
        if one.unit == other.unit and is_same:
            assert one.elems == layout.chunk_bytes // 4


@FIXED
@given(layout=layouts())
def test_placements(layout: Layout) -> None:
    """Goal: each parameter lies once, on a multiple of 64, in the order (trainable first, dtype,
    registration), with nothing but its own padding before the next."""
    for index, place in enumerate(layout.placements):
        assert place.parameter == index
        assert place.elems == layout.parameters[index].elems
        assert place.start % ALIGN_ELEMS == 0
        assert index in layout.units[place.unit].parameters
    for unit, members in enumerate(layout.units):
        order = sorted(members.parameters, key=lambda i: layout.placements[i].start)
        assert order == sorted(members.parameters, key=lambda i: (*region_of(layout, i), i))
        cursor = 0
        for index in order:
            assert layout.placements[index].start == cursor
            cursor += padded(layout.placements[index].elems)
        assert cursor == layout.unit_elems[unit]


@FIXED
@given(layout=layouts())
def test_segments_tile_each_parameter(layout: Layout) -> None:
    """Goal: every element of every parameter lies in one segment; the rest of a chunk is padding,
    less than 64 elements a parameter."""
    found: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(layout.parameters))}
    for chunk in layout.chunks:
        cursor = 0
        for segment in layout.segments(chunk.index):
            place = layout.placements[segment.parameter]
            assert segment.elems > 0
            assert segment.chunk_start % ALIGN_ELEMS == 0
            assert 0 <= segment.chunk_start - cursor < ALIGN_ELEMS
            cursor = segment.chunk_start + segment.elems
            assert chunk.start + segment.chunk_start == place.start + segment.parameter_start
            found[segment.parameter].append((segment.parameter_start, segment.elems))
        assert 0 <= chunk.elems - cursor < ALIGN_ELEMS
    for index, pieces in found.items():
        cursor = 0
        for start, elems in pieces:
            assert start == cursor
            cursor += elems
        assert cursor == layout.parameters[index].elems
        assert [(p.parameter_start, p.elems) for _, p in layout.pieces(index)] == pieces


def group_runs(layout: Layout, chunk: int) -> tuple[tuple[int, int, int], ...]:
    """(start, stop, group) in elements of the chunk: what one kernel call may update."""
    segments = tuple(layout.segments(chunk))
    return segment_runs(segments, [layout.parameters[each.parameter].group for each in segments])


@FIXED
@given(layout=layouts())
def test_group_runs_cover_the_chunk(layout: Layout) -> None:
    """I4. Goal: each run may be one kernel call: from a multiple of 64 to the next run, one group,
    padding included; and each element has the hyper-parameters of its own parameter."""
    for chunk in layout.chunks:
        runs = group_runs(layout, chunk.index)
        assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs[:-1])]
        assert runs[-1][1] == chunk.elems
        assert all(start % ALIGN_ELEMS == 0 and start < stop for start, stop, _ in runs)
        assert all(one[2] != other[2] for one, other in pairwise(runs))
        for segment in layout.segments(chunk.index):
            group = layout.parameters[segment.parameter].group
            first, last = segment.chunk_start, segment.chunk_start + segment.elems - 1
            assert any(a <= first and last < b and g == group for a, b, g in runs)


@FIXED
@given(layout=layouts(), factor=st.integers(1, 9))
def test_values_do_not_move_with_the_chunk(layout: Layout, factor: int) -> None:
    """I3. Goal: chunk size and number of nodes change no value's place in its unit."""
    other = replace(layout, chunk_bytes=factor * CHUNK_BYTES_STEP, optimizer_nodes=factor)
    assert other.placements == layout.placements
    assert other.unit_elems == layout.unit_elems
    for unit in range(len(layout.units)):
        assert other.unit_wire_bytes(unit) == layout.unit_wire_bytes(unit)
        for which in (True, False):
            elems = [
                sum(c.elems for c in some.chunks if c.unit == unit and c.trainable is which)
                for some in (layout, other)
            ]
            assert elems[0] == elems[1]


@FIXED
@given(layout=layouts(), data=st.data())
def test_every_page_has_its_owners(layout: Layout, data: st.DataObject) -> None:
    """Goal: each chunk's page is in the stores of its owners and in no other; the numbers of a
    store's pages have no gap, and neighbours of a stripe are neighbours there."""
    count = layout.optimizer_nodes
    replicas = data.draw(st.integers(1, count))
    shares = [Share(layout, number, replicas) for number in range(count)]
    for share in shares:
        chunks = share.chunks()
        assert [share.page(chunk) for chunk in chunks] == list(range(share.pages_count))
        assert all(map(share.owns, chunks))
        assert sum(map(share.owns, range(len(layout.chunks) + 3))) == share.pages_count
        for stripe in share.stripes:
            found = [share.page(c) for c in range(stripe, len(layout.chunks), count)]
            assert found == list(share.pages_of(stripe))
    for chunk in range(len(layout.chunks)):
        owners = owners_of(layout.stripe(chunk), count, replicas)
        assert len(set(owners)) == replicas
        assert {share.number for share in shares if share.owns(chunk)} == set(owners)
        assert shares[owners[0]].page(chunk) == chunk // count


WHOLE = StoredForm(whole=True)


@FIXED
@given(layout=layouts(), extent_chunks=st.sampled_from([1, 2, 3, 100]), data=st.data())
def test_a_sheet_has_one_parameter_and_one_node(
    layout: Layout, extent_chunks: int, data: st.DataObject
) -> None:
    """Goal: the chunks of a parameter that is updated as a whole have nothing else, lie one behind
    the other in the stores of their owners, and are exactly those of their extents."""
    parameters = tuple(
        replace(each, form=WHOLE) if data.draw(st.booleans()) else each
        for each in layout.parameters
    )
    layout = replace(layout, parameters=parameters, extent_chunks=extent_chunks)
    count = layout.optimizer_nodes
    shares = [Share(layout, number, data.draw(st.integers(1, count))) for number in range(count)]
    in_sheets = set()
    for index, parameter in enumerate(parameters):
        if parameter.form != WHOLE or not parameter.trainable:
            continue
        chunks = [chunk for chunk, _ in layout.pieces(index)]
        assert all(layout.segments_count(chunk) == 1 for chunk in chunks)
        extents = [each for each in layout.extents if {*each.chunks} & {*chunks}]
        if len(chunks) == 1:
            assert extents[0].index not in layout.sheets
            continue
        assert [chunk for extent in extents for chunk in extent.chunks] == chunks
        in_sheets |= {each.index for each in extents}
        for extent in extents:
            assert [*layout.sheet(extent.index)] == [each.index for each in extents]
        assert len({layout.stripe(chunk) for chunk in chunks}) == 1
        for share in shares:
            if share.owns(chunks[0]):
                pages = [share.page(chunk) for chunk in chunks]
                assert pages == [*range(pages[0], pages[0] + len(pages))]
    assert in_sheets == layout.sheets.keys()
    for share in shares:
        chunks = [*share.chunks()]
        assert [share.page(chunk) for chunk in chunks] == [*range(share.pages_count)]
        assert chunks == [c for c in range(len(layout.chunks) + 3) if share.owns(c)] or count > 1
    assert sorted(c for each in layout.stripe_chunks for c in each) == [*range(len(layout.chunks))]


@pytest.mark.parametrize("optimizer_nodes", [2, 3])
def test_sheets_are_spread_over_the_nodes(optimizer_nodes: int) -> None:
    """Goal: of matrices of four chunks each, whose first ones are all even, no node has more than
    one beyond its share, and no extent has chunks of two; without sheets chunk c is in stripe
    c % K."""
    matrices = tuple(
        Parameter(name=f"w{index}", shape=(128, 128), form=WHOLE) for index in range(10)
    )
    unit = Unit(name="all", parameters=(*range(10),))
    layout = Layout(
        parameters=matrices, units=(unit,), chunk_bytes=CHUNK_BYTES_STEP,
        optimizer_nodes=optimizer_nodes,
    )  # fmt: skip
    counts = [len(each) for each in layout.stripe_chunks]
    assert sum(counts) == 40
    for extent in replace(layout, extent_chunks=3).extents:
        assert len({layout.chunks[chunk].sheet for chunk in extent.chunks}) == 1
    assert max(counts) - min(counts) <= 4
    alone = replace(layout, chunk_bytes=4 * CHUNK_BYTES_STEP)
    assert not alone.sheets
    assert [alone.stripe(c) for c in range(10)] == [c % optimizer_nodes for c in range(10)]


@pytest.mark.parametrize("replicas", [0, 3])
def test_replicas_need_nodes(replicas: int) -> None:
    """I6. Goal: more replicas than nodes, or none, are rejected with what would do."""
    with pytest.raises(ConfigError, match="there are 2 optimizer nodes; give --optimizer-nodes"):
        owners_of(0, 2, replicas)


EXTENT_CHUNKS = st.sampled_from([1, 2, 3, 4, 100])


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_every_chunk_is_in_one_extent(layout: Layout, extent_chunks: int) -> None:
    """Goal: extents are runs of chunks of one unit, of one node, one behind the other in its store,
    that travel the same way; each unit's stand together, in the order of their first chunks."""
    layout = replace(layout, extent_chunks=extent_chunks)
    assert [extent.index for extent in layout.extents] == list(range(len(layout.extents)))
    assert [i for indices in layout.unit_extents for i in indices] == list(
        range(len(layout.extents))
    )
    for unit, indices in enumerate(layout.unit_extents):
        extents = [layout.extents[i] for i in indices]
        assert all(extent.unit == unit for extent in extents)
        assert sorted(c for extent in extents for c in extent.chunks) == list(
            layout.unit_chunks[unit]
        )
        firsts = [extent.chunks.start for extent in extents]
        assert firsts == sorted(firsts)
        assert layout.trainable_extents(unit) == tuple(e.index for e in extents if e.trainable)
    for extent in layout.extents:
        assert 1 <= len(extent.chunks) <= extent_chunks
        chunks = [layout.chunks[i] for i in extent.chunks]
        stripe = layout.extent_stripe(extent.index)
        assert {layout.stripe(i) for i in extent.chunks} == {stripe}
        pages = [Share(layout, stripe).page(i) for i in extent.chunks]
        assert pages == list(range(pages[0], pages[0] + len(pages)))
        travels = {(c.unit, c.trainable, c.wire_dtype) for c in chunks}
        assert travels == {(extent.unit, extent.trainable, extent.wire_dtype)}
        assert extent.elems == sum(chunk.elems for chunk in chunks)
        assert extent.wire_bytes == sum(chunk.wire_bytes for chunk in chunks)
        assert extent.sum_bytes == sum(chunk.sum_bytes for chunk in chunks)


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_runs_of_extents_cover_each_unit_once(layout: Layout, extent_chunks: int) -> None:
    """Goal: what the extents of a unit carry is its flat vector, each element once, in the order of
    their chunks; with one node an extent within a region is a single run."""
    layout = replace(layout, extent_chunks=extent_chunks)
    for unit, indices in enumerate(layout.unit_extents):
        runs = sorted(run for i in indices for run in layout.extents[i].runs)
        ends = [0, *(start + elems for start, elems in runs)]
        assert [start for start, _ in runs] == ends[:-1]
        assert ends[-1] == layout.unit_elems[unit]
    for extent in layout.extents:
        assert sum(elems for _, elems in extent.runs) == extent.elems
        carried = [at for start, elems in extent.runs for at in range(start, start + elems, 64)]
        stored = [
            at
            for chunk in (layout.chunks[i] for i in extent.chunks)
            for at in range(chunk.start, chunk.start + chunk.elems, 64)
        ]
        assert carried == stored
        assert all(sum(one) < other[0] for one, other in pairwise(extent.runs))
        assert layout.optimizer_nodes > 1 or len(extent.runs) == 1


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_blocks_of_the_norm_are_those_of_the_pages(layout: Layout, extent_chunks: int) -> None:
    """I3. Goal: every page of an extent begins with a block of the norm, so the numbers that norms
    are made of do not depend on extents."""
    layout = replace(layout, extent_chunks=extent_chunks)
    for extent in layout.extents:
        start = 0
        for chunk in (layout.chunks[i] for i in extent.chunks):
            assert start % NORM_BLOCK_ELEMS == 0
            start += chunk.elems


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_segments_of_an_extent_are_those_of_its_chunks(layout: Layout, extent_chunks: int) -> None:
    """Goal: in the order of its chunks, each where it lies in what travels."""
    layout = replace(layout, extent_chunks=extent_chunks)
    for extent in layout.extents:
        found = list(layout.extent_segments(extent.index))
        assert len(found) == layout.extent_segments_count(extent.index) <= SEGMENTS_MAX
        expected, start = [], 0
        for index in extent.chunks:
            for each in layout.segments(index):
                expected.append(replace(each, chunk_start=start + each.chunk_start))
            start += layout.chunks[index].elems
        assert found == expected


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_an_extent_ends_only_where_it_must(layout: Layout, extent_chunks: int) -> None:
    """Goal: as few messages as can be: the next chunk of its node would make it too long, travels
    otherwise or behind one that does, or begins inside a block of the norm."""
    layout = replace(layout, extent_chunks=extent_chunks)
    for extent in layout.extents:
        following = extent.chunks[-1] + layout.optimizer_nodes
        if len(extent.chunks) == extent_chunks or following not in layout.unit_chunks[extent.unit]:
            continue
        is_alike = all(
            (chunk.trainable, chunk.wire_dtype) == (extent.trainable, extent.wire_dtype)
            for chunk in layout.chunks[extent.chunks[-1] : following + 1]
        )
        assert not is_alike or layout.chunks[extent.chunks[-1]].elems % NORM_BLOCK_ELEMS


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS)
def test_a_job_does_not_depend_on_extents(layout: Layout, extent_chunks: int) -> None:
    """Goal: layouts that differ in their extents alone are equal, and so are their chunks."""
    other = replace(layout, extent_chunks=extent_chunks)
    assert other == layout
    assert hash(other) == hash(layout)
    assert other.chunks == layout.chunks


@pytest.mark.parametrize("optimizer_nodes", [1, 2])
@pytest.mark.parametrize("elems", [64, 128])
def test_an_extent_names_no_more_segments_than_a_push_can(elems: int, optimizer_nodes: int) -> None:
    """Goal: of many small parameters, fewer chunks travel together than asked. Method: a segment
    that goes on in the next chunk counts in both."""
    count = 2 * SEGMENTS_MAX + 100
    layout = Layout(
        parameters=tuple(Parameter(name=f"p{i}", shape=(elems,)) for i in range(count)),
        units=(Unit(name="u", parameters=tuple(range(count))),),
        chunk_bytes=16 * CHUNK_BYTES_STEP, optimizer_nodes=optimizer_nodes, extent_chunks=10_000,
    )  # fmt: skip
    counts = [layout.extent_segments_count(extent.index) for extent in layout.extents]
    assert max(counts) <= SEGMENTS_MAX
    assert sum(counts) == sum(layout.segments_count(chunk.index) for chunk in layout.chunks)
    for extent in layout.extents:
        following = extent.chunks[-1] + optimizer_nodes
        if following < len(layout.chunks):  # no chunk more would fit
            more = layout.segments_count(following)
            assert layout.extent_segments_count(extent.index) + more > SEGMENTS_MAX


def test_a_drawn_example() -> None:
    """Goal: the picture in the module's docstring, in numbers."""
    layout = Layout(
        parameters=(
            Parameter(name="f", shape=(10,), trainable=False),
            Parameter(name="w", shape=(70, 100)),
            Parameter(name="bias", shape=(33,), group=1),
            Parameter(name="scalar", shape=()),
            Parameter(name="h", shape=(5,), wire_dtype="bfloat16"),
        ),
        units=(Unit(name="u", parameters=(0, 1, 2, 3, 4)),),
        chunk_bytes=16384,
    )
    starts = {layout.parameters[p.parameter].name: p.start for p in layout.placements}
    assert starts == {"h": 0, "w": 64, "bias": 7104, "scalar": 7168, "f": 7232}
    assert [(c.start, c.elems, c.trainable, c.wire_dtype) for c in layout.chunks] == [
        (0, 64, True, "bfloat16"),
        (64, 4096, True, "float32"),
        (4160, 3072, True, "float32"),
        (7232, 64, False, "float32"),
    ]
    assert group_runs(layout, 2) == ((0, 2944, 0), (2944, 3008, 1), (3008, 3072, 0))
    assert [(s.parameter, s.parameter_start, s.elems) for s in layout.segments(2)] == [
        (1, 4096, 2904), (2, 0, 33), (3, 0, 1),
    ]  # fmt: skip
    assert layout.unit_wire_bytes(0) == 2 * 64 + 4 * (4096 + 3072 + 64)


def simple(**changes: Any) -> Layout:
    """One parameter in one unit, with some of it changed."""
    parameter = Parameter(**{"name": "w", "shape": (8, 8), **changes.pop("parameter", {})})
    chosen: dict[str, Any] = {
        "parameters": (parameter,),
        "units": (Unit(name="u", parameters=(0,)),),
        "chunk_bytes": CHUNK_BYTES_STEP,
        **changes,
    }
    return Layout(**chosen)


@pytest.mark.parametrize(
    ("chunk_bytes", "nearest"),
    [(0, 16), (-1, 16), (-16384, 16), (1, 16), (16383, 16), (20_000, 16), (24_576, 32),
     (30_000, 32), (1024**2 + 1, 1024)],
)  # fmt: skip
def test_chunk_must_be_a_multiple(chunk_bytes: int, nearest: int) -> None:
    """Goal: a chunk that cuts blocks of the norm is refused, with the nearest that does not."""
    text = f"{chunk_bytes} bytes is not a multiple of 16KiB; the nearest is {nearest}KiB$"
    with pytest.raises(ConfigError, match=text):
        simple(chunk_bytes=chunk_bytes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"optimizer_nodes": 0}, "optimizer_nodes must be at least 1, got 0"),
        ({"optimizer_nodes": -2}, "optimizer_nodes must be at least 1, got -2"),
        ({"extent_chunks": 0}, "extent_chunks must be >= 1, got 0"),
        ({"extent_chunks": -1}, "extent_chunks must be >= 1, got -1"),
        ({"chunk_bytes": 10**400 + 1}, "is not a multiple"),  # no float can hold it
        (
            {"chunk_bytes": PAYLOAD_BYTES_MAX + CHUNK_BYTES_STEP},
            "a frame may have; choose a smaller chunk",
        ),
        (
            {"parameter": {"shape": (CHUNK_COUNT_MAX + 1, CHUNK_BYTES_STEP // 4)}},
            "choose a larger chunk",
        ),
        ({"parameter": {"shape": (10**300,)}}, "choose a larger chunk"),
        ({"parameter": {"shape": (3, 0)}}, r"parameter w has shape \(3, 0\) and so no elements"),
        ({"parameter": {"shape": (-3, -2)}}, r"parameter w has shape \(-3, -2\)"),
        ({"parameter": {"dtype": "float64"}}, "parameter w: dtype float64 cannot be trained here"),
        ({"parameter": {"wire_dtype": "int8"}}, "dtype int8 cannot be trained here; use one of"),
        ({"units": ()}, "exactly one unit; 1 parameters, 0 places in units"),
        (
            {"units": (Unit(name="u", parameters=(0,)), Unit(name="v", parameters=(0,)))},
            "exactly one unit; 1 parameters, 2 places in units",
        ),
        ({"units": (Unit(name="u", parameters=(1,)),)}, "exactly one unit"),
        ({"units": (Unit(name="u", parameters=(-1,)),)}, "exactly one unit"),
        (
            {
                "parameters": (Parameter(name="w", shape=(1,)), Parameter(name="w", shape=(2,))),
                "units": (Unit(name="u", parameters=(0, 1)),),
            },
            "two parameters are named 'w'; names must be unique",
        ),
    ],
)
def test_models_that_cannot_be(changes: dict[str, Any], text: str) -> None:
    """I5, I6. Goal: each mistake is named, with what to do; millions of chunks are not listed."""
    with pytest.raises(ConfigError, match=text):
        simple(**changes)


def test_the_largest_chunk_and_none_at_all() -> None:
    """Goal: documented: nothing to train is a legal layout of no chunks."""
    assert simple(chunk_bytes=PAYLOAD_BYTES_MAX).chunks[0].elems == 64
    empty = Layout(parameters=(), units=(), chunk_bytes=CHUNK_BYTES_STEP)
    assert empty.chunks == ()
