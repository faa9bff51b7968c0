"""Is a state whole? Everything an opening reads, or every page; nothing is changed.

    quick   configuration, sizes of the files, superblock, counters and manifests, of every node
    full    also every page of the decided version, those of a prepared one, what workers attached

Damage that the store survives, because there is a second copy, is told apart: the next opening
writes the copy anew. Whether the version before the decided one is whole too is looked at in full
only; it is no damage if it is not, since every step writes over it (`rollback.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from luwu.base.errors import Interrupted, StateError
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.store.file import FilePageStore
from switch_emu.store.kept import KeptFiles
from switch_emu.store.striped import StripedPages, node_directory

DAMAGES_MAX = 100
"""Told one by one; of a store that is gone, there may be millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFound:
    """What one node's directory holds."""

    directory: Path
    damages: tuple[str, ...]
    """Each names file and place."""
    survived: tuple[str, ...] = ()
    """Damaged copies of what is there twice."""
    version: int | None = None
    """Decided steps; None: not even the first weights, or unknown."""
    prepared: int | None = None
    older: int | None = None
    """The version before the decided one, if its record is still there."""
    is_older_whole: bool | None = None
    """None: nobody looked."""
    generation: int | None = None
    attempt: int | None = None
    durability: str | None = None
    """Level at which it was open last."""
    state_bytes: int = 0
    pages_count: int = 0
    read_count: int = 0
    """Pages that were read and compared with their checksums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFound:
    """What a state holds."""

    path: Path
    nodes: tuple[NodeFound, ...]
    disagreement: str | None
    """Why the nodes' directories are not parts of one state."""

    @property
    def version(self) -> int | None:
        """What node 0 has decided is decided."""
        return self.nodes[0].version

    @property
    def damages(self) -> list[str]:
        """All that is damaged."""
        found = [each for node in self.nodes for each in node.damages]
        return found + ([] if self.disagreement is None else [self.disagreement])


def verify_state(
    path: Path, count: int, *, full: bool, should_stop: Callable[[], bool] = lambda: False
) -> StateFound:
    """Look at the state of `count` nodes. Raises ConfigError if it is not there or in use."""
    nodes = tuple(
        _verify_node(node_directory(path, number, count), full, should_stop)
        for number in range(count)
    )
    disagreement = None
    if not any(node.damages for node in nodes):
        try:
            StripedPages(path, count).close()
        except StateError as exc:
            disagreement = str(exc)
    return StateFound(path=path, nodes=nodes, disagreement=disagreement)


def _verify_node(directory: Path, full: bool, should_stop: Callable[[], bool]) -> NodeFound:
    try:
        store = FilePageStore.open(directory, read_only=True)
    except StateError as exc:
        return NodeFound(directory=directory, damages=(str(exc),))
    damages: list[str] = []
    read_count = 0
    with store:
        decided, prepared = store.decided, store.prepared
        steps = [step for step in (decided, prepared) if step is not None] if full else []
        for step in steps:
            damages += damaged_pages(store, step.version, should_stop)
            read_count += store.config.page_count
        if full:
            damages += damaged_pieces(store)
    is_older_whole = None
    if full and store.older_version is not None:
        with at_older(directory, store.older_version) as older:
            is_older_whole = older is not None and not next(
                damaged_pages(older, store.older_version, should_stop), None
            )
    left = len(damages) - DAMAGES_MAX
    return NodeFound(
        directory=directory,
        damages=(*damages[:DAMAGES_MAX], *([f"and {left} more"] if left > 0 else [])),
        survived=store.notes,
        version=None if decided is None else decided.version,
        prepared=None if prepared is None else prepared.version,
        older=store.older_version,
        is_older_whole=is_older_whole,
        generation=store.generation,
        attempt=store.attempt,
        durability=store.last_durability,
        state_bytes=store.state_bytes,
        pages_count=store.config.page_count,
        read_count=read_count,
    )


def damaged_pages(
    store: FilePageStore, version: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Read every page of a version; what is wrong with each that is damaged."""
    record = aligned_buffer(max(kind.record_bytes for kind in store.config.kinds))
    for page in range(store.config.page_count):
        if should_stop():
            raise Interrupted(f"stopped at page {page} of {store.config.page_count}")
        try:
            store.read(page, version, record[: store.config.kind(page).record_bytes])
        except StateError as exc:
            yield str(exc)


def damaged_pieces(store: FilePageStore) -> Iterator[str]:
    """What is wrong with what workers attached to the decided version."""
    if store.decided is None:
        return
    files = KeptFiles(store.path, synced=False, decided=store.decided, read_only=True)
    try:
        with files, files.hold(store.decided) as kept:
            kept.read_all()
    except StateError as exc:
        yield str(exc)


@contextmanager
def at_older(directory: Path, version: int) -> Iterator[FilePageStore | None]:
    """The store read at the version before the decided one; None if its record is damaged."""
    try:
        store = FilePageStore.open(directory, read_only=True, back_to=version)
    except StateError:
        yield None
        return
    with store:
        yield store
