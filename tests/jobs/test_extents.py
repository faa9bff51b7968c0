"""I1 to I4: chunks that travel alone or together, the bits of a plain loop, whatever happens.

Every way to run: `tests/evidence/digests.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luwu.base.dtypes import DTYPES
from luwu.layout import Layout, Share
from switch_emu.node import plan
from switch_emu.node.extent_pages import extent_pages
from tests.helpers.local_job import (
    KIB,
    Job,
    Worker,
    check,
    cluster_for,
    every_order,
    every_place,
    make_layout,
)
from tests.wire.test_layout import EXTENT_CHUNKS, FIXED, layouts

SMALL = {"switch": 640 * KIB, "no-switch": 1040 * KIB}
"""Budgets in which sums are spilled."""


def on_disk(job: Job, tmp_path: Path, *, has_switch: bool = True, resume: bool = False) -> Any:
    """A cluster whose node has a small budget."""
    return cluster_for(
        job, tmp_path, has_switch=has_switch, state=tmp_path / "state", resume=resume,
        memory_budget_bytes=SMALL["switch" if has_switch else "no-switch"],
    )  # fmt: skip


@every_order
@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("budget_kib", [720, 1000, 2000])
def test_pages_that_are_worked_on_at_once_change_no_bit(
    update: str, wire_dtype: str, budget_kib: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3. Goal: groups of pages on disk, in RAM, and partly in both. Method: one thread, which
    leaves memory for more pages at once; the budgets keep no page, some, all of them."""
    for each in ("_THREADS_MANY", "_THREADS_SINGLE", "_THREADS_ENOUGH"):
        monkeypatch.setattr(plan, each, (1, 1))
    job = Job(layout=make_layout(extent_chunks=4, wire_dtype=wire_dtype), update=update)
    budget = {"state": tmp_path / "state", "memory_budget_bytes": budget_kib * KIB}
    with cluster_for(job, tmp_path, **budget) as cluster:
        found = cluster.node._storage._plan
        assert found.pages_together == (4 if budget_kib > 720 else 2)
        check(cluster, job, cluster.run(Worker(job)))


@every_order
@every_place
def test_a_state_does_not_know_extents(update: str, has_switch: bool, tmp_path: Path) -> None:
    """I3. Goal: a state that was made with chunks that travel alone goes on with extents, and back,
    and ends with the digest of the plain loop. Method: one step each, in a small budget."""
    results: Any = None
    for stop_at, extent_chunks in ((1, 1), (2, 4), (3, 1), (4, 3)):
        job = Job(layout=make_layout(extent_chunks=extent_chunks), update=update)
        with on_disk(job, tmp_path, has_switch=has_switch, resume=stop_at > 1) as cluster:
            results = cluster.run(Worker(job, stop_at=stop_at))
            assert [seen.first_step for seen in results] == [stop_at - 1] * job.world_size
            if stop_at == job.steps:
                check(cluster, job, results)


@pytest.mark.parametrize("extent_chunks", [1, 3])
def test_sums_of_extents_are_spilled(extent_chunks: int, tmp_path: Path) -> None:
    """I3, I5. Goal: an extent that found no room in memory comes back whole, and page by page."""
    job = Job(layout=make_layout(extent_chunks=extent_chunks), update="at_step", world_size=3)
    with on_disk(job, tmp_path) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        assert cluster.node.core.budget.spilled_count > 0
        assert cluster.node.spill.bytes_read > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert not list((tmp_path / "state").glob("spill*"))


@every_order
@every_place
@pytest.mark.parametrize("extent_chunks", [1, 4])
def test_an_attempt_is_given_up_amid_extents(
    extent_chunks: int, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I1, I2, I3. Goal: what was pushed and written of an attempt that was given up does not count;
    all ranks are told the step to go on from, once."""
    job = Job(layout=make_layout(extent_chunks=extent_chunks), update=update)
    with on_disk(job, tmp_path, has_switch=has_switch) as cluster:
        results = cluster.run(Worker(job, cancel_step=1))
        assert [seen.aborted_steps for seen in results] == [[1], [1]]
        check(cluster, job, results)


@every_order
@every_place
@pytest.mark.parametrize("steps", [2, 4])
def test_a_step_that_is_not_finite_is_skipped_in_extents(
    steps: int, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I2, I4. Goal: pages of an extent that were written before the one that is not finite do not
    count either, also in the last step of a job."""
    layout = make_layout(extent_chunks=4)
    job = Job(layout=layout, update=update, poison_step=1, steps=steps)
    with cluster_for(job, tmp_path, has_switch=has_switch, state=tmp_path / "state") as cluster:
        results = cluster.run(Worker(job))
        check(cluster, job, results)
        assert not any(seen.aborted_steps for seen in results)


# ---------------------------------------------------------------------------- pages of an extent


@FIXED
@given(layout=layouts(), extent_chunks=EXTENT_CHUNKS, bits=st.randoms(use_true_random=False))
def test_an_extent_is_split_to_its_pages(layout: Layout, extent_chunks: int, bits: Any) -> None:
    """Goal: each page has its own values and its own absent segments of what travels, and together
    they are all of it."""
    layout = replace(layout, extent_chunks=extent_chunks)
    for extent in layout.extents:
        share = Share(layout, layout.extent_stripe(extent.index))
        pages = extent_pages(share, extent.index)
        assert [page.chunks for page in pages] == [(chunk,) for chunk in extent.chunks]
        assert [page.number for page in pages] == [share.page(i) for i in extent.chunks]
        segments = list(layout.extent_segments(extent.index))
        bitmap = bits.getrandbits(len(segments))
        lacking = {
            (part.parameter, part.parameter_start)
            for bit, part in enumerate(segments)
            if bitmap >> bit & 1
        }
        dtype = extent.wire_dtype
        payload = memoryview(np.arange(extent.wire_bytes, dtype=np.uint32).astype(np.uint8))
        whole = b""
        for page in pages:
            absent, own = page.absent(bitmap), list(layout.segments(page.chunks[0]))
            assert absent < 1 << len(own) == 1 << page.segments_count
            for bit, part in enumerate(own):
                is_lacking = (part.parameter, part.parameter_start) in lacking
                assert bool(absent >> bit & 1) == is_lacking
            part_bytes = page.part(payload, dtype)
            assert part_bytes.nbytes == page.elems * DTYPES[dtype].nbytes
            assert page.part_of((payload, dtype)) == (part_bytes, dtype)
            whole += bytes(part_bytes)
        assert whole == bytes(payload)
        assert pages[0].part_of(None) is None


@every_order
def test_sums_have_what_a_state_in_ram_leaves_of_the_budget(update: str, tmp_path: Path) -> None:
    """P8. Goal: where a page has one side, all of the budget is used; with two, none is given away
    that the second may take."""
    job = Job(update=update)
    with cluster_for(job, tmp_path) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        node, store = cluster.node, cluster.node.store
        spare = node.core.budget.bytes_max - node._plan.sums_bytes
        left = node._plan.resident_bytes - store.config.state_bytes
        assert spare == (left if update == "at_step" else 0)
        assert node.core.counts()["sum_bytes_limit"] == node.core.budget.bytes_max
