"""What does safety cost: a node's restart, the bytes it writes, and the flushes of each step?

restart      seconds from the exec of a node process to its listening with its state open, after the
             process before was killed; beside it `torch`, a process that imports torch alone.
written      bytes the kernel counts as written by the process over some steps of the pipeline / the
             bytes of the trained state, once a step (`/proc/self/io`, write_bytes).
durability   seconds of a training step whose compute (emulated by waiting) covers the disk, with
             the state in RAM, on disk unflushed (`process`), and flushed (`step`).

Goals:    restart at most 2 s beyond torch with 100 M parameters, the same within 20 % with 10 M;
          written at most 1.02; step at most 1.05 of the others.
Checked:  the pipeline's weights against the update kernel alone; equal digests of all durabilities.
Left out: reconnecting workers, which look again within 0.1 s; the journal of the file system.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.disk_pipeline import Case, PipelineArm
from benchmarks.harness import Row, say
from benchmarks.training import Training, TrainingRuns, temporary_directory
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.config import resolve
from luwu.base.errors import LuwuError
from luwu.launch.processes.children import wait_for_end
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.roles import RoleProcess
from luwu.launch.specs import job_spec, node_spec
from switch_emu.node.pages import store_config
from switch_emu.store import DecidedStep, FilePageStore, aligned_buffer

MIB: Final = 1024 * 1024
BUDGET_BYTES: Final = 256 * MIB
CHUNKS: Final = ("16KiB", "1MiB")
STEPS: Final = 5
LARGE: Final = Training(layers=8, width=512, context=32, batch=1, workers=2, steps=12)
"""25.4 M parameters, 305 MB of state."""
SMALL: Final = Training(layers=1, width=32, context=8, batch=1, workers=1, steps=4)
COMPUTE_MS: Final = "100"
"""Of each unit's forward, and of its backward: 1.8 s a step."""
DURABILITIES: Final = ("none", "process", "step")
MEANINGS: Final = {
    "restart_beyond_torch_s": "restart - torch, medians, the larger state; goal 2",
    "restart_size_ratio": "restart with the larger state / with the smaller; goal 1.2",
    "written_ratio": "bytes written / bytes of the state, worst chunk; goal 1.02",
    "step_over_process": "seconds of a step, durability step / process; goal 1.05",
    "step_over_ram": "the same against a state in RAM; goal 1.05",
}


class Restarts:
    """A state of some size, and a node that is started on it again and again."""

    def __init__(self, directory: Path, params: int) -> None:
        self._state = directory / f"state-{params}"
        _make_state(self._state, params)
        config = resolve(
            flags={"workers": "2", "state": str(self._state), "resume": "true"}, environ={}
        ).config
        run = RunDirectory.create(directory / f"run-{params}")
        spec = node_spec(
            config, run, job_spec(config, job=1, chunk_bytes=MIB),
            listen="tcp://127.0.0.1:0", advertise=None, memory_budget_bytes=BUDGET_BYTES,
            state=self._state,
        )  # fmt: skip
        self._role = RoleProcess(run, "node", spec, run_id=f"luwu-restart-{params}")
        self.restart()  # compiles the kernel, if nobody has

    def restart(self) -> float:
        """Seconds until it listens; then it is killed."""
        start_ns = SYSTEM_CLOCK.now_ns()
        child = self._role.start()
        try:
            while self._role.ready() is None:
                code = child.poll()
                if code is not None:
                    raise LuwuError(f"the node ended with {code}: {self._role.error()}")
                sleep(0.001)
            return (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
        finally:
            child.signal(9)  # type: ignore[arg-type]
            wait_for_end(child, 10.0)


def _make_state(path: Path, params: int) -> None:
    """A decided version of a model of so many parameters; what is in it does not matter."""
    case = Case(params=params, chunk_bytes=MIB, durability="step", updates_count=None)
    config = store_config(case.description)
    with FilePageStore.create(path, config, durability="process") as store:
        record = aligned_buffer(max(kind.record_bytes for kind in config.kinds))
        for page in range(config.page_count):
            store.write(page, 0, 0, record[: config.kind(page).record_bytes])
        store.prepare(DecidedStep(version=0, attempt=0))
        store.decide(0, 0)


def import_torch() -> float:
    """Seconds from the exec of Python until it has imported torch."""
    start_ns = SYSTEM_CLOCK.now_ns()
    program = "import torch; print('there', flush=True)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        return (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9


def restart_rows(directory: Path, sizes: list[int], repeats: int) -> list[Row]:
    """A node's restart with each size, and torch alone, in turns."""
    arms: dict[str, Any] = {"torch": import_torch}
    for params in sizes:
        arms[harness.format_count(params)] = Restarts(directory, params).restart
    seconds = harness.interleave(arms, repeats)
    return [
        harness.row("restart", name, found, params=None if name == "torch" else sizes[index - 1])
        for index, (name, found) in enumerate(seconds.items())
    ]


def written_rows(directory: Path, params: int) -> list[Row]:
    """What the kernel counts while pages of each chunk size are updated."""
    rows = []
    for text in CHUNKS:
        case = Case(
            params=params, chunk_bytes=harness.size(text), durability="step", updates_count=None
        )
        place = directory / f"written-{text}"
        place.mkdir()
        with PipelineArm(place, case) as pipeline:
            pipeline.run(1)
            before = _written_bytes()
            seconds = harness.timed(partial(pipeline.run, STEPS)) / STEPS
            written = (_written_bytes() - before) / STEPS
            pipeline.check()
            ratio = written / pipeline.config.state_bytes
            rows.append(
                harness.row(
                    "written", text, [seconds], nbytes=written, params=params, written_ratio=ratio,
                    state_bytes=pipeline.config.state_bytes, direct_io=pipeline.direct_io,
                )
            )  # fmt: skip
        say(f"chunks of {text}: {ratio:.4f} bytes written for each of the state")
    return rows


def _written_bytes() -> int:
    for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise LuwuError("/proc/self/io does not say what was written")


def durability_rows(job: Training, compute_ms: str, repeats: int) -> list[Row]:
    """Whole runs at each level, in turns. Raises LuwuError if their weights differ."""
    digests: dict[str, str] = {}
    with temporary_directory() as name:
        runs = TrainingRuns(Path(name))

        def train(durability: str) -> list[float]:
            say(f"durability {durability}")
            run = runs.run("luwu", job, {
                "durability": durability, "compute_ms": compute_ms,
                **({} if durability == "none" else {"memory_budget": "64MiB"}),
            })  # fmt: skip
            digests[durability] = run.document["weights_digest"]
            return run.step_seconds

        arms: dict[str, Any] = {level: partial(train, level) for level in DURABILITIES}
        seconds = harness.interleave(arms, repeats)
    if len(set(digests.values())) != 1:
        raise LuwuError(f"the levels end with other weights: {digests}")
    return [
        harness.row(
            "durability", level, found, workers=job.workers, dtype="float32", switch=True,
            label="emulated", compute_ms=float(compute_ms),
        )
        for level, found in seconds.items()
    ]  # fmt: skip


def claims(rows: list[Row]) -> dict[str, float]:
    """What was measured of `MEANINGS`."""
    middle = {(row["case"], row["arm"]): row["seconds_median"] for row in rows}
    sizes = [row["arm"] for row in rows if row["case"] == "restart" and row["arm"] != "torch"]
    found: dict[str, float] = {}
    if sizes:
        last = middle["restart", sizes[-1]]
        found["restart_beyond_torch_s"] = last - middle["restart", "torch"]
        found["restart_size_ratio"] = last / middle["restart", sizes[0]]
    written = [row["written_ratio"] for row in rows if row["case"] == "written"]
    if written:
        found["written_ratio"] = max(written)
    if ("durability", "step") in middle:
        step = middle["durability", "step"]
        found["step_over_process"] = step / middle["durability", "process"]
        found["step_over_ram"] = step / middle["durability", "none"]
    return found


def main() -> int:
    """Run all three, or those that were asked for."""
    parser = harness.flags("restart", __doc__ or "")
    parser.add_argument("--sizes", type=harness.counts, metavar="N,N", help="10M,100M")
    parser.add_argument(
        "--cases", type=harness.comma_list, default=["restart", "written", "durability"],
        help="restart,written,durability",
    )  # fmt: skip
    parser.add_argument("--note", help="what else the machine did, for the result")
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"restart: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    smoke = arguments.smoke
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="luwu-restart-") as name:
        if "restart" in arguments.cases:
            sizes = arguments.sizes or ([100_000, 200_000] if smoke else [10**7, 10**8])
            rows += restart_rows(Path(name), sizes, arguments.repeats or (1 if smoke else 7))
        if "written" in arguments.cases:
            rows += written_rows(Path(name), 100_000 if smoke else 25_000_000)
    if "durability" in arguments.cases:
        job, compute_ms = (SMALL, "5") if smoke else (LARGE, COMPUTE_MS)
        rows += durability_rows(job, compute_ms, arguments.repeats or (1 if smoke else 3))
    harness.print_table(
        ("case", "arm", "s", "spread"),
        [
            (each["case"], each["arm"], f"{each['seconds_median']:.3f}",
             f"{each['seconds_spread']:.0%}")
            for each in rows
        ],
    )  # fmt: skip
    more = {} if arguments.note is None else {"note": arguments.note}
    result = harness.document(
        "restart", rows, claims(rows), claims_meaning=MEANINGS, smoke=smoke, **more
    )
    for claim, value in result["claims"].items():
        say(f"{claim}: {value:.3f} ({MEANINGS[claim]})")
    harness.write(arguments.json, result)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
