"""The source of a state that an export reads: pages at rest, or a running job.

Either is one decided version, which does not change while it is read:

    description   layout, optimizer and names of the state fields
    record        the record of the step that made this version
    attempt       the job's attempt, which never goes back; not below the record's
    attached      rank -> its attachment to this version (`luwu.attach`)
    read_field    fills memory with a field of a chunk's page; called by several threads at once

Of fields, `weight` and those of the optimizer's state come as float32, with padding, whatever is
stored; `updates` as an int64 for each segment of the chunk. Frozen chunks have `weight` only.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, RemoteProtocolError, StateError
from luwu.join.connection import Connection
from luwu.join.open import make_reader
from luwu.nic.reader import FieldRead, StateReader
from luwu.wire.description import Description, parse_description
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import read_content
from switch_emu.store import DecidedStep, StoreConfig, aligned_buffer
from switch_emu.store.attachments import read_attachments
from switch_emu.store.striped import StripedPages, node_count_of, shares_of


class RestingState(Closing):
    """The decided version of a state that no node has open; it stays as it is.

    A state of several nodes is a directory with one of each.

    A step that was prepared and not decided when the nodes were killed is not in it: it was not
    announced. The next start decides it.
    """

    def __init__(self, path: Path) -> None:
        """Raises: ConfigError if there is no state or another process has it open; StateError."""
        count = node_count_of(path) or 1
        self._store = StripedPages(path, count, redo_of)
        try:
            self.description = description_of(self._store.configs, path)
            self._store.lay_out(self.description.layout)
            self._first = self._store.holders[0][0].path
            decided = self._store.decided
            if decided is None:
                raise ConfigError(
                    f"{path} has no weights yet: its job ended before the first of them had come. "
                    "There is nothing to export"
                )
            self.record, self.attempt = decided, self._store.attempt
        except BaseException:
            self._store.close()
            raise

    def attached(self) -> Mapping[int, bytes]:
        return read_attachments(self._first, self.record)

    @property
    def replicas(self) -> int:
        """Nodes that hold each page."""
        return max(share.replicas for share in self._store.shares.values())

    def read_field(self, chunk: int, field: str, into: memoryview) -> None:
        """Fill `into` with a field of a chunk's page: float32, or the counts of updates."""
        read = partial(self._store.read_field, chunk, self.record.version)
        read_content(read, self._store.kind_of(chunk), field, into)

    def read_page(self, chunk: int, fields: Mapping[str, memoryview]) -> None:
        """Fill several fields of a chunk's page, which is read once."""
        kind = self._store.kind_of(chunk)
        record = aligned_buffer(kind.record_bytes)
        self._store.read(chunk, self.record.version, record)

        def read(name: str, into: memoryview) -> None:
            start, stop = kind.range(name)
            into[:] = record[start:stop]

        for field, into in fields.items():
            read_content(read, kind, field, into)

    def close(self) -> None:
        self._store.close()


def description_of(configs: Mapping[int, StoreConfig], path: Path) -> Description:
    """The job that these nodes' stores were made for. Raises StateError."""
    try:
        description = parse_description(next(iter(configs.values())).description)
    except RemoteProtocolError as exc:
        raise StateError(f"{path}: {exc}. Restore the state from an export.") from exc
    layout = description.layout
    if shares_of(layout, configs) is not None:
        return description
    pages_count = sum(config.page_count for config in configs.values())
    raise StateError(
        f"{path} has {pages_count} of {len(layout.chunks)} pages: the state is spread over "
        f"{layout.optimizer_nodes} optimizer nodes; name the directory that holds node-0, node-1, "
        "... of all of them"
    )


class RunningState(Closing):
    """The newest decided step; training goes on, and this stays what it is."""

    def __init__(self, reader: StateReader, replicas: int = 1) -> None:
        """The reader is ours from now on. `replicas`: nodes that hold each page.

        Raises: ConnectionFailed, DeadlineError, StateError.
        """
        self._reader, self.replicas = reader, replicas
        self._lock = threading.Lock()
        try:
            reader.open()
            facts = reader.facts
            self.description = reader.description
            self.record = DecidedStep(
                version=facts.version,
                attempt=facts.attempt,
                hyper=facts.hyper,
                applied=facts.applied,
                norms=() if facts.grad_norm is None else (facts.grad_norm,),
                extra=facts.extra,
            )
            self.attempt = facts.attempt
        except BaseException:
            reader.close()
            raise

    @classmethod
    def of(cls, connection: Connection, where: str) -> RunningState:
        """That of the job at a connection, which was found by a file or URL."""
        return cls(make_reader(connection, where=where), connection.replicas)

    def attached(self) -> Mapping[int, bytes]:
        with self._lock:
            found = {rank: self._reader.read_attached(rank) for rank in self._reader.facts.attached}
        return {rank: data for rank, data in found.items() if data is not None}

    def read_field(self, chunk: int, field: str, into: memoryview) -> None:
        with self._lock:  # one connection, for one thread at a time
            self._reader.read([FieldRead(chunk, field, into)])

    def read_page(self, chunk: int, fields: Mapping[str, memoryview]) -> None:
        """Fill several fields of a chunk's page, all asked for at once."""
        with self._lock:
            self._reader.read(FieldRead(chunk, name, into) for name, into in fields.items())

    def close(self) -> None:
        """Let the node forget it."""
        self._reader.close()


StateSource = RestingState | RunningState
