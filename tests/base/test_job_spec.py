"""Specifications of processes as JSON: what is written is what is read, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from luwu.base.job_spec import JobSpec, document_of, from_document
from luwu.base.links import LinkPair, LinkSpec
from luwu.base.retry import RetryPolicy
from luwu.join.connection import Connection, Leaf
from switch_emu.node.core.actions import NodeLimits
from switch_emu.node.spec import NodeSpec
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.process import SwitchSpec

RETRY = RetryPolicy(first_ns=5, most_ns=7, ns_per_byte=0.1)
LINK = LinkPair(up=LinkSpec(rate_bytes_per_s=1e9, delay_ns=3), down=LinkSpec(loss_ratio=0.25))

SPECS: list[JobSpec] = [
    NodeSpec(
        job=1, world_size=2, listen="ipc://auto", memory_budget_bytes=5, chunk_bytes=16384,
        summary=Path("/run/node.json"), groups=(3, 15), retry=RETRY, link=LINK,
        limits=NodeLimits(workers_min=3), own_switch=SwitchLimits(drop_after_ns=5),
    ),
    SwitchSpec(
        job=1, children=(1, 2), listen="tcp://127.0.0.1:0", parent="ipc:///n", chunk_bytes=16384,
        more_parents=("ipc:///m",), keys=Path("/keys"), link_roles=("worker", "switch"),
        limits=SwitchLimits(fill_rate_bytes_per_s=5e6),
    ),
    Connection(
        job=1, world_size=2, node="tcp://h:1", switch="shm:///s", chunk_bytes=16384, retry=RETRY,
        insecure=True, more_nodes=("tcp://h:2",),
    ),
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_a_specification_comes_back_from_json(spec: JobSpec) -> None:
    """Goal: paths, tuples, links and policies are what they were."""
    assert from_document(type(spec), json.loads(json.dumps(document_of(spec))), "here") == spec


def test_a_leaf_is_a_dictionary_in_a_document() -> None:
    leaf = Leaf(ranks="0-1", endpoint="shm:///x")
    connection = Connection(job=1, world_size=2, node="tcp://h:1", chunk_bytes=4, leaves=(leaf,))
    assert document_of(connection)["leaves"] == [{"ranks": "0-1", "endpoint": "shm:///x"}]


def test_a_document_with_other_fields_is_refused() -> None:
    """Goal: what is unknown or missing is named, with where it stands."""
    with pytest.raises(ConfigError, match=r"here: unknown 'arena_byte'.*arena_bytes"):
        from_document(JobSpec, {"job": 1, "chunk_bytes": 4, "arena_byte": 1}, "here")
    with pytest.raises(ConfigError, match="here: chunk_bytes missing"):
        from_document(JobSpec, {"job": 1}, "here")
    with pytest.raises(ConfigError, match="here: retry: unknown 'first_ms'; did you mean first_ns"):
        from_document(JobSpec, {"job": 1, "chunk_bytes": 4, "retry": {"first_ms": 1}}, "here")
