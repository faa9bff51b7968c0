"""Chunks that travel together: other messages, the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local_job import (
    KIB,
    Job,
    Worker,
    check,
    cluster_for,
    every_order,
    every_place,
    make_layout,
)


@every_order
@every_place
@pytest.mark.parametrize("transport", ["inproc", "shm"])
@pytest.mark.parametrize("extent_chunks", [2, 16])
def test_extents_change_no_bit(
    update: str, has_switch: bool, transport: str, extent_chunks: int, tmp_path: Path
) -> None:
    job = Job(layout=make_layout(extent_chunks=extent_chunks), update=update)
    with cluster_for(job, tmp_path, has_switch=has_switch, transport=transport) as cluster:
        check(cluster, job, cluster.run(Worker(job)))


@every_order
@pytest.mark.parametrize("wire_dtype", ["float32", "bfloat16"])
def test_extents_out_of_core(update: str, wire_dtype: str, tmp_path: Path) -> None:
    job = Job(layout=make_layout(extent_chunks=3, wire_dtype=wire_dtype), update=update)
    with cluster_for(
        job, tmp_path, state=tmp_path / "state", memory_budget_bytes=600 * KIB
    ) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
