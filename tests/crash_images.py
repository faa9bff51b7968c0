"""What a power cut can leave of a page store: `python -m tests.crash_images --count N [--seed S]`.

Short stories are told to the real store on a simulated device, two of three with a log of sums (all
wait for the end of their step, or a block of them, or none): steps, skipped steps, attempts given
up before and after they were prepared, closings and openings.
Before every flush, and after every call, the power is cut: each subset of the blocks that are not
flushed is an image, where they are 12 at most; else none and all, every single block, every pair,
and a random part. Then random ones in which blocks are torn between sectors of 512 bytes, and ones
in which, besides, a bit has flipped in one block of what is stored twice. (CrashMonkey, Mohan et
al. 2018: nearly all crash bugs are found by few operations on a fresh file system, at a flush;
ALICE, Pillai et al. 2014: it is the order of what reaches the disk that programs get wrong.)

Of each image a store must open, at the state that was promised; inside a call, at the one before it
or the one after it: which version is decided, which is prepared, every byte of both, and an attempt
and a generation that did not go back. And it must be able to go on.

One line a violation, with its story and its image; the last line is `N trials, V violations`, and
the exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from luwu.base.limits import MIB
from luwu.base.seeds import derive
from switch_emu.store import DecidedStep, FilePageStore, MemoryPageStore, PageStore, StoreConfig
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.sums import SumShape
from tests.simulate.device import Device, busy, simulated
from tests.suites.store_suite import (
    SummingStore,
    adamw_kind,
    contents,
    frozen_kind,
    record,
    sgd_kind,
    small_config,
    sum_of,
    write_pages,
)

EVERY_SUBSET_MAX = 12
"""Blocks of which every subset is tried: 4,096 images."""
RANDOM_IMAGES = 40
"""In which some blocks are torn; and, of more than 12 blocks, as many without."""
SLOTS_COUNT = 3
"""Of a log of sums: some stories are long enough to use one again."""
ROTTEN_BYTE = 20
"""Of a block: it is in the head of records and manifests, whatever their size."""
GOES_ON_EVERY = 6
"""Of so many images one is also asked to take a step, and to be opened again."""

Block = tuple[str, int, bytes]
"""File, offset, what it was to become."""
Version = tuple[int, int]
"""Version and attempt."""


class Image(NamedTuple):
    """What becomes of the blocks of a point, by their numbers; the others are old."""

    kept: tuple[int, ...]
    torn: tuple[int, ...] = ()
    rotten: tuple[str, int] | None = None
    """File and offset of a block in which a bit has flipped, of what is stored twice."""


class State(NamedTuple):
    """What a store promises."""

    decided: Version | None
    prepared: Version | None
    attempt: int


@dataclass
class Point:
    """An instant at which the power may be cut."""

    place: str
    allowed: tuple[State, ...]
    generation: int
    """That was durable: it must have grown at the next opening."""
    certain: dict[str, bytes]
    blocks: list[Block]


@dataclass
class Result:
    """What became of the images of some points."""

    images_count: int = 0
    violations: list[str] = field(default_factory=list)


def tiny_config() -> StoreConfig:
    """Three pages of one to four blocks, so that all a step writes has few subsets."""
    return small_config(
        kinds=(adamw_kind(1024), sgd_kind(1024), frozen_kind(64)),
        page_kinds=(0, 1, 2), page_elems=(1024, 1024, 64), store_uuid="7" * 32,
    )  # fmt: skip


class Story:
    """One life of a store, drawn from a seed, and the points at which the power may be cut."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = Random(derive(seed, "story"))
        self.device = Device(f"story-{seed}", Random(derive(seed, "device")))
        self.config = tiny_config() if seed % 4 else small_config(store_uuid="8" * 32)
        self.is_logged = bool(seed % 3)
        """It keeps a log of sums; pages of a story are in RAM then."""
        self._before: dict[Version, Version | None] = {}
        """What was decided when a version was prepared."""
        self.expected: dict[Version, list[bytes]] = {}
        """Records of every version that was prepared."""
        self.points: list[Point] = []
        self._now = State(None, None, 0)
        self._allowed: tuple[State, ...] = (self._now,)
        self._generation = 0
        self._doing = "make"
        self._last_key: object = None

    def tell(self) -> None:
        """Let it happen; the points are in `points` then."""
        self.device.make(self.config)
        if self.is_logged:
            shape = SumShape(self.config, SLOTS_COUNT, 8)
            self.device.make_log(shape, self.config.store_uuid)
        self.device.at_flush = self._may_be_cut
        store = self._open()
        self._step(store, applied=True, pages=range(self.config.page_count))
        for _ in range(self._random.randrange(2, 5)):
            what = self._random.choice(("step", "step", "skip", "abort", "abort prepared", "open"))
            if what == "open":
                self._close(store)
                store = self._open()
            elif what.startswith("abort"):
                self._abort(store, is_prepared=what.endswith("prepared"))
            else:
                self._step(store, applied=what == "step", pages=self._some_pages())
        self._close(store)

    # ---------------------------------------------------------------------- what happens

    def _open(self) -> PageStore:
        with self._call("open", self._now):
            store = self.in_front(self.opened())
        self._generation = store.generation
        return store

    def in_front(self, store: FilePageStore) -> PageStore:
        """The store that a node works with."""
        return SummingStore(store, MemoryPageStore(self.config)) if self.is_logged else store

    def opened(self) -> FilePageStore:
        """The store on the device, whose updates can be made again."""
        store = self.device.open()
        store.redo = self._redo
        return store

    def _redo(
        self, page: int, found: memoryview, data: memoryview, _: str, step: DecidedStep, note: bytes
    ) -> None:  # fmt: skip
        made = (step.version, step.attempt)
        before = self._before[made]
        assert before is not None
        assert found == self.expected[before][page], f"page {page} is not updated from {before}"
        assert data == sum_of(self.config, page, *made)
        found[:] = self.expected[made][page]

    def _close(self, store: PageStore) -> None:
        with self._call("close", self._now):
            store.close()

    def _some_pages(self) -> Sequence[int]:
        count = self._random.randrange(1, self.config.page_count + 1)
        return sorted(self._random.sample(range(self.config.page_count), count))

    def _step(self, store: PageStore, *, applied: bool, pages: Sequence[int]) -> None:
        made = self._prepare(store, applied=applied, pages=pages)
        with self._call("decide", State(made, None, self._now.attempt)):
            store.decide(*made)

    def _prepare(self, store: PageStore, *, applied: bool, pages: Sequence[int]) -> Version:
        decided, attempt = self._now.decided, self._now.attempt
        version = 0 if decided is None else decided[0] + 1
        made = (version, attempt)
        self._before[made] = decided
        before = [] if decided is None else self.expected[decided]
        self.expected[made] = [
            record(store, page, version, attempt) if page in pages and applied else before[page]
            for page in range(self.config.page_count)
        ]
        with self._call("write", self._now):
            write_pages(store, pages, version, attempt)
        with self._call("prepare", self._now._replace(prepared=made)):
            store.prepare(DecidedStep(version=version, attempt=attempt, applied=applied))
        return made

    def _abort(self, store: PageStore, *, is_prepared: bool) -> None:
        attempt = self._now.attempt
        if is_prepared:
            self._prepare(store, applied=True, pages=self._some_pages())
        else:
            assert self._now.decided is not None
            write_pages(store, self._some_pages(), self._now.decided[0] + 1, attempt)
        with self._call("record_attempt", self._now._replace(attempt=attempt + 1)):
            store.record_attempt(attempt + 1)
        with self._call("abort", self._now._replace(prepared=None)):
            store.abort(attempt)

    @contextmanager
    def _call(self, name: str, after: State) -> Iterator[None]:
        """Inside the call the store may be found at the state before it or after it."""
        self._doing, self._allowed = name, (self._now, after)
        with busy(self.device):
            yield
        self._now, self._allowed = after, (after,)
        self._may_be_cut("the end")

    def _may_be_cut(self, place: str) -> None:
        """The power is cut here, if anything has changed since it could last be."""
        blocks = [
            (file.name, offset, data)
            for file in self.device.files.values()
            for offset, data in file.blocks()
        ]
        key = (self._allowed, [(name, offset, hash(data)) for name, offset, data in blocks])
        if key == self._last_key:
            return
        self._last_key = key
        certain = {file.name: bytes(file.certain) for file in self.device.files.values()}
        where = f"{self._doing}, at {place}"
        self.points.append(Point(where, self._allowed, self._generation, certain, blocks))


# -------------------------------------------------------------------------- images of one point


def kept_sets(count: int, random: Random) -> Iterator[tuple[int, ...]]:
    """Which of the unsynced blocks are kept, one image each; see the module."""
    numbers = range(count)
    if count <= EVERY_SUBSET_MAX:
        for size in range(count + 1):
            yield from itertools.combinations(numbers, size)
        return
    yield ()
    yield tuple(numbers)
    for size in (1, 2, count - 1):
        yield from itertools.combinations(numbers, size)
    for _ in range(RANDOM_IMAGES):
        yield tuple(number for number in numbers if random.random() < 0.5)


def images_of(point: Point, device: Device, random: Random) -> Iterator[Image]:
    """All images of a point that are tried."""
    count = len(point.blocks)
    for kept in kept_sets(count, random):
        yield Image(kept)
    for _ in range(RANDOM_IMAGES if count else 0):
        yield _random_image(count, random)
    for twin in device.twins():
        yield _random_image(count, random)._replace(rotten=twin)


def _random_image(count: int, random: Random) -> Image:
    fates = [random.choice(("old", "new", "torn")) for _ in range(count)]
    kept, torn = (tuple(n for n in range(count) if fates[n] == fate) for fate in ("new", "torn"))
    return Image(kept, torn)


def write_image(device: Device, point: Point, image: Image) -> None:
    """Make a device hold what is left."""
    for name, file in device.files.items():
        file.certain[:] = point.certain[name]
        file.pending.clear()
    for number in sorted((*image.kept, *image.torn)):
        name, offset, data = point.blocks[number]
        file = device.files[name]
        if number in image.torn:
            old = bytes(file.certain[offset : offset + len(data)])
            data = device.torn(old, data)
        file.certain[offset : offset + len(data)] = data
    if image.rotten is not None:
        name, offset = image.rotten
        device.files[name].certain[offset + ROTTEN_BYTE] ^= 1
    for file in device.files.values():
        file.seen[:] = file.certain


def check_image(device: Device, story: Story, point: Point, *, goes_on: bool) -> None:
    """Open what is left: raises AssertionError or LuwuError if it is not what was promised."""
    store: PageStore = story.opened()
    try:
        if goes_on:
            store = story.in_front(store)
        decided, prepared = store.decided, store.prepared
        found = State(
            None if decided is None else (decided.version, decided.attempt),
            None if prepared is None else (prepared.version, prepared.attempt),
            store.attempt,
        )
        assert found in _mixtures(point.allowed), f"found {found}, allowed {point.allowed}"
        assert store.generation > point.generation, "the generation went back"
        for version in filter(None, (found.decided, found.prepared)):
            assert contents(store, version[0]) == story.expected[version], f"bytes of {version}"
        if goes_on:
            _go_on(device, store, found)
    finally:
        store.close()


def _mixtures(allowed: Sequence[State]) -> set[State]:
    """The attempt has a record of its own, which may be ahead of or behind the rest of a call."""
    return {state._replace(attempt=other.attempt) for state in allowed for other in allowed}


def _go_on(device: Device, store: PageStore, found: State) -> None:
    """Take a step, cut the power when it is decided, and find it."""
    if found.prepared is not None:
        store.abort(found.prepared[1])
    store.record_attempt(found.attempt + 1)
    version = 0 if found.decided is None else found.decided[0] + 1
    write_pages(store, range(store.config.page_count), version, found.attempt + 1)
    store.prepare(DecidedStep(version=version, attempt=found.attempt + 1))
    store.decide(version, found.attempt + 1)
    store.close()
    device.power_cut(lambda: "old")
    with device.open() as again:
        assert again.decided is not None
        assert again.decided.version == version, "the step after the crash is lost"
        pages = range(again.config.page_count)
        expected = [record(again, page, version, found.attempt + 1) for page in pages]
        assert contents(again, version) == expected, "bytes of the step after the crash"


def try_story(seed: int, images_max: int | None = None) -> Result:
    """All images of one story, or as many."""
    result = Result()
    waiting_bytes_max = (MIB, BLOCK_BYTES, 0)[seed // 3 % 3]
    with simulated(), patch("switch_emu.store.sums._WAITING_BYTES_MAX", waiting_bytes_max):
        story = Story(seed)
        try:
            story.tell()
            story.device.at_flush = None
            for number, point in enumerate(story.points):
                _try_point(story, number, point, result, images_max)
        except (AssertionError, LuwuError) as exc:
            result.images_count += 1
            result.violations.append(f"story {seed}: {type(exc).__name__}: {exc}")
        finally:
            story.device.forget()
    return result


def _try_point(
    story: Story, number: int, point: Point, result: Result, images_max: int | None
) -> None:  # fmt: skip
    random = Random(derive(story.seed, "images", number))
    device = story.device
    for image in images_of(point, device, random):
        if images_max is not None and result.images_count >= images_max:
            return
        result.images_count += 1
        write_image(device, point, image)
        try:
            goes_on = result.images_count % GOES_ON_EVERY == 0
            check_image(device, story, point, goes_on=goes_on)
        except (AssertionError, LuwuError) as exc:
            blocks = [(name, at) for name, at, _ in point.blocks]
            result.violations.append(
                f"story {story.seed}, point {number} ({point.place}), {image} of {blocks}: "
                f"{type(exc).__name__}: {exc}"
            )


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_images", description=__doc__)
    parser.add_argument("--count", type=int, required=True, help="how many images")
    parser.add_argument("--seed", type=int, default=0, help="of the first story (default 0)")
    parser.add_argument("--processes", type=int, default=None, help="default: one a CPU")
    options = parser.parse_args()
    start_ns = SYSTEM_CLOCK.now_ns()
    images_count = violations_count = 0
    stories = itertools.count(options.seed)
    processes = options.processes or os.cpu_count() or 1
    with ProcessPoolExecutor(processes) as pool:
        while images_count < options.count:
            seeds = list(itertools.islice(stories, processes))
            for seed, result in zip(seeds, pool.map(try_story, seeds), strict=True):
                images_count += result.images_count
                violations_count += len(result.violations)
                for text in result.violations[:5]:
                    print(text, flush=True)
                if len(result.violations) > 5:
                    print(f"story {seed}: {len(result.violations) - 5} more", flush=True)
    elapsed_s = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    print(
        f"{next(stories) - options.seed} stories in {elapsed_s:.1f} s: "
        f"{images_count / elapsed_s:.0f} images per second"
    )
    print(f"{images_count} trials, {violations_count} violations")
    return 1 if violations_count else 0


if __name__ == "__main__":
    sys.exit(main())
