"""The pages of several optimizer nodes read as one state, at rest.

Which node holds which page: `luwu/layout/share.py`. The nodes that count are those of the newest
epoch that any directory has recorded (E1 to E4, `switch_emu/switch/core/lead.py`); a node that was
left out has an older version, which is not read. What any that counts has decided is decided: one
that was killed before has that version prepared, which is read instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, StateError
from luwu.base.foreign import MALFORMED, natural, parse_json
from luwu.base.limits import NODE_COUNT_MAX
from luwu.layout import Layout, Share
from switch_emu.store.config import PageKind, StoreConfig
from switch_emu.store.directory import CONFIG_NAME, read_config, read_counters
from switch_emu.store.file import FilePageStore
from switch_emu.store.records import DecidedStep
from switch_emu.store.sums import Redo


def node_directory(state: Path, number: int, count: int) -> Path:
    """The directory of node `number` of `count`."""
    return state if count == 1 else state / f"node-{number}"


def node_count_of(state: Path) -> int | None:
    """The number of nodes of a state; None if there is no state. Raises ConfigError."""
    if (state / CONFIG_NAME).exists():
        return 1
    if not any(state.glob(f"node-*/{CONFIG_NAME}")):
        return None
    count, present = present_nodes(state)
    without = (*present, *left_out_nodes(state))
    missing = [number for number in range(count) if number not in without]
    if missing:
        raise ConfigError(
            f"{state} has directories of {len(present)} of {count} optimizer nodes, but none of "
            f"node {missing[0]}; make it from its replicas with luwu refill {state}, or restore "
            "all directories from a snapshot"
        )
    return count


def left_out_nodes(state: Path) -> tuple[int, ...]:
    """The nodes that the job goes on without, as others hold their pages: their directories are
    missing or older. Raises ConfigError if there is no state of several."""
    count, present = present_nodes(state)
    recorded = {n: read_counters(state / f"node-{n}").get("epoch", ()) for n in present}
    counted = members_of({n: tuple(each) for n, each in recorded.items()}, count)
    return tuple(number for number in range(count) if number not in counted)


def present_nodes(state: Path) -> tuple[int, tuple[int, ...]]:
    """The number of nodes of a state, and the numbers of those whose directories are there.

    Raises ConfigError if there is none.
    """
    found = {n: state / f"node-{n}" for n in range(NODE_COUNT_MAX)}
    present = [n for n, path in found.items() if (path / CONFIG_NAME).exists()]
    if not present:
        raise ConfigError(f"{state} has no directory of an optimizer node (node-0, node-1, ...)")
    description = bytes(read_config(found[present[0]]).description)
    try:
        count = natural(parse_json(description)["node_count"], NODE_COUNT_MAX) or 1
    except MALFORMED:  # who reads the description reports it
        count = present[-1] + 1
    return count, tuple(present)


def members_of(recorded: Mapping[int, tuple[int, ...]], count: int) -> tuple[int, ...]:
    """The nodes that count, by what each has recorded: (number of the epoch, bitmap of its nodes,
    ...), or nothing; all, if none has recorded any."""
    _, members, *_ = max(recorded.values(), default=()) or (0, 0)
    members = members or (1 << count) - 1
    return tuple(number for number in range(count) if members >> number & 1)


def shares_of(layout: Layout, configs: Mapping[int, StoreConfig]) -> dict[int, Share] | None:
    """The share of each store, by the number of its node; None: they are not those of one job, or
    lack a stripe.

    Each has its own number of replicas: that of a state is changed store by store.
    """
    shares = {}
    for number, config in configs.items():
        share = Share.with_pages(layout, number, config.page_count)
        if share is None:
            return None
        shares[number] = share
    stripes = {stripe for each in shares.values() for stripe in each.stripes}
    return shares if len(stripes) == layout.optimizer_nodes else None


class StripedPages(Closing):
    """The decided version of all stores of a state that count, read-only."""

    def __init__(
        self, state: Path, count: int, redo_of: Callable[[StoreConfig, int], Redo] | None, *,
        may_lack: bool = False,
    ) -> None:  # fmt: skip
        """`redo_of`: makes the last updates of a node that was killed again, by its number; None:
        no page is read. `may_lack`: some that count may be missing, as long as others hold their
        pages.

        Raises: ConfigError if a store is missing or open; StateError if they do not match.
        """
        self.holders: list[tuple[FilePageStore, Share]] = []
        """The store that each stripe is read from, and what it holds; known when the job is."""
        self.stores: dict[int, FilePageStore] = {}
        """Stores by the number of their nodes."""
        self.shares: dict[int, Share] = {}
        """What each holds; known when the job is."""
        self._layout: Layout | None = None
        try:
            present = (0,) if count == 1 else present_nodes(state)[1]
            for number in present:
                directory = node_directory(state, number, count)
                store = FilePageStore.open(directory, read_only=True)
                self.stores[number] = store
                store.redo = redo_of and redo_of(store.config, number)
            epochs = {number: store.epoch for number, store in self.stores.items()}
            counted = members_of(epochs, count)
            for number in [each for each in self.stores if each not in counted]:
                self.stores.pop(number).close()
            self._check(state, () if may_lack else counted)
        except BaseException:
            self.close()
            raise

    def _check(self, state: Path, counted: Sequence[int]) -> None:
        for number in counted:
            if number not in self.stores:
                raise ConfigError(f"{state} has no directory of optimizer node {number}")
        decided = self.decided
        for number, store in self.stores.items():
            reached = [step.name for step in (store.decided, store.prepared) if step is not None]
            if decided is not None and decided.name not in reached:
                raise StateError(
                    f"{state}: version {decided.name} is decided, node {number} has "
                    f"{' and '.join(reached) or 'none'}: they are not parts of one state; restore "
                    "all directories from the same checkpoint"
                )

    def lay_out(self, layout: Layout) -> None:
        """The job is known: where the page of each chunk is."""
        shares = shares_of(layout, self.configs)
        assert shares is not None, "the stores are not those of this job"
        self.shares, self.holders, self._layout = shares, [], layout
        for stripe in range(layout.optimizer_nodes):
            holders = [number for number, share in shares.items() if stripe in share.stripes]
            number = min(holders, key=lambda each: shares[each].stripes.index(stripe))
            self.holders.append((self.stores[number], shares[number]))

    @property
    def configs(self) -> dict[int, StoreConfig]:
        """Configurations of the stores, by the number of their nodes."""
        return {number: store.config for number, store in self.stores.items()}

    @property
    def decided(self) -> DecidedStep | None:
        """The newest step that any node has decided."""
        found = [store.decided for store in self.stores.values() if store.decided is not None]
        return max(found, key=lambda step: (step.version, step.attempt), default=None)

    @property
    def attempt(self) -> int:
        """The highest attempt that any node has recorded."""
        return max(store.attempt for store in self.stores.values())

    def kind_of(self, page: int) -> PageKind:
        """The kind of the page of a chunk."""
        store, share = self._holder(page)
        return store.config.kind(share.page(page))

    def read(self, page: int, version: int, into: memoryview) -> None:
        """Fill `into` with the record of the page of a chunk, of the first node that holds it."""
        store, share = self._holder(page)
        store.read(share.page(page), version, into)

    def read_field(self, page: int, version: int, field_name: str, into: memoryview) -> None:
        """Fill `into` with one field of that record."""
        store, share = self._holder(page)
        store.read_field(share.page(page), version, field_name, into)

    def _holder(self, chunk: int) -> tuple[FilePageStore, Share]:
        assert self._layout is not None, "the job is not known"
        return self.holders[self._layout.stripe(chunk)]

    def close(self) -> None:
        """Close all stores."""
        for store in self.stores.values():
            store.close()
