"""I3 with real processes: one digest, whatever carries the bytes and wherever they are kept.

Four choices, by a covering array for ipc and tcp: any two choices meet in all combinations.

    transport   chunk    memory       sums
    ipc         16 KiB   in RAM       switch
    ipc         4 MiB    an eighth    node
    tcp         16 KiB   an eighth    node
    tcp         4 MiB    in RAM       node
    tcp         4 MiB    an eighth    switch
    shm         16 KiB   in RAM       node
    shm         4 MiB    an eighth    switch

All twenty-four are tried within one process in `tests/unit/test_digests_in_process.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes.jobs import compare, plain_digest

STEPS = 20
SIZES = ("--layers", "2", "--width", "96", "--context", "16", "--batch", "2")
JOB = ("--steps", str(STEPS), *SIZES)
PARAMETERS = 274_560
STATE_BYTES = 12 * PARAMETERS
SIXTEEN_KIB = ("--chunk", "16KiB")
FOUR_MIB = ("--chunk", "4MiB")
IN_RAM = ("--memory-budget", "512MiB")
EIGHTH = ("--memory-budget", f"{STATE_BYTES // 8 // 1024}KiB", "--durability", "process")
NO_PAGES_48 = ("--memory-budget", "48MiB", "--durability", "process")
NO_PAGES_56 = ("--memory-budget", "56MiB", "--durability", "process")
NO_PAGES_72 = ("--memory-budget", "72MiB", "--durability", "process")
"""The least that a node accepts for chunks of 4 MiB: with a switch over shared memory, whose pushes
lie in its own arena; with one over sockets; and without one. All of it is buffers and no page stays
in RAM, which is harder than an eighth."""

WAYS = {
    "ipc-16KiB-RAM-switch": ("ipc", *SIXTEEN_KIB, *IN_RAM, "--durability", "none"),
    "ipc-4MiB-eighth-node": ("ipc", *FOUR_MIB, *NO_PAGES_72, "--no-switch"),
    "tcp-16KiB-eighth-node": ("tcp", *SIXTEEN_KIB, *EIGHTH, "--no-switch"),
    "tcp-4MiB-RAM-node": ("tcp", *FOUR_MIB, *IN_RAM, "--no-switch"),
    "tcp-4MiB-eighth-switch": ("tcp", *FOUR_MIB, *NO_PAGES_56),
    "shm-16KiB-RAM-node": ("shm", *SIXTEEN_KIB, *IN_RAM, "--no-switch"),
    "shm-4MiB-eighth-switch": ("shm", *FOUR_MIB, *NO_PAGES_48),
}
ALWAYS = "tcp-4MiB-eighth-switch"
"""The cheapest way through a disk; the others are slow."""

pytestmark = pytest.mark.usefixtures("on_the_cpu")


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=name, marks=() if name == ALWAYS else pytest.mark.slow)
        for name, way in WAYS.items()
    ],
)
def test_digest_is_one(way: Sequence[str], tmp_path: Path) -> None:
    """I3. Goal: the bits of plain torch after 20 steps. Method: what the node read from disk shows
    that the state was where the name of the way says."""
    transport, *flags = way
    done = compare(tmp_path, *JOB, "--transport", transport, *flags)
    assert done.document["job"]["parameters"] == PARAMETERS
    arm = done.arm()
    read_ratio = arm["disk_bytes"]["read"] / (STEPS * STATE_BYTES)
    if IN_RAM[1] in way:
        assert read_ratio == 0
    else:
        assert read_ratio > 0.85
    if "none" in way:
        assert arm["disk_bytes"] == {"read": 0, "written": 0}
    assert arm["weights_digest"] == plain_digest(STEPS, sizes=SIZES)
