"""The directory of a lost optimizer node, made again from the nodes that hold the same pages.

All nodes are at rest. What is decided, with these directories gone:

    node 0 is there    the version that it has decided
    it is lost         the version that any other has decided; or the one after it, if each node
                       that is left has it prepared under one attempt: it may have been decided and
                       announced, and nothing else was announced in its place

Each page is verified as it is read, and each stripe compared with the store it was copied from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, RemoteProtocolError, StateError
from luwu.base.making import making_directory
from luwu.checkpoint.copying import copy_pages, decide, pieces_of
from luwu.layout import Share, owners_of
from luwu.wire.description import Description, parse_description
from switch_emu.node.pages import node_layout_hash, store_config
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.striped import node_directory, present_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """The result of a refill."""

    path: Path
    version: int
    nodes: tuple[int, ...]
    """Numbers of the nodes whose directories were made."""
    nbytes: int
    """Size of the copied pages."""
    seconds: float


def refill(state: Path, *, should_stop: Callable[[], bool] = lambda: False) -> Refilled:
    """Make the missing node directories of a state. Raises ConfigError if none is missing, one is
    in use, or all copies of some pages are lost; StateError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    count, present = present_nodes(state)
    lost = tuple(number for number in range(count) if number not in present)
    if not lost:
        raise ConfigError(
            f"{state} has the directories of all {count} optimizer nodes; nothing is to be filled"
        )
    nbytes = 0
    with ExitStack() as stack:
        stores = {
            number: stack.enter_context(
                FilePageStore.open(node_directory(state, number, count), read_only=True)
            )
            for number in present
        }
        description, replicas = _job_of(stores, state)
        owners = [owners_of(stripe, count, replicas) for stripe in range(count)]
        gone = [stripe for stripe in range(count) if not set(owners[stripe]) & set(present)]
        if gone:
            raise ConfigError(
                f"{state}: all {replicas} copies of some pages are lost, with the directories of "
                f"nodes {', '.join(map(str, owners[gone[0]]))}; restore the state from a snapshot "
                "or an export"
            )
        record = _decided(stores, state)
        source = _Sources(description, replicas, stores, owners, record)
        for number in lost:
            with making_directory(node_directory(state, number, count)) as new:
                nbytes += source.fill(new, number, should_stop)
    return Refilled(
        path=state, version=record.version, nodes=lost, nbytes=nbytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Sources:
    """The stores that are left, and what is decided."""

    description: Description
    replicas: int
    stores: Mapping[int, FilePageStore]
    owners: Sequence[tuple[int, ...]]
    """The nodes of each stripe."""
    record: DecidedStep

    def fill(self, new: Path, number: int, should_stop: Callable[[], bool]) -> int:
        """Make a node's store; the bytes of its pages."""
        layout, version = self.description.layout, self.record.version
        share = Share(layout, number, self.replicas)
        config = store_config(self.description, number, self.replicas)
        origin: dict[int, tuple[FilePageStore, int]] = {}
        for stripe in share.stripes:
            for chunk in range(stripe, len(layout.chunks), layout.node_count):
                store, held = self._holder(stripe)
                origin[share.page(chunk)] = (store, held.page(chunk))
        with FilePageStore.create(new, config, first_version=version) as store:
            store.record_attempt(self.record.attempt)
            copy_pages(store, self.record, origin.__getitem__, should_stop)
            kept = {}
            if 0 in share.stripes:  # its owners hold what workers attached
                first, _ = self._holder(0)
                kept = pieces_of(first, _steps(first)[version])
            decide(store, self.record, kept)
            store.record_attempt(max(each.attempt for each in self.stores.values()))
            for stripe in share.stripes:
                found, held = self._holder(stripe)
                same = found.digest(held.pages_of(stripe), version)
                if store.digest(share.pages_of(stripe), version) != same:
                    raise StateError(f"{new}: stripe {stripe} is not what was copied; try again")
        return config.state_bytes

    def _holder(self, stripe: int) -> tuple[FilePageStore, Share]:
        """The first store that is left of a stripe, and its share."""
        number = next(each for each in self.owners[stripe] if each in self.stores)
        return self.stores[number], Share(self.description.layout, number, self.replicas)


def _job_of(stores: Mapping[int, FilePageStore], state: Path) -> tuple[Description, int]:
    """The job that the stores were made for, and the nodes that hold each page."""
    number, store = next(iter(stores.items()))
    try:
        description = parse_description(store.config.description)
    except RemoteProtocolError as exc:
        raise StateError(f"{state}: {exc}. Restore the state from an export.") from exc
    for replicas in range(1, description.layout.node_count + 1):
        hashes = {
            n: node_layout_hash(description, n, replicas) == each.config.layout_hash
            for n, each in stores.items()
        }
        if all(hashes.values()):
            return description, replicas
    raise StateError(
        f"{state}: the directory of node {number} does not belong to this state; restore all "
        "directories from the same checkpoint"
    )


def _decided(stores: Mapping[int, FilePageStore], state: Path) -> DecidedStep:
    """The step that the state goes on from; see the module."""
    decided = {number: store.decided for number, store in stores.items()}
    found = [step for step in decided.values() if step is not None]
    if not found:
        raise ConfigError(f"{state} has no weights yet; start a new job")
    newest = decided[0] if 0 in stores else max(found, key=lambda step: step.version)
    if newest is None:
        raise ConfigError(f"{state} has no weights yet; start a new job")
    prepared = [store.prepared for store in stores.values()]
    if 0 not in stores and None not in prepared:
        ready = [step for step in prepared if step is not None]
        if len({(step.version, step.attempt) for step in ready}) == 1:
            newest = ready[0]
    for number, store in stores.items():
        reached = _steps(store)
        if newest.version not in reached:
            raise StateError(
                f"{state}: step {newest.version} is decided, node {number} has "
                f"{' and '.join(map(str, reached)) or 'none'}: they are not parts of one state; "
                "restore all directories from the same checkpoint"
            )
    return newest


def _steps(store: FilePageStore) -> dict[int, DecidedStep]:
    """The decided and the prepared step of a store, by version."""
    return {step.version: step for step in (store.decided, store.prepared) if step is not None}
