"""Several optimizer nodes: what their start refuses, their pages read as one, what they sum up to.

How they train together: tests/simulate/test_replicas.py and tests/processes/test_nodes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, StateError
from luwu.join.connection import parse_url
from luwu.launch.nodes import check_nodes
from luwu.launch.sizes import decide_sizes
from luwu.layout import Chunk, Share
from luwu.wire.description import Description
from luwu.wire.stored import WEIGHT
from switch_emu.node.pages import store_config, weights_digest
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.geometry import TAIL_BYTES_MAX
from switch_emu.store.striped import StripedPages, node_count_of, node_directory
from tests.helpers import local_job
from tests.simulate.job import make_layout

JOB = Description(layout=make_layout(), optimizer="adamw", state_fields=("m", "v"))
MIB = 1024 * 1024


def write_version(
    store: FilePageStore, job: Description, node: int, version: int, replicas: int = 1
) -> None:
    """Prepare a version whose weights tell the chunk and the version."""
    layout = job.layout
    share = Share(layout, node, replicas)
    for chunk in layout.chunks:
        if share.owns(chunk.index):
            page = share.page(chunk.index)
            kind = store.config.kind(page)
            record = np.zeros(kind.record_bytes, np.uint8)
            start, stop = kind.range(WEIGHT)
            record[start:stop].view(np.float32)[:] = chunk.index + version / 8
            store.write(page, version, store.attempt, record.data)
    store.prepare(DecidedStep(version=version, attempt=store.attempt))


def make_state(
    directory: Path, count: int, *, last_is_prepared: bool = False, replicas: int = 1
) -> Description:
    """A state of `count` nodes at version 1; the last node may not have heard of it."""
    job = replace(JOB, layout=replace(JOB.layout, optimizer_nodes=count))
    for node in range(count):
        path = node_directory(directory, node, count)
        path.parent.mkdir(exist_ok=True)
        config = store_config(job, node, replicas)
        with FilePageStore.create(path, config, durability="none") as store:
            for version in (0, 1):
                write_version(store, job, node, version, replicas)
                if version == 0 or not (last_is_prepared and node == count - 1):
                    store.decide(version, store.attempt)
    return job


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("last_is_prepared", [False, True])
def test_striped_pages_have_the_digest_of_one_store(
    tmp_path: Path, count: int, last_is_prepared: bool
) -> None:
    """I2, I3. Goal: the pages of several directories read as one state, also where a node was
    killed before it heard that its prepared version is decided."""
    make_state(tmp_path / "one", 1)
    with FilePageStore.open(tmp_path / "one", read_only=True) as store:
        expected = weights_digest(store, JOB.layout)
    job = make_state(tmp_path / "many", count, last_is_prepared=last_is_prepared)
    assert node_count_of(tmp_path / "many") == count
    with StripedPages(tmp_path / "many", count, None) as pages:
        pages.lay_out(job.layout)
        assert weights_digest(pages, job.layout) == expected


def test_a_version_that_was_made_again_is_no_part_of_a_state(tmp_path: Path) -> None:
    """E2, I2. Goal: a node has the decided version prepared, but as made under another attempt: its
    pages are not read with those of the others."""
    job = make_state(tmp_path / "state", 2, last_is_prepared=True)
    with FilePageStore.open(node_directory(tmp_path / "state", 1, 2)) as store:
        store.abort(store.attempt)
        store.record_attempt(store.attempt + 1)
        write_version(store, job, 1, 1)
    with pytest.raises(
        StateError, match=r"is decided, node 1 has 0 \(attempt 0\) and 1 \(attempt 1\)"
    ):
        StripedPages(tmp_path / "state", 2, None)


@pytest.mark.feature("several optimizer nodes")
@pytest.mark.parametrize(("count", "replicas"), [(3, 2), (4, 1)])
def test_disk_work_divides(count: int, replicas: int, tmp_path: Path) -> None:
    """I3. Goal: the nodes end with the digest of plain torch, and each writes its own pages alone;
    of three with two replicas, each writes those of two stripes, and receives as much.
    Method: our own count of page bytes, exactly: of each version, and of the initial one."""
    layout = replace(local_job.make_layout(), optimizer_nodes=count)
    job = local_job.Job(layout=layout)
    changes = {
        "state": tmp_path / "state", "optimizer_nodes": count, "replicas": replicas, "log_steps": 1
    }  # fmt: skip
    (tmp_path / "state").mkdir()
    with local_job.cluster_for(job, tmp_path, **changes) as cluster:
        cluster.run(local_job.Worker(job))
        cluster.wait_until_served()
        written = [node.store.stats.bytes_written for node in cluster.nodes]
        received = [node.payload_bytes()["into_node"] for node in cluster.nodes]
    owned = [
        [layout.chunks[each] for each in Share(layout, number, replicas).chunks()]
        for number in range(count)
    ]
    assert written == [sum(page_bytes(c, job.steps) for c in each) for each in owned]
    trained = [sum(c.sum_bytes for c in each if c.trainable) for each in owned]
    assert received == [job.steps * each for each in trained]
    with StripedPages(tmp_path / "state", count, None) as pages:
        pages.lay_out(layout)
        assert weights_digest(pages, layout) == local_job.plain(job).digest


def test_a_store_that_is_opened_again_says_which_version_it_has(tmp_path: Path) -> None:
    """E2. Goal: the node that opens it knows the attempt of the decided version, which is not that
    in which the job goes on."""
    job = local_job.Job(layout=replace(local_job.make_layout(), optimizer_nodes=2))
    changes = {"state": tmp_path / "state", "optimizer_nodes": 2}
    (tmp_path / "state").mkdir()
    with local_job.cluster_for(job, tmp_path, **changes) as cluster:
        cluster.run(local_job.Worker(job))
    with local_job.cluster_for(job, tmp_path, **changes, resume=True) as cluster:
        cluster.run(lambda nic: nic.join(job.description))
        for node in cluster.nodes:
            known, decided = node.core.state, node.store.decided
            assert 0 < known.decided_attempt == decided.attempt < node.store.attempt


def page_bytes(chunk: Chunk, steps: int) -> int:
    """Bytes of a chunk's page that a run writes, in whole blocks: weights, and Adam's moments. What
    is left of up to 256 bytes is kept with the checksums (`switch_emu/store/geometry.py`)."""
    blocks, rest = divmod((1 + 2 * chunk.trainable) * chunk.sum_bytes, BLOCK_BYTES)
    return (blocks + (rest > TAIL_BYTES_MAX)) * BLOCK_BYTES * (steps * chunk.trainable + 1)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """I6. Goal: a state of which a node's directory is gone is refused by the node's number."""
    make_state(tmp_path, 3)
    (tmp_path / "node-1").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="2 of 3 optimizer nodes, but none of node 1"):
        node_count_of(tmp_path)


@pytest.mark.feature("several optimizer nodes")
@pytest.mark.parametrize("is_last", [False, True])
def test_more_nodes_than_chunks_are_refused(is_last: bool) -> None:
    """I6. Goal: a node without a chunk cannot work, and the refusal says what would. Every node
    refuses it, before it makes a store: one that is left behind would refuse the next run."""
    chunks_count = len(JOB.layout.chunks)
    layout = replace(JOB.layout, optimizer_nodes=chunks_count + 1)
    node = chunks_count if is_last else 0
    with pytest.raises(ConfigError, match=f"{chunks_count} chunks, too few for"):
        store_config(replace(JOB, layout=layout), node)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (lambda state: RunConfig(optimizer_nodes=2, no_switch=True), "need a switch"),
        (lambda state: RunConfig(optimizer_nodes=2, durability="none"), "keep their state on disk"),
        (lambda state: RunConfig(optimizer_nodes=2, state=state), "give --optimizer-nodes 3"),
        (lambda state: RunConfig(state=state), "give --optimizer-nodes 3"),
        (lambda state: RunConfig(replicas=2), "give --optimizer-nodes 2 or more"),
    ],
)
def test_what_cannot_work_is_refused(
    tmp_path: Path, config: Callable[[Path], RunConfig], said: str
) -> None:
    """I6. Goal: refused at the start, with what would work."""
    make_state(tmp_path / "state", 3)
    asked = config(tmp_path / "state")
    with pytest.raises(ConfigError, match=said):
        check_nodes(asked, asked.state)


def test_the_budget_is_divided(tmp_path: Path) -> None:
    """I5. Goal: the memory budget is that of all nodes together, and the chunk follows from a
    node's share; an existing state keeps its chunk."""
    one = decide_sizes(RunConfig(memory_budget=64 * MIB), None)
    four = decide_sizes(RunConfig(memory_budget=256 * MIB, optimizer_nodes=4), None)
    assert four.chunk_bytes == one.chunk_bytes
    assert any("4, each with 64.00 MiB" in line for line in four.lines)
    make_state(tmp_path, 2)
    found = decide_sizes(RunConfig(memory_budget=64 * MIB, optimizer_nodes=2), tmp_path)
    assert found.chunk_bytes == JOB.layout.chunk_bytes


def test_a_url_names_all_nodes_so_far() -> None:
    """Goal: what a node prints is what the next one reads."""
    found = parse_url(
        "tcp://127.0.0.1:1?job=7&world_size=2&chunk_bytes=16384&optimizer_nodes=3"
        "&more_nodes=tcp://10.0.0.6:5,tcp://10.0.0.7:6"
    )
    assert found.more_nodes == ("tcp://10.0.0.6:5", "tcp://10.0.0.7:6")
    assert parse_url(found.url()) == found
