"""How long does it take to exchange a whole model, without compute: push, sum, update, pull?

Metric:   seconds from the first push of any worker until the last one can read all new weights;
          every worker starts at one instant of the one clock. bytes_per_s counts the payload that
          leaves or reaches a worker, over all workers.
Floors:   memory-floor: the bytes that must cross memory (`exchange_model.floor_bytes`) at the speed
          of a plain copy by a thread a core, measured between the arms. hub-*: the no-switch star
          over plain ZeroMQ without arithmetic; page-update: all the arithmetic, alone.
Checked:  after the last step rank 0's weights are those of torch's fused AdamW on the mean
          gradient, bit for bit (within a stated bound for gloo), and all workers have the same.
Left out: compute, disk (durability none: the state is in RAM), and one reading of all weights by
          every worker, which is timed apart (`read_seconds_median`).

    luwu-shm luwu-ipc luwu-tcp     node, and switch unless --no-switch, as `luwu up` starts them
    fsdp-gloo ddp-gloo             what FSDP2 and DDP do between two steps (gloo.py)
    hub-ipc hub-tcp                ceiling of a star; raw-zmq-pair-ipc, -tcp: of one connection
    page-update memory-floor       sum and AdamW alone; bytes over copy speed

    python -m benchmarks.exchange --params 25M --workers 4 --dtype float32 --arms luwu-ipc,hub-ipc
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from benchmarks import harness
from benchmarks.exchange_arms import (
    Arm,
    Candidate,
    CopyArm,
    gloo_arm,
    hub_arm,
    luwu_arm,
    update_arm,
)
from benchmarks.exchange_claims import MEANINGS, claims
from benchmarks.exchange_luwu import missing
from benchmarks.exchange_model import Job, floor_bytes
from benchmarks.harness import Row, format_count, say
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.machine_memory import free_memory_bytes

TRANSPORTS = ("shm", "ipc", "tcp")
ARMS = (
    *(f"luwu-{transport}" for transport in TRANSPORTS),
    "fsdp-gloo", "ddp-gloo", "hub-ipc", "hub-tcp", "raw-zmq-pair-ipc", "raw-zmq-pair-tcp",
    "page-update", "memory-floor",
)  # fmt: skip
WARM_UPS = 2
STEPS = 5
"""Measured in each turn of an arm."""


def candidates(
    job: Job, names: list[str], chunk_bytes: int | None, copied_bytes: int
) -> Iterator[Candidate]:
    """The arms of one case that can be measured here."""
    ways = 2 * job.payload_bytes * job.workers
    state = 12 * job.elems
    for name in names:
        kind, _, transport = name.rpartition("-")
        if kind == "luwu":
            why = missing(transport)
            if why is not None:
                say(f"skipped {name}: {why}")
                continue
            for switch in (True, False):
                yield Candidate(
                    name=name, switch=switch, workers=job.workers, nbytes=ways, has_read=True,
                    open=partial(luwu_arm, job, transport, switch, chunk_bytes),
                    memory_bytes=3 * state + ways * 2,
                )  # fmt: skip
        elif transport == "gloo":
            each = state + 12 * job.elems if kind == "ddp" else state
            yield Candidate(
                name=name, workers=job.workers, nbytes=ways, has_read=True,
                open=partial(gloo_arm, job, kind), memory_bytes=ways + each * job.workers,
            )  # fmt: skip
        elif kind in ("hub", "raw-zmq-pair"):
            star = job if kind == "hub" else Job(params=job.params, workers=1, dtype=job.dtype)
            yield Candidate(
                name=name, workers=star.workers, nbytes=2 * job.payload_bytes * star.workers,
                open=partial(hub_arm, star, transport), memory_bytes=3 * ways,
            )  # fmt: skip
        elif name == "page-update":
            yield Candidate(
                name=name, workers=job.workers, nbytes=ways, open=partial(update_arm, job),
                memory_bytes=ways + 2 * state,
            )  # fmt: skip
        else:
            floor = floor_bytes(job)
            yield Candidate(
                name=name, workers=job.workers, nbytes=floor,
                open=partial(CopyArm, floor, copied_bytes), memory_bytes=0,
            )  # fmt: skip


class Runner:
    """One arm over all its turns: kept open between them, or started anew for each."""

    def __init__(self, candidate: Candidate, steps: int, *, is_kept: bool) -> None:
        self.candidate = candidate
        self.reads: list[float] = []
        self.equal: str | None = None
        self._steps, self._is_kept = steps, is_kept
        self._arm: Arm | CopyArm | None = None

    def turn(self) -> list[float]:
        """Seconds of a few exchanges."""
        is_new = self._arm is None
        arm = self._arm = self._arm or self.candidate.open()
        if isinstance(arm, CopyArm):
            return [arm.step()]
        for _ in range(WARM_UPS if is_new else 1):
            arm.step()
        seconds = [arm.step() for _ in range(self._steps)]
        if self.candidate.has_read:
            self.reads.append(arm.read())
        if not self._is_kept:
            self.finish()
        return seconds

    def finish(self) -> None:
        """Check the answer and part in peace."""
        arm = self._arm
        if isinstance(arm, Arm):
            self.equal = arm.check()
            arm.leave()
        self.close()

    def close(self) -> None:
        """End the processes."""
        if self._arm is not None:
            self._arm.close()
            self._arm = None


def measure(job: Job, found: list[Candidate], *, repeats: int, steps: int) -> list[Row]:
    """All arms of one case, in turns."""
    needed, free = sum(each.memory_bytes for each in found), free_memory_bytes()
    is_kept = needed < free // 2
    if not is_kept:
        say("the arms do not fit into memory together: each is started anew for each of its turns")
    runners = {
        f"{each.name}{'' if each.switch is not False else ' --no-switch'}": Runner(
            each, steps, is_kept=is_kept
        )
        for each in found
    }
    try:
        seconds = harness.interleave({n: r.turn for n, r in runners.items()}, repeats)
        for runner in runners.values():
            runner.finish()
    finally:
        for runner in runners.values():
            runner.close()
    rows = []
    for name, runner in runners.items():
        each = runner.candidate
        more: dict[str, Any] = {"params": job.params, "weights_equal": runner.equal}
        if runner.reads:
            more["read_seconds_median"] = harness.median(runner.reads)
        if each.name == "memory-floor":
            more["copy_bytes_per_s"] = each.nbytes / harness.median(seconds[name])
        rows.append(
            harness.row(
                format_count(job.params), each.name, seconds[name], nbytes=each.nbytes,
                workers=each.workers, dtype=job.dtype, switch=each.switch,
                job_workers=job.workers, **more,
            )
        )  # fmt: skip
    return rows


def main() -> int:
    """Run the cases the flags ask for."""
    arguments = _parser().parse_args()
    try:
        return _run(arguments)
    except LuwuError as error:
        say(f"exchange: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        say("exchange: interrupted")
        return 130


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    params = arguments.params or ([200_000] if smoke else [25_000_000, 100_000_000])
    workers = arguments.workers or ([2] if smoke else [2, 4, 8])
    dtypes = arguments.dtype or (["float32"] if smoke else ["float32", "bfloat16"])
    repeats = arguments.repeats or (1 if smoke else 3)
    unknown = [name for name in arguments.arms if name not in ARMS]
    if unknown:
        raise ConfigError(f"--arms: {', '.join(unknown)} unknown; there are {', '.join(ARMS)}")
    copied_bytes = 2**20 if smoke else harness.COPY_BYTES
    say("durability none: the node keeps its state in RAM, and a decided step survives nothing")
    rows: list[Row] = []
    for count, dtype, world_size in product(params, dtypes, workers):
        job = Job(params=count, workers=world_size, dtype=dtype)
        say(f"\n{format_count(count)} parameters, {world_size} workers, {dtype}")
        found = list(candidates(job, arguments.arms, arguments.chunk, copied_bytes))
        new = measure(job, found, repeats=repeats, steps=1 if smoke else STEPS)
        rows += new
        _show(new)
    result = harness.document(
        "exchange", rows, claims(rows), claims_meaning=MEANINGS, durability="none", smoke=smoke,
        chunk_bytes=arguments.chunk,
    )  # fmt: skip
    with contextlib.suppress(BrokenPipeError):
        harness.write(arguments.json, result)
    return 0


def _show(rows: list[Row]) -> None:
    lines = []
    for each in rows:
        name = each["arm"] + (" --no-switch" if each["switch"] is False else "")
        read = each.get("read_seconds_median")
        lines.append(
            (
                name,
                f"{each['seconds_median'] * 1e3:.1f}",
                f"{each['seconds_min'] * 1e3:.1f}",
                f"{each['seconds_spread']:.0%}",
                f"{each['bytes_per_s'] / 1e9:.2f}",
                "-" if read is None else f"{read * 1e3:.1f}",
                each["weights_equal"] or "-",
            )
        )
    harness.print_table(("arm", "ms", "min", "spread", "GB/s", "read ms", "weights"), lines)


def _parser() -> argparse.ArgumentParser:
    parser = harness.flags("exchange", __doc__ or "")
    parser.add_argument("--params", type=harness.counts, metavar="N,M", help="25M,100M")
    parser.add_argument("--workers", type=harness.counts, metavar="N,M", help="2,4,8")
    parser.add_argument("--dtype", type=harness.comma_list, metavar="A,B", help="float32,bfloat16")
    parser.add_argument(
        "--arms", type=harness.comma_list, default=list(ARMS), metavar="A,B", help=", ".join(ARMS)
    )
    parser.add_argument("--chunk", type=harness.size, metavar="SIZE", help="of LuWu; luwu's own")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
