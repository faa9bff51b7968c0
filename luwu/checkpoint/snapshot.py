"""A copy of a state that is itself a state directory: to resume from, to verify, to keep.

At rest pages are copied from the store, of a running job from the version that its node holds for
us while training goes on. Either way the newest decided step, whole or not at all: built beside its
place, flushed, renamed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.directories import check_absent, flush_directory, making_directory
from luwu.base.errors import ConfigError, StateError
from luwu.checkpoint.copying import making_store, steps_of, write_pages
from luwu.checkpoint.source import RunningState
from luwu.layout import Share
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import store_config, store_values
from switch_emu.store import FilePageStore
from switch_emu.store.attachments import read_attachments
from switch_emu.store.records import DecidedStep
from switch_emu.store.striped import node_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of a snapshot."""

    path: Path
    version: int
    optimizer_nodes: int
    seconds: float


def snapshot_at_rest(
    state: Path, count: int, out: Path, *, should_stop: Callable[[], bool] = lambda: False
) -> Snapshot:
    """Snapshot of a state of `count` nodes that none of them has open.

    Raises: ConfigError if one has; StateError if it is damaged; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(out)
    with ExitStack() as stack, making_directory(out) as new:
        stores = []
        for number in range(count):
            directory = node_directory(state, number, count)
            stores.append(stack.enter_context(FilePageStore.open(directory, read_only=True)))
            stores[-1].redo = redo_of(stores[-1].config)
        decided = stores[0].decided
        if decided is None:
            raise ConfigError(
                f"{state} has no weights yet: its job ended before the first of them had come"
            )
        for number, store in enumerate(stores):
            _copy_store(store, decided, node_directory(new, number, count), should_stop)
        if count > 1:
            flush_directory(new)
    return _made(out, decided.version, count, started_ns)


def snapshot_of_running(
    source: RunningState, out: Path, *, replicas: int = 1,
    should_stop: Callable[[], bool] = lambda: False,
) -> Snapshot:  # fmt: skip
    """Snapshot of a job, on any hosts, of the version that its nodes pin for `source`.

    `replicas`: nodes that hold each page. Raises: ConfigError; StoreFullError; Interrupted; what
    reading raises.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    layout, version = source.description.layout, source.record.version
    count = layout.optimizer_nodes
    with making_directory(out) as new:
        for number in range(count):
            directory = node_directory(new, number, count)
            directory.parent.mkdir(exist_ok=True)
            _copy_running(source, Share(layout, number, replicas), directory, should_stop)
        if count > 1:
            flush_directory(new)
    return _made(out, version, count, started_ns)


def _copy_running(
    source: RunningState, share: Share, target: Path, should_stop: Callable[[], bool]
) -> None:
    """The pages of one node, and what ranks attached if it keeps that."""
    config = store_config(source.description, share.number, share.replicas)
    chunks = share.chunks()

    def fill(page: int, record: memoryview) -> None:
        kind = config.kind(page)
        record[:] = bytes(kind.record_bytes)
        fields, wide = {}, {}
        for item in kind.fields:
            if item.dtype in ("float32", "int64"):
                fields[item.name] = record[slice(*kind.range(item.name))]
            else:  # values come; to the nearest they are the same codes again
                wide[item.name] = np.empty(config.page_elems[page], np.float32)
                fields[item.name] = wide[item.name].view(np.uint8).data
        source.read_page(chunks[page], fields)
        for name, values in wide.items():
            store_values(kind, record, name, values)

    record, attached = source.record, source.attached() if 0 in share.stripes else {}
    with making_store(target, config, record, attached, attempt=source.attempt) as store:
        write_pages(store, record, fill, should_stop)


def _copy_store(
    source: FilePageStore, first: DecidedStep, target: Path, should_stop: Callable[[], bool]
) -> None:
    """The pages of one node, of what node 0 has decided, each verified as it is read."""
    record = steps_of(source).get(first.version)
    if record is None or record.name != first.name:
        raise StateError(
            f"{source.path} has no version {first.name}, which node 0 has decided; the directories "
            "are not parts of one state"
        )
    config = replace(source.config, store_uuid=uuid4().hex)
    target.parent.mkdir(exist_ok=True)
    attached = read_attachments(source.path, record)
    with making_store(target, config, record, attached, attempt=source.attempt) as store:
        write_pages(
            store, record, lambda page, whole: source.read(page, record.version, whole), should_stop
        )


def _made(out: Path, version: int, count: int, started_ns: int) -> Snapshot:
    seconds = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
    return Snapshot(path=out, version=version, optimizer_nodes=count, seconds=seconds)
