"""Power cuts on a simulated device: an arbitrary part of what was not flushed is there.

The story of `test_store_crash.py` is told to the real store on the device of the simulated world
(`tests/simulate/device.py`). More, and systematically: `python -m tests.crash_images`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from luwu.base.errors import PageCorruptError, StateError, StoreFullError
from switch_emu.store import DecidedStep, FilePageStore
from switch_emu.store.records import Durability
from tests.simulate.device import Device, ProcessEnded, busy, simulated
from tests.suites.store_suite import (
    contents,
    read,
    record,
    small_config,
    take_step,
    write_pages,
)
from tests.unit.test_store_crash import Expected, Known, check_image, story

_numbers = count()
Images = list[tuple[Path, Known]]


@pytest.fixture
def device() -> Iterator[Device]:
    """A formatted device."""
    with simulated():
        made = Device(f"power-{next(_numbers)}", Random(11))
        made.make(small_config(store_uuid="5" * 32))
        yield made
        made.forget()


def power_cuts(device: Device, durability: Durability) -> tuple[Images, Expected]:
    """Images of power cuts at every failpoint of the story: nothing, and a random part, is kept."""
    images: Images = []
    expected: Expected = {}
    with device.open(durability) as store, busy(device):

        def cut(place: str) -> None:
            known = Known.of(store)
            for keep in (lambda: "old", None):
                image = device.image(f"cut-{next(_numbers)}", keep)
                images.append((image.path, known))

        device.at_failpoint = cut
        story(store, expected, cut)
        device.at_failpoint = None
    return images, expected


@pytest.mark.faults(22)
def test_a_power_cut_leaves_a_whole_version(device: Device) -> None:
    """P2. Goal: at level `step`, no cut loses a decided step or mixes two, seed 11.
    Method: at every failpoint keep a random part of the blocks not yet flushed, some torn."""
    images, expected = power_cuts(device, "step")
    assert len(images) > 200
    for path, known in images:
        check_image(path, expected, known)


def test_the_power_cuts_would_find_a_missing_flush(device: Device) -> None:
    """Goal: the test above can fail, and a level without flushes never serves wrong bytes.
    Method: the same cuts at level `process`: many lose something, and every loss is noticed."""
    images, expected = power_cuts(device, "process")
    lost_count = noticed_count = 0
    for path, known in images[::5]:
        try:
            check_image(path, expected, known)
        except PageCorruptError:
            noticed_count += 1
        except AssertionError:
            lost_count += 1  # an older version than announced, whole
    assert noticed_count > 0
    assert lost_count > 0


def test_opening_makes_durable_what_it_found(device: Device) -> None:
    """P2. Goal: what a killed process left in the page cache is decided after `open` for good.
    Method: a story without flushes, then open at level `step` and cut the power."""
    expected: Expected = {}
    with device.open("process") as store:
        story(store, expected, lambda place: None)
        write_pages(store, range(7), 6, 2)
        store.prepare(DecidedStep(version=6, attempt=2))
        expected[6] = contents(store, 6)
    promised: list[tuple[int, Path, Known]] = []
    for version in (5, 6):
        with device.open() as store:
            known = Known.of(store)
            assert known.decided == version
            image = device.image(f"cut-{next(_numbers)}", lambda: "old")
            promised.append((version, image.path, known))
            if version == 5:
                store.decide(6, 2)
    for version, path, known in promised:
        assert check_image(path, expected, known) == version


# -------------------------------------------------------------------------- the device itself


def test_a_failed_flush_stops_the_store_for_good(device: Device) -> None:
    """Goal: a flush is never tried again: the second succeeds, and what it was to make durable is
    gone. Method: let one fail; the store accepts no more calls, and reopens one version back."""
    with device.open() as store:
        take_step(store, 0)
        write_pages(store, range(7), 1)
        device.arm("eio_flush")
        with pytest.raises(StateError, match="Input/output error"):
            store.prepare(DecidedStep(version=1, attempt=0))
        with pytest.raises(StateError, match="accepts no more calls"):
            store.prepare(DecidedStep(version=1, attempt=0))
    with device.open() as store:
        assert store.decided is not None
        assert store.decided.version == 0
        assert store.prepared is None


@pytest.mark.parametrize(("kind", "error"), [("eio_write", StateError), ("enospc", StoreFullError)])
def test_a_failed_write_stops_the_store(device: Device, kind: str, error: type[Exception]) -> None:
    """Goal: after a write that failed nothing goes on, and the decided version is untouched."""
    with device.open() as store:
        take_step(store, 0)
        device.arm(kind)
        with pytest.raises(error, match=device.path.name):
            write_pages(store, [2], 1)
        with pytest.raises(StateError, match="accepts no more calls"):
            write_pages(store, [3], 1)
    with device.open() as store:
        assert contents(store, 0) == [record(store, page, 0) for page in range(7)]


@pytest.mark.parametrize("kind", ["lost", "misdirected"])
def test_a_lying_device_is_found_out_and_can_be_repaired(device: Device, kind: str) -> None:
    """P3. Goal: a write that was not made where it should be is found when its page is read, or
    the page that it hit; after `repair`, the backup of the tests, all is as it was meant."""
    with device.open() as store:
        take_step(store, 0)
        take_step(store, 1)  # so that both sides hold something
        device.arm(kind)
        take_step(store, 2)
        assert device.struck == [kind]
        found = [page for page in range(7) if not is_readable(store, page, 2)]
        assert found
        device.repair()
        assert contents(store, 2) == [record(store, page, 2) for page in range(7)]


def is_readable(store: FilePageStore, page: int, version: int) -> bool:
    try:
        assert read(store, page, version) == record(store, page, version)
    except PageCorruptError:
        return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_rot_is_found_or_has_a_second_copy(device: Device, seed: int) -> None:
    """P3. Goal: whatever block of what was written rots, no wrong byte is served, and the version
    is the decided one. Method: five flips, then read everything."""
    with device.open() as store:
        for version in range(3):
            take_step(store, version)
    device.random.seed(seed)
    for _ in range(5):
        device.arm("rot")
    with device.open() as store:
        assert store.decided is not None
        assert store.decided.version == 2
        for page in range(7):
            is_readable(store, page, 2)
    device.repair()
    with device.open() as store:
        assert all(is_readable(store, page, 2) for page in range(7))


@pytest.mark.parametrize("passes", range(12))
def test_a_process_that_ends_inside_the_store(device: Device, passes: int) -> None:
    """P2. Goal: dead at any failpoint of a step, by a power cut, the store is at the step before
    it or at it, and no handler of errors in the store mistakes the end for an error."""
    store = device.open()
    take_step(store, 0)
    device.die_after = passes
    with busy(device), pytest.raises(ProcessEnded):
        take_step(store, 1)
        take_step(store, 2)
    store.close()
    device.power_cut()
    with device.open() as store:
        assert store.decided is not None
        version = store.decided.version
        assert version in (0, 1)
        assert contents(store, version) == [record(store, page, version) for page in range(7)]
