"""Payloads are counted, released once by their last holder, and may live in a spill file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Barrier

import numpy as np
import pytest

from luwu.base.address import address_of
from luwu.transport.arena import PAGE_BYTES
from luwu.transport.interface import CreditExceeded
from luwu.transport.shm import Arena
from switch_emu.process.payload import Buffers, Payload, Unsummed, terms_of
from switch_emu.store.spill import SpillFile


class Releases:
    """What a transport would be told."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def test_the_last_holder_releases_the_buffer() -> None:
    """Goal: the transport gets its buffer back once, not before nobody needs it."""
    released = Releases()
    payload = Payload(memoryview(b"gradient"), released)
    assert payload.share() is payload
    assert payload.nbytes == 8
    payload.drop()
    assert released.count == 0
    assert bytes(payload.view()) == b"gradient"
    payload.drop()
    assert released.count == 1


def test_misuse_is_our_own_mistake() -> None:
    """Goal: a payload dropped, shared or read after its end is found at that place."""
    payload = Payload(memoryview(b"x"))
    payload.drop()
    with pytest.raises(AssertionError, match="dropped more often"):
        payload.drop()
    with pytest.raises(AssertionError):
        payload.share()
    with pytest.raises(AssertionError, match="after its last holder"):
        payload.view()


def test_spilling_keeps_the_bytes_and_frees_the_buffer() -> None:
    """Goal: a spilled payload reads the same, gives its buffer back at once and its place at the
    end."""
    spill = SpillFile(None, place_bytes=64, places_count=1)
    place_bytes = spill.disk_bytes  # of one place, in whole blocks
    released = Releases()
    payload = Payload(memoryview(b"0123456789"), released)
    payload.share()
    payload.spill(spill)
    assert released.count == 1
    assert (bytes(payload.view()), payload.nbytes) == (b"0123456789", 10)
    payload.spill(spill)  # twice is once
    assert (released.count, spill.bytes_written) == (1, 10)

    payload.drop()
    other = Payload(memoryview(b"other"))
    other.spill(spill)  # the place of the first is not free: the file grows
    assert bytes(payload.view()) == b"0123456789"
    payload.drop()
    assert spill.disk_bytes == 2 * place_bytes
    third = Payload(memoryview(b"third"))
    third.spill(spill)
    assert spill.disk_bytes == 2 * place_bytes
    assert released.count == 1
    spill.close()


def test_a_dropped_payload_is_not_spilled() -> None:
    """Goal: `Spill` after the last `Drop` takes no place that nobody would free."""
    spill = SpillFile(None, place_bytes=64, places_count=1)
    payload = Payload(memoryview(b"x"))
    payload.drop()
    payload.spill(spill)
    assert spill.bytes_written == 0
    spill.close()


def test_holders_in_many_threads() -> None:
    """Goal: the count is right when threads share and drop at once. Method: 8 threads, one barrier,
    a thousand times each."""
    released = Releases()
    payload = Payload(memoryview(b"x"), released)
    barrier = Barrier(8)

    def work(_: int) -> None:
        barrier.wait()
        for _ in range(1000):
            payload.share()
            payload.drop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert released.count == 0
    payload.drop()
    assert released.count == 1


def test_readers_while_it_is_spilled() -> None:
    """Goal: a reader sees the bytes whether they are still in RAM or already in the file.
    Method: one thread reads while another spills, a hundred payloads."""
    spill = SpillFile(None, place_bytes=4096, places_count=8)
    with ThreadPoolExecutor(2) as pool:
        for index in range(100):
            data = bytes([index]) * 4096
            payload = Payload(memoryview(data))
            reads = pool.submit(lambda p=payload: {bytes(p.view()) for _ in range(20)})
            pool.submit(payload.spill, spill).result()
            assert reads.result() == {data}
            payload.drop()
    assert spill.disk_bytes == 8 * 4096
    spill.close()


def payload_of(values: list[float], released: Releases | None = None) -> Payload:
    return Payload(memoryview(np.array(values, np.float32).view(np.uint8)), released)


def test_an_unmade_sum_holds_its_terms() -> None:
    """Goal: who needs the sum gets the terms in order, or the sum itself; they are let go once."""
    released = [Releases(), Releases()]
    terms = [payload_of([1.0, 2.0], released[0]), payload_of([0.5, 0.25], released[1])]
    total = Unsummed([(term, "float32") for term in terms], nbytes=8)
    for term in terms:
        term.drop()  # the slot's own hold
    assert [each.count for each in released] == [0, 0]
    firsts = [
        np.frombuffer(view, np.float32)[0]
        for view, _ in terms_of(total, "float32", 0, total.nbytes // 4)
    ]
    assert firsts == [1.0, 0.5]
    np.testing.assert_array_equal(np.frombuffer(total.view(), np.float32), [1.5, 2.25])
    total.drop()
    assert [each.count for each in released] == [1, 1]


def test_an_unmade_sum_is_made_to_be_spilled() -> None:
    """I5. Goal: spilled, it is one sum, and its terms are free; it reads the same."""
    spill = SpillFile(None, place_bytes=64, places_count=1)
    released = Releases()
    term = payload_of([3.0, 4.0], released)
    total = Unsummed([(term, "float32"), (term, "float32")], nbytes=8)
    term.drop()
    total.spill(spill)
    assert released.count == 1
    ((view, dtype),) = terms_of(total, "float32", 0, total.nbytes // 4)
    assert dtype == "float32"
    np.testing.assert_array_equal(np.frombuffer(view, np.float32), [6.0, 8.0])
    total.drop()
    spill.close()


def test_buffers_are_used_again_when_nobody_needs_them() -> None:
    """Goal: no fresh memory in the steady state, and never the memory of a payload in use; where
    shared memory has run out, the payload is a copy's."""
    left = [64, 64]

    def reserve(nbytes: int) -> memoryview:
        if not left:
            raise CreditExceeded("no room")
        return memoryview(bytearray(left.pop()))

    buffers = Buffers(reserve)
    first, held = buffers.take(64)
    second, other = buffers.take(64)
    third, private = buffers.take(64)
    assert len({id(memory.obj) for memory in (first, second, third)}) == 3
    held.drop()
    again, _ = buffers.take(64)
    assert again.obj is first.obj
    other.drop()
    private.drop()


def test_spare_memory_of_another_size_makes_room() -> None:
    """Goal: extents of two sizes do not divide an arena between them for good: what is spare goes
    before a payload lies in no arena, and so travels as a copy. What is in use stays."""
    with closing(Arena(3 * PAGE_BYTES)) as arena:
        assert arena.region is not None
        whole = arena.region.view
        buffers = Buffers(arena.reserve)

        def take(pages: int) -> tuple[Payload, bool]:
            memory, payload = buffers.take(pages * PAGE_BYTES)
            at = address_of(memory) - address_of(whole)
            del memory
            return payload, 0 <= at < arena.nbytes

        first, is_in_arena = take(1)
        second, _ = take(1)
        assert is_in_arena
        assert take(2)[1] is False  # one page is free
        second.drop()
        larger, is_in_arena = take(2)
        assert is_in_arena
        assert take(1)[1] is False
        for payload in (first, larger):
            payload.drop()
        assert take(3)[1]
