"""Parts of chunks that make up a parameter, and the other way round. Integer arithmetic only."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from luwu.layout import Layout


class Piece(NamedTuple):
    """Elements of one parameter that lie in one chunk."""

    parameter: int
    chunk: int
    parameter_start: int
    chunk_start: int
    elems: int


def pieces_of(layout: Layout, parameter: int) -> Iterator[Piece]:
    """The pieces of a parameter, from its first element on; they cover it."""
    place = layout.placements[parameter]
    chunks = layout.unit_chunks[place.unit]
    stop = place.start + place.elems
    at = place.start
    index = chunks[bisect_right(chunks, at, key=lambda i: layout.chunks[i].start) - 1]
    while at < stop:
        box = layout.chunks[index]
        elems = min(stop, box.start + box.elems) - at
        yield Piece(parameter, index, at - place.start, at - box.start, elems)
        at += elems
        index += 1


def pieces_by_chunk(layout: Layout, unit: int) -> dict[int, list[Piece]]:
    """The pieces in each chunk of a unit; only padding lies between them."""
    found: dict[int, list[Piece]] = defaultdict(list)
    for parameter in layout.units[unit].parameters:
        for piece in pieces_of(layout, parameter):
            found[piece.chunk].append(piece)
    return found
