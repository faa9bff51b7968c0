"""A new store that begins with a version of another: its pages, and what ranks attached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from luwu.base.errors import Interrupted
from switch_emu.store import DecidedStep, FilePageStore, StoreConfig, aligned_buffer
from switch_emu.store.attachments import AttachmentFiles
from switch_emu.store.records import RECORD_KEY

THREADS_COUNT: Final = 4


@contextmanager
def making_store(
    path: Path, config: StoreConfig, record: DecidedStep, attached: Mapping[int, bytes], *,
    attempt: int, epoch: tuple[int, ...] | None = None,
) -> Iterator[FilePageStore]:  # fmt: skip
    """A new store; the pages of `record`'s version, which the caller writes, are decided at the
    end, with what each rank attached.

    `attempt`: the job's, which may be beyond that of the step; `epoch`: see `PageStore.epoch`.
    """
    with FilePageStore.create(path, config, first_version=record.version) as store:
        store.record_attempt(record.attempt, epoch)
        yield store
        extra = record.portable_extra
        if attached:
            with AttachmentFiles(store.path, synced=True, decided=None) as files:
                for rank, data in attached.items():
                    for piece, part in enumerate(_pieces(data, config.chunk_bytes)):
                        files.put(record.version, record.attempt, rank, piece, part)
                extra[RECORD_KEY] = files.seal(record.version, record.attempt)
        store.prepare(replace(record, extra=extra))
        store.decide(record.version, record.attempt)
        store.record_attempt(attempt, epoch)


def _pieces(data: bytes, nbytes: int) -> Iterator[memoryview]:
    """Parts of at most `nbytes`; of what is empty, an empty one."""
    for start in range(0, max(1, len(data)), nbytes):
        yield memoryview(data)[start : start + nbytes]


def write_pages(
    store: FilePageStore, record: DecidedStep, fill: Callable[[int, memoryview], None],
    should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Write all pages of `record`'s version; `fill`, called by several threads, makes the record of
    a page."""
    config = store.config

    def write(first: int) -> None:
        buffer = aligned_buffer(max(kind.record_bytes for kind in config.kinds))
        for page in range(first, config.page_count, THREADS_COUNT):
            check_running(should_stop)
            whole = buffer[: config.kind(page).record_bytes]
            fill(page, whole)
            store.write(page, record.version, record.attempt, whole)

    with ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="luwu-copy") as pool:
        for _ in pool.map(write, range(THREADS_COUNT)):
            pass


def steps_of(store: FilePageStore) -> dict[int, DecidedStep]:
    """The decided and the prepared step of a store, by version."""
    return {step.version: step for step in (store.decided, store.prepared) if step is not None}


def check_running(should_stop: Callable[[], bool]) -> None:
    """Raises Interrupted."""
    if should_stop():
        raise Interrupted("stopped before it was complete; nothing was left behind")
