"""Readers at the node's process: the versions pinned for them, and what is read of these.

Training has priority: the pipeline has one thread for all readers, and its payloads wait, as other
weights do, until earlier ones have been sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError, LuwuError, StateError
from luwu.base.quantities import decimal
from luwu.layout import COUNT_BYTES, SUM_BYTES, Share
from luwu.wire.reading import ATTACHED, VersionFacts
from luwu.wire.stored import AVERAGE, UPDATES, WEIGHT
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import ReadField
from switch_emu.node.pages import read_content
from switch_emu.process.payload import Buffers, Payload
from switch_emu.store import PageStore, Pin
from switch_emu.store.attachments import AttachmentFiles, VersionAttachments

Finished = Callable[[], Sequence[Any]]
"""Called by the shell's loop: passes an event to the core, returns its actions."""

Cast = Callable[[F32Array, str, memoryview], None]
"""`UpdateKernel.cast`."""


class Pinned(NamedTuple):
    """The version that one reader sees."""

    pin: Pin
    attached: VersionAttachments


class PinnedVersions:
    """The version that each reader sees, and reads of its fields."""

    def __init__(
        self, core: NodeCore, store: PageStore, share: Share, *, files: AttachmentFiles,
        cast: Cast, buffers: Buffers,
    ) -> None:  # fmt: skip
        self._core, self._store, self._share = core, store, share
        self._files, self._cast, self._buffers = files, cast, buffers
        self._pinned: dict[int, Pinned] = {}
        """Pinned versions by reader."""

    def pin(self, reader: int) -> Sequence[Any]:
        """Pin the decided version for a reader."""
        pin = self._store.pin()
        step = pin.step
        try:
            attached = self._files.open(step)
        except LuwuError as exc:
            pin.close()
            return self._core.pin_failed(reader, str(exc))
        self._pinned[reader] = Pinned(pin, attached)
        facts = VersionFacts(
            version=step.version,
            description=self._store.config.description,
            hyper=step.hyper,
            applied=step.applied,
            grad_norm=step.norms[0] if step.norms else None,
            attempt=step.attempt,
            extra=step.portable_extra,
            attached=attached.sizes,
        )
        return self._core.pinned(reader, step.version, facts.to_bytes())

    def unpin(self, reader: int) -> None:
        """Release the version of a reader."""
        pinned = self._pinned.pop(reader, None)
        if pinned is not None:
            pinned.pin.close()
            pinned.attached.close()

    def close(self) -> None:
        """Release all versions."""
        for reader in list(self._pinned):
            self.unpin(reader)

    def read(self, read: ReadField) -> Finished:
        """Read a field, in the thread for readers; who is shut meanwhile is answered so."""
        try:
            pinned = self._pinned.get(read.reader)
            if pinned is None:
                raise StateError("the reader was shut")
            if read.field.startswith(ATTACHED):
                payload = self._attached(read, pinned.attached)
            else:
                payload = self._content(read, pinned.pin)
        except LuwuError as exc:  # also a damaged page: training detects it by itself
            text = str(exc)
            return lambda: self._core.field_read(read, None, text)
        return lambda: self._core.field_read(read, payload)

    def _content(self, read: ReadField, pin: Pin) -> Payload:
        layout = self._share.layout
        if not self._share.owns(read.chunk):
            raise ConfigError(
                f"no chunk {read.chunk} is here: the job's layout has {len(layout.chunks)}, of "
                f"which this node holds {self._share.pages_count}"
            )
        page = self._share.page(read.chunk)
        kind = self._store.config.kind(page)
        nbytes = SUM_BYTES * kind.fields[kind.index(read.field)].elems
        stored = partial(pin.read_field, page)
        is_cast = read.field in (WEIGHT, AVERAGE) and read.dtype != "float32"
        if is_cast:
            elems = layout.chunks[read.chunk].elems
            weights = np.empty(elems, np.float32)
            read_content(stored, kind, read.field, weights.view(np.uint8).data)
            nbytes = elems * DTYPES[read.dtype].nbytes
        if read.field == UPDATES:
            nbytes = COUNT_BYTES * layout.segments_count(read.chunk)
        memory, payload = self._buffers.take(nbytes)
        try:
            if is_cast:
                self._cast(weights, read.dtype, memory)
            else:
                read_content(stored, kind, read.field, memory)
        except BaseException:
            payload.drop()
            raise
        return payload

    def _attached(self, read: ReadField, attached: VersionAttachments) -> Payload:
        """A piece of a rank's attachment to the version."""
        rank = decimal(read.field.removeprefix(ATTACHED))
        if rank is None:
            raise ConfigError(f"{read.field!r} names no rank")
        data = attached.read(rank, read.chunk)
        memory, payload = self._buffers.take(len(data))
        memory[:] = data
        return payload
