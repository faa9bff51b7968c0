"""Verification of a state.

    quick   configuration, sizes of the files, superblock, counters and manifests, of every node
    full    also every page of the decided version and of a prepared one, the sums that they lack,
            and the attachments

Damage that the store survives, because there is a second copy, is reported apart: the next opening
repairs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from luwu.base.errors import Interrupted, StateError
from switch_emu.store.attachments import read_attachments
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.store.file import FilePageStore
from switch_emu.store.striped import StripedPages, left_out_nodes, node_directory

DAMAGES_MAX = 100
"""Damages that are reported one by one; a lost store may have millions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFound:
    """The findings in one node's directory."""

    directory: Path
    damages: tuple[str, ...]
    """Each with file and place."""
    survived: tuple[str, ...] = ()
    """Damaged copies of data that is stored twice."""
    version: int | None = None
    """Count of decided steps; None: no initial weights yet, or unknown."""
    prepared: int | None = None
    generation: int | None = None
    attempt: int | None = None
    durability: str | None = None
    """Durability at the last opening."""
    state_bytes: int = 0
    pages_count: int = 0
    read_count: int = 0
    """Pages that were read and verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFound:
    """The findings in a state."""

    path: Path
    nodes: tuple[NodeFound, ...]
    disagreement: str | None
    """The reason why the nodes' directories are not parts of one state."""
    left_out: tuple[int, ...] = ()
    """Numbers of nodes that the job went on without; they are not looked at."""

    @property
    def version(self) -> int | None:
        """The newest decided version."""
        return max((n.version for n in self.nodes if n.version is not None), default=None)

    @property
    def damages(self) -> list[str]:
        """All damages."""
        found = [each for node in self.nodes for each in node.damages]
        return found + ([] if self.disagreement is None else [self.disagreement])


def verify_state(
    path: Path, count: int, *, full: bool, should_stop: Callable[[], bool] = lambda: False
) -> StateFound:
    """Verify the state of `count` nodes. Raises ConfigError if it is missing or in use."""
    left_out = () if count == 1 else left_out_nodes(path)
    nodes = tuple(
        _verify_node(node_directory(path, number, count), full, should_stop)
        for number in range(count)
        if number not in left_out
    )
    disagreement = None
    if not any(node.damages for node in nodes):
        try:
            StripedPages(path, count, None).close()
        except StateError as exc:
            disagreement = str(exc)
    return StateFound(path=path, nodes=nodes, disagreement=disagreement, left_out=left_out)


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
    left = len(damages) - DAMAGES_MAX
    return NodeFound(
        directory=directory,
        damages=(*damages[:DAMAGES_MAX], *([f"and {left} more"] if left > 0 else [])),
        survived=store.notes,
        version=None if decided is None else decided.version,
        prepared=None if prepared is None else prepared.version,
        generation=store.generation,
        attempt=store.attempt,
        durability=store.last_durability,
        state_bytes=store.config.state_bytes,
        pages_count=store.config.page_count,
        read_count=read_count,
    )


def damaged_pages(
    store: FilePageStore, version: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Read every page of a version, and the sums that it lacks; yield each error."""
    store.redo = _checked_only
    record = aligned_buffer(max(kind.record_bytes for kind in store.config.kinds))
    for page in range(store.config.page_count):
        if should_stop():
            raise Interrupted(f"stopped at page {page} of {store.config.page_count}")
        try:
            store.read(page, version, record[: store.config.kind(page).record_bytes])
        except StateError as exc:
            yield str(exc)


def _checked_only(*_: object) -> None:
    """A sum is compared with its checksum as it is read, and not added."""


def damaged_pieces(store: FilePageStore) -> Iterator[str]:
    """Errors of the attachments to the decided version."""
    if store.decided is None:
        return
    try:
        read_attachments(store.path, store.decided)
    except StateError as exc:
        yield str(exc)
