"""Squares that nodes add up: the norm of many is that of one, to the last bit."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction

import pytest

from luwu.base.errors import RemoteProtocolError
from luwu.layout import stripes_of
from luwu.wire.norms import (
    Clip,
    Squares,
    clip_factor,
    condensed,
    encode_all,
    exact_sum,
    norm_of,
    parse_all,
    parse_squares,
)
from switch_emu.switch.core.ballot import Ballot


def drawn(rng: random.Random, count: int) -> list[float]:
    """Squares over many orders of magnitude: a plain sum of them depends on its order."""
    return [rng.random() * 10.0 ** rng.randint(-40, 40) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_exact_sum_is_exact(seed: int) -> None:
    """I3. Goal: nothing is lost by sending a sum as a few doubles. Method: rational numbers."""
    values = drawn(random.Random(seed), 200)
    parts = exact_sum(values)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values)), f"seed {seed}"
    assert len(parts) <= 8
    assert parts[0] == math.fsum(values)


def test_exact_sum_of_nothing() -> None:
    """Goal: no values, zeros and the smallest double are exact too."""
    assert exact_sum([]) == []
    assert exact_sum([0.0, 0.0]) == []
    assert exact_sum([5e-324, 1.0]) == [1.0, 5e-324]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("optimizer_nodes", [2, 3, 4])
def test_norm_does_not_depend_on_nodes(seed: int, optimizer_nodes: int, norm_type: float) -> None:
    """I3. Goal: however chunks are striped, the norm has the bits of one node's.
    Method: two total weights; every node's squares pass through the wire."""
    rng = random.Random(seed)
    whole = {(norm_type, 4.0): drawn(rng, 60), (norm_type, 3.5): drawn(rng, 17)}
    nodes = [
        {key: values[number::optimizer_nodes] for key, values in whole.items()}
        for number in range(optimizer_nodes)
    ]
    ballot = Ballot(optimizer_nodes)
    for number in rng.sample(range(optimizer_nodes), optimizer_nodes):
        assert ballot.norms(norm_type, ()) is None
        ballot.measured(number, parse_all(encode_all([nodes[number]]), 1))
    assert ballot.norms(norm_type, ()) == (norm_of([whole], norm_type),), f"seed {seed}"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("optimizer_nodes", "replicas"), [(2, 2), (3, 2), (3, 3)])
def test_norm_does_not_depend_on_replicas(seed: int, optimizer_nodes: int, replicas: int) -> None:
    """I3. Goal: a stripe that several nodes hold counts once; its owners must state the same."""
    rng = random.Random(seed)
    stripes: list[Squares | None] = [
        {(2.0, 4.0): drawn(rng, 20), (2.0, 3.5): drawn(rng, 7)} for _ in range(3)
    ]
    stripes = stripes[:optimizer_nodes]
    ballot = Ballot(optimizer_nodes, replicas)
    for number in range(optimizer_nodes):
        own = [stripes[stripe] for stripe in stripes_of(number, optimizer_nodes, replicas)]
        ballot.measured(number, parse_all(encode_all(own), replicas))
        held = stripes_of(number, optimizer_nodes, replicas)
        ballot.prepared(number, b"".join(bytes([stripe]) * 16 for stripe in held))
    assert ballot.norms(2.0, ()) == (norm_of(stripes),), f"seed {seed}"
    assert ballot.is_prepared
    assert ballot.differing_gradients() is ballot.differing_pages() is None
    ballot.prepared(1, bytes([1]) * 15 + b"x" + bytes([0]) * 16 * (replicas - 1))
    found = ballot.differing_pages()
    assert found is not None
    assert str(found).startswith("pages of stripe 1 differ between nodes"), found
    ballot.clear()
    stripes[0] = None
    for number in range(optimizer_nodes):
        own = [stripes[stripe] for stripe in stripes_of(number, optimizer_nodes, replicas)]
        ballot.measured(number, parse_all(encode_all(own), replicas))
    assert ballot.norms(2.0, ()) == (math.inf,)
    assert ballot.differing_gradients() is None
    ballot.measured(1, [{(2.0, 1.0): [1.0]}, *[{(2.0, 2.0): [2.0]}] * (replicas - 1)])
    found = ballot.differing_gradients()
    assert found is not None
    assert str(found).startswith("gradients of stripe 0 differ between nodes 0 and 1"), found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_condensed_squares_have_the_same_norm(seed: int, norm_type: float) -> None:
    """I3. Goal: a node may keep a few numbers of each extent in place of all of its blocks'."""
    rng = random.Random(seed)
    extents = [drawn(rng, rng.randrange(1, 30)) for _ in range(5)]
    whole = [value for values in extents for value in values]

    def norms(values: list[float]) -> float:
        return norm_of([{(norm_type, 3.0): values}], norm_type)

    kept = [value for values in extents for value in condensed(values, norm_type)]
    assert norms(kept) == norms(whole), f"seed {seed}"
    for wrong in (math.inf, math.nan):
        assert condensed([*extents[0], wrong], norm_type) == (math.inf,)


def test_one_sum_that_is_not_finite_is_enough() -> None:
    """I2. Goal: a step is skipped on all nodes if it is on one."""
    assert norm_of([{(2.0, 1.0): [2.0]}, None]) == math.inf
    assert norm_of([]) == 0.0


def test_without_clipping_nothing_is_scaled() -> None:
    """Goal: no clip, no factor; the norm need not even be known."""
    assert clip_factor((), ()) == clip_factor((), (1e9,)) == 1.0
    assert clip_factor([Clip(2.0, 1.0)], (0.0, 0.0)) == 1.0
    assert clip_factor([Clip(2.0, math.inf)], (1e9, 1e9)) == 1.0


@pytest.mark.parametrize(
    "encoded",
    [b"", b"{", b"7", b"[1]", b"[" * 5000,
     *(json.dumps([["0x1p+1", *row]]).encode() for row in (
         ("0x1p+0",), ("0x1p+0", 3), ("0x1p+0", ["nan"]), ("0x1p+0", [7]), ("-0x1p+0", []),
         ("inf", []), ("0x1p+99999", []), (1.0, []), ("0x1p+0", [], []),
     ))],
)  # fmt: skip
def test_garbage_is_refused(encoded: bytes) -> None:
    """I7. Goal: what is no list of sums is refused by name, never believed."""
    with pytest.raises(RemoteProtocolError, match="squares"):
        parse_squares(encoded)
