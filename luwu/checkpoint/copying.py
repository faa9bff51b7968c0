"""Pages of one version put into a new store, and the decision that makes them its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from luwu.base.errors import Interrupted
from switch_emu.store import DecidedStep, FilePageStore, aligned_buffer
from switch_emu.store.attachments import RECORD_KEY, AttachmentFiles

THREADS_COUNT: Final = 4


def copy_pages(
    target: FilePageStore, record: DecidedStep,
    origin: Callable[[int], tuple[FilePageStore, int]], should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Fill all pages of `target` with those of `record`'s version; each is verified as it is read.

    `origin`: page of the target -> the store that has it, and its number there.
    """
    config = target.config

    def copy(first: int) -> None:
        buffer = aligned_buffer(max(kind.record_bytes for kind in config.kinds))
        for page in range(first, config.page_count, THREADS_COUNT):
            check_running(should_stop)
            whole = buffer[: config.kind(page).record_bytes]
            source, number = origin(page)
            source.read(number, record.version, whole)
            target.write(page, record.version, record.attempt, whole)

    with ThreadPoolExecutor(THREADS_COUNT, thread_name_prefix="luwu-copy") as pool:
        for _ in pool.map(copy, range(THREADS_COUNT)):
            pass


def steps_of(store: FilePageStore) -> dict[int, DecidedStep]:
    """The decided and the prepared step of a store, by version."""
    return {step.version: step for step in (store.decided, store.prepared) if step is not None}


def pieces_of(source: FilePageStore, record: DecidedStep) -> dict[int, list[memoryview]]:
    """The pieces that each rank attached to a step, of the store that keeps them."""
    files = AttachmentFiles(source.path, synced=False, decided=record, read_only=True)
    with files, files.open(record) as kept:
        return {
            rank: [memoryview(kept.read(rank, piece)) for piece in range(len(sizes))]
            for rank, sizes in kept.sizes.items()
        }


def cut(attached: Mapping[int, bytes], nbytes: int) -> dict[int, list[memoryview]]:
    """Cut each rank's attachment into pieces of at most `nbytes`; an empty one is one piece."""
    return {
        rank: [view[start : start + nbytes] for start in range(0, max(1, len(view)), nbytes)]
        for rank, view in ((rank, memoryview(data)) for rank, data in attached.items())
    }


def decide(
    store: FilePageStore, record: DecidedStep, pieces: Mapping[int, Sequence[memoryview]]
) -> None:
    """Put what ranks attached beside the pages, and make both the decided version."""
    extra = {name: text for name, text in record.extra.items() if name != RECORD_KEY}
    if pieces:
        with AttachmentFiles(store.path, synced=True, decided=None) as files:
            for rank, parts in pieces.items():
                for piece, part in enumerate(parts):
                    files.put(record.version, record.attempt, rank, piece, part)
            extra[RECORD_KEY] = files.seal(record.version, record.attempt)
    store.prepare(replace(record, extra=extra))
    store.decide(record.version, record.attempt)


def check_running(should_stop: Callable[[], bool]) -> None:
    """Raises Interrupted."""
    if should_stop():
        raise Interrupted("stopped before it was complete; nothing was left behind")
