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
from typing import Any

import pytest

from tests.processes.jobs import compare

STEPS = 20
JOB = ("--steps", str(STEPS), "--layers", "2", "--width", "96", "--context", "16", "--batch", "2")
PARAMETERS = 274_560
STATE_BYTES = 12 * PARAMETERS
SIXTEEN_KIB = ("--chunk", "16KiB")
FOUR_MIB = ("--chunk", "4MiB")
IN_RAM = ("--memory-budget", "512MiB")
EIGHTH = ("--memory-budget", f"{STATE_BYTES // 8 // 1024}KiB", "--durability", "process")
NO_PAGES_56 = ("--memory-budget", "56MiB", "--durability", "process")
NO_PAGES_72 = ("--memory-budget", "72MiB", "--durability", "process")
"""The least that a node accepts for chunks of 4 MiB, with a switch and without one: all of it is
buffers and no page stays in RAM, which is harder than an eighth."""

WAYS = {
    "ipc-4MiB-eighth-node": ("ipc", *FOUR_MIB, *NO_PAGES_72, "--no-switch"),
    "tcp-16KiB-eighth-node": ("tcp", *SIXTEEN_KIB, *EIGHTH, "--no-switch"),
    "tcp-4MiB-RAM-node": ("tcp", *FOUR_MIB, *IN_RAM, "--no-switch"),
    "tcp-4MiB-eighth-switch": ("tcp", *FOUR_MIB, *NO_PAGES_56),
    "shm-16KiB-RAM-node": ("shm", *SIXTEEN_KIB, *IN_RAM, "--no-switch"),
    "shm-4MiB-eighth-switch": ("shm", *FOUR_MIB, *NO_PAGES_56),
}
ALWAYS = "tcp-16KiB-eighth-node"
"""The way that differs most from the first; the others are slow."""


def run(directory: Path, transport: str, *flags: str) -> dict[str, Any]:
    done = compare(directory, *JOB, "--transport", transport, *flags)
    assert done.document["job"]["parameters"] == PARAMETERS
    return done.arm()


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the first way: all in RAM, and nowhere else."""
    directory = tmp_path_factory.mktemp("first")
    arm = run(directory, "ipc", *SIXTEEN_KIB, *IN_RAM, "--durability", "none")
    assert arm["disk_bytes"] == {"read": 0, "written": 0}
    return arm["weights_digest"]


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=name, marks=() if name == ALWAYS else pytest.mark.slow)
        for name, way in WAYS.items()
    ],
)
def test_digest_is_one(way: Sequence[str], digest: str, tmp_path: Path) -> None:
    """I3. Goal: the same bits after 20 steps. Method: compare with the first way; what the node
    read from disk shows that the state was where the name of the way says."""
    arm = run(tmp_path, *way)
    read_ratio = arm["disk_bytes"]["read"] / (STEPS * STATE_BYTES)
    if IN_RAM[1] in way:
        assert read_ratio == 0
    else:
        assert read_ratio > 0.85
    assert arm["weights_digest"] == digest
