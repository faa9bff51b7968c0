"""The directory of a lost optimizer node, made again from the nodes that hold the same pages.

All nodes are at rest. A node is lost if its directory is missing, or if the job went on without it:
then its directory is older, and is replaced. From then on all nodes count again, which each records
as a new epoch. If the job may have gone on with lost nodes alone (E3), an operator must give these
up by their numbers; the new epoch is then beyond all that they may have recorded. Each page is
verified as it is read, and each stripe compared with the store it was copied from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, StateError
from luwu.base.making import flush_directory, making_directory
from luwu.checkpoint.copying import copy_pages, decide, pieces_of
from luwu.checkpoint.source import description_of
from luwu.layout import Share, owners_of
from luwu.protocol.epoch import UNKNOWN_EPOCHS, Epoch, are_enough, nodes_of, nodes_text
from luwu.wire.description import Description
from switch_emu.node.pages import store_config
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.striped import StripedPages, left_out_nodes, node_directory, present_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """The result of a refill."""

    path: Path
    version: int
    nodes: tuple[int, ...]
    """Numbers of the nodes whose directories were made."""
    given_up: tuple[int, ...]
    """Those that may have decided steps from this version on, which are lost."""
    nbytes: int
    """Size of the copied pages."""
    seconds: float


def refill(
    state: Path, *, without: Collection[int] = (), should_stop: Callable[[], bool] = lambda: False
) -> Refilled:
    """Make the missing node directories of a state. `without`: nodes that may have newer steps, and
    are given up.

    Raises ConfigError if none is missing, one is in use, all copies of some pages are lost, or a
    node may have newer steps; StateError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    count, present = present_nodes(state)
    left_out = left_out_nodes(state)
    left = [number for number in present if number not in left_out]
    lost = tuple(number for number in range(count) if number not in left)
    if not lost:
        raise ConfigError(
            f"{state} has the directories of all {count} optimizer nodes; nothing is to be filled"
        )
    nbytes = 0
    with ExitStack() as stack:
        stale = {n: node_directory(state, n, count) for n in lost if n in present}
        pages, description, replicas = _pages_of(state, count, left)
        stack.enter_context(pages)
        source = _Sources(pages, description, replicas)
        ahead = _may_be_ahead(pages.stores, count)
        _check_given_up(state, ahead, lost, without, source.record.version)
        for number in lost:
            if _new(state, number, count).exists():  # of a refill that was killed
                shutil.rmtree(_new(state, number, count))
            with making_directory(_new(state, number, count)) as new:
                nbytes += source.fill(new, number, should_stop)
        for path in stale.values():
            shutil.rmtree(path)
        for number in lost:
            _new(state, number, count).rename(node_directory(state, number, count))
        flush_directory(state)
        version = source.record.version
        newest = Epoch(*max(store.epoch for store in pages.stores.values()))
    beyond = UNKNOWN_EPOCHS if ahead else 1
    whole = newest._replace(number=newest.number + beyond, members=(1 << count) - 1)
    for number in (*left, *lost):
        with FilePageStore.open(node_directory(state, number, count)) as store:
            store.record_attempt(store.attempt, whole)
    return Refilled(
        path=state, version=version, nodes=lost, given_up=ahead, nbytes=nbytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )  # fmt: skip


def _may_be_ahead(stores: Mapping[int, FilePageStore], count: int) -> tuple[int, ...]:
    """E3: the members of the newest known epoch that are lost, if too few are left to know of all
    later ones."""
    newest = Epoch(*max(store.epoch for store in stores.values()))
    members = newest.members or (1 << count) - 1
    there = sum(1 << number for number in stores)
    return () if are_enough(there, members) else nodes_of(members & ~there)


def _check_given_up(
    state: Path, ahead: Sequence[int], lost: Sequence[int], without: Collection[int], version: int
) -> None:
    """Raises ConfigError if nodes may be ahead that are not given up, or others are."""
    there = sorted(set(without) - set(lost))
    if there:
        raise ConfigError(f"--without {there[0]}: {state} has the directory of node {there[0]}")
    if not set(ahead) <= set(without):
        names = nodes_text(sum(1 << number for number in ahead))
        raise ConfigError(
            f"{state} is at step {version}, and {names} may have gone on alone from there: the "
            f"other directories would not know. Put the directory of {names} back; or, if it is "
            "lost for good and so are its steps of which these do not know, give --without "
            + ",".join(map(str, ahead))
        )


def _new(state: Path, number: int, count: int) -> Path:
    """Where a node's directory is made, before that which it replaces is removed."""
    return node_directory(state, number, count).with_name(f"node-{number}.refilled")


def _pages_of(
    state: Path, count: int, left: Sequence[int]
) -> tuple[StripedPages, Description, int]:
    """The pages of the nodes that are left, the job, and how many nodes hold each page.

    Raises ConfigError if they lack some pages; StateError.
    """
    found = StripedPages(state, count, may_lack=True)
    try:
        if found.decided is None:
            raise ConfigError(f"{state} has no weights yet; start a new job")
        job = description_of(found.configs, state)
    except StateError as exc:
        found.close()
        raise ConfigError(
            f"{state}: all copies of some pages are lost; nodes {', '.join(map(str, left))} are "
            "left; restore the state from a snapshot or an export"
        ) from exc
    except ConfigError:
        found.close()
        raise
    return found, *job


class _Sources:
    """The stores that are left, and what is decided."""

    def __init__(self, pages: StripedPages, description: Description, replicas: int) -> None:
        self.description, self.replicas = description, replicas
        self.stores = pages.stores
        count = self.description.layout.node_count
        self.owners = [owners_of(stripe, count, self.replicas) for stripe in range(count)]
        """The nodes of each stripe."""
        assert pages.decided is not None
        self.record = pages.decided

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


def _steps(store: FilePageStore) -> dict[int, DecidedStep]:
    """The decided and the prepared step of a store, by version."""
    return {step.version: step for step in (store.decided, store.prepared) if step is not None}
