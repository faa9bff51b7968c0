"""How much of the machine's best optimizer speed is left when a page is summed, measured and cast?

Metric:   bytes_per_s = (gradients read + 24 bytes of state read and written + weights cast) * elems
          / seconds, on all threads together; `share` is that over the bytes/s of torch's fused
          AdamW alone (28 bytes an element), in the same round, on the same pages and threads.
Ceiling:  `copy_bytes_per_s`, and DeepSpeed's CPUAdam where it is installed.
Left out: sockets, disk, the store; every byte comes from memory: all arrays together are larger
          than the caches, and gradients are reused only every 25 M elements.

Arms: `compiled` and `portable` are the two versions of the update kernel, in place and with the
squares of the norm; `... unmeasured` leaves the squares out, as a step with clipping does, whose
norm is taken when gradients are folded; `... out of place` writes a second copy of each page.
`cpu_share` is the same ratio of processor time: it forgives other work on the machine.
"""

from __future__ import annotations

import importlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness import (
    Row,
    copy_bytes_per_s,
    core_count,
    counts,
    document,
    flags,
    format_count,
    interleave,
    median,
    print_table,
    row,
    say,
    spread,
    timed,
    write,
)
from luwu.base.clock import SYSTEM_CLOCK
from switch_emu.node.kernels import Arrays, Made, Run, UpdateCall, UpdateKernel
from switch_emu.node.kernels.make import make_kernel, portable_kernel
from switch_emu.store import aligned_buffer

PAGE_ELEMS = 1 << 20
GRADIENT_ELEMS = 24 * PAGE_ELEMS
REPEATS_MIN = 5
WORKERS = (1, 4, 8)
BYTES = {"float32": 4, "bfloat16": 2}
FUSED_BYTES = 28
HYPER = {
    "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01, "maximize": False,
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much is worked on."""

    elems: tuple[int, ...]
    page_elems: int
    gradient_elems: int
    copy_bytes: int


REAL = Sizes((25_000_000, 100_000_000), PAGE_ELEMS, GRADIENT_ELEMS, 1 << 28)
SMOKE = Sizes((1 << 17,), 1 << 15, 1 << 16, 1 << 20)


class Memory:
    """State, gradients and room for the results; allocated once, used by all arms."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        elems = max(sizes.elems)
        self.state = [array(elems, value) for value in (0.1, 0.0, 1e-4)]
        self.copies = [array(elems, 0.0) for _ in range(3)]
        self.wire = array(elems, 0.0)
        self.gradients = [array(sizes.gradient_elems, 1e-3) for _ in range(max(WORKERS))]
        self._narrow = [as_bfloat16(gradient) for gradient in self.gradients]

    def contributions(self, workers: int, dtype: str, page: slice) -> list[tuple[memoryview, str]]:
        """Gradients of a page."""
        held = self.gradients if dtype == "float32" else self._narrow
        cut = self.gradient_slice(page)
        return [(values[cut].view(np.uint8).data, dtype) for values in held[:workers]]

    def gradient_slice(self, page: slice) -> slice:
        """Where the gradient of a page lies."""
        start = page.start % self.sizes.gradient_elems
        return slice(start, start + page.stop - page.start)

    def wire_of(self, dtype: str, page: slice) -> memoryview:
        """Where the new weights of a page go."""
        octets = self.wire.view(np.uint8)
        return octets[page.start * BYTES[dtype] : page.stop * BYTES[dtype]].data


def array(elems: int, value: float) -> np.ndarray:
    """float32 on a page boundary, as the node's buffers lie."""
    values = np.frombuffer(aligned_buffer(elems * 4), np.float32)
    values[:] = value
    return values


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves, in memory of their own."""
    narrow = np.frombuffer(aligned_buffer(values.size * 2), np.uint16)
    narrow[:] = values.view(np.uint32) >> 16
    return narrow


@dataclass
class Arm:
    """One way to update all pages, and what a round of it took."""

    name: str
    do: Callable[[slice], object]
    bytes_per_elem: int
    cpu_seconds: list[float]


def update_arm(
    name: str, kernel: UpdateKernel, memory: Memory, workers: int, dtype: str, *,
    measure: bool = True, in_place: bool = True,
) -> Arm:  # fmt: skip
    """An arm with one of our kernels."""

    def do(page: slice) -> None:
        weights, *state = (values[page] for values in memory.state)
        old = new = Arrays(weights, tuple(state))
        if not in_place:
            weights_out, *state_out = (values[page] for values in memory.copies)
            new = Arrays(weights_out, tuple(state_out))
        kernel.update(UpdateCall(
            contributions=memory.contributions(workers, dtype, page),
            old=old, new=new,
            runs=(Run(start=0, stop=weights.size, hyper=HYPER, updates_count=5),),
            divisor=float(workers), scale=1.0, wire=(memory.wire_of(dtype, page), dtype),
            measure=measure,
        ))  # fmt: skip

    return Arm(name, do, workers * BYTES[dtype] + 24 + BYTES[dtype], [])


def fused_arm(memory: Memory) -> Arm:
    """torch's fused AdamW alone: what there is to reach."""
    weights, m, v = (torch.from_numpy(values) for values in memory.state)
    grad = torch.from_numpy(memory.gradients[0])
    step = torch.tensor(6.0)

    def do(page: slice) -> None:
        torch._fused_adamw_(
            [weights[page]], [grad[memory.gradient_slice(page)]], [m[page]], [v[page]], [], [step],
            lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.01, eps=1e-8, amsgrad=False,
            maximize=False,
        )  # fmt: skip

    return Arm("torch fused AdamW", do, FUSED_BYTES, [])


def deepspeed_arm(memory: Memory) -> Arm | None:
    """DeepSpeed's CPUAdam alone, if it is installed."""
    try:
        adam = importlib.import_module("deepspeed.ops.adam")
    except Exception:  # not installed, or it does not load here
        return None
    optimizer = adam.DeepSpeedCPUAdam(
        [torch.nn.Parameter(torch.zeros(1))], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01
    )
    weights, m, v = (torch.from_numpy(values) for values in memory.state)
    grad = torch.from_numpy(memory.gradients[0])

    def do(page: slice) -> None:
        optimizer.ds_opt_adam.adam_update(
            optimizer.opt_id, 6, 1e-3, 0.9, 0.95, 1e-8, 0.01, True, weights[page],
            grad[memory.gradient_slice(page)], m[page], v[page],
        )  # fmt: skip

    return Arm("DeepSpeed CPUAdam", do, FUSED_BYTES, [])


def run_pages(arm: Arm, pages: Sequence[slice], threads: int) -> float:
    """Seconds of one round: each thread takes its part of the pages, one torch thread each."""
    start, end = threading.Barrier(threads + 1), threading.Barrier(threads + 1)
    cpu_seconds: list[float] = []

    def work(mine: Sequence[slice]) -> None:
        torch.set_num_threads(1)
        start.wait()
        before = time.thread_time()
        for page in mine:
            arm.do(page)
        cpu_seconds.append(time.thread_time() - before)
        end.wait()

    bounds = [len(pages) * number // threads for number in range(threads + 1)]
    pool = [
        threading.Thread(target=work, args=(pages[low:high],), daemon=True)
        for low, high in itertools.pairwise(bounds)
    ]
    for thread in pool:
        thread.start()
    start.wait()
    seconds = timed(end.wait)
    for thread in pool:
        thread.join()
    arm.cpu_seconds.append(sum(cpu_seconds))
    return seconds


def check_answer(kernel: UpdateKernel, workers: int, dtype: str) -> None:
    """Compare one page with plain torch, bit for bit: a whole tensor, `torch.optim.AdamW`."""
    rng = np.random.default_rng(workers)
    elems = 3 * 4096 + 64
    narrow = torch.float32 if dtype == "float32" else torch.bfloat16
    gradients = [torch.from_numpy(rng.standard_normal(elems, np.float32)) for _ in range(workers)]
    gradients = [gradient.to(narrow) for gradient in gradients]
    weights = rng.standard_normal(elems, np.float32)
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    total = gradients[0].float()
    for gradient in gradients[1:]:
        total = total + gradient.float()
    parameter.grad = total / workers
    torch.optim.AdamW(
        [parameter], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01, fused=True
    ).step()
    state = (np.zeros(elems, np.float32), np.zeros(elems, np.float32))
    arrays = Arrays(weights, state)
    wire = np.empty(elems * BYTES[dtype], np.uint8)
    squares = kernel.update(UpdateCall(
        contributions=[
            (gradient.view(torch.uint8).numpy().data, dtype) for gradient in gradients
        ],
        old=arrays, new=arrays,
        runs=(Run(start=0, stop=elems, hyper=HYPER),), divisor=float(workers), scale=1.0,
        wire=(wire.data, dtype), measure=True,
    ))  # fmt: skip
    expected = parameter.detach()
    np.testing.assert_array_equal(weights.view(np.uint32), expected.view(torch.uint32).numpy())
    np.testing.assert_array_equal(wire, expected.to(narrow).view(torch.uint8).numpy())
    np.testing.assert_allclose(sum(squares), float(total.double().square().sum()), rtol=1e-12)


def bench(
    memory: Memory, kernels: dict[str, UpdateKernel], repeats: int, deadline_ns: int | None
) -> list[Row]:
    """All cases; those that do not begin before the deadline are left out, and said so."""
    rows: list[Row] = []
    threads = core_count()
    for elems in memory.sizes.elems:
        size = memory.sizes.page_elems
        pages = [slice(at, min(at + size, elems)) for at in range(0, elems // 64 * 64, size)]
        pages[-1] = slice(pages[-1].start, elems // 64 * 64)
        for dtype in BYTES:
            for workers in WORKERS:
                if deadline_ns is not None and SYSTEM_CLOCK.now_ns() > deadline_ns:
                    say(f"left out for lack of time: {format_count(elems)} {dtype} {workers}")
                    continue
                rows += bench_case(memory, kernels, workers, dtype, pages, threads, repeats)
    return rows


def bench_case(
    memory: Memory, kernels: dict[str, UpdateKernel], workers: int, dtype: str,
    pages: Sequence[slice], threads: int, repeats: int,
) -> list[Row]:  # fmt: skip
    """All arms of one number of workers and dtype, in turn."""
    fused = fused_arm(memory)
    arms = [fused]
    for name, kernel in kernels.items():
        check_answer(kernel, workers, dtype)
        arms += [
            update_arm(name, kernel, memory, workers, dtype),
            update_arm(f"{name} unmeasured", kernel, memory, workers, dtype, measure=False),
            update_arm(f"{name} out of place", kernel, memory, workers, dtype, in_place=False),
        ]
    peer = deepspeed_arm(memory)
    if peer is not None:
        arms.append(peer)
    for arm in arms:  # touch everything once
        run_pages(arm, pages[: threads * 2], threads)
        arm.cpu_seconds.clear()
    calls = {arm.name: (lambda arm=arm: run_pages(arm, pages, threads)) for arm in arms}
    seconds = interleave(calls, max(repeats, REPEATS_MIN))
    elems = pages[-1].stop
    rows = []
    for arm in arms:
        per_byte = arm.bytes_per_elem / fused.bytes_per_elem
        rows.append(
            row(
                f"{format_count(elems)} elements",
                arm.name,
                seconds[arm.name],
                nbytes=arm.bytes_per_elem * elems,
                workers=workers,
                dtype=dtype,
                share=per_byte * ratio(seconds[fused.name], seconds[arm.name]),
                cpu_share=per_byte * ratio(fused.cpu_seconds, arm.cpu_seconds),
            )
        )
    return rows


def ratio(floor: Sequence[float], seconds: Sequence[float]) -> float:
    """Median over rounds of floor / seconds."""
    return median([one / other for one, other in zip(floor, seconds, strict=True)])


def claims_of(rows: Sequence[Row]) -> dict[str, float | None]:
    """The worst share of each version and dtype; None if nothing was measured."""

    def worst(arm: str, dtype: str, column: str) -> float | None:
        found = [one[column] for one in rows if (one["arm"], one["dtype"]) == (arm, dtype)]
        return round(min(found), 3) if found else None

    claims = {}
    for arm in ("compiled", "portable", "compiled unmeasured", "portable unmeasured"):
        for dtype in BYTES:
            name = f"{arm.replace(' ', '_')}_{dtype}"
            claims[f"{name}_min"] = worst(arm, dtype, "share")
            claims[f"{name}_cpu_min"] = worst(arm, dtype, "cpu_share")
    return claims


def show(rows: Sequence[Row], made: Made, copy_rate: float) -> None:
    """The table for people."""
    say(f"compiled kernel: {made.reason}")
    say(f"copy, {core_count()} threads: {copy_rate / 1e9:.1f} GB/s")
    print_table(
        ("case", "dtype", "workers", "arm", "GB/s", "share", "cpu share", "spread"),
        [
            (
                one["case"], one["dtype"], one["workers"], one["arm"],
                f"{one['bytes_per_s'] / 1e9:.1f}", f"{one['share']:.2f}",
                f"{one['cpu_share']:.2f}", f"{one['seconds_spread']:.2f}",
            )
            for one in rows
        ],
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the benchmark."""
    parser = flags("update", __doc__ or "")
    parser.add_argument("--seconds-max", type=float, help="begin no case after this many seconds")
    parser.add_argument("--elems", type=counts, help="sizes instead of 25M,100M")
    arguments = parser.parse_args(words)
    start_ns = SYSTEM_CLOCK.now_ns()
    sizes = SMOKE if arguments.smoke else REAL
    if arguments.elems:
        sizes = Sizes(tuple(arguments.elems), PAGE_ELEMS, GRADIENT_ELEMS, REAL.copy_bytes)
    made = make_kernel("adamw", ("m", "v"), cache=None)
    portable = portable_kernel("adamw", ("m", "v"))
    kernels = {made.kernel.version: made.kernel, "portable": portable}
    before = copy_bytes_per_s(core_count(), sizes.copy_bytes)
    limit = arguments.seconds_max
    deadline_ns = None if limit is None else start_ns + int(limit * 1e9)
    rows = bench(Memory(sizes), kernels, arguments.repeats or REPEATS_MIN, deadline_ns)
    copies = [before, copy_bytes_per_s(core_count(), sizes.copy_bytes)]
    show(rows, made, median(copies))
    result = document(
        "update", rows, claims_of(rows), copy_bytes_per_s=median(copies),
        copy_spread=spread(copies), kernel=made.reason,
    )  # fmt: skip
    write(arguments.json, result)
    return result


if __name__ == "__main__":
    main()
