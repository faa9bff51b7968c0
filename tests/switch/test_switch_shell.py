"""The switch's shell: where it puts what its core asks it to keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import zmq

from luwu.base.address import address_of
from luwu.base.errors import ConnectionFailed
from luwu.base.events import Recorder
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.layout import Layout, PlacesMap
from luwu.protocol.actions import PARENT
from luwu.transport.shm import ShmTransport
from luwu.transport.zeromq import ZeroMqTransport
from switch_emu.process.payload import Payload
from switch_emu.process.places import places_bytes
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Cache, SwitchLimits
from switch_emu.switch.shell import SwitchShell
from tests.simulate.job import make_layout

LARGE, SMALL = ZERO_COPY_BYTES_MIN, ZERO_COPY_BYTES_MIN - 4


class Keeps(SwitchCore):
    """Keeps what it is given for its cache, whatever its job."""

    layout: Layout | None = None

    @property
    def cached_layout(self) -> Layout | None:
        return self.layout

    def cached(
        self, now_ns: int, done: Cache, payload: Any, payload_bytes: int, *, in_place: bool = False
    ) -> list[Any]:  # fmt: skip
        self.given, self.in_place = payload, in_place
        return []


@contextmanager
def keeping(
    layout: Layout | None, *, cache_bytes: int, arena_bytes: int, shares_memory: bool = True
) -> Iterator[tuple[SwitchShell, Keeps]]:
    """A shell whose core keeps what it is given."""
    with (
        closing(ShmTransport(arena_bytes=arena_bytes)) as transport,
        Recorder(role="switch", printed=None) as recorder,
    ):
        limits = SwitchLimits(cache_bytes_max=cache_bytes)
        core = Keeps(job=1, incarnation=1, children=[1, 2], limits=limits)
        core.layout = layout
        yield SwitchShell(transport, core, recorder, shares_memory=shares_memory), core


@pytest.mark.parametrize(
    ("shares_memory", "is_shared", "nbytes", "is_copied"),
    [
        (True, True, LARGE, True),  # the node has other uses for its memory
        (True, False, LARGE, True),  # it had none left, and sent the bytes
        (True, False, SMALL, False),  # what is small travels as bytes in any case
        (False, False, LARGE, False),
    ],
)
def test_cached_weights_lie_where_children_read_them(
    *, shares_memory: bool, is_shared: bool, nbytes: int, is_copied: bool
) -> None:
    """Goal: weights leave the node once, and the switch as a reference to each child, also when the
    node had no shared memory left; its copy is kept only where nothing is gained by another."""
    with keeping(
        None, cache_bytes=LARGE, arena_bytes=4 * LARGE, shares_memory=shares_memory
    ) as (shell, core):  # fmt: skip
        came = Payload(memoryview(bytes(range(256)) * LARGE)[:nbytes], is_shared=is_shared)
        shell.do([Cache(0, 0, 0, 1, "float32", came)])
        kept = core.given.view()
        assert kept == came.view()
        assert (address_of(kept) != address_of(came.view())) is is_copied
        core.given.drop()


def test_a_cached_unit_lies_in_one_piece() -> None:
    """I3. Goal: extents of a unit are cached one behind the other, so that children use the unit
    where it lies; those of the next step elsewhere, and those after it in its place. Who looks
    there, and sees no checksum, finds none that have one."""
    layout = make_layout(units=1, frozen=False)
    nbytes = places_bytes(layout)
    with keeping(layout, cache_bytes=nbytes, arena_bytes=2 * nbytes) as (shell, core):

        def cache(step: int, extent: int, checksum: int = 0) -> int:
            """Where the unit begins."""
            size = layout.extents[extent].wire_bytes
            came = Payload(memoryview(bytes([16 * step + extent]) * size))
            came.checksum = checksum
            shell.do([Cache(extent, step, 0, 1, "float32", came)])
            kept: Payload = core.given
            assert core.in_place
            assert (kept.view(), kept.checksum) == (came.view(), checksum)
            words = {*shell._places._words}  # type: ignore[union-attr]
            assert (PlacesMap(layout, 2).stamp(extent, step, 1) in words) == (not checksum)
            return address_of(kept.view()) - 4 * layout.extents[extent].runs[0][0]

        extents = layout.unit_extents[0]
        first, second, third, fourth = (
            {cache(step, extent, checksum) for extent in extents}
            for step, checksum in ((0, 0), (1, 7), (2, 0), (2, 0))
        )
        assert len(first) == len(second) == 1
        assert first == third == fourth != second


def test_no_places_without_room_for_two_steps() -> None:
    """I5. Goal: the cache takes no more than its budget."""
    layout = make_layout(units=1, frozen=False)
    nbytes = places_bytes(layout)
    with keeping(layout, cache_bytes=nbytes - 1, arena_bytes=2 * nbytes) as (shell, core):
        came = Payload(memoryview(bytes(layout.extents[0].wire_bytes)))
        shell.do([Cache(0, 0, 0, 1, "float32", came)])
        assert not core.in_place
        core.given.drop()


def test_a_parent_that_is_none_ends_the_switch() -> None:
    """I6. Goal: what nothing will mend above a switch ends it, in words that name the place, and
    its children do not wait for ever. Method: a listener of another ZeroMQ pattern."""
    with (
        zmq.Context() as context,
        context.socket(zmq.PUB) as listener,
        closing(ZeroMqTransport()) as transport,
        Recorder(role="switch", printed=None) as recorder,
    ):
        listener.linger = 0
        listener.bind("tcp://127.0.0.1:*")
        place = listener.last_endpoint.decode()
        transport.dial(PARENT, place)
        shell = SwitchShell(transport, SwitchCore(job=1, incarnation=1, children=[1]), recorder)
        with pytest.raises(ConnectionFailed, match=f"{place} .* it is not this run"):
            shell.run(lambda: False)
