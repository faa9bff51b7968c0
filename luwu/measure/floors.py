"""Floors of this machine, measured within a few seconds before a run.

    copy      bytes read plus written by a copy between two arrays, all cores
    disk      read, overwrite, and both at once, past the page cache where that can be, in pages of
              the plan and with as many requests in flight, where the state will be
    flush     of one written block
    update    parameters a second of the update kernel, on pages in memory
    matmul    of float32 or bfloat16 matrices, all cores
    compute   of the built-in GPT, if its blocks are small (`gpt_floor.py`)
    socket    one pair, for what goes through sockets

A floor is no promise: other work on the machine makes everything slower, and what is measured for
a tenth of a second may be off by a factor of two on a shared one. Files are temporary and removed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from luwu.base import loopback
from luwu.base.limits import CHUNK_BYTES_STEP, MIB
from luwu.layout import ALL_FLOAT32, SUM_BYTES, Layout, Parameter, StoredForm, Unit
from luwu.measure.disk_floors import DiskFloors, disk_floors
from luwu.measure.timing import Samples, repeated, run_all
from luwu.wire.description import Description

SOCKET_FRAME_BYTES: Final = 4 * MIB
MATMUL_SIZE: Final = 768


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """The measured floors; None for what was not measured."""

    cores_count: int
    copy_bytes_per_s: float | None = None
    disk: DiskFloors | None = None
    update_parameters_per_s: float | None = None
    update_kernel: str = ""
    """`compiled` or `portable`."""
    matmul_flops_per_s: float | None = None
    compute_s: float | None = None
    """Compute per step of all workers, where the model itself was measured."""
    socket_bytes_per_s: float | None = None
    device: str = "cpu"
    """The device of workers; the rate of a GPU is not measured, a run needs all of it."""

    def document(self) -> dict[str, Any]:
        """For `floors.json` and results."""
        return {"label": "measured", **asdict(self)}


@lru_cache(maxsize=16)
def measure_floors(
    *, directory: Path | None, page_bytes: int, page_elems: int, threads_count: int,
    pulls_count: int, workers_count: int, dtype: str, transport: str, samples: Samples,
    pages_together: int = 1, stored: StoredForm = ALL_FLOAT32,  # more than ten: of each floor
) -> Floors:  # fmt: skip
    """Measure all that a job needs; `directory` None: its state stays in RAM."""
    import torch

    is_on_gpu = torch.cuda.is_available()
    update_per_s, kernel = update_rate(
        page_elems, workers_count, threads_count, samples, stored
    )  # fmt: skip
    sockets = {"tcp": tcp_pair, "ipc": socket.socketpair}
    return Floors(
        cores_count=core_count(),
        copy_bytes_per_s=copy_rate(core_count(), samples),
        disk=None if directory is None else disk_floors(
            directory, page_bytes=page_bytes, threads_count=threads_count,
            pulls_count=pulls_count, samples=samples, pages_together=pages_together,
        ),
        update_parameters_per_s=update_per_s,
        update_kernel=kernel,
        matmul_flops_per_s=None if is_on_gpu else matmul_rate(dtype, samples),
        socket_bytes_per_s=socket_rate(sockets[transport], samples)
        if transport in sockets else None,
        device="cuda" if is_on_gpu else "cpu",
    )  # fmt: skip


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


# ---------------------------------------------------------------------- one floor each


def copy_rate(threads_count: int, samples: Samples) -> float:
    """Bytes a second, read plus written, of copies by so many threads."""
    source = np.ones(samples.copy_bytes, np.uint8)
    target = np.zeros(samples.copy_bytes, np.uint8)
    edges = [samples.copy_bytes * index // threads_count for index in range(threads_count + 1)]

    def copy(edge: tuple[int, int]) -> None:
        np.copyto(target[slice(*edge)], source[slice(*edge)])

    with ThreadPoolExecutor(threads_count) as pool:
        seconds = repeated(lambda: run_all(pool, copy, list(pairwise(edges))), samples.seconds)
    return 2 * samples.copy_bytes / seconds


def update_rate(
    page_elems: int, workers_count: int, threads_count: int, samples: Samples,
    stored: StoredForm = ALL_FLOAT32,
) -> tuple[float, str]:  # fmt: skip
    """(parameters a second, version) of the AdamW kernel: a sum and an update, in memory."""
    from switch_emu.node.kernels import Run, UpdateCall
    from switch_emu.node.kernels.make import make_kernel
    from switch_emu.node.kernels.narrow import Draw
    from switch_emu.node.pages import store_config
    from switch_emu.node.scratch import record_views
    from switch_emu.store.views import one_record

    fields = ("m", "v")
    kernel = make_kernel("adamw", fields, cache=None).kernel
    hyper = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01,
             "maximize": False}  # fmt: skip
    gradient = np.full(page_elems, 1e-3, np.float32).view(np.uint8).data
    threads_count = min(threads_count, core_count())
    pages = max(1, samples.copy_bytes // 16 // (12 * page_elems) // threads_count)
    parameter = Parameter(
        name="p", shape=(page_elems,), state_dtype=stored.state, master_dtype=stored.master
    )
    chunk_bytes = -(-SUM_BYTES * page_elems // CHUNK_BYTES_STEP) * CHUNK_BYTES_STEP
    layout = Layout(
        parameters=(parameter,), units=(Unit(name="p", parameters=(0,)),), chunk_bytes=chunk_bytes
    )
    config = store_config(Description(layout=layout, optimizer="adamw", state_fields=fields))
    kind = config.kinds[0]
    rows = [
        [
            record_views(kind, one_record(memoryview(bytearray(kind.record_bytes))), fields)
            for _ in range(pages)
        ]
        for _ in range(threads_count)
    ]
    wires = [np.zeros(page_elems, np.float32) for _ in range(threads_count)]
    run = Run(start=0, stop=page_elems, hyper=hyper, draw=Draw(0, 0))

    def update(thread: int) -> None:
        for page in rows[thread]:
            kernel.update(UpdateCall(
                contributions=[(gradient, "float32")] * workers_count,
                weights=page.weights, state=page.state, scales=page.scales,
                weights_out=page.weights, state_out=page.state, scales_out=page.scales,
                runs=[run], divisor=float(workers_count), scale=1.0,
                wire=(wires[thread].view(np.uint8).data, "float32"), measure=True,
            ))  # fmt: skip

    with ThreadPoolExecutor(threads_count) as pool:
        seconds = repeated(lambda: run_all(pool, update, range(threads_count)), samples.seconds)
    return threads_count * pages * page_elems / seconds, kernel.version


def matmul_rate(dtype: str, samples: Samples) -> float:
    """Operations a second, an addition and a multiplication being two, of torch on all cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(core_count())
    try:
        left = torch.ones(MATMUL_SIZE, MATMUL_SIZE, dtype=getattr(torch, dtype))
        out = torch.empty_like(left)
        seconds = repeated(lambda: torch.mm(left, left, out=out), samples.seconds)
    finally:
        torch.set_num_threads(before)
    return 2 * MATMUL_SIZE**3 / seconds


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection over loopback."""
    with loopback.listen() as server:
        near = socket.create_connection(server.getsockname()[:2])
        far, _ = server.accept()
    return near, far


def socket_rate(pair: Callable[[], tuple[socket.socket, socket.socket]], samples: Samples) -> float:
    """Bytes a second through a pair of sockets; ZeroMQ is a little slower."""
    frame = bytes(SOCKET_FRAME_BYTES)
    into = bytearray(SOCKET_FRAME_BYTES)
    near, far = pair()

    def send_and_receive() -> None:
        sending = pool.submit(near.sendall, frame)
        left = memoryview(into)
        while left:
            left = left[far.recv_into(left) :]
        sending.result()

    with near, far, ThreadPoolExecutor(1) as pool:
        return SOCKET_FRAME_BYTES / repeated(send_and_receive, samples.seconds)
