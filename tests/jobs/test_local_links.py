"""A local cluster behind emulated links: the same bits, and counters that add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.base.links import parse_links
from luwu.launch.local_cluster import LocalCluster
from tests.helpers.local_job import Job, Worker, check, cluster_for, every_place
from tests.processes.jobs import assert_accounted_for

BAD = "rate=2gbit,delay=0.2ms,jitter=0.3ms,loss=0.1,duplicate=0.1,reorder=16"


def check_counters(cluster: LocalCluster, *, is_bad: bool) -> None:
    """L1 for each link and direction, in messages and in bytes."""
    rows, names = cluster.links(), {"worker (ranks 0)", "worker (ranks 1)"}
    if cluster.spec.has_switch:
        names.add("node (ranks 0, 1)")
    assert {row["link"] for row in rows} == names
    assert len(rows) == 2 * len(names)
    assert_accounted_for(rows)
    assert {row["label"] for row in rows} == {"emulated"}
    assert all(row["messages"]["received"] > 0 for row in rows)
    for kind in ("lost", "repeated"):
        assert (sum(row["messages"][kind] for row in rows) > 0) == is_bad


@pytest.mark.parametrize(
    ("transport", "has_switch", "update"),
    [
        ("inproc", True, "at_step"),
        ("inproc", False, "streaming"),
        ("tcp", True, "streaming"),
        ("shm", True, "at_step"),
        ("shm", False, "at_step"),
    ],
)
def test_links_that_lose_repeat_and_reorder_change_no_bit(
    transport: str, has_switch: bool, update: str, tmp_path: Path
) -> None:
    """I1, I3, L1. Goal: a tenth of all messages lost, a tenth repeated, up to 16 overtaking one, on
    every link: the weights of a plain loop, and every message is accounted for."""
    job = Job(update=update)
    with cluster_for(
        job, tmp_path, transport=transport, has_switch=has_switch, links=parse_links(BAD),
        link_seed=5,
    ) as cluster:  # fmt: skip
        check(cluster, job, cluster.run(Worker(job)))
        check_counters(cluster, is_bad=True)


@every_place
def test_links_that_are_only_slow_change_no_bit(has_switch: bool, tmp_path: Path) -> None:
    """I3. Goal: with a rate and a delay nothing is lost or repeated, by the network or by us."""
    job = Job()
    links = parse_links("200mbit,delay=1ms")
    with cluster_for(job, tmp_path, has_switch=has_switch, links=links) as cluster:
        check(cluster, job, cluster.run(Worker(job)))
        check_counters(cluster, is_bad=False)
