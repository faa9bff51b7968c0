"""The connection file and its URL: nothing half written, nothing guessed, every wait ends."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from luwu.base.errors import ConfigError, ConnectionFailed, Interrupted
from luwu.base.retry import RetryPolicy
from luwu.join.connection import (
    Connection,
    followed,
    join,
    parse_url,
    read_connection,
    write_connection,
)
from luwu.transport.endpoints import MovableEndpoint
from switch_emu.switch.process import SwitchSpec

CONNECTION = Connection(
    job=5713,
    world_size=2,
    node="tcp://127.0.0.1:4000",
    switch="tcp://127.0.0.1:4001",
    chunk_bytes=1 << 20,
    reshard_after_forward=False,
    aggregate="shared-exponent",
)


def test_what_is_written_is_read_back_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "connect.json"
    write_connection(path, CONNECTION)
    assert read_connection(path) == CONNECTION
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["connect.json"]


def test_a_url_says_what_a_worker_needs() -> None:
    """Goal: also where to dial: the switch, or the node where there is none."""
    assert CONNECTION.endpoint == "tcp://127.0.0.1:4001"
    assert replace(CONNECTION, switch=None).endpoint == CONNECTION.node
    found = parse_url(CONNECTION.url())
    assert found.endpoint == CONNECTION.endpoint
    for name in (
        "job", "world_size", "chunk_bytes", "reshard_after_forward", "prefetch_units",
        "aggregate",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(CONNECTION, name)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"grace_s": 20.25, "connect_timeout_s": 1e-9}, "grace"),
        ({"on_worker_loss": "drop"}, "loss"),
    ],
)
def test_a_url_carries_what_was_asked_for(change: dict[str, Any], name: str) -> None:
    """Goal: workers on other hosts do as `luwu up` was told; defaults are not spelt."""
    assert name not in CONNECTION.url()
    changed = replace(CONNECTION, **change)
    assert parse_url(changed.url()) == replace(parse_url(CONNECTION.url()), **change)


def test_workers_learn_how_patient_an_emulated_link_wants_them(tmp_path: Path) -> None:
    """Goal: the policy comes through the file and the URL; without a link it is the usual one."""
    assert CONNECTION.retry is None
    assert "retry" not in CONNECTION.url()
    policy = RetryPolicy(first_ns=50_000_000, most_ns=400_000_000, ns_per_byte=16.0)
    linked = replace(CONNECTION, retry=policy)
    write_connection(tmp_path / "connect.json", linked)
    read = read_connection(tmp_path / "connect.json")
    assert read is not None
    assert read.retry == parse_url(linked.url()).retry == policy
    impatient = replace(linked, retry=replace(policy, most_ns=49_000_000))
    write_connection(tmp_path / "connect.json", impatient)
    for read_again in (
        lambda: read_connection(tmp_path / "connect.json"), lambda: parse_url(impatient.url())
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="most_ns is 49000000, not a whole number 50000000 t"):
            read_again()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("tcp://h:1", "job, chunk_bytes, world_size missing"),
        ("tcp://h:1?job=1&world_size=2&chunk_byte=4", "did you mean chunk_bytes"),
        ("tcp://h:1?job=x&world_size=2&chunk_bytes=4", "is not a number"),
        ("http://h:1?job=1&world_size=2&chunk_bytes=4", "no tcp://, ipc://, shm://"),
        ("tcp://h:1?job=1&world_size=0&chunk_bytes=4", "world_size is 0"),
        ("tcp://h:1?job", "copy the line"),
        ("tcp://h:1?job=1&world_size=2&chunk_bytes=4&grace_s=0.0", "not a number above 0"),
        ("tcp://h:1?job=1&world_size=2.5&chunk_bytes=4", "is not a number"),
        (f"{CONNECTION.url()}&on_worker_loss=forget", "'forget' is not one of stop, wait, drop"),
        *((f"{CONNECTION.url()}&retry={text}", "retry") for text in ("x,y,z", "1,2", "1,2,inf")),
        (f"{CONNECTION.url()}&retry=0,0,0", "retry"),
    ],
)
def test_a_url_that_lacks_something_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_url(url)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema is 2, expected 1"),
        ({"protocol": 99}, "another version"),
        ({"job": "1"}, "job is '1'"),
        ({"job": True}, "job is True"),
        ({"colour": 1}, "unknown 'colour'"),
        ({"node": "udp://x"}, "no tcp://, ipc://, shm://"),
        ({"grace_s": 0}, "above 0"),
        ({"aggregate": 7}, "aggregate is 7, not a text"),
        ({"extent_chunks": 1 << 20}, "extent_chunks is 1048576, not a whole number 1 to "),
    ],
)
def test_a_file_that_is_not_ours_is_refused(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    path = tmp_path / "connect.json"
    write_connection(path, CONNECTION)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=said):
        read_connection(path)


def test_a_file_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "connect.json"
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        threading.Thread(target=write_connection, args=(path, CONNECTION)).start()

    assert join(str(tmp_path), timeout_s=30, say=say) == CONNECTION
    assert re.match(r"luwu: waiting for connect\.json, \d+ s of 30 s", lines[0])


def test_a_wait_ends_and_says_what_it_waited_for(tmp_path: Path) -> None:
    """Goal: in time, or when it is stopped."""
    with pytest.raises(ConnectionFailed, match=r"connect\.json did not appear .* luwu up"):
        join(str(tmp_path / "connect.json"), timeout_s=0.1)
    with pytest.raises(Interrupted):
        join(str(tmp_path / "x"), timeout_s=600, should_stop=lambda: True)


def test_an_endpoint_is_followed_by_its_file(tmp_path: Path) -> None:
    """Goal: it is read at each look; a file of another job, or none, leads nowhere, and neither a
    URL nor shared memory is read again."""
    file, moved = tmp_path / "connect.json", "tcp://127.0.0.2:5"
    endpoint = followed(CONNECTION.endpoint, file, CONNECTION.job, lambda found: found.endpoint)
    assert isinstance(endpoint, MovableEndpoint)
    assert endpoint == CONNECTION.endpoint
    with pytest.raises(ConfigError, match=r"there is no /.*connect\.json"):
        endpoint.look()
    write_connection(file, CONNECTION)
    assert endpoint.look() == CONNECTION.endpoint
    write_connection(file, replace(CONNECTION, switch=moved))
    assert endpoint.look() == moved
    write_connection(file, replace(CONNECTION, job=1, switch=moved))
    with pytest.raises(ConfigError, match="is of job 1, not 5713"):
        endpoint.look()
    for text, place in ((moved, None), ("shm:///tmp/x", file)):
        assert not isinstance(followed(text, place, 1, lambda found: found.node), MovableEndpoint)


def test_a_switch_follows_each_node_by_its_file(tmp_path: Path) -> None:
    """Goal: node N is where the file of node N has it, which need not know of the others; and the
    file of a node before it is no answer."""
    nodes = [f"tcp://127.0.0.1:{number}" for number in (1, 2, 3)]
    files = [tmp_path / name for name in ("first", "second", "third")]
    spec = SwitchSpec(
        job=5713, chunk_bytes=16384, listen="tcp://127.0.0.1:0", children=(1,), parent=nodes[0],
        more_parents=tuple(nodes[1:]), parent_files=tuple(map(str, files)),
    )  # fmt: skip
    parents = spec.parents
    assert parents == nodes
    node = replace(CONNECTION, switch=None, optimizer_nodes=3)
    write_connection(files[1], replace(node, more_nodes=("tcp://127.0.0.9:2",)))
    write_connection(files[2], node)
    assert isinstance(parents[1], MovableEndpoint)
    assert isinstance(parents[2], MovableEndpoint)
    assert parents[1].look() == "tcp://127.0.0.9:2"
    with pytest.raises(ConfigError, match="has 1 optimizer nodes, and not node 2"):
        parents[2].look()
    below = replace(spec, more_parents=(), parent_files=(str(files[0]),)).parents[0]
    write_connection(files[0], replace(CONNECTION, switch="tcp://127.0.0.9:7"))
    assert isinstance(below, MovableEndpoint)
    assert below.look() == "tcp://127.0.0.9:7"  # the switch above, whose file it is
    alone = replace(spec, parent_files=())
    assert not any(isinstance(each, MovableEndpoint) for each in alone.parents)


def test_a_url_of_nodes_that_have_several_places() -> None:
    """Goal: commas within an endpoint are not those between endpoints."""
    more = ("tcp://a:1,b:2", "tcp://c:3")
    connection = replace(CONNECTION, switch=None, node="tcp://n:1,m:2", optimizer_nodes=3)
    found = parse_url(replace(connection, more_nodes=more).url())
    assert (found.node, tuple(found.more_nodes)) == ("tcp://n:1,m:2", more)
