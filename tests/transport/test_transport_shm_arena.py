"""The arena that a transport over shared memory reserves from: its room, and its limits."""

from __future__ import annotations

import itertools
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest

from luwu.base.errors import ConfigError
from luwu.transport.arena import FreeList, check_arena
from luwu.transport.interface import CreditExceeded
from tests.helpers.transports import OverShm
from tests.suites.transport_waits import MIB, Make, message, pair, until_true


class TestArena(OverShm):
    def test_it_ends_and_recovers(self, make: Make, endpoint: str) -> None:
        """Goal: CreditExceeded when full; room when views are gone and the receiver released."""
        listener, dialler, _child = pair(make, endpoint, arena_bytes=4 * 4096)
        views = [dialler.reserve(4096) for _ in range(4)]
        with pytest.raises(CreditExceeded, match="no room for 1 bytes in an arena of 16384: 0 are"):
            dialler.reserve(1)
        handle = dialler.send("parent", b"h", [views[1]])
        part = views[2][5:6]
        views.clear()
        with pytest.raises(CreditExceeded):  # one is sent, one has a view: two pieces are free
            dialler.reserve(2 * 4096)
        message(listener).release()
        until_true(lambda: handle.done, listener, dialler)
        assert dialler.reserve(2 * 4096).nbytes == 2 * 4096
        del part
        assert dialler.reserve(4 * 4096).nbytes == 4 * 4096

    def test_arrays_keep_what_they_are_made_of(self, make: Make) -> None:
        """Goal: an array on reserved memory, or on a part of it, keeps it from being given out."""
        transport = make(arena_bytes=4096)
        array = np.frombuffer(transport.reserve(4096)[8:16], np.int64)
        with pytest.raises(CreditExceeded):
            transport.reserve(1)
        del array
        transport.reserve(1)

    @pytest.mark.parametrize("seed", range(10))
    def test_free_list_against_a_model(self, seed: int) -> None:
        """AF1, AF2. Method: 500 random takes and gives beside a plain list of taken bytes."""
        rng = random.Random(seed)
        free = FreeList(64)
        taken: list[tuple[int, int]] = []
        for _ in range(500):
            if taken and rng.random() < 0.5:
                free.give(*taken.pop(rng.randrange(len(taken))))
            else:
                nbytes = rng.randint(1, 16)
                start = free.take(nbytes)
                if start is None:
                    assert free.largest_bytes() < nbytes, seed
                else:
                    taken.append((start, nbytes))
            used = sorted([(start, start + nbytes) for start, nbytes in taken])
            stretches = free.stretches
            every = sorted(used + stretches)
            assert [start for start, _ in every] == [0] + [end for _, end in every[:-1]], seed
            assert every[-1][1] == 64
            assert all(before[1] < after[0] for before, after in itertools.pairwise(stretches)), (
                seed
            )
            assert free.free_bytes == 64 - sum(nbytes for _, nbytes in taken)

    def test_limits_are_found_early(
        self, monkeypatch: pytest.MonkeyPatch, make: Make, tmp_path: Path
    ) -> None:
        """Goal: each limit is a ConfigError that names it, what was found, and what to do."""
        check_arena(0)
        check_arena(MIB)
        with pytest.raises(ConfigError, match=r"exceeds the memory of .* make the arena smaller"):
            make(arena_bytes=1 << 60)
        for name, text in (("RLIMIT_FSIZE", "ulimit -f"), ("RLIMIT_AS", "ulimit -v")):
            which = getattr(resource, name)
            real = resource.getrlimit
            monkeypatch.setattr(
                resource,
                "getrlimit",
                lambda asked, which=which, real=real: (
                    (4096, 4096) if asked == which else real(asked)
                ),
            )
            with pytest.raises(ConfigError, match=f"{name}.*{text}"):
                check_arena(8192)
            monkeypatch.undo()
        monkeypatch.delattr(os, "memfd_create")
        with pytest.raises(ConfigError, match="memfd_create"):
            check_arena(8192)
