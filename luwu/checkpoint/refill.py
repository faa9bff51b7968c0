"""Directories of optimizer nodes, made again from the nodes that hold the same pages, at rest.

A node is lost if its directory is missing, or if the job went on without it: then its directory is
older, and is replaced. Another number of replicas replaces all directories that have it not, so it
changes between two steps. From then on all nodes count again, which each records as a new epoch. If
the job may have gone on with lost nodes alone (E3), an operator must give these up by their
numbers; the new epoch is then beyond all that they may have recorded. Each page is verified as it
is read, and each stripe compared with the store it was copied from.

New directories are made beside the old ones (`node-0.refilled`), and change places with them
(`node-0.former`) when all are whole. A kill meanwhile leaves each page in a directory
that counts; the same command goes on from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.directories import flush_directory, making_directory
from luwu.base.errors import ConfigError, StateError
from luwu.base.failpoints import failpoint
from luwu.checkpoint.copying import making_store, steps_of, write_pages
from luwu.checkpoint.source import description_of
from luwu.layout import Share, check_replicas
from luwu.protocol.epoch import UNKNOWN_EPOCHS, Epoch, are_enough, nodes_of, nodes_text
from switch_emu.node.page_updates import redo_of
from switch_emu.node.pages import store_config
from switch_emu.store import FilePageStore
from switch_emu.store.attachments import read_attachments
from switch_emu.store.striped import StripedPages, left_out_nodes, node_directory, present_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """The result of a refill."""

    path: Path
    version: int
    count: int
    """Nodes of the state."""
    replicas: int
    """Nodes that hold each page."""
    nodes: tuple[int, ...]
    """Numbers of the nodes whose directories were made."""
    given_up: tuple[int, ...]
    """Nodes that may have decided steps from this version on, which are lost."""
    nbytes: int
    """Size of the copied pages."""
    seconds: float


def refill(
    state: Path, *, replicas: int | None = None, without: Collection[int] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Refilled:  # fmt: skip
    """Make the missing node directories of a state. `replicas`: nodes that hold each page from now
    on, if not those that do; `without`: nodes that may have newer steps, and are given up.

    Raises ConfigError if nothing is to be made, a directory is in use, all copies of some pages are
    lost, or a node may have newer steps; StateError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    _clean_up(state)
    count, present = present_nodes(state)
    left_out = left_out_nodes(state)
    left = [number for number in present if number not in left_out]
    lost = [number for number in range(count) if number not in left]
    nbytes = 0
    with StripedPages(state, count, redo_of, may_lack=True) as pages:
        _lay_out(pages, state, left)
        source = _Sources(pages, replicas, state)
        made = [number for number in range(count) if number in lost or not source.fits(number)]
        if not made:
            raise ConfigError(
                f"{state} has the directories of all {count} optimizer nodes, and each page in "
                f"{source.replicas}; nothing is to be filled"
            )
        ahead = _may_be_ahead(pages.stores, count)
        _check_given_up(state, ahead, lost, without, source.record.version)
        for number in made:
            if _beside(state, number, "refilled").exists():  # of a refill that was killed
                shutil.rmtree(_beside(state, number, "refilled"))
            with making_directory(_beside(state, number, "refilled")) as new:
                nbytes += source.fill(new, number, should_stop)
    _change_places(state, made)
    newest = source.epoch
    beyond = UNKNOWN_EPOCHS if ahead else 1
    whole = newest._replace(number=newest.number + beyond, members=(1 << count) - 1)
    for number in range(count):
        with FilePageStore.open(node_directory(state, number, count)) as store:
            store.record_attempt(store.attempt, whole)
    return Refilled(
        path=state, version=source.record.version, count=count, replicas=source.replicas,
        nodes=tuple(made), given_up=ahead, nbytes=nbytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )  # fmt: skip


def _beside(state: Path, number: int, what: str) -> Path:
    """The place of a node's new directory (`refilled`), or of that which it replaces (`former`)."""
    return state / f"node-{number}.{what}"


def _change_places(state: Path, made: Sequence[int]) -> None:
    """New directories take the places of the old ones, which are removed. Failpoint:
    refill.between_places."""
    for number in made:
        path = state / f"node-{number}"
        if path.exists():
            path.rename(_beside(state, number, "former"))
            failpoint("refill.between_places")
        _beside(state, number, "refilled").rename(path)
    flush_directory(state)
    _clean_up(state)


def _clean_up(state: Path) -> None:
    """Remove directories that were replaced; one that was only moved comes back to its place."""
    for former in sorted(state.glob("node-*.former")):
        path = former.with_suffix("")
        if path.exists():
            shutil.rmtree(former)
        else:
            former.rename(path)


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


def _lay_out(pages: StripedPages, state: Path, left: Sequence[int]) -> None:
    """Find which node that is left holds which pages. Raises ConfigError if some are lost."""
    if pages.decided is None:
        raise ConfigError(f"{state} has no weights yet; start a new job")
    try:
        pages.lay_out(description_of(pages.configs, state).layout)
    except StateError as exc:
        raise ConfigError(
            f"{state}: all copies of some pages are lost; nodes {', '.join(map(str, left))} are "
            "left; restore the state from a snapshot or an export"
        ) from exc


class _Sources:
    """The stores that are left, what is decided, and what the new ones are to hold."""

    def __init__(self, pages: StripedPages, replicas: int | None, state: Path) -> None:
        """`replicas`: of each page from now on; None: as many as now. Raises ConfigError."""
        self._pages, self._description = pages, description_of(pages.configs, state)
        layout, shares = self._description.layout, pages.shares
        assert pages.decided is not None
        self.record = pages.decided
        self.epoch = Epoch(*max(store.epoch for store in pages.stores.values()))
        """The newest that is recorded."""
        found = {each.replicas for each in shares.values()}
        if replicas is None and len(found) > 1:
            few, many = min(found), max(found)
            raise ConfigError(
                f"{state}: a change from {few} to {many} of each page, or back, was not finished; "
                f"give --replicas {many} or --replicas {few}"
            )
        self.replicas = max(found) if replicas is None else replicas
        check_replicas(layout.optimizer_nodes, self.replicas)
        self._fitting = {n for n, each in shares.items() if each.replicas == self.replicas}

    def fits(self, number: int) -> bool:
        """True if a node is there, and holds what it is to hold."""
        return number in self._fitting

    def fill(self, new: Path, number: int, should_stop: Callable[[], bool]) -> int:
        """Make a node's store; the bytes of its pages."""
        layout, version = self._description.layout, self.record.version
        share = Share(layout, number, self.replicas)
        config = store_config(self._description, number, self.replicas)
        origin: dict[int, tuple[FilePageStore, int]] = {}
        for stripe in share.stripes:
            store, held = self._pages.holders[stripe]
            for chunk in layout.stripe_chunks[stripe]:
                origin[share.page(chunk)] = (store, held.page(chunk))

        def read(page: int, record: memoryview) -> None:
            source, there = origin[page]
            source.read(there, version, record)

        attached = {}
        if 0 in share.stripes:  # its owners hold what workers attached
            first, _ = self._pages.holders[0]
            attached = read_attachments(first.path, steps_of(first)[version])
        with making_store(
            new, config, self.record, attached, attempt=self._pages.attempt, epoch=self.epoch
        ) as store:
            write_pages(store, self.record, read, should_stop)
        with FilePageStore.open(new, read_only=True) as store:
            for stripe in share.stripes:
                found, held = self._pages.holders[stripe]
                same = found.digest(held.pages_of(stripe), version)
                if store.digest(share.pages_of(stripe), version) != same:
                    raise StateError(f"{new}: stripe {stripe} is not what was copied; try again")
        return config.state_bytes
