"""A tree of switches: who is below whom. Pure; the file is read by `read_tree`.

    [top]                   a switch, by its name
    parent = "node"         exactly one has the optimizer node above it: the root
    [host-a]
    parent = "top"
    workers = "0-3"         ranks below it: "0-3", "0-3,6" or [0, 1, 2, 3]

Sums: a switch adds what its children sent in float32, from left to right, the child with the lowest
rank first (a worker's rank; of a switch, the lowest below it). So the bits depend on which ranks
each switch sums, and on nothing else: `Tree.groups` says it, and a node that adds contributions
that found no slot in a switch follows it (`luwu/protocol/contribution.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError
from luwu.base.foreign import read_toml
from luwu.base.limits import DEPTH_MAX, WORLD_SIZE_MAX
from luwu.base.quantities import decimal

NODE: Final = "node"
"""The parent of the root."""
SWITCH: Final = "switch"
"""The name of the only switch where no tree is given."""

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_KEYS: Final = ("parent", "workers")
_RANKS_MAX: Final = 16 * WORLD_SIZE_MAX
"""Most ranks that a text may name: more than any job has, whose limit has its own error."""


def bitmap(ranks: Iterable[int]) -> int:
    """Ranks as bits."""
    found = 0
    for rank in ranks:
        found |= 1 << rank
    return found


def ranks_of(bits: int) -> list[int]:
    """Bits as ranks, ascending."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


def ranges_text(ranks: Iterable[int]) -> str:
    """Ranks as `parse_ranks` reads them: `0-3,6`."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][1] == rank - 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)


def parse_ranks(text: str, place: str) -> tuple[int, ...]:
    """The ranks of `0-3,6`, in the order given. Raises ConfigError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (each.strip() for each in part.partition("-"))
        start, end = decimal(first), decimal(last if dash else first)
        if start is None or end is None or not start <= end < _RANKS_MAX - len(found):
            raise ConfigError(
                f'{place}: {part.strip()!r} is neither a rank nor a range of ranks; write "0-3,6"'
            )
        found.extend(range(start, end + 1))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A switch in the tree."""

    name: str
    parent: str
    """Another switch, or `node`."""
    workers: tuple[int, ...]
    """Ranks directly below it."""

    @property
    def process(self) -> str:
        """Its name among the processes of a run."""
        return SWITCH if self.name == SWITCH else f"{SWITCH}-{self.name}"


@dataclass(frozen=True, slots=True)
class Tree:
    """All switches, each after its parent."""

    places: tuple[Place, ...]

    def __iter__(self) -> Iterator[Place]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def root(self) -> Place:
        """The switch below the node."""
        return self.places[0]

    @property
    def workers(self) -> int:
        """The number of workers below all switches."""
        return self.ranks(self.root).bit_count()

    def named(self, name: str) -> Place:
        """A switch by its name. Raises ConfigError."""
        for place in self.places:
            if place.name == name:
                return place
        names = ", ".join(place.name for place in self.places)
        raise ConfigError(f"name: the tree has no switch {name!r}; it has {names}")

    def parent_process(self, place: Place) -> str:
        """The name of the process above a switch."""
        return NODE if place.parent == NODE else self.named(place.parent).process

    def leaf_of(self, rank: int) -> Place:
        """The switch that a worker connects to."""
        return next(place for place in self.places if rank in place.workers)

    def leaf_above(self, ranks: Iterable[int]) -> Place:
        """The switch that has just these workers below it. Raises ConfigError."""
        wanted = bitmap(ranks)
        for place in self.places:
            if bitmap(place.workers) == wanted:
                return place
        hosts = " or ".join(ranges_text(place.workers) for place in self.places if place.workers)
        raise ConfigError(
            f"ranks: a host of this job has {hosts}, not {ranges_text(ranks_of(wanted))}; give its "
            "--ranks to luwu run, or so many --nproc-per-node to torchrun"
        )

    def below(self, place: Place) -> tuple[Place, ...]:
        """The switches whose parent it is."""
        return tuple(each for each in self.places if each.parent == place.name)

    def roles_below(self, place: Place) -> tuple[str, ...]:
        """The kinds of children of a switch: workers, switches or both."""
        kinds = {"worker": place.workers, SWITCH: self.below(place)}
        return tuple(kind for kind, found in kinds.items() if found)

    def ranks(self, place: Place) -> int:
        """Bitmap of all ranks below a switch, however deep."""
        found = bitmap(place.workers)
        for child in self.below(place):
            found |= self.ranks(child)
        return found

    def children(self, place: Place) -> tuple[int, ...]:
        """A bitmap for each child of a switch, in the order in which they are added."""
        bits = [1 << rank for rank in place.workers]
        bits += [self.ranks(child) for child in self.below(place)]
        return tuple(sorted(bits, key=lambda ranks: ranks & -ranks))

    @property
    def groups(self) -> tuple[int, ...]:
        """Bitmap of the ranks that each switch sums, the smaller ones first."""
        found = {self.ranks(place) for place in self.places}
        return tuple(sorted(found, key=lambda bits: (bits.bit_count(), bits)))

    def index(self, place: Place) -> int:
        """The switch's number, by which messages tell it from others."""
        return self.places.index(place)


def one_switch(workers: int) -> Tree:
    """The tree where none is given: one switch above all workers."""
    return Tree((Place(name=SWITCH, parent=NODE, workers=tuple(range(workers))),))


def tree_of_hosts(workers: int, hosts: int) -> Tree:
    """A switch on each of several hosts, which share the workers evenly, and one above these; of
    one host, one switch. Raises ConfigError."""
    if hosts == 1:
        return one_switch(workers)
    count, rest = divmod(workers, hosts)
    if rest or not count:
        raise ConfigError(
            f"hosts: {hosts} hosts cannot share {workers} workers evenly; give --workers a "
            f"multiple of {hosts}, or say with --tree FILE which ranks each host has"
        )
    leaves = (
        Place(name=f"host-{number}", parent=SWITCH, workers=tuple(range(start, start + count)))
        for number, start in enumerate(range(0, workers, count))
    )
    return Tree((Place(name=SWITCH, parent=NODE, workers=()), *leaves))


def groups_text(tree: Tree) -> str:
    """The part of a tree that sums are made by, as a text to compare: `0-1|2-3|0-3`."""
    return "|".join(ranges_text(ranks_of(bits)) for bits in tree.groups)


def partial_sums(groups: Sequence[int]) -> str:
    """The same of what bits depend on: sums over several ranks, but not over all: `0-1|2-3`."""
    return "|".join(ranges_text(ranks_of(bits)) for bits in groups[:-1] if bits & (bits - 1))


def read_tree(file: Path, *, workers: int) -> Tree:
    """The tree of a file, checked. Raises ConfigError."""
    return parse_tree(read_toml(file, "tree"), workers=workers, where=str(file))


def parse_tree(document: Mapping[str, Any], *, workers: int, where: str) -> Tree:
    """The tree of a document, checked. Raises ConfigError."""
    if len(document) > WORLD_SIZE_MAX:
        raise ConfigError(f"{where} has {len(document)} switches, more than {WORLD_SIZE_MAX}")
    places = [_place(name, said, f"{where}: [{name}]") for name, said in document.items()]
    if not places:
        raise ConfigError(
            f'{where} has no switch; write [top], parent = "node" and workers = "0-{workers - 1}"'
        )
    ordered = _in_order(places, where)
    _check_ranks(ordered, workers, where)
    tree = Tree(tuple(ordered))
    for place in tree:
        if not tree.ranks(place):
            raise ConfigError(
                f"{where}: [{place.name}] has no workers and no switch below it; give it workers, "
                "or leave it out"
            )
    return tree


def _place(name: str, said: object, at: str) -> Place:
    if not _NAME.fullmatch(name) or name == NODE:
        raise ConfigError(
            f"{at} is not a name of a switch; use 1 to 32 lower-case letters, digits and -, not "
            f"{NODE!r}"
        )
    if not isinstance(said, Mapping):
        raise ConfigError(f'{at} is {said!r:.40}; write a table: [{name}] and parent = "node"')
    for key in said:
        if key not in _KEYS:
            raise ConfigError(f"{at}: unknown key {key!r}; a switch has {' and '.join(_KEYS)}")
    parent = said.get("parent")
    if not isinstance(parent, str):
        raise ConfigError(f'{at}: parent is {parent!r:.40}; name a switch, or "{NODE}"')
    workers = said.get("workers", ())
    if isinstance(workers, str):
        workers = parse_ranks(workers, f"{at}: workers")
    is_list = isinstance(workers, list | tuple)
    if not is_list or not all(type(rank) is int and rank >= 0 for rank in workers):
        raise ConfigError(f'{at}: workers is {workers!r:.60}; write "0-3,6" or [0, 1, 2, 3, 6]')
    return Place(name=name, parent=parent, workers=tuple(workers))


def _in_order(places: list[Place], where: str) -> list[Place]:
    """Each after its parent; refuses what is no tree."""
    names = {place.name for place in places}
    for place in places:
        if place.parent != NODE and place.parent not in names:
            raise ConfigError(
                f"{where}: [{place.name}]: its parent {place.parent!r} is not in it; the file has "
                f'{", ".join(sorted(names))}, and "{NODE}" is above them'
            )
    roots = [place.name for place in places if place.parent == NODE]
    if len(roots) > 1:
        raise ConfigError(
            f"{where}: {' and '.join(roots)} all have the node as their parent; the node has one "
            "switch below it, so give them a common parent"
        )
    ordered: list[Place] = []
    reached = {NODE}
    waiting, depth = places, 0
    while waiting:
        depth += 1
        if depth > DEPTH_MAX:
            raise ConfigError(f"{where}: more than {DEPTH_MAX} switches are below one another")
        here = [place for place in waiting if place.parent in reached]
        if not here:
            _refuse_cycle(waiting, where)
        ordered += here
        reached |= {place.name for place in here}
        waiting = [place for place in waiting if place.name not in reached]
    return ordered


def _refuse_cycle(places: list[Place], where: str) -> None:
    parents = {place.name: place.parent for place in places}
    path = [places[0].name]
    while path[-1] not in path[:-1]:
        path.append(parents[path[-1]])
    cycle = path[path.index(path[-1]) :]
    raise ConfigError(
        f'{where}: the parents go round: {" -> ".join(cycle)}; one needs parent = "{NODE}", or '
        "a parent that leads there"
    )


def _check_ranks(places: list[Place], workers: int, where: str) -> None:
    owners: dict[int, str] = {}
    for place in places:
        for rank in place.workers:
            if rank >= workers:
                raise ConfigError(
                    f"{where}: [{place.name}]: rank {rank} is beyond --workers {workers}; ranks "
                    f"are 0 to {workers - 1}"
                )
            if rank in owners:
                raise ConfigError(
                    f"{where}: rank {rank} is below [{owners[rank]}] and [{place.name}]; name it "
                    "once"
                )
            owners[rank] = place.name
    missing = [rank for rank in range(workers) if rank not in owners]
    if missing:
        fewer = workers - len(missing)
        otherwise = f", or start with --workers {fewer}" if 0 < fewer == missing[0] else ""
        raise ConfigError(
            f"{where}: ranks {ranges_text(missing)} are below no switch; add them to the workers "
            f"of one{otherwise}"
        )
