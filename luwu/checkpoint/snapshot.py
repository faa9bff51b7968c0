"""A copy of a state that is itself a state directory: to resume from, to verify, to keep.

It is of the newest decided step, of a running job of the version that its nodes hold for us while
training goes on; whole or not at all: built beside its place, flushed, renamed. All nodes have a
directory in it, those too that the job went on without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.directories import check_absent, flush_directory, making_directory
from luwu.checkpoint.copying import making_store, write_pages
from luwu.checkpoint.source import StateSource
from luwu.layout import Share
from switch_emu.node.pages import store_config, store_values
from switch_emu.store.striped import node_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The result of a snapshot."""

    path: Path
    version: int
    optimizer_nodes: int
    seconds: float


def take_snapshot(
    source: StateSource, out: Path, *, should_stop: Callable[[], bool] = lambda: False
) -> Snapshot:
    """Snapshot of the version that `source` has.

    Raises: ConfigError; StoreFullError; Interrupted; what reading raises.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(out)
    layout, version = source.description.layout, source.record.version
    count = layout.optimizer_nodes
    with making_directory(out) as new:
        for number in range(count):
            directory = node_directory(new, number, count)
            directory.parent.mkdir(exist_ok=True)
            _copy(source, Share(layout, number, source.replicas), directory, should_stop)
        if count > 1:
            flush_directory(new)
    seconds = (SYSTEM_CLOCK.now_ns() - started_ns) / 1e9
    return Snapshot(path=out, version=version, optimizer_nodes=count, seconds=seconds)


def _copy(source: StateSource, share: Share, target: Path, should_stop: Callable[[], bool]) -> None:
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
