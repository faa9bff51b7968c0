"""The connection file: all that a process needs to join a job, and nothing secret.

    {"schema": 1, "job": 5713, "protocol": 1, "world_size": 2,
     "node": "tcp://10.0.0.5:41877", "switch": "tcp://10.0.0.6:40001", "chunk_bytes": 1048576,
     "reshard_after_forward": null, "prefetch_units": 2, "connect_timeout_s": 60, "grace_s": 600,
     "arena_bytes": 0, "retry": null, "aggregate": "float32", "tree": "",
     "leaves": [], "optimizer_nodes": 1, "more_nodes": [], "on_worker_loss": "stop",
     "insecure": false}

An endpoint with a key, `tcp://KEY@HOST:PORT`, is encrypted and pins the public key of who listens
there. A tcp endpoint off loopback without one is rejected unless `insecure` says that it was meant.

`switch` is null where workers talk to the node itself. In a tree of switches it is the one below
the node, `tree` says which ranks each switch sums, and `leaves` where the workers connect:
`[{"ranks": "0-3", "endpoint": "shm:///run/user/1000/x/1"}, ...]`. The same fits a URL, for hosts
that share no directory: `tcp://10.0.0.6:40001?job=5713&world_size=2&chunk_bytes=1048576`; its
endpoint is where workers connect, in a tree those of its `ranks`. Roles may start in any order:
a process that needs the file waits for it, and says so.

A switch or node that is lost may be started elsewhere. An endpoint may have several places,
`tcp://KEY@HOST:PORT,HOST:PORT`, and a process that joined by a file reads it again (`followed`).
"""

from __future__ import annotations

import math
import re
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from luwu.aggregate import FLOAT32
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.config import LOSS_POLICIES
from luwu.base.errors import ConfigError, ConnectionFailed, Interrupted
from luwu.base.expendable import print_if_possible
from luwu.base.job_spec import JobSpec, document_of, from_document, read_again
from luwu.base.json_file import read_json, write_json
from luwu.base.limits import (
    INT64_MAX,
    NODE_COUNT_MAX,
    PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION,
    WORLD_SIZE_MAX,
)
from luwu.base.parsers import one_of
from luwu.base.quantities import decimal
from luwu.base.retry import RetryPolicy
from luwu.base.tree import parse_ranks
from luwu.transport.endpoints import MovableEndpoint

SCHEMA: Final = 1
PREFETCH_UNITS: Final = 2
AGGREGATE_CHARS_MAX: Final = 100
_POLL_S = 0.05
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_SECONDS_MAX: Final = 1e9
_SCHEMES = ("tcp://", "ipc://", "shm://")
_BETWEEN_NODES = re.compile(",(?=[a-z]+://)")
"""Between endpoints, each of which may have commas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A switch that workers connect to."""

    ranks: str
    """Ranks of its workers, such as `0-3,6`."""
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection(JobSpec):
    """Where a job is, and what all its members must agree on before they talk."""

    world_size: int
    node: str
    """Endpoint of the optimizer node."""
    switch: str | None = None
    """Endpoint of the switch; None: workers talk to the node itself."""
    reshard_after_forward: bool | None = None
    prefetch_units: int = PREFETCH_UNITS
    connect_timeout_s: float = 60.0
    aggregate: str = FLOAT32
    """Name of the aggregator, with its scale."""
    optimizer_nodes: int = 1
    """Nodes that the pages are striped over; `node` is the first."""
    more_nodes: tuple[str, ...] = ()
    """Endpoints of the nodes after the first, as far as they are started: for who starts next."""
    on_worker_loss: str = LOSS_POLICIES[0]
    """What the job does when a worker is lost: stop, wait or drop."""
    drop_after_s: float = 10.0
    """Seconds after which a worker that is missing counts as lost."""
    hosts: int = 1
    """Hosts that share the workers; each of several has a switch, which is started with them."""

    @property
    def lacks_switches(self) -> bool:
        """True if each host that joins starts a switch: this is not the connection of one."""
        return self.hosts > 1 and not self.leaves

    @property
    def security(self) -> str:
        """The protection of connections to the job, as text."""
        if not self.endpoint.startswith("tcp://"):
            return "local only, same user"
        if "@" in self.endpoint:
            return "keys: connections are encrypted, and only accepted keys connect"
        if self.is_open:
            return "NONE (--insecure): anyone on the network can read, join and disturb the job"
        return "local only, any user; --keys DIR accepts only holders of a key"

    @property
    def is_open(self) -> bool:
        """True if anyone on the network can connect."""
        return self.insecure and self.endpoint.startswith("tcp://") and "@" not in self.endpoint

    tree: str = ""
    """Ranks that each switch sums (`luwu.base.tree.groups_text`); empty: all, in one switch."""
    leaves: tuple[Leaf, ...] = ()
    """Switches that workers connect to, by rank; empty: all at `endpoint`."""

    @property
    def endpoint(self) -> str:
        """The way into the job that all have: of readers, and of workers where it has no leaves."""
        return self.node if self.switch is None else self.switch

    def endpoint_of(self, rank: int) -> str:
        """The endpoint that a worker dials. Raises ConfigError."""
        for leaf in self.leaves:
            if rank in parse_ranks(leaf.ranks, "leaves"):
                return leaf.endpoint
        if self.leaves:
            ranks = ", ".join(leaf.ranks for leaf in self.leaves)
            raise ConfigError(
                f"rank {rank} has no switch here, which is for ranks {ranks}; join that rank by "
                "the file or URL that its own switch printed"
            )
        return self.endpoint

    def url(self, leaf: Leaf | None = None) -> str:
        """The same for a host that shares no directory: for the workers of a leaf, or for all."""
        values = {name: getattr(self, name) for name in _IN_URL}
        asked = {
            name: _url_text(value)
            for name, value in values.items()
            if name == "prefetch_units" or value != _DEFAULTS[name]
        }
        if leaf is not None:
            asked["ranks"] = leaf.ranks
        endpoint = self.endpoint if leaf is None else leaf.endpoint
        return f"{endpoint}?{urllib.parse.urlencode(asked, safe=',|')}"


_DEFAULTS: Final = {each.name: each.default for each in fields(Connection)}
_IN_URL: Final = (
    "job", "world_size", "chunk_bytes", "prefetch_units", "arena_bytes", "extent_chunks",
    "optimizer_nodes", "replicas", "more_nodes", "connect_timeout_s", "grace_s", "retry",
    "insecure", "aggregate", "on_worker_loss", "drop_after_s", "hosts", "reshard_after_forward",
    "tree",
)  # fmt: skip
"""What a URL says beside its endpoint and its ranks, in this order, where it is not the default."""


def _url_text(value: object) -> str:
    """A value as `parse_url` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.9f}".rstrip("0").rstrip(".")
    if isinstance(value, RetryPolicy):
        value = value.first_ns, value.most_ns, value.ns_per_byte  # emulated links have no patience
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def switch_file(name: str) -> str:
    """The file with the endpoint of a switch of a tree, for those below it."""
    return f"connect-{name}.json"


def write_connection(path: Path, connection: Connection) -> None:
    """Write the file, readable by this user only, whole or not at all."""
    document = {"schema": SCHEMA, "protocol": PROTOCOL_VERSION, **document_of(connection)}
    write_json(path, document, mode=0o600)


def read_connection(path: Path) -> Connection | None:
    """The content of the file; None if there is none. Raises ConfigError."""
    document = read_json(path)
    return None if document is None else _of_document(document, path)


def _of_document(document: dict[str, Any], path: Path) -> Connection:
    for key, expected in (("schema", SCHEMA), ("protocol", PROTOCOL_VERSION)):
        found = document.pop(key, None)
        if found != expected:
            raise ConfigError(
                f"{path}: {key} is {found!r:.40}, expected {expected}; it was written by another "
                "version of luwu: install the same luwu on both sides"
            )
    return _checked(document, str(path))


def file_of(where: str) -> Path | None:
    """The connection file of `--join` or LUWU_CONNECT; None for a URL."""
    if "://" in where:
        return None
    path = Path(where).expanduser().absolute()
    return path / "connect.json" if path.is_dir() else path


def followed(endpoint: str, file: Path | None, job: int, find: Callable[[Connection], str]) -> str:
    """An endpoint to dial that `find` found in a connection file, which is read again before each
    attempt; without a file, or in shared memory, the endpoint as it is."""
    if file is None or not endpoint.startswith("tcp://"):
        return endpoint

    def look() -> str:
        return find(_of_document(read_again(file, job), file))

    return MovableEndpoint(endpoint, look)


def join(
    where: str,
    *,
    timeout_s: float,
    say: Callable[[str], object] = print_if_possible,
    should_stop: Callable[[], bool] = lambda: False,
) -> Connection:
    """The connection of `--join FILE|URL` or LUWU_CONNECT; a file may still have to be written.

    Says every few seconds what it waits for. Raises ConfigError; ConnectionFailed at the end of
    `timeout_s`, Interrupted when asked to stop.
    """
    path = file_of(where)
    if path is None:
        return parse_url(where)
    started_ns = SYSTEM_CLOCK.now_ns()
    said_s = -1.0
    while True:
        connection = read_connection(path)
        if connection is not None:
            return connection
        waited_s = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
        if should_stop():
            raise Interrupted(f"interrupted while waiting for {path}")
        if waited_s >= timeout_s:
            raise ConnectionFailed(
                f"{path} did not appear within {waited_s:.0f} s; start luwu up with the same "
                "--run-dir, or name its file with --join"
            )
        if waited_s >= 0.5 and waited_s - said_s >= min(3.0, 1.0 + waited_s / 10):
            say(f"luwu: waiting for {path.name}, {waited_s:.0f} s of {timeout_s:.0f} s ({path})")
            said_s = waited_s
        sleep(_POLL_S)


def parse_url(url: str) -> Connection:
    """The connection of a URL such as `luwu up` prints. Raises ConfigError."""
    endpoint, _, query = url.partition("?")
    try:
        asked = dict(urllib.parse.parse_qsl(query, strict_parsing=bool(query)))
    except ValueError as exc:
        raise ConfigError(f"{url}: {exc}; copy the line that luwu up printed") from exc
    document: dict[str, Any] = {"node": endpoint, "switch": None}
    if "ranks" in asked:
        document["leaves"] = [{"ranks": asked.pop("ranks"), "endpoint": endpoint}]
    for name, text in asked.items():
        if name in ("aggregate", "on_worker_loss", "tree"):
            document[name] = text
        elif name == "more_nodes":
            document[name] = _BETWEEN_NODES.split(text)
        elif name == "retry":
            document[name] = _retry_of(text)
        elif text in ("true", "false"):
            document[name] = text == "true"
        elif (number := decimal(text)) is not None:
            document[name] = number
        elif name in ("connect_timeout_s", "grace_s", "drop_after_s") and _DECIMAL.fullmatch(text):
            document[name] = float(text)
        else:
            raise ConfigError(f"{url}: {name}={text!r} is not a number; copy what luwu up printed")
    return _checked(document, url)


def _retry_of(text: str) -> object:
    """The policy of a URL as a file has it; the text itself if it is none."""
    try:
        first_ns, most_ns, ns_per_byte = text.split(",")
        return {
            "first_ns": int(first_ns), "most_ns": int(most_ns), "ns_per_byte": float(ns_per_byte)
        }  # fmt: skip
    except ValueError:
        return text


def _checked(document: dict[str, Any], where: str) -> Connection:
    """The connection that a document describes. Raises ConfigError."""
    found = from_document(Connection, document, where)
    retry = found.retry or RetryPolicy()
    extent_chunks_max = PAYLOAD_BYTES_MAX // max(1, found.chunk_bytes)  # of float32: one message
    for name, value, least, most in (
        ("job", found.job, 0, INT64_MAX),
        ("world_size", found.world_size, 1, WORLD_SIZE_MAX),
        ("chunk_bytes", found.chunk_bytes, 1, PAYLOAD_BYTES_MAX),
        ("extent_chunks", found.extent_chunks, 1, extent_chunks_max),
        ("prefetch_units", found.prefetch_units, 0, 1 << 20),
        ("arena_bytes", found.arena_bytes, 0, INT64_MAX),
        ("optimizer_nodes", found.optimizer_nodes, 1, NODE_COUNT_MAX),
        ("replicas", found.replicas, 1, found.optimizer_nodes),
        ("leaves", len(found.leaves), 0, WORLD_SIZE_MAX),
        ("hosts", found.hosts, 1, found.world_size),
        ("retry.first_ns", retry.first_ns, 1, INT64_MAX),
        ("retry.most_ns", retry.most_ns, retry.first_ns, INT64_MAX),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{where}: {name} is {value}, not a whole number {least} to {most}")
    for name, seconds in (
        ("connect_timeout_s", found.connect_timeout_s), ("grace_s", found.grace_s),
        ("drop_after_s", found.drop_after_s),
    ):  # fmt: skip
        if not 0 < seconds < _SECONDS_MAX:
            raise ConfigError(f"{where}: {name} is {seconds}, not a number above 0")
    if not 0 <= retry.ns_per_byte < math.inf:
        raise ConfigError(f"{where}: retry.ns_per_byte is {retry.ns_per_byte}, not a number from 0")
    for name, endpoint in (
        ("node", found.node), ("switch", found.switch or found.node),
        *(("more_nodes", each) for each in found.more_nodes),
        *(("leaves", each.endpoint) for each in found.leaves),
    ):  # fmt: skip
        if not endpoint.startswith(_SCHEMES):
            raise ConfigError(f"{where}: {name} is {endpoint!r}, no {', '.join(_SCHEMES)} endpoint")
    for leaf in found.leaves:
        parse_ranks(leaf.ranks, f"{where}: ranks")
    if not 0 < len(found.aggregate) <= AGGREGATE_CHARS_MAX:
        raise ConfigError(f"{where}: aggregate is {found.aggregate!r:.60}, no aggregator's name")
    one_of(*LOSS_POLICIES)(found.on_worker_loss, f"{where}: on_worker_loss")
    return found
