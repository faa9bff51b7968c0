"""Floors of this machine for `luwu.predict.machine`: each part of a step by itself, in seconds.

    compute     the model, in as many processes at once as there are workers
    copies, sums, links    a process each, as a run has them (machine_parts.py)
    messages, pages    a rehearsal of switch and node with one worker (machine_rehearsal.py)
    hand-overs    between threads (message_floors.py)
    disk        pages past the page cache, as many at once as the plan has (disk_floors.py)

A floor that two jobs share is measured once. No run is started and none is looked at.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final

from luwu.base import loopback
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.limits import MIB
from luwu.launch.processes.allocator import ROLE_TUNABLES, WORKER_TUNABLES
from luwu.measure.disk_floors import DiskFloors, disk_floors
from luwu.measure.floors import core_count
from luwu.measure.machine_rehearsal import RehearsalFloors
from luwu.measure.message_floors import message_floors
from luwu.measure.timing import Samples
from luwu.predict.hardware.software import fitted
from luwu.predict.machine.machine import RECORD, MachineFloors

SMALL_BYTES: Final = 4096
"""Bytes of a message that shows the cost of a link beside its bytes."""
SMALL_COUNT: Final = 200
STREAM_BYTES: Final = 96 * MIB
QUICK: Final = Samples(copy_bytes=32 * MIB, disk_bytes=256 * MIB, seconds=0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAsk:
    """The properties of a job that its floors depend on."""

    layers: int
    width: int
    heads: int
    context: int
    vocab: int
    batch: int
    """Samples of a worker."""
    workers: int
    threads: int
    """Threads of a worker's compute."""
    transport: str
    chunk_bytes: int
    """Bytes of the largest chunk."""
    extent_bytes: int
    """The same of the largest extent."""
    unit_bytes: int
    model_bytes: int
    directory: Path | None
    """The directory of the state; None: in memory."""
    updates_count: int
    reads_count: int
    pages_together: int = 1
    """Pages that one request reads or writes."""
    samples: Samples = QUICK


def machine_floors(
    asked: MachineAsk, rehearsed: Callable[[float, float], RehearsalFloors]
) -> MachineFloors:
    """Measure what a job needs. Raises LuwuError where a part cannot be measured.

    `rehearsed`: what switch and node take, from the seconds of a hand-over, and of a
    byte that passes a link in and out.
    """
    samples = asked.samples
    compute = _compute(
        replace(
            asked, transport="", directory=None, chunk_bytes=0, extent_bytes=0, unit_bytes=0,
            model_bytes=0, updates_count=0, reads_count=0, pages_together=0,
        )
    )  # fmt: skip
    send_s, receive_s = _link(asked.transport, asked.extent_bytes)
    handed_s = _handed(asked.transport, samples)
    messages = rehearsed(handed_s, send_s + receive_s)
    disk: dict[str, float] = {}
    if asked.directory is not None:
        found = _disk(
            asked.directory, asked.chunk_bytes, asked.updates_count, asked.reads_count,
            asked.pages_together, samples,
        )  # fmt: skip
        disk = {
            "write_s_per_byte": 1 / found.write_bytes_per_s,
            "mixed_s_per_byte": 2 / found.mixed_bytes_per_s,
            "pull_s_per_byte": 1 / found.pull_bytes_per_s,
        }
    return MachineFloors(
        cores=core_count(), **compute, end_s=messages.end_s, handed_s=handed_s,
        send_s_per_byte=send_s, receive_s_per_byte=receive_s,
        **_copies(asked.extent_bytes, asked.unit_bytes, asked.model_bytes, samples.seconds),
        sum_s_per_byte=_sums(
            asked.extent_bytes, asked.model_bytes, asked.workers, samples.seconds
        ),
        update_s_per_byte=messages.update_s_per_byte,
        reading_s_per_byte=messages.read_s_per_byte, **disk, crowding=fitted("crowding"),
    )  # fmt: skip


# ---------------------------------------------------------------------- one floor each


@lru_cache
def _compute(asked: MachineAsk) -> dict[str, float]:
    """Compute per worker, while all of them compute."""
    model = {name: getattr(asked, name) for name in ("layers", "width", "heads", "context")}
    document = {
        "model": {**model, "vocab": asked.vocab}, "batch": asked.batch, "threads": asked.threads,
        "seconds": 5 * asked.samples.seconds,
    }  # fmt: skip
    started = [
        _start("compute", document, WORKER_TUNABLES, threads=asked.threads)
        for _ in range(asked.workers)
    ]
    try:
        for each in started:
            _line(each)
        for each in started:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        found = [_result(each) for each in started]
    finally:
        _end(started)
    return {name: sum(each[name] for each in found) / len(found) for name in found[0]}


@lru_cache
def _copies(chunk: int, unit: int, model: int, seconds: float) -> dict[str, float]:
    asked = {"chunk_bytes": chunk, "unit_bytes": unit, "model_bytes": model, "seconds": seconds}
    return _part("copies", asked, WORKER_TUNABLES)


@lru_cache
def _sums(chunk: int, model: int, workers: int, seconds: float) -> float:
    asked = {"chunk_bytes": chunk, "model_bytes": model, "workers": workers, "seconds": seconds}
    return float(_part("sums", asked, ROLE_TUNABLES)["sum_s_per_byte"])


@lru_cache
def _handed(transport: str, samples: Samples) -> float:
    found = message_floors(transport, samples)
    if found is None:
        raise LuwuError(f"a rehearsal over {transport} came to a halt; no message was measured")
    return found.handed_s


@lru_cache
def _disk(
    directory: Path, chunk_bytes: int, updates_count: int, reads_count: int, pages_together: int,
    samples: Samples,
) -> DiskFloors:  # fmt: skip
    found = disk_floors(
        directory, page_bytes=RECORD * chunk_bytes, threads_count=updates_count,
        pulls_count=reads_count, samples=samples, pages_together=pages_together,
    )  # fmt: skip
    if found is None:
        raise ConfigError(f"{directory}: no file of {samples.disk_bytes} bytes can be made there")
    return found


@lru_cache
def _link(transport: str, nbytes: int) -> tuple[float, float]:
    """Seconds by byte of who sends and of who receives, without what a message takes beside."""
    if transport == "shm":
        return 0.0, 0.0
    count = max(8, STREAM_BYTES // nbytes)
    asked: dict[str, Any] = {"sizes": [SMALL_BYTES, nbytes], "counts": [SMALL_COUNT, count]}
    with tempfile.TemporaryDirectory(prefix="luwu-") as folder:
        here = loopback.endpoint() if transport == "tcp" else f"ipc://{folder}/link"
        sender = _start("send", {**asked, "endpoint": here}, ROLE_TUNABLES)
        started = [sender]
        try:
            endpoint = json.loads(_line(sender))
            receiver = _start("receive", {"endpoint": endpoint}, ROLE_TUNABLES)
            started.append(receiver)
            ends = [_result(each)["message_s"] for each in (sender, receiver)]
        finally:
            _end(started)
    send_s, receive_s = (max(0.0, (large - small) / nbytes) for small, large in ends)
    return send_s, receive_s


# ---------------------------------------------------------------------- processes


def _part(name: str, asked: dict[str, Any], tunables: str) -> dict[str, float]:
    process = _start(name, asked, tunables)
    try:
        return _result(process)
    finally:
        _end([process])


def _start(
    name: str, asked: dict[str, Any], tunables: str, threads: int = 1
) -> subprocess.Popen[str]:
    environ = {
        **os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1",
        "GLIBC_TUNABLES": tunables,
    }  # fmt: skip
    command = [sys.executable, "-m", "luwu.measure.machine_parts", name, json.dumps(asked)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    out: IO[str] = process.stdout
    line = out.readline()
    if not line:
        raise LuwuError(
            f"a part of a step could not be measured: {process.args!r} ended with exit code "
            f"{process.wait()}; its output is above"
        )
    return line


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_line(process))
    return found


def _end(started: list[subprocess.Popen[str]]) -> None:
    """Nothing is left, whatever happened."""
    for each in started:
        if each.poll() is None:
            try:
                each.wait(timeout=2)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
        for file in (each.stdin, each.stdout):
            if file is not None:
                file.close()
