"""Rollback to the version before the decided one, at an operator's command only.

A step writes its pages to the sides of the version before the last one. So that version is whole
from the moment a step is decided until the next one writes its first page; after that a rollback is
an error. Every page is read and verified first. Then the superblock is rewritten without the last
step, which is lost for good.

All nodes are checked before one is changed, and node 0, which names the version to go back to, is
changed last: a command that was killed can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from luwu.base.errors import StateError
from switch_emu.store.direct_io import BUFFERED_BY_CHOICE, BlockFile, IoCounter
from switch_emu.store.directory import META_NAME, check_sizes, read_config
from switch_emu.store.file import FilePageStore
from switch_emu.store.geometry import Geometry
from switch_emu.store.ring import RecordRing
from switch_emu.store.striped import node_directory
from switch_emu.store.verify import at_older, damaged_pages, damaged_pieces


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
    file = BlockFile(
        directory / META_NAME, BUFFERED_BY_CHOICE, IoCounter(), synced=False, read_only=True
    )
    try:
        values = RecordRing(file, config.store_uuid).read()
    finally:
        file.close()
    decided, older = values["decided"], values.get("older")
    return (
        None if decided is None else decided["version"],
        None if older is None else older["version"],
    )


def _check(directory: Path, target: int, should_stop: Callable[[], bool]) -> list[str]:
    """Damages of a node's pages of a version."""
    decided, older = _superblock(directory)
    if decided == target:  # it had not received the last decision, or was changed before
        store = FilePageStore.open(directory, read_only=True)
    elif older != target:
        return [f"{directory} has version {decided}, and {older or 'none'} before it"]
    else:
        with at_older(directory, target) as found:
            if found is None:
                return [f"{directory}: the record of version {target} is damaged"]
            return [*damaged_pages(found, target, should_stop), *damaged_pieces(found)]
    with store:
        return [*damaged_pages(store, target, should_stop), *damaged_pieces(store)]


def _change(directory: Path, target: int) -> None:
    decided, _ = _superblock(directory)
    if decided != target:
        FilePageStore.open(directory, back_to=target).close()
        return
    with FilePageStore.open(directory) as store:
        if store.prepared is not None:
            store.abort(store.prepared.attempt)
