"""An export -> the state it was made from, page by page; it appears as a whole or not at all.

The files are checked before anything is made. Pages are put together in a bounded number of
buffers, from slices of the files, and written by a few threads. At the end the weights are read
back from the new pages, and their digest is compared with that of the export.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.directories import check_absent, check_space, making_directory
from luwu.base.errors import DamagedFileError
from luwu.checkpoint.copying import check_running, making_store
from luwu.checkpoint.origin import OriginFiles, exact_document
from luwu.checkpoint.read_ahead import THREADS_COUNT, buffers_count
from luwu.layout import SUM_BYTES
from luwu.wire.description import Description
from luwu.wire.stored import AVERAGE, UPDATES, WEIGHT
from switch_emu.node.kernels.narrow import widen
from switch_emu.node.pages import field_view, store_config, store_values, weights_digest
from switch_emu.store import FilePageStore, PageKind, StoreConfig, aligned_buffer, store_disk_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import."""

    path: Path
    step: int
    weights_digest: str
    chunk_bytes: int
    nbytes: int
    """Bytes of the state, once."""
    seconds: float


def import_state(
    source: Path, state: Path, *, chunk_bytes: int | None = None,
    memory_budget_bytes: int | None = None, should_stop: Callable[[], bool] = lambda: False,
) -> Imported:  # fmt: skip
    """Make the state directory `state`, which must not exist, from the export in `source`.

    `chunk_bytes`: None: as it was there. `memory_budget_bytes`: for buffers; None: 256 MiB.
    Raises: ConfigError; DamagedFileError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(state)
    document = exact_document(source)
    description = _with_chunk(document.description, chunk_bytes)
    config = store_config(description)
    with OriginFiles(source, document) as files:
        buffers_count = page_buffers(config, memory_budget_bytes or 256 * 1024**2)
        check_space(state, store_disk_bytes(config))
        with making_directory(state) as new:
            with making_store(
                new, config, document.record, files.attached(), attempt=document.attempt
            ) as store:
                _write_pages(store, description, files, buffers_count, should_stop)
                files.check_digests()
            with FilePageStore.open(new, read_only=True) as store:
                digest = weights_digest(store, description.layout)
            if digest != document.weights_digest:
                raise DamagedFileError(
                    f"{source}: the weights have the digest {digest}, the export records "
                    f"{document.weights_digest:.80}; it changed after it was written. Get it again."
                )
    return Imported(
        path=state,
        step=document.step,
        weights_digest=digest,
        chunk_bytes=config.chunk_bytes,
        nbytes=config.state_bytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )


def _with_chunk(description: Description, chunk_bytes: int | None) -> Description:
    """The same job cut otherwise; a state that is imported is always that of one node."""
    layout = replace(description.layout, optimizer_nodes=1)
    if chunk_bytes is not None:
        layout = replace(layout, chunk_bytes=chunk_bytes)
    return replace(description, layout=layout)


def page_buffers(config: StoreConfig, budget_bytes: int) -> int:
    """How many pages a budget pays for. Raises ConfigError."""
    record_bytes = max(kind.record_bytes for kind in config.kinds)
    is_narrow = any(
        field.dtype in ("bfloat16", "int8") for kind in config.kinds for field in kind.fields
    )
    wide_bytes = SUM_BYTES * max(config.page_elems) if is_narrow else 0  # before they are narrowed
    return buffers_count(budget_bytes, record_bytes, beside_bytes=wide_bytes)


def _write_pages(
    store: FilePageStore, description: Description, files: OriginFiles, buffers_count: int,
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Write every page, some while others are made; these are made in order, so that each tensor
    is read from its start to its end."""
    config, version = store.config, files.document.record.version
    record_bytes = max(kind.record_bytes for kind in config.kinds)
    writes: deque[tuple[Future[None], memoryview]] = deque()
    with ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="luwu-write") as pool:
        for chunk in range(config.page_count):
            check_running(should_stop)
            if len(writes) < buffers_count:
                buffer = aligned_buffer(record_bytes)
            else:
                write, buffer = writes.popleft()
                write.result()
            record = buffer[: config.kind(chunk).record_bytes]
            _fill(record, config.kind(chunk), chunk, description, files)
            write = pool.submit(store.write, chunk, version, store.attempt, record)
            writes.append((write, buffer))
        for write, _ in writes:
            write.result()


def _fill(
    record: memoryview, kind: PageKind, chunk: int, description: Description, files: OriginFiles
) -> None:
    """The record of a page: weights, the optimizer's state, and how often it was updated."""
    segments = list(description.layout.segments(chunk))
    np.frombuffer(record, np.uint8).fill(0)  # padding, and what was there before
    for name in (WEIGHT, *description.state_fields):
        if not kind.has(name):
            continue  # frozen, or one that keeps less
        stored = field_view(kind, record, name)
        values = stored if stored.dtype == np.float32 else np.zeros(stored.size, np.float32)
        if name == AVERAGE:  # which begins with the weights
            widen(field_view(kind, record, WEIGHT), None, values)
        for each in segments:
            part = slice(each.chunk_start, each.chunk_start + each.elems)
            files.read(name, each.parameter, each.parameter_start, values[part])
        if values is not stored:
            store_values(kind, record, name, values)
    if kind.has(UPDATES):
        updates = [files.document.updates[each.parameter] or 0 for each in segments]
        np.frombuffer(record[slice(*kind.range(UPDATES))], np.int64)[:] = updates
