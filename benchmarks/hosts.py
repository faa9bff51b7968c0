"""Every arm over the same shaped network: what a step takes, and what its links allow.

Metric:   seconds of a step of `workers/train.py` by LuWu, FSDP2 and DDP on network namespaces in a
          star, one worker or more on each, the optimizer node on one more and the switch in the
          centre; LuWu with a switch on each host (`luwu up --hosts`): the median over steps,
          without the first ones. Bytes of the same steps on each link and direction, by the
          kernel's count, and the share of their time in which the busiest was busy with them.
Bound:    the largest of compute alone and of bytes / rate over links and directions, of the same
          run. Hidden: how much of the smaller of the two lay behind the larger.
Host:     the same run on links without a rate. Where that alone takes more than half of the bound,
          processors and links wait for each other on this machine, and the point is marked `cpu`.
Cases:    0.1 and 1 Gbit/s; float32 and bfloat16 on the wire; weights freed after forward or not
          (DDP, which never frees them, once for both).

Needs rights to make network namespaces. Links are emulated by the kernel (tbf), the rest is real.
A point where compute alone is the larger bound says so: there the network decides nothing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, say
from benchmarks.hosts_plot import plot
from benchmarks.namespaces import CENTRE, INTERFACE, Hosts, NoNamespaces, hosts
from benchmarks.training import COMPUTE_ONLY, WARM_UPS, Training, TrainingRuns, temporary_directory
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError, LuwuError
from luwu.base.json_file import read_json
from luwu.base.quantities import parse_bytes_per_s
from luwu.base.tree import ranges_text
from luwu.compare.arm import script_arguments
from luwu.compare.comparison import job_step_seconds

ARMS = ("luwu", "fsdp", "ddp")
LUWU = (sys.executable, "-m", "luwu")
HOSTS_COUNT = 4
REAL = Training(layers=4, width=256, context=32, batch=1, workers=HOSTS_COUNT, steps=13)
"""3.4 M parameters: 13.7 MB of float32, 1.1 s on a link of 0.1 Gbit/s."""
SMOKE_HOSTS_COUNT = 2
SMOKE = Training(layers=2, width=64, context=16, batch=1, workers=SMOKE_HOSTS_COUNT, steps=5)
MEANINGS = {
    "luwu_over_bound_max": "time of luwu / its own bound, both over the steps whose bytes were "
    "counted, the worst of the cases that are not marked cpu; less is better",
    "luwu_over_bound_max_all": "the same over all cases",
    "fsdp_over_luwu_min": "time of fsdp / time of luwu, the worst case; more is better",
    "ddp_wins": "cases in which ddp is faster than luwu",
    "bound_by_compute": "cases and arms whose larger bound is compute alone",
    "marked_cpu": "cases and arms that take more than half of their bound on links without a rate",
}
CHUNKS = {"10mbit": "64KiB", "25mbit": "64KiB", "100mbit": "128KiB", "1gbit": "1MiB"}
"""As `luwu` chooses them for links of these rates, which it does not know of here."""
LIMIT_S = 600.0
"""A run takes no longer."""
COUNT_S = 0.02
"""Seconds between two counts of bytes."""
HOST_SHARE_MAX = 0.5
"""Of the bound; above it a point is marked `cpu`."""


@dataclass(frozen=True, slots=True)
class Case:
    """One network and one way to train."""

    rate: str
    dtype: str
    reshard: bool

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.rate} {self.dtype}, {'freed' if self.reshard else 'kept'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRun:
    """The outcome of a run on hosts."""

    step_seconds: list[float]
    """Seconds of each step that counts."""
    link_bytes: dict[str, float]
    """Bytes that each link carried in such a step, by its name and direction; without the last."""
    link_seconds: float
    """Seconds of a step while they were counted."""
    weights_digest: str | None


class HostRuns:
    """Runs of commands as a user types them, each on its host."""

    def __init__(self, runs: TrainingRuns, job: Training, hosts_count: int) -> None:
        self._runs, self._job, self._hosts_count = runs, job, hosts_count
        self._count = 0

    def run(self, arm: str, case: Case, rate: str | None) -> HostRun:
        """Train by an arm on links of a rate. Raises LuwuError, NoNamespaces."""
        self._count += 1
        folder = self._runs.directory / f"hosts-{self._count}"
        folder.mkdir()
        workers, hosts_count = self._job.workers, self._hosts_count
        with ExitStack() as stack:
            rate_bytes = None if rate is None else parse_bytes_per_s(rate)
            network = stack.enter_context(hosts(hosts_count + 1, rate_bytes))
            started = stack.enter_context(Commands(folder, workers))
            if arm == "luwu":
                self._serve(started, network, case)
            carried = stack.enter_context(Carried(network))
            for index in range(hosts_count):
                command = self._workers(arm, case, network, index, folder)
                started.start([*network.host(index), *command], f"host-{index}")
            started.wait()
        names = [*(f"host-{index}" for index in range(hosts_count)), "node"]
        records = [read_json(folder / f"result.rank{rank}.json") or {} for rank in range(workers)]
        node = read_json(folder / "up" / "results" / "node.json") or {}
        ended_ns = [max(each) for each in zip(*(r["step_ended_ns"] for r in records), strict=True)]
        # Workers are ahead of their links, but for the last step.
        from_ns, to_ns = ended_ns[WARM_UPS - 1], ended_ns[-2]
        count = len(ended_ns) - WARM_UPS - 1
        return HostRun(
            step_seconds=job_step_seconds(records)[WARM_UPS:],
            link_bytes={
                f"{name} {way}": carried.between(from_ns, to_ns, index, way) / count
                for index, name in enumerate(names)
                for way in ("up", "down")
            },
            link_seconds=(to_ns - from_ns) / 1e9 / count,
            weights_digest=node.get("weights_digest") or records[0]["weights_digest"],
        )

    def _serve(self, started: Commands, network: Hosts, case: Case) -> None:
        """The node on a host of its own, and the switch in the centre."""
        hosts_count = self._hosts_count
        node = [
            "--role", "node", "--workers", str(self._job.workers), "--hosts", str(hosts_count),
            "--on-worker-loss", "wait", "--durability", "none",
            "--chunk", CHUNKS.get(case.rate, "1MiB"),
            "--reshard-after-forward", str(case.reshard).lower(),
        ]  # fmt: skip
        for flags, where, address in (
            (node, network.host(hosts_count), network.address(hosts_count)),
            (["--role", "switch", "--on-worker-loss", "wait"], network.centre, CENTRE),
        ):
            common = ["--run-dir", "up", "--bind", f"tcp://{address}:0", "--insecure"]
            started.start([*where, *LUWU, "up", *flags, *common], flags[1])

    def _workers(
        self, arm: str, case: Case, network: Hosts, index: int, folder: Path
    ) -> list[str]:  # fmt: skip
        """The command that starts the workers of a host."""
        config = self._runs.config(self._job, {
            "dtype": case.dtype, "reshard_after_forward": str(case.reshard).lower(),
        })  # fmt: skip
        script = ["-m", "workers.train", *script_arguments(arm, config, folder / "result.json")]
        count = self._job.workers // self._hosts_count
        if arm == "luwu":
            first = index * count
            return [
                *LUWU, "run", "--join", "up/connect.json", "--run-dir", f"workers-{index}",
                "--ranks", ranges_text(range(first, first + count)), *script,
            ]  # fmt: skip
        return [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", str(self._hosts_count),
            "--node-rank", str(index), "--master-addr", network.address(0),
            "--master-port", "29500", "--local-addr", network.address(index),
            "--nproc-per-node", str(count), *script,
        ]  # fmt: skip


class Carried:
    """Counts the bytes on each host's link while a run is under way."""

    def __init__(self, network: Hosts) -> None:
        self._network, self._is_over = network, threading.Event()
        self._at_ns: list[int] = []
        self._counts: list[list[dict[str, int]]] = []
        self._thread = threading.Thread(target=self._count)

    def __enter__(self) -> Carried:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def between(self, from_ns: int, to_ns: int, index: int, way: str) -> float:
        """Bytes from one instant of the monotonic clock to another, on a host's link."""
        counts = [each[index][way] for each in self._counts]
        first, last = np.interp([from_ns, to_ns], self._at_ns, counts)
        return float(last - first)

    def _count(self) -> None:
        while not self._is_over.wait(COUNT_S):
            self._at_ns.append(SYSTEM_CLOCK.now_ns())
            self._counts.append(self._network.counts())


class Commands:
    """Commands that run together; those that still run are stopped at the end."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._environ = {
            **os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": str(harness.threads_per_worker(workers)),
        }  # fmt: skip
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *exc: object) -> None:
        for each in self._started.values():
            if each.poll() is None:
                each.terminate()
        for each in self._started.values():
            each.wait(30)

    def start(self, command: Sequence[str], name: str) -> None:
        """Start one, with a log of its name."""
        with (self._folder / f"{name}.log").open("w") as log:
            self._started[name] = subprocess.Popen(
                command, cwd=self._folder, env=self._environ, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip

    def wait(self) -> None:
        """Return when all have ended well. Raises LuwuError."""
        for name, each in reversed(self._started.items()):
            try:
                code = each.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = None
            if code != 0:
                said = (self._folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise LuwuError(f"{name} ended with {code}: {shlex.join(each.args)}\n{said}")


class Measured:
    """Runs of all cases, each of them once; DDP's and compute's serve both ways of freeing."""

    def __init__(self, runs: TrainingRuns, job: Training, hosts_count: int) -> None:
        self._runs, self._job = runs, job
        self._on_hosts = HostRuns(runs, job, hosts_count)
        self._shared: dict[tuple[str, ...], HostRun] = {}
        self._compute_s: dict[str, float] = {}

    def run(self, arm: str, case: Case) -> HostRun:
        """One run on the links of a case."""
        return self._once(arm, case, case.rate)

    def host(self, arm: str, case: Case) -> float:
        """Seconds of a step on links without a rate, in chunks of the shaped run's size."""
        return harness.median(self._once(arm, case, None).step_seconds)

    def _once(self, arm: str, case: Case, rate: str | None) -> HostRun:
        chunk = CHUNKS.get(case.rate, "") if arm == "luwu" else ""
        freed = "" if arm == "ddp" else str(case.reshard)
        key = (arm, rate or f"no rate, {chunk}", case.dtype, freed)
        if key not in self._shared:
            say(f"{rate or 'no rate'} {case.dtype}, {'freed' if case.reshard else 'kept'}: {arm}")
            self._shared[key] = self._on_hosts.run(arm, case, rate)
        return self._shared[key]

    def compute(self, case: Case) -> float:
        """Seconds of a step without any exchange."""
        if case.dtype not in self._compute_s:
            say(f"{case.dtype}: {COMPUTE_ONLY}")
            run = self._runs.run(COMPUTE_ONLY, self._job, {"dtype": case.dtype})
            self._compute_s[case.dtype] = harness.median(run.step_seconds)
        return self._compute_s[case.dtype]


def case_row(
    case: Case, arm: str, run: HostRun, *, compute_s: float, host_s: float, job: Training
) -> Row:
    """One arm in one case."""
    rate = parse_bytes_per_s(case.rate)
    seconds = run.step_seconds
    links = run.link_bytes
    busiest = max(links, key=lambda name: links[name])
    links_s = links[busiest] / rate
    bound_s = max(links_s, compute_s)
    return harness.row(
        case.name, arm, seconds, workers=job.workers, dtype=case.dtype, switch=arm == "luwu",
        label="emulated", rate=case.rate, reshard_after_forward=case.reshard,
        link_bytes_per_step=links, compute_seconds=compute_s, links_seconds=links_s,
        bound_seconds=bound_s,
        bound_by="compute" if compute_s > links_s else busiest,
        over_bound=run.link_seconds / bound_s, host_seconds=host_s,
        is_cpu_bound=host_s > HOST_SHARE_MAX * bound_s,
        busy_ratio=links_s / run.link_seconds,
        hidden_ratio=(links_s + compute_s - run.link_seconds) / min(links_s, compute_s),
        weights_digest=run.weights_digest,
    )  # fmt: skip


def claims(rows: list[Row]) -> dict[str, Any]:
    """What the rows come to."""
    by_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_case.setdefault(str(row["case"]), {})[str(row["arm"])] = row
    seconds = {
        case: {arm: float(row["seconds_median"]) for arm, row in arms.items()}
        for case, arms in by_case.items()
    }
    ours = [row for row in rows if row["arm"] == "luwu"]
    free = [row for row in ours if not row["is_cpu_bound"]]
    both = [each for each in seconds.values() if {"luwu", "fsdp"} <= each.keys()]
    return {
        "luwu_over_bound_max": max((float(row["over_bound"]) for row in free), default=None),
        "luwu_over_bound_max_all": max((float(row["over_bound"]) for row in ours), default=None),
        "fsdp_over_luwu_min": min((each["fsdp"] / each["luwu"] for each in both), default=None),
        "ddp_wins": [
            case
            for case, each in seconds.items()
            if {"luwu", "ddp"} <= each.keys() and each["ddp"] < each["luwu"]
        ],
        "bound_by_compute": [
            f"{row['case']}: {row['arm']}" for row in rows if row["bound_by"] == "compute"
        ],
        "marked_cpu": [f"{row['case']}: {row['arm']}" for row in rows if row["is_cpu_bound"]],
    }


def main() -> int:
    """Run all cases."""
    parser = harness.flags("hosts", __doc__ or "")
    parser.add_argument("--rates", type=harness.comma_list, help="100mbit,1gbit")
    parser.add_argument("--dtypes", type=harness.comma_list, help="float32,bfloat16")
    parser.add_argument("--arms", type=harness.comma_list, help=",".join(ARMS))
    parser.add_argument(
        "--per-host", type=int, default=1, metavar="N", help="workers on each host (default: 1)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the table as SVG")
    try:
        return _run(parser.parse_args())
    except NoNamespaces as error:
        say(f"hosts: {error}; it needs iproute2, util-linux and the right to make namespaces")
        return ConfigError.exit_code
    except LuwuError as error:
        say(f"hosts: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    job, hosts_count = (SMOKE, SMOKE_HOSTS_COUNT) if smoke else (REAL, HOSTS_COUNT)
    job = replace(job, workers=hosts_count * arguments.per_host)
    rates = arguments.rates or (["1gbit"] if smoke else ["100mbit", "1gbit"])
    dtypes = arguments.dtypes or (["float32"] if smoke else ["float32", "bfloat16"])
    cases = [
        Case(rate, dtype, reshard)
        for rate in rates
        for dtype in dtypes
        for reshard in ((True,) if smoke else (True, False))
    ]
    rows = []
    with temporary_directory() as directory:
        measured = Measured(TrainingRuns(Path(directory)), job, hosts_count)
        for case in cases:
            compute_s = measured.compute(case)
            for arm in arguments.arms or ARMS:
                run = measured.run(arm, case)
                host_s = measured.host(arm, case)
                row = case_row(case, arm, run, compute_s=compute_s, host_s=host_s, job=job)
                rows.append(row)
    _show(rows)
    if arguments.plot is not None:
        arguments.plot.write_text(plot(rows), encoding="utf-8")
    result = harness.document("hosts", rows, claims(rows), claims_meaning=MEANINGS, smoke=smoke)
    harness.write(arguments.json, result)
    return 0


def _hidden(row: Row) -> str:
    """Below nothing: other work than compute and links took longer than either hid."""
    ratio: float = row["hidden_ratio"]
    return f"{ratio:.0%}" if ratio >= 0 else "-"


def _show(rows: list[Row]) -> None:
    lines = [
        (
            row["case"], row["arm"], f"{row['seconds_median'] * 1e3:.0f}",
            f"{row['bound_seconds'] * 1e3:.0f}", f"{row['over_bound']:.2f}", row["bound_by"],
            f"{row['compute_seconds'] * 1e3:.0f}", f"{row['host_seconds'] * 1e3:.0f}",
            "cpu" if row["is_cpu_bound"] else "", _hidden(row),
            f"{max(row['link_bytes_per_step'].values()) / 1e6:.2f}", f"{row['busy_ratio']:.0%}",
        )
        for row in rows
    ]  # fmt: skip
    harness.print_table(
        ("case", "arm", "ms a step", "bound", "over it", "bound by", "compute", "host", "",
         "hidden", "MB busiest", "busy"), lines,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
