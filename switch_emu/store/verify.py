"""Verification of a state, and going back one version of it.

    quick   configuration, sizes of the files, superblock, counters and manifests, of every node
    full    also every page of the decided version and of a prepared one, and the attachments

Damage that the store survives, because there is a second copy, is reported apart: the next opening
repairs it. Only the full check reads the version before the decided one; if that is not whole, it
is no damage, since every step overwrites it.

*Rollback* to the version before the decided one is done at an operator's command only. A step
writes its pages to the sides of the version before the last one. So that version is whole from the
moment a step is decided until the next one writes its first page; after that a rollback is an
error. Every page is read and verified first. Then the superblock is rewritten without the last
step, which is lost for good. All nodes are checked before one is changed, and node 0, which names
the version to go back to, is changed last: a command that was killed can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from luwu.base.errors import Interrupted, StateError
from switch_emu.store.attachments import read_attachments
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.store.directory import META_NAME, check_sizes, read_config
from switch_emu.store.file import FilePageStore
from switch_emu.store.geometry import Geometry
from switch_emu.store.ring import read_record
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
    older: int | None = None
    """The version before the decided one, if its record is still there."""
    is_older_whole: bool | None = None
    """True if the older version is whole; None if it was not checked."""
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
            StripedPages(path, count).close()
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
    is_older_whole = None
    if full and store.older_version is not None:
        version = store.older_version
        is_older_whole = not _damages(directory, version, should_stop, back_to=version)
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
        state_bytes=store.config.state_bytes,
        pages_count=store.config.page_count,
        read_count=read_count,
    )


def damaged_pages(
    store: FilePageStore, version: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """Read every page of a version; yield the error of each damaged one."""
    record = aligned_buffer(max(kind.record_bytes for kind in store.config.kinds))
    for page in range(store.config.page_count):
        if should_stop():
            raise Interrupted(f"stopped at page {page} of {store.config.page_count}")
        try:
            store.read(page, version, record[: store.config.kind(page).record_bytes])
        except StateError as exc:
            yield str(exc)


def damaged_pieces(store: FilePageStore) -> Iterator[str]:
    """Errors of the attachments to the decided version."""
    if store.decided is None:
        return
    try:
        read_attachments(store.path, store.decided)
    except StateError as exc:
        yield str(exc)


def _damages(
    directory: Path, version: int, should_stop: Callable[[], bool], *, back_to: int | None
) -> list[str]:
    """Damages of the decided version; with `back_to`, of the one before it."""
    try:
        store = FilePageStore.open(directory, read_only=True, back_to=back_to)
    except StateError as exc:
        return [str(exc)]
    with store:
        return [*damaged_pages(store, version, should_stop), *damaged_pieces(store)]


def roll_back(
    path: Path, count: int, *, should_stop: Callable[[], bool] = lambda: False
) -> tuple[int | None, int]:
    """Go back one version; return (the lost version, None if unknown; the new version).

    Raises: ConfigError if the state is not there or in use; StateError if there is no whole
    version to go back to, and nothing was changed.
    """
    directories = [node_directory(path, number, count) for number in range(count)]
    gone, target = _superblock(directories[0])
    if target is None:
        raise StateError(
            f"{path}: the version before the last decided step no longer exists: the next step has "
            "begun to overwrite it, or the state was already rolled back. Restore the state from "
            "an export."
        )
    found = [_check(directory, target, should_stop) for directory in directories]
    damages = [each for damaged in found for each in damaged]
    if damages:
        raise StateError(
            f"{path}: version {target} is damaged, so nothing was changed: {damages[0]}"
            + (f" (and {len(damages) - 1} more)" if len(damages) > 1 else "")
        )
    for directory in reversed(directories):
        _change(directory, target)
    return gone, target


def _superblock(directory: Path) -> tuple[int | None, int | None]:
    """The decided version and the one before it, by the superblock."""
    config = read_config(directory)
    check_sizes(directory, Geometry(config))
    values = read_record(directory / META_NAME, config.store_uuid)
    decided, older = (values.get(name) or {} for name in ("decided", "older"))
    return decided.get("version"), older.get("version")


def _check(directory: Path, target: int, should_stop: Callable[[], bool]) -> list[str]:
    """Damages of a node's pages of a version."""
    decided, older = _superblock(directory)
    if target not in (decided, older):
        return [f"{directory} has version {decided}, and {older or 'none'} before it"]
    # It may be the decided one: of a node that had not received the last decision, or was changed
    # before.
    return _damages(directory, target, should_stop, back_to=None if decided == target else target)


def _change(directory: Path, target: int) -> None:
    decided, _ = _superblock(directory)
    if decided != target:
        FilePageStore.open(directory, back_to=target).close()
        return
    with FilePageStore.open(directory) as store:
        if store.prepared is not None:
            store.abort(store.prepared.attempt)
