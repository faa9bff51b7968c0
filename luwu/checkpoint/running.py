"""The source of an export from a running job: a decided step, held by its node."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from luwu.base.closing import Closing
from luwu.join.connection import Connection
from luwu.join.open import make_reader
from luwu.nic.reader import FieldRead, StateReader
from switch_emu.store import DecidedStep


class RunningState(Closing):
    """The newest decided step; training goes on, and this stays what it is. See `StateSource`."""

    def __init__(self, reader: StateReader) -> None:
        """The reader is ours from now on. Raises: ConnectionFailed, DeadlineError, StateError."""
        self._reader = reader
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
        return cls(make_reader(connection, where=where))

    def attached(self) -> Mapping[int, bytes]:
        with self._lock:
            found = {rank: self._reader.read_attached(rank) for rank in self._reader.facts.attached}
        return {rank: data for rank, data in found.items() if data is not None}

    def read_field(self, chunk: int, field: str, into: memoryview) -> None:
        with self._lock:  # one connection; the node reads ahead of nobody
            self._reader.read([FieldRead(chunk, field, into)])

    def read_page(self, chunk: int, fields: Mapping[str, memoryview]) -> None:
        """Fill several fields of a chunk's page, all asked for at once."""
        with self._lock:
            self._reader.read(FieldRead(chunk, name, into) for name, into in fields.items())

    def close(self) -> None:
        """Let the node forget it."""
        self._reader.close()
