"""Floods of a real switch and a real node: the memory of their processes is bounded, and the run
ends with the weights of plain torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from luwu.base.keys import read_secret
from luwu.join.connection import read_connection
from luwu.testing.cluster import Cluster
from luwu.transport.curve import Security
from luwu.transport.interface import Delivery, Transport
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.messages import Role
from tests.helpers.key_directories import make_keys
from tests.intruders.floods import LINES_MAX, NAMES
from tests.jobs.test_floods import connected, send
from tests.kill import finish, start, wait_for_step
from tests.processes.jobs import Outside, light_digest

MIB = 1024 * 1024
STEPS = 25
BOUND_BYTES = 64 * MIB
"""What one connection's messages of up to 64 KiB may take."""
ALLOWANCE_BYTES = 24 * MIB
"""What a process grows by beside: answers under way, and training itself."""
FLOODS = {4 * 1024: 30_000, 64 * 1024: 3_000}
"""Bytes of a message -> how many: much more than the bound in all."""


def status_bytes(pid: int, name: str) -> int:
    """A line of /proc/PID/status that is in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(found) * 1024


def flood(stranger: Transport, stamp: dict[str, Any], nbytes: int, count: int) -> None:
    """Send so many pushes; return when the last message after them is answered."""
    push = encode(
        wire.Push(**stamp, role=Role.WORKER, index=0, part=0, contributors=1, absent=0,
                  weight=1.0, last=True, raw=False, dtype="float32")
    )  # fmt: skip
    payload = bytes(nbytes)
    for _ in range(count):
        assert send(stranger, push, [payload])
    assert send(stranger, encode(wire.Shut(**stamp, role=Role.READER, reader=nbytes)))
    while True:
        heard = stranger.receive(60 * 10**9)
        assert isinstance(heard, Delivery), f"the flood was not read to its end: {heard}"
        answer = decode(heard.header, len(heard.buffers))
        if isinstance(answer, wire.Gone):
            assert answer.reader == nbytes
            return


@pytest.mark.feature("intruders and floods of every message while a job trains")
@pytest.mark.parametrize(
    ("role", "with_keys"),
    [
        pytest.param("switch", True, id="switch"),
        pytest.param("node", False, id="node", marks=pytest.mark.slow),
    ],
)
def test_one_connection_takes_so_much_memory(role: str, with_keys: bool, tmp_path: Path) -> None:
    """I5, I6. Goal: what a flood makes a process hold is bounded, the log grows by few lines, and
    the run ends with code 0 and the digest of plain torch."""
    keys = make_keys(tmp_path / "keys", NAMES) if with_keys else None
    outside = Outside(tmp_path / "outside")
    flags = ["--keys", str(keys)] if with_keys else []
    flags += ["--no-switch"] if role == "node" else []
    gate = tmp_path / "gate"
    script = ("-m", "tests.light_job", "--steps", str(STEPS), "--compute-ms", "100")
    with start(
        tmp_path, "run", steps=STEPS, restarts=0, outside=outside, transport="tcp",
        more_flags=flags, script=(*script, "--gate", str(gate)),
    ) as cluster:  # fmt: skip
        wait_for_step(cluster, 2)
        grown = [grown_bytes(cluster, role, keys, *each) for each in FLOODS.items()]
        gate.touch()
        log = cluster.run_directory.log(role)
        digest = finish(cluster, outside)
    print(f"{role}: grown by {[f'{each / MIB:.1f} MiB' for each in grown]}")
    assert max(grown) <= BOUND_BYTES + ALLOWANCE_BYTES, [each / MIB for each in grown]
    assert len(log.read_text().splitlines()) <= LINES_MAX + 2 * STEPS
    assert digest == light_digest(STEPS)


def grown_bytes(cluster: Cluster, role: str, keys: Path | None, nbytes: int, count: int) -> int:
    """By how much a process grows at most while it is flooded."""
    found = read_connection(cluster.run_directory.connect_file)
    assert found is not None
    endpoint = found.node if found.switch is None else found.switch
    (pid,) = (each.pid for each in cluster.processes() if each.role == role)
    stamp = {
        "job": found.job, "epoch": 0, "step": 1, "attempt": 0, "rank": 0, "incarnation": 1,
        "generation": 1,
    }  # fmt: skip
    security = None if keys is None else Security(own=read_secret(keys, "spare"))
    with connected(endpoint, security) as stranger:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the mark of memory begins anew
        before_bytes = status_bytes(pid, "VmRSS")
        flood(stranger, stamp, nbytes, count)
        return status_bytes(pid, "VmHWM") - before_bytes
