"""The store of activations, without torch: A1 to A4, whatever the budget and the order."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from luwu.activations import store as activations
from luwu.activations.store import ActivationStats, ActivationStore, Hold, checksum_of
from luwu.base.errors import DeadlineError, LuwuError, StateError, StoreFullError
from tests.unit.test_scratch_file import file_limit
from tests.unit.waiting import is_soon

KIB = 1024
SIZE = 64 * KIB


def data(value: int, nbytes: int = SIZE) -> memoryview:
    return memoryview(bytearray(random.Random(value).randbytes(nbytes)))


def allocate(nbytes: int) -> memoryview:
    return memoryview(bytearray(nbytes))


def put(store: ActivationStore, memory: memoryview) -> Hold:
    return store.put(memory, allocate=allocate, checksum=checksum_of(memory))


@contextmanager
def store_in(directory: Path, memory_budget: int) -> Iterator[ActivationStore]:
    """A store; afterwards nothing may be left (A3)."""
    store = ActivationStore(memory_budget=memory_budget, directory=directory)
    yield store
    gc.collect()
    assert store.stats().live_bytes == 0
    assert is_soon(lambda: store._thread is None), "the thread goes on"
    stats = store.stats()
    assert stats.waiting_bytes == 0
    if stats.disk_bytes:
        assert store._file.take(stats.disk_bytes) == 0, "a place was not given back"
    assert list(directory.iterdir()) == []


BUDGETS = [0, SIZE, 5 * SIZE, 100 * SIZE]


@pytest.mark.parametrize("memory_budget", BUDGETS)
@pytest.mark.parametrize("order", ["reversed", "same", "shuffled"])
def test_what_is_put_comes_back(tmp_path: Path, memory_budget: int, order: str) -> None:
    """A1, A2, A3. Goal: the bytes, in any order, and never more in memory than the bound."""
    with store_in(tmp_path, memory_budget) as store:
        count = 20
        holds = {value: put(store, data(value)) for value in range(count)}
        values = list(holds)
        if order == "reversed":
            values.reverse()
        elif order == "shuffled":
            random.Random(1).shuffle(values)
        for value in values:
            assert store.get(holds[value]) == data(value)
            del holds[value]
        stats = store.stats()
        assert stats.saved_bytes == stats.live_bytes_peak == count * SIZE
        assert stats.waiting_bytes_peak <= memory_budget + (2 + (order == "shuffled")) * SIZE
        beyond = max(0, count * SIZE - memory_budget)
        assert beyond - SIZE <= stats.written_bytes <= beyond
        assert stats.disk_bytes <= beyond
        if memory_budget >= count * SIZE:
            assert stats == ActivationStats(
                saved_bytes=count * SIZE, live_bytes_peak=count * SIZE,
                waiting_bytes_peak=count * SIZE,
            )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_any_history(tmp_path: Path, seed: int) -> None:
    """A1, A2, A3. Goal: holds shared, asked for again, dropped unread, sizes mixed.
    Method: random calls beside a plain dict of what each hold must give."""
    chance = random.Random(seed)
    sizes = [KIB, 10 * KIB, 33 * KIB, SIZE]
    with store_in(tmp_path, chance.choice(BUDGETS[:3])) as store:
        holds: list[tuple[Hold, int, int]] = []
        for turn in range(300):
            act = chance.random()
            if act < 0.4 or not holds:
                nbytes = chance.choice(sizes)
                holds.append((put(store, data(turn, nbytes)), turn, nbytes))
            elif act < 0.5:
                hold, value, nbytes = chance.choice(holds)
                again = store.hold(hold.saved)
                assert again is not None
                holds.append((again, value, nbytes))
            elif act < 0.75:
                hold, value, nbytes = chance.choice(holds[-8:])
                assert store.get(hold) == data(value, nbytes)
            else:
                del holds[chance.randrange(len(holds))]
            hold = again = None  # type: ignore[assignment]
        expected = {value: nbytes for _, value, nbytes in holds}
        assert store.stats().live_bytes == sum(expected.values())
        assert store.stats().waiting_bytes_peak <= store.memory_budget + 3 * SIZE
        for each, value, nbytes in reversed(holds):
            assert store.get(each) == data(value, nbytes)
        del each
        holds.clear()


def test_what_was_saved_last_stays_in_memory(tmp_path: Path) -> None:
    """Goal: backward begins with what is there: the first go to disk, the last are not read."""
    with store_in(tmp_path, 4 * SIZE) as store:
        holds = [put(store, data(value)) for value in range(10)]
        assert is_soon(lambda: store.stats().waiting_bytes <= 4 * SIZE)
        assert store.stats().written_bytes == 6 * SIZE
        assert [hold.saved.offset is not None for hold in holds] == [True] * 6 + [False] * 4
        holds.clear()


def test_reads_are_ahead(tmp_path: Path) -> None:
    """Goal: while one is used, those before it are read, as far as the budget goes, and no further;
    the next ones then wait for nothing."""
    with store_in(tmp_path, 3 * SIZE) as store:
        holds = [put(store, data(value)) for value in range(10)]
        assert is_soon(lambda: store.stats().written_bytes == 7 * SIZE)
        while len(holds) > 6:
            assert store.get(holds.pop()) == data(len(holds))
        assert is_soon(lambda: store.stats().read_bytes >= 3 * SIZE)
        waits = store.stats().waits_count
        while holds:
            found = [hold.saved.memory is not None for hold in holds]
            assert found[-1]
            assert store.get(holds.pop()) == data(len(holds))
            is_soon(lambda: not store._reads and not any(h.saved.is_busy for h in holds))
        assert store.stats().waits_count == waits
        assert store.stats().read_bytes == 7 * SIZE
        assert store.stats().waiting_bytes_peak <= 5 * SIZE


def test_asked_for_again(tmp_path: Path) -> None:
    """A1. Goal: a graph that is kept runs backward twice; a copy that somebody wrote to is not
    handed out again."""
    with store_in(tmp_path, SIZE) as store:
        holds = [put(store, data(value)) for value in range(8)]
        assert is_soon(lambda: store.stats().written_bytes == 7 * SIZE)
        for _ in range(3):
            for value in reversed(range(7)):
                memory = store.get(holds[value])
                assert memory == data(value)
                memory[0] ^= 1
        assert store.stats().waiting_bytes_peak <= 3 * SIZE
        holds.clear()


@pytest.mark.parametrize("memory_budget", [0, 100 * SIZE])
def test_bytes_that_changed_where_they_lay(tmp_path: Path, memory_budget: int) -> None:
    """A1. Goal: what was changed after `put` raises, be it in memory or being written; what was
    written before is as it was."""
    with store_in(tmp_path, memory_budget) as store:
        first, second = data(1), data(2)
        holds = [put(store, first), put(store, second)]
        assert is_soon(lambda: holds[0].saved.offset is not None or bool(memory_budget))
        first[5] ^= 1
        if memory_budget:
            with pytest.raises(LuwuError, match=r"64\.00 KiB .* changed in place .* clone\(\)"):
                store.get(holds[0])
        else:
            assert store.get(holds[0]) == data(1)
        assert store.get(holds[1]) == second
        holds.clear()


def test_bytes_that_changed_before_they_were_written(tmp_path: Path) -> None:
    """A1. Goal: wrong bytes that reached the disk are told, as what they are.
    Method: they change before anything is written, for the budget is reached later."""
    with store_in(tmp_path, SIZE) as store:
        first = data(1)
        holds = [put(store, first)]
        first[5] ^= 1
        holds += [put(store, data(2)), put(store, data(3))]
        assert is_soon(lambda: holds[0].saved.memory is None)
        with pytest.raises(LuwuError, match="changed in place"):
            store.get(holds[0])
        assert store.get(holds[1]) == data(2)
        holds.clear()


def test_a_bit_that_flipped_on_disk(tmp_path: Path) -> None:
    """A1. Goal: which file, where, what was found and expected, what to do; others are not hurt."""
    with store_in(tmp_path, 0) as store:
        holds = [put(store, data(value)) for value in range(3)]
        assert is_soon(lambda: store.stats().waiting_bytes == 0)
        offset = holds[1].saved.offset
        assert offset is not None
        os.pwrite(store._file._fd, bytes([data(1)[100] ^ 4]), offset + 100)
        assert store.get(holds[2]) == data(2)
        with pytest.raises(StateError) as caught:
            store.get(holds[1])
        for part in (str(tmp_path), f"offset {offset}", f"{checksum_of(data(1)):#034x}",
                     "check the disk", "compute the step again"):  # fmt: skip
            assert part in str(caught.value)
        assert store.get(holds[0]) == data(0)
        del caught
        holds.clear()


def test_a_full_disk(tmp_path: Path) -> None:
    """A4, A3. Goal: the next call says what is full; once everything was dropped and there is room,
    the store works as ever. Method: no file may have more than three places."""
    with store_in(tmp_path, 0) as store:
        with file_limit(3 * SIZE):
            holds = []
            with pytest.raises(
                StoreFullError, match=r"cannot grow from 192.* raise memory_budget="
            ) as told:
                for value in range(10):
                    holds.append(put(store, data(value)))
            assert len(holds) in (3, 4, 5)
            assert is_soon(lambda: store._error is not None)  # it was tried again
            del told  # which may hold what could not be put
            holds.clear()
            gc.collect()
            assert is_soon(lambda: store.stats().live_bytes == 0)
            held = [put(store, data(value)) for value in range(3)]
            assert [store.get(hold) for hold in held] == [data(value) for value in range(3)]
            with pytest.raises(StoreFullError):
                held.append(put(store, data(3)))
                assert is_soon(lambda: store._error is not None)
                store.get(held[0])
            held.clear()
        held = [put(store, data(value)) for value in range(6)]
        assert [store.get(hold) for hold in held] == [data(value) for value in range(6)]
        held.clear()


def test_dropped_without_backward(tmp_path: Path) -> None:
    """A3. Goal: memory, places and thread are given back, also of what is being written, from any
    thread, and by the collector of cycles."""
    with store_in(tmp_path, 2 * SIZE) as store:
        for _ in range(20):
            put(store, data(0))
        for _ in range(3):
            holds = [put(store, data(value)) for value in range(6)]
            cycle: list[object] = [holds]
            cycle.append(cycle)
            del holds
            del cycle
            gc.collect()
        elsewhere = [put(store, data(value)) for value in range(6)]
        thread = threading.Thread(target=elsewhere.clear)
        thread.start()
        thread.join()
        assert store.stats().live_bytes == 0
        assert store.stats().disk_bytes <= 6 * SIZE


def test_dropped_while_the_lock_is_held(tmp_path: Path) -> None:
    """A3. Goal: the collector may run within any line of the store: no deadlock, nothing lost."""
    with store_in(tmp_path, SIZE) as store:
        holds = [put(store, data(value)) for value in range(4)]
        with store._locked():
            del holds[1]
            holds.clear()
            assert len(store._dropped) == 4
        assert is_soon(lambda: not store._dropped)
        assert store.stats().live_bytes == 0


def test_several_threads(tmp_path: Path) -> None:
    """A1, A3. Goal: one store for forwards in several threads."""
    errors: list[BaseException] = []

    def work(store: ActivationStore, rank: int) -> None:
        try:
            for turn in range(15):
                values = [1000 * rank + 10 * turn + k for k in range(6)]
                holds = [put(store, data(value)) for value in values]
                for value in reversed(values):
                    assert store.get(holds.pop()) == data(value)
        except BaseException as error:
            errors.append(error)

    with store_in(tmp_path, SIZE) as store:
        workers = [threading.Thread(target=work, args=(store, rank)) for rank in range(3)]
        for each in workers:
            each.start()
        for each in workers:
            each.join(60)
        assert errors == []


@pytest.mark.parametrize("memory_budget", [0, 100 * SIZE])
def test_bytes_that_come_later(tmp_path: Path, memory_budget: int) -> None:
    """Goal: memory that is still being filled (by a GPU) is waited for, before it is handed out and
    before it is written."""
    with store_in(tmp_path, memory_budget) as store:
        memory, calls = allocate(SIZE), []

        def fill() -> None:
            memory[:] = data(1)
            calls.append(1)

        hold = store.put(memory, allocate=allocate, ready=fill)
        assert store.get(hold) == data(1)
        assert calls
        assert is_soon(lambda: store.stats().written_bytes > 0 or memory_budget > 0)
        assert store.get(hold) == data(1)
        del hold


def test_a_disk_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I6. Goal: a wait ends, and says what for. Method: a write that waits for the test."""
    monkeypatch.setattr(activations, "WAIT_S_MAX", 0.05)
    go = threading.Event()
    with store_in(tmp_path, 0) as store:
        write = store._file.write

        def late(offset: int, memory: memoryview) -> None:
            go.wait(30)
            write(offset, memory)

        monkeypatch.setattr(store._file, "write", late)
        holds = [put(store, data(1))]
        with pytest.raises(DeadlineError, match=r"waited 0 s for room for activations; check the"):
            put(store, data(2))
        go.set()
        holds.clear()
        gc.collect()
        assert is_soon(lambda: store.stats().live_bytes == 0)
