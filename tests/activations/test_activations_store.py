"""The store of activations: A1 to A4, whatever the budget and the order."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from luwu.activations import ActivationStats, ActivationStore, Octets, Saved, checksum_of
from luwu.base.errors import LuwuError, StateError, StoreFullError
from tests.helpers.activations import file_limit

KIB = 1024
SIZE = 64 * KIB


def data(value: int, nbytes: int = SIZE) -> Octets:
    return np.frombuffer(bytearray(random.Random(value).randbytes(nbytes)), np.uint8)


def put(store: ActivationStore, memory: Octets) -> Saved:
    return store.put(memory, checksum_of(memory))


def is_there(store: ActivationStore, saved: Saved, value: int, nbytes: int = SIZE) -> bool:
    return np.array_equal(store.get(saved), data(value, nbytes))


@contextmanager
def store_in(directory: Path, memory_budget: int) -> Iterator[ActivationStore]:
    """A store; afterwards nothing may be left (A3)."""
    store = ActivationStore(directory, memory_budget)
    yield store
    gc.collect()
    stats = store.stats()
    assert (stats.live_bytes, stats.waiting_bytes) == (0, 0)
    if stats.disk_bytes:
        assert store._places.take(stats.disk_bytes) == 0, "a place was not given back"
    assert list(directory.iterdir()) == []


BUDGETS = [0, SIZE, 5 * SIZE, 100 * SIZE]


@pytest.mark.parametrize("memory_budget", BUDGETS)
@pytest.mark.parametrize("order", ["reversed", "same", "shuffled"])
def test_what_is_put_comes_back(tmp_path: Path, memory_budget: int, order: str) -> None:
    """A1, A2, A3. Goal: the bytes, in any order, and never more in memory than the bound."""
    with store_in(tmp_path, memory_budget) as store:
        count = 20
        saved = {value: put(store, data(value)) for value in range(count)}
        values = list(saved)
        if order == "reversed":
            values.reverse()
        elif order == "shuffled":
            random.Random(1).shuffle(values)
        for value in values:
            assert is_there(store, saved.pop(value), value)
        beyond = max(0, count * SIZE - memory_budget - SIZE)
        most = min(count * SIZE, memory_budget + SIZE)
        assert store.stats() == ActivationStats(
            saved_bytes=count * SIZE, written_bytes=beyond, read_bytes=beyond,
            waiting_bytes_peak=most, disk_bytes=beyond,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_any_history(tmp_path: Path, seed: int) -> None:
    """A1, A2, A3. Goal: asked for again, dropped unread, sizes mixed.
    Method: random calls beside a plain list of what each must give."""
    chance = random.Random(seed)
    sizes = [KIB, 10 * KIB, 33 * KIB, SIZE]
    budget = chance.choice(BUDGETS[:3])
    with store_in(tmp_path, budget) as store:
        saved: list[tuple[Saved, int, int]] = []
        for turn in range(300):
            act = chance.random()
            if act < 0.45 or not saved:
                nbytes = chance.choice(sizes)
                saved.append((put(store, data(turn, nbytes)), turn, nbytes))
            elif act < 0.75:
                assert is_there(store, *chance.choice(saved[-8:]))
            else:
                del saved[chance.randrange(len(saved))]
        assert store.stats().live_bytes == sum(nbytes for _, _, nbytes in saved)
        assert store.stats().waiting_bytes_peak <= budget + SIZE
        for each, value, nbytes in reversed(saved):
            assert is_there(store, each, value, nbytes)
        del each
        saved.clear()


def test_what_was_saved_last_stays_in_memory(tmp_path: Path) -> None:
    """Goal: backward begins with what is there: the first go to disk, the last are not read."""
    with store_in(tmp_path, 3 * SIZE) as store:
        saved = [put(store, data(value)) for value in range(10)]
        assert [each.memory is None for each in saved] == [True] * 6 + [False] * 4
        saved.clear()


def test_the_kernel_reads_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A2. Goal: while one is used, those before it are asked for, once, as far as the budget goes,
    and at least the next one."""
    asked: list[int] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda fd, offset, nbytes, advice: asked.append(offset // SIZE)
    )
    for budget_count, expected in (
        (0, [[8], [7], [6], [5], [4]]),
        (3, [[5, 4, 3], [], [], [], [2]]),
    ):
        with store_in(tmp_path, budget_count * SIZE) as store:
            saved = [put(store, data(value)) for value in range(10)]
            found = []
            while len(saved) > 5:
                assert is_there(store, saved.pop(), len(saved))
                found.append(asked.copy())
                asked.clear()
            assert found == expected
            saved.clear()


def test_asked_for_again(tmp_path: Path) -> None:
    """A1. Goal: a graph that is kept runs backward twice; a copy that is still used is not read
    again, and one that somebody wrote to is not handed out again."""
    with store_in(tmp_path, SIZE) as store:
        saved = [put(store, data(value)) for value in range(8)]
        memory = store.get(saved[0])
        assert store.get(saved[0]) is memory
        for _ in range(3):
            for value in reversed(range(6)):
                memory = store.get(saved[value])
                assert np.array_equal(memory, data(value))
                memory[0] ^= 1
                assert is_there(store, saved[value], value)
        saved.clear()


@pytest.mark.parametrize("memory_budget", [0, 100 * SIZE])
def test_bytes_that_changed_where_they_lay(tmp_path: Path, memory_budget: int) -> None:
    """A1. Goal: what was changed after `put` raises, if it was in memory; what was written before
    is as it was."""
    with store_in(tmp_path, memory_budget) as store:
        first, second = data(1), data(2)
        saved = [put(store, first), put(store, second)]
        first[5] ^= 1
        if memory_budget:
            with pytest.raises(LuwuError, match=r"64\.00 KiB .* changed in place .* clone\(\)"):
                store.get(saved[0])
        else:
            assert is_there(store, saved[0], 1)
        assert is_there(store, saved[1], 2)
        saved.clear()


def test_bytes_that_changed_before_they_were_written(tmp_path: Path) -> None:
    """A1. Goal: wrong bytes that reached the disk are reported as what they are.
    Method: they change before anything is written, for the budget is reached later."""
    with store_in(tmp_path, SIZE) as store:
        first = data(1)
        saved = [put(store, first)]
        first[5] ^= 1
        saved += [put(store, data(value)) for value in range(2, 5)]
        assert store.stats().written_bytes > 0
        with pytest.raises(LuwuError, match="changed in place"):
            store.get(saved[0])
        assert is_there(store, saved[1], 2)
        saved.clear()


def test_a_bit_that_flipped_on_disk(tmp_path: Path) -> None:
    """A1. Goal: which file, where, what was found and expected, what to do; others are not hurt."""
    with store_in(tmp_path, 0) as store:
        saved = [put(store, data(value)) for value in range(4)]
        offset = saved[1].offset
        assert offset is not None
        os.pwrite(store._file.fileno(), bytes([int(data(1)[100]) ^ 4]), offset + 100)
        assert is_there(store, saved[2], 2)
        with pytest.raises(StateError) as caught:
            store.get(saved[1])
        for part in (str(tmp_path), f"offset {offset}", f"{checksum_of(data(1)):#034x}",
                     "check the disk", "compute the step again"):  # fmt: skip
            assert part in str(caught.value)
        assert is_there(store, saved[0], 0)
        del caught
        saved.clear()


def test_a_full_disk(tmp_path: Path) -> None:
    """A4, A3. Goal: `put` says what is full, what was saved before is still there, and a place that
    is free again is used. Method: no file may have more than three places."""
    with store_in(tmp_path, 0) as store:
        with file_limit(3 * SIZE):
            saved = [put(store, data(value)) for value in range(4)]
            for _ in range(2):
                with pytest.raises(
                    StoreFullError, match=r"written at offset 196608: .* raise memory_budget="
                ):
                    put(store, data(4))
            assert [is_there(store, each, value) for value, each in enumerate(saved)] == [True] * 4
            del saved[0]
            with pytest.raises(StoreFullError):  # a part of this place may have been written to
                put(store, data(4))
            saved.clear()
            saved = [put(store, data(value)) for value in range(4)]
            assert [is_there(store, each, value) for value, each in enumerate(saved)] == [True] * 4
        saved += [put(store, data(value)) for value in range(4, 8)]
        assert [is_there(store, each, value) for value, each in enumerate(saved)] == [True] * 8
        saved.clear()


def test_a_disk_that_fails(tmp_path: Path) -> None:
    """I6. Goal: file and offset. Method: the file is exchanged for one that is shorter."""
    with store_in(tmp_path, 0) as store:
        saved = [put(store, data(value)) for value in range(3)]
        os.truncate(store._file.fileno(), 1000)
        with pytest.raises(
            StateError, match=rf"{tmp_path} cannot be read at offset 1000: .*64536 bytes too early"
        ):
            store.get(saved[0])
        saved.clear()


def test_dropped_without_backward(tmp_path: Path) -> None:
    """A3. Goal: memory and places are given back from any thread, and by the collector of cycles;
    also while the lock is held."""
    with store_in(tmp_path, 2 * SIZE) as store:
        for _ in range(20):
            put(store, data(0))
        for _ in range(3):
            saved = [put(store, data(value)) for value in range(6)]
            cycle: list[object] = [saved]
            cycle.append(cycle)
            del saved
            del cycle
            gc.collect()
        elsewhere = [put(store, data(value)) for value in range(6)]
        thread = threading.Thread(target=elsewhere.clear)
        thread.start()
        thread.join()
        again = [put(store, data(value)) for value in range(6)]
        with store._lock:
            again.clear()
        assert store.stats().live_bytes == 0
        assert store.stats().disk_bytes <= 6 * SIZE


@pytest.mark.parametrize("memory_budget", [0, 100 * SIZE])
def test_bytes_that_come_later(tmp_path: Path, memory_budget: int) -> None:
    """Goal: memory that is still being filled (by a GPU) is waited for, before it is handed out and
    before it is written."""
    with store_in(tmp_path, memory_budget) as store:
        memory, calls = np.zeros(SIZE, np.uint8), []

        def fill() -> None:
            memory[:] = data(1)
            calls.append(1)

        saved = store.put(memory, ready=fill)
        if memory_budget:
            assert is_there(store, saved, 1)
        else:
            put(store, data(2))
            assert saved.memory is None
            saved.ready = None  # so it is read back into memory that is not pinned
        assert calls
        assert is_there(store, saved, 1)
        del saved
