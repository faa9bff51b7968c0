"""The pages of several optimizer nodes read as one state, at rest.

Which node holds which page: `luwu/layout/share.py`. Decisions of node 0 count: a node that was
killed before it received one has that version prepared, which is read instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, StateError
from luwu.base.limits import NODE_COUNT_MAX
from switch_emu.store.config import StoreConfig
from switch_emu.store.directory import CONFIG_NAME, read_config
from switch_emu.store.file import FilePageStore
from switch_emu.store.records import DecidedStep


def node_directory(state: Path, number: int, count: int) -> Path:
    """The directory of node `number` of `count`."""
    return state if count == 1 else state / f"node-{number}"


def node_count_of(state: Path) -> int | None:
    """The number of nodes of a state; None if there is no state. Raises ConfigError."""
    if (state / CONFIG_NAME).is_file():
        return 1
    if not any(state.glob(f"node-*/{CONFIG_NAME}")):
        return None
    count, present = present_nodes(state)
    missing = [number for number in range(count) if number not in present]
    if missing:
        raise ConfigError(
            f"{state} has directories of {len(present)} of {count} optimizer nodes, but none of "
            f"node {missing[0]}; make it from its replicas with luwu refill {state}, or restore "
            "all directories from a snapshot"
        )
    return count


def present_nodes(state: Path) -> tuple[int, tuple[int, ...]]:
    """The number of nodes of a state, and the numbers of those whose directories are there.

    Raises ConfigError if there is none.
    """
    found = {n: state / f"node-{n}" for n in range(NODE_COUNT_MAX)}
    present = [n for n, path in found.items() if (path / CONFIG_NAME).is_file()]
    if not present:
        raise ConfigError(f"{state} has no directory of an optimizer node (node-0, node-1, ...)")
    description = bytes(read_config(found[present[0]]).description)
    try:
        count = int(json.loads(description)["node_count"])
    except (ValueError, LookupError, TypeError):  # who reads the description reports it
        count = present[-1] + 1
    return count, tuple(present)


class StripedPages(Closing):
    """The decided version of all stores of a state, read-only."""

    def __init__(self, state: Path, count: int) -> None:
        """Raises: ConfigError if a store is missing or open; StateError if they do not match."""
        self._stores: list[FilePageStore] = []
        try:
            for number in range(count):
                directory = node_directory(state, number, count)
                self._stores.append(FilePageStore.open(directory, read_only=True))
            self._check(state)
        except BaseException:
            self.close()
            raise

    def _check(self, state: Path) -> None:
        decided = self.decided
        version = None if decided is None else decided.version
        for number, store in enumerate(self._stores):
            reached = [s.version for s in (store.decided, store.prepared) if s is not None]
            if version is not None and version not in reached:
                raise StateError(
                    f"{state}: node 0 is decided at version {version}, node {number} has "
                    f"{' and '.join(map(str, reached)) or 'none'}: they are not parts of one "
                    "state; restore all directories from the same checkpoint"
                )

    @property
    def configs(self) -> Sequence[StoreConfig]:
        """Configurations of all nodes' stores."""
        return [store.config for store in self._stores]

    @property
    def decided(self) -> DecidedStep | None:
        """The newest step that node 0 has decided."""
        return self._stores[0].decided

    @property
    def attempt(self) -> int:
        """The highest attempt that any node has recorded."""
        return max(store.attempt for store in self._stores)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of the page of a chunk, of the first node that holds it."""
        number, index = page % len(self._stores), page // len(self._stores)
        self._stores[number].read_field(index, version, field_name, into)

    def close(self) -> None:
        """Close all stores."""
        for store in self._stores:
            store.close()
