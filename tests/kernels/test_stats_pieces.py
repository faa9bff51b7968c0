"""Statistics: pieces that kernels measure, what a node adds up of them, and how they travel."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from luwu.base.errors import RemoteProtocolError
from luwu.layout import Share
from luwu.wire.hyper import StepHyper, decode_hyper, encode_hyper
from luwu.wire.reading import VersionFacts, parse_facts
from luwu.wire.statistics import (
    ChunkStats,
    Rounded,
    SegmentSquares,
    decode_stats,
    encode_stats,
    norm,
    stats_bytes,
    summed,
)
from switch_emu.node.core.actions import Update
from switch_emu.node.extent_pages import extent_pages
from switch_emu.node.kernels import Pieces
from switch_emu.node.kernels.portable import BLOCK_ELEMS
from switch_emu.node.statistics import Statistics
from tests.helpers import kernel_jobs
from tests.helpers.kernel_jobs import ADAMW, LION, MOMENTUM, NONE, PLAIN, Job, kernel_of, squares_of
from tests.helpers.local_job import make_layout

pytestmark = pytest.mark.feature("luwu.stats")
cache, version = kernel_jobs.cache, kernel_jobs.version  # fixtures of this module

# -------------------------------------------------------------------------- the kernel


def pieces_at_random(rng: np.random.Generator, elems: int) -> Pieces:
    """Within blocks, some of them whole, with gaps, and ends that leave padding."""
    borders = []
    for block in range(0, elems, 4096):
        end = min(block + 4096, elems)
        cuts = {block, end, *(block + 64 * rng.integers(0, (end - block) // 64 + 1, 3)).tolist()}
        ordered = [block, end] if rng.random() < 0.3 else sorted(cuts)
        for start, stop in itertools.pairwise(ordered):
            if rng.random() < 0.8:
                borders.append((start, stop - int(rng.integers(0, 64))))
    return Pieces.of(borders)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM, PLAIN, LION, NONE])
def test_kernels_measure_pieces(
    optimizer: tuple[str, tuple[str, ...]], in_place: bool, version: str, cache: Path
) -> None:
    """I3. Goal: every bit of the squares is as defined, in both versions, and measuring changes no
    bit of weights, state or wire. Method: random pieces, contributions, divisors and sizes."""
    rng = np.random.default_rng(23)
    kernel = kernel_of(version, optimizer, cache)
    for elems in (64, 4096, 3 * 4096 + 192, BLOCK_ELEMS + 4096 + 64):
        job = Job.draw(rng, optimizer, elems)
        pieces = pieces_at_random(rng, elems)
        *_, total = job.by_torch()
        plain_result = job.by_kernel(kernel, in_place)
        found = job.by_kernel(kernel, in_place, pieces=pieces)
        for one, other in zip(
            (*found[0], found[2]), (*plain_result[0], plain_result[2]), strict=True
        ):
            np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))
        assert found[1] == plain_result[1]
        change = found[0][0] - job.weights
        for row, values in enumerate((total, found[0][0], change)):
            expected = [squares_of(values, start, stop) for start, stop in pieces.borders.tolist()]
            assert pieces.squares[row].tolist() == expected, (elems, row)


# -------------------------------------------------------------------------- the node, the wire


def an_update(extent: int, step: int, attempt: int, divisor: float = 2.0) -> Update:
    return Update(
        extent=extent, step=step, attempt=attempt, contributions=(), absent=0, divisor=divisor,
        norms=(), hyper=b"", publish=False,
    )  # fmt: skip


def test_attempts_do_not_mix() -> None:
    """Goal: what counts is what was added under the attempt that was decided, whatever comes late;
    a step that was not measured leaves what there was."""
    layout = make_layout(16 * 1024)
    statistics = Statistics(layout)

    def add(chunk: int, step: int, attempt: int, square: float) -> None:
        (page,) = extent_pages(Share(layout), chunk)
        pieces = statistics.pieces(page)
        pieces.squares[:] = square
        statistics.add(an_update(chunk, step, attempt), page, pieces)

    assert statistics.latest is None
    add(0, 0, 3, 1.0)
    add(1, 0, 3, 1.0)
    add(0, 0, 4, 2.0)
    add(1, 0, 3, 3.0)  # late
    assert statistics.latest is None
    statistics.decided(0, 4)
    latest = statistics.latest
    assert latest is not None
    assert (latest.step, latest.chunks.keys()) == (0, {0})
    assert statistics.of_chunk(latest, 0) == latest.chunks[0]
    assert not any(statistics.of_chunk(latest, 1))
    statistics.decided(1, 4)
    assert statistics.latest is latest
    add(0, 2, 4, 4.0)
    statistics.decided(2, 5)  # skipped: a new attempt
    assert statistics.latest is latest


def test_sums_do_not_depend_on_how_they_are_cut() -> None:
    """Goal: the norm of a parameter is the same from any cut of its blocks into chunks."""
    rng = np.random.default_rng(5)
    squares = np.exp2(rng.uniform(-200, 200, 300)).tolist()
    whole = norm([summed(squares)])
    assert whole == math.sqrt(math.fsum(squares))
    for _ in range(50):
        cuts = [0, *sorted(rng.integers(0, 301, 5).tolist()), 300]
        parts = [summed(squares[a:b]) for a, b in itertools.pairwise(cuts)]
        assert norm(parts) == whole
    assert summed([1.0, math.inf]) == (math.inf, 0.0)
    assert math.isnan(norm([summed([1.0, math.nan])]))


def test_statistics_travel_and_others_are_refused() -> None:
    """I7. Goal: what is read is what was written; anything else is one kind of error."""
    one = SegmentSquares(Rounded(1.0, 1e-20), Rounded(2.5, -1e-20), Rounded(0.0, 0.0))
    stats = ChunkStats(3.0, (one, one))
    encoded = encode_stats(stats)
    assert len(encoded) == stats_bytes(2)
    assert decode_stats(encoded, 2) == stats
    assert decode_stats(bytes(stats_bytes(1)), 1).divisor == 0
    negative = ChunkStats(3.0, (one._replace(weight=Rounded(-1.0, 0.0)),))
    below_zero = encode_stats(ChunkStats(-1.0, ()))
    wrong = [(encoded[:-8], 2), (encoded + b"\0", 2), (encode_stats(negative), 1), (below_zero, 0)]
    for found, segments_count in wrong:
        with pytest.raises(RemoteProtocolError, match="statistics of a chunk"):
            decode_stats(found, segments_count)
    hyper = StepHyper(groups=(), measure=True)
    assert decode_hyper(encode_hyper(hyper)) == hyper
    assert encode_hyper(hyper) != encode_hyper(StepHyper(groups=()))
    with pytest.raises(RemoteProtocolError, match="hyper-parameters cannot be read"):
        decode_hyper(encode_hyper(hyper)[:-1] + b"\x01")
    facts = VersionFacts(version=4, description=b"{}", measured_step=3)
    assert parse_facts(facts.to_bytes()) == facts
    with pytest.raises(RemoteProtocolError, match="True is not int"):
        parse_facts(facts.to_bytes().replace(b'"measured_step":3', b'"measured_step":true'))
