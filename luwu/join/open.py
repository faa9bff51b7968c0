"""The way into a job: from LUWU_CONNECT to a SmartNIC, or to a reader, that is connected."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.job_spec import common
from luwu.base.keys import check_name, worker_name
from luwu.join.connection import Connection, file_of, followed, join
from luwu.join.host import HostSwitch
from luwu.nic.reader import StateReader
from luwu.nic.shell import Nic, NicSettings, WorkerIdentity
from luwu.transport.arena import Access
from luwu.transport.curve import Security, open_security
from luwu.transport.opening import open_transport

WAIT_S = 60.0
"""How long a worker waits for its connection file."""


def find_connection() -> Connection:
    """The connection that LUWU_CONNECT names. Raises ConfigError, ConnectionFailed."""
    where = os.environ.get("LUWU_CONNECT", "")
    if not where:
        raise ConfigError(
            "LUWU_CONNECT is not set, so there is no job to join; start the script with "
            "luwu run SCRIPT, or set it to a connection file or URL"
        )
    return join(where, timeout_s=WAIT_S)


def open_nic(rank: int, world_size: int, *, on_device: bool = False) -> Nic:
    """Connect this worker; `on_device`: a GPU copies weights from where their sender has them.

    Raises ConfigError, ConnectionFailed.
    """
    connection = find_connection()
    if world_size != connection.world_size:
        raise ConfigError(
            f"this job has {connection.world_size} workers, but {world_size} were started; "
            f"start luwu up with --workers {world_size}, or that many workers"
        )
    where = os.environ["LUWU_CONNECT"]
    host = HostSwitch(where, connection, rank) if connection.lacks_switches else None
    connection = connection if host is None else host.connection
    file = file_of(where)
    endpoint = followed(
        connection.endpoint_of(rank), file, connection.job, lambda found: found.endpoint_of(rank)
    )
    security = own_security(endpoint, rank)
    events = os.environ.get("LUWU_EVENTS", "")
    path = Path(events) / f"worker-{rank}.jsonl" if events else None
    nic = Nic(
        open_transport(
            endpoint,
            arena_bytes=connection.arena_bytes,
            insecure=connection.insecure,
            security=security,
            peers=Access.READ_ONLY if on_device else Access.PRIVATE,
        ),
        WorkerIdentity(
            job=connection.job, rank=rank, world_size=world_size, incarnation=_incarnation()
        ),
        NicSettings(**common(NicSettings, connection)),
        endpoint=endpoint,
        make_reader=lambda: make_reader(connection, endpoint, rank),
        recorder=Recorder(role="worker", path=path, printed=None),
        connect_timeout_s=connection.connect_timeout_s,
        grace_s=connection.grace_s,
        retry=connection.retry,
    )
    if host is not None:
        host.watch(nic)
    try:
        nic.connect()
    except BaseException:
        nic.close()
        raise
    return nic


_joins = itertools.count()


def _incarnation() -> int | None:
    """The number of our start by the launcher, plus one for each time that we join again."""
    given = os.environ.get("LUWU_INCARNATION", "")
    return int(given) + next(_joins) if given.isdecimal() else None


def own_security(endpoint: str, rank: int | None = None) -> Security | None:
    """Our key, as LUWU_KEYS and LUWU_KEY_NAME say; None where no key is used.

    Without a rank this is a reader: its key is called `reader` by default. Raises
    ConfigError.
    """
    directory, name = os.environ.get("LUWU_KEYS", ""), os.environ.get("LUWU_KEY_NAME")
    if not directory or not endpoint.startswith("tcp://"):
        return None
    if rank is None:
        name = check_name(name or "reader")
    else:
        local_rank = int(os.environ.get("LOCAL_RANK") or rank)
        name = worker_name(name, rank=rank, local_rank=local_rank)
    return open_security(Path(directory).expanduser(), name)


def make_reader(
    connection: Connection, endpoint: str | None = None, rank: int | None = None,
    where: str | None = None,
) -> StateReader:  # fmt: skip
    """A reader of this job, not open yet; `endpoint`, `rank`: a worker's; `where`: the file or URL
    by which the job was found. Raises ConfigError."""
    file = None if where is None else file_of(where)
    endpoint = endpoint or followed(
        connection.endpoint, file, connection.job, lambda found: found.endpoint
    )
    return StateReader(
        open_transport(
            endpoint, insecure=connection.insecure, security=own_security(endpoint, rank)
        ),
        endpoint=endpoint,
        job=connection.job,
        connect_timeout_s=connection.connect_timeout_s,
        grace_s=connection.grace_s,
    )
