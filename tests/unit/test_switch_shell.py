"""The switch's shell: where it puts what its core asks it to keep."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from luwu.base.address import address_of
from luwu.base.events import Recorder
from luwu.base.limits import ZERO_COPY_BYTES_MIN
from luwu.transport.shm import ShmTransport
from switch_emu.process.payload import Payload
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Cache, SwitchLimits
from switch_emu.switch.shell import SwitchShell

LARGE, SMALL = ZERO_COPY_BYTES_MIN, ZERO_COPY_BYTES_MIN - 4


class Keeps(SwitchCore):
    """Keeps what it is given for its cache, whatever its job."""

    def cached(self, now_ns: int, done: Cache, payload: Any, payload_bytes: int) -> list[Any]:
        self.given = payload
        return []


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
    with (
        closing(ShmTransport(arena_bytes=4 * LARGE)) as transport,
        Recorder(role="switch", printed=None) as recorder,
    ):
        core = Keeps(
            job=1, incarnation=1, children=[1, 2], limits=SwitchLimits(cache_bytes_max=LARGE)
        )
        shell = SwitchShell(transport, core, recorder, shares_memory=shares_memory)
        came = Payload(memoryview(bytes(range(256)) * LARGE)[:nbytes], is_shared=is_shared)
        shell.do(
            [Cache(extent=0, step=0, part=0, attempt=1, dtype="float32", payload=came)]
        )  # fmt: skip
        kept = core.given.view()
        assert kept == came.view()
        assert (address_of(kept) != address_of(came.view())) is is_copied
        core.given.drop()
