"""How many Python frames and files does one gradient chunk cross, and one chunk of weights?

Metric:  frames   calls of functions of luwu and switch_emu, comprehensions and generators too, for
                  one chunk more: a unit of 65 chunks of 64 KiB less a unit of 1, divided by 64; the
                  median of the repeats
         files    files, and functions with a name, that a unit of 1 chunk was seen to cross
         cpu      CPU time of this process from the first push of a step until it is decided,
                  divided by its chunks of 16 KiB; nothing is counted while it is taken
Push:    from `nic.push` until the page is written and every thread is quiet again
Pull:    from `nic.pull` until the weights are in the worker's memory
Left out: training, which comes before the NIC, and functions written in C.

Switch, node and one worker are threads of this process (`LocalCluster`). How many messages a turn
of a loop takes depends on the scheduler, so frames differ by some per cent between repeats.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import numpy as np

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import DeadlineError, LuwuError
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import Layout, Parameter, Unit
from luwu.nic.memory import ExtentGradient
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper

CASES: Final = tuple(
    (transport, has_switch, extent_chunks)
    for extent_chunks in (1, 16)
    for transport in ("tcp", "shm")
    for has_switch in (True, False)
)
"""(transport, has a switch, chunks of an extent)."""
SMOKE_CASES: Final = (("tcp", True, 1), ("shm", False, 4))
COUNTED_CHUNK_BYTES: Final = 64 * 1024
TIMED_CHUNK_BYTES: Final = 16 * 1024
MANY: Final = 65
"""Chunks of the larger unit; the smaller one has a single chunk."""
LR: Final = 0.5
"""A power of two: with gradients that are small whole numbers every weight is exact."""
QUIET_NS: Final = 30_000_000
LIMIT_S: Final = 60.0

_ROOT: Final = Path(__file__).resolve().parents[1]
_PACKAGES: Final = tuple(f"{_ROOT / name}/" for name in ("luwu", "switch_emu"))


class Calls:
    """Counts calls of this project's functions, in all threads that begin while it is installed."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()
        """Calls of each function, in the order of the first call."""
        self._ours: dict[CodeType, bool] = {}
        self._is_counting = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch this thread and those that are started meanwhile."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]

    def of(self, do: Callable[[], object], is_over: Callable[[], bool]) -> Counter[CodeType]:
        """The calls from now until `do` has returned, `is_over` is true and all threads wait."""
        self.counts = Counter()
        self._is_counting = True
        do()
        sys.setprofile(None)  # of this thread: waiting calls functions too
        self._wait_until_quiet(is_over)
        self._is_counting = False
        sys.setprofile(self._called)
        return self.counts

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or not self._is_counting:
            return
        code = frame.f_code
        is_ours = self._ours.get(code)
        if is_ours is None:
            is_ours = self._ours[code] = code.co_filename.startswith(_PACKAGES)
        if is_ours:
            self.counts[code] += 1

    def _wait_until_quiet(self, is_over: Callable[[], bool]) -> None:
        end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
        seen, since_ns = -1, 0
        while SYSTEM_CLOCK.now_ns() < end_ns:
            now_ns, count = SYSTEM_CLOCK.now_ns(), self.counts.total()
            if count != seen or not is_over():
                seen, since_ns = count, now_ns
            elif now_ns - since_ns > QUIET_NS:
                return
            sleep(QUIET_NS / 10 / 1e9)
        raise DeadlineError(f"threads were still at work after {LIMIT_S:.0f} s")


@dataclass
class Counted:
    """Counts of one way: a unit of one chunk and one of many, of each repeat."""

    of_one: list[Counter[CodeType]] = field(default_factory=list)
    of_many: list[Counter[CodeType]] = field(default_factory=list)

    def frames(self, package: str | None = None) -> float:
        """Frames of one chunk more, all or those of a package; the median of the repeats."""
        return harness.median(
            [
                (_total(many, package) - _total(one, package)) / (MANY - 1)
                for one, many in zip(self.of_one, self.of_many, strict=True)
            ]
        )

    def packages(self) -> list[tuple[str, float]]:
        """The packages on the way, with their frames."""
        names = {_package(code) for calls in self.of_many for code in calls}
        return [(name, self.frames(name)) for name in sorted(names)]

    def functions(self) -> list[CodeType]:
        """Functions with a name that every repeat of one chunk called, as the first one did."""
        first, *others = self.of_one
        return [
            code
            for code in first
            if not code.co_name.startswith("<") and all(code in calls for calls in others)
        ]

    def files_count(self) -> int:
        """Files of these functions."""
        return len({code.co_filename for code in self.functions()})

    def way(self) -> Iterator[str]:
        """A line for each stay in a file, with the functions that are called for the first time."""
        calls = self.of_one[0]
        where, names = "", []
        for code in self.functions():
            if code.co_filename != where and names:
                yield f"  {_shown(where)}: {', '.join(names)}"
                names = []
            where = code.co_filename
            times = f" x{calls[code]}" if calls[code] > 1 else ""
            names.append(f"{code.co_qualname}:{code.co_firstlineno}{times}")
        yield f"  {_shown(where)}: {', '.join(names)}"


def _shown(file: str) -> str:
    return str(Path(file).relative_to(_ROOT))


def _package(code: CodeType) -> str:
    """`luwu/wire`, or the core that a file belongs to: `switch_emu/node/core`."""
    parts = Path(_shown(code.co_filename)).parts[:-1]
    return "/".join(parts[:3] if parts[-1] == "core" else parts[:2])


def _total(calls: Counter[CodeType], package: str | None) -> int:
    if package is None:
        return calls.total()
    return sum(count for code, count in calls.items() if _package(code) == package)


class Trainer:
    """One worker that pushes whole numbers by unit, and knows what weights must come of it."""

    def __init__(self, nic: Nic, unit_chunks: Sequence[int], chunk_bytes: int) -> None:
        self._nic = nic
        elems = chunk_bytes // 4
        self._elems = elems
        self._layout = Layout(
            parameters=tuple(
                Parameter(name=f"p{unit}", shape=(count * elems,))
                for unit, count in enumerate(unit_chunks)
            ),
            units=tuple(
                Unit(name=f"u{unit}", parameters=(unit,)) for unit in range(len(unit_chunks))
            ),
            chunk_bytes=chunk_bytes,
            extent_chunks=nic.extent_chunks,
        )
        group = {
            "lr": LR, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
            "maximize": False,
        }  # fmt: skip
        self._hyper = encode_hyper(StepHyper(groups=(group,)))
        self._expected = [np.zeros(count * elems, np.float32) for count in unit_chunks]
        self._step = 0
        nic.connect()
        nic.join(Description(layout=self._layout, optimizer="sgd", update="streaming"))
        zeros = memoryview(bytes(chunk_bytes))
        nic.load((chunk.index, zeros) for chunk in self._layout.chunks)

    def begin(self) -> None:
        """State the step's hyper-parameters, so that pages are updated as gradients arrive."""
        self._nic.begin(self._step, self._hyper)

    def push(self, unit: int) -> Callable[[], None]:
        """A push of a unit's gradient, with the wait for its receipt; the copy is made before."""
        gradients = []
        for index in self._layout.unit_extents[unit]:
            extent = self._layout.extents[index]
            cell = self._nic.cells.take(extent.elems * 4)
            gradient = np.concatenate([self._gradient(chunk) for chunk in extent.chunks])
            np.frombuffer(cell.data, np.float32)[:] = gradient
            ((start, elems),) = extent.runs
            part = self._expected[unit][start : start + elems]
            part -= np.float32(LR) * gradient
            gradients.append(ExtentGradient(index, cell))

        def do() -> None:
            nic = self._nic
            nic.wait(nic.push(self._step, 0, unit, gradients, "float32", last=True))

        return do

    def commit(self) -> None:
        """End the step; returns when it is decided."""
        applied, _ = self._nic.commit(self._step, 1, self._hyper).decision()
        if not applied:
            raise LuwuError(f"step {self._step} was skipped: a sum was not finite")
        self._step += 1

    def pull(self, unit: int) -> Callable[[], None]:
        """A function that pulls a unit's weights; `check` compares them."""
        self._pulled = memoryview(bytearray(self._layout.unit_wire_bytes(unit)))

        def do() -> None:
            self._nic.wait(self._nic.pull(self._step, 0, unit, lambda: self._pulled))

        return do

    def check(self, unit: int) -> None:
        """Compare the weights that came with what must have come, bit for bit."""
        if not np.array_equal(np.frombuffer(self._pulled, np.float32), self._expected[unit]):
            raise LuwuError(f"the weights of unit {unit} are wrong after {self._step} steps")

    def _gradient(self, chunk: int) -> Any:
        return (np.arange(self._elems) % 7 - 3 + chunk + self._step % 5).astype(np.float32)


@contextmanager
def _cluster(
    transport: str, has_switch: bool, extent_chunks: int, chunk_bytes: int
) -> Iterator[LocalCluster]:
    with (
        tempfile.TemporaryDirectory(prefix="luwu-frames-") as directory,
        LocalCluster(
            world_size=1,
            state=Path(directory) / "state",
            memory_budget_bytes=256 * 1024 * 1024,
            chunk_bytes=chunk_bytes,
            extent_chunks=extent_chunks,
            transport=transport,
            has_switch=has_switch,
            arena_bytes=64 * 1024 * 1024,
            summary=Path(directory) / "summary.json",
            log_steps=1,  # a push ends with its page
        ) as cluster,
    ):
        yield cluster


def _written(cluster: LocalCluster, nbytes: int) -> Callable[[], bool]:
    """A test of whether so many bytes of pages have been written since this call."""
    store = cluster.node.store
    assert store is not None
    before = store.stats.bytes_written
    return lambda: store.stats.bytes_written - before >= nbytes


def count(
    transport: str, has_switch: bool, extent_chunks: int, repeats: int
) -> tuple[Counted, Counted]:
    """The frames of a push and of a pull."""
    calls, pushes, pulls = Calls(), Counted(), Counted()
    made = _cluster(transport, has_switch, extent_chunks, COUNTED_CHUNK_BYTES)
    with calls.installed(), made as cluster:

        def work(nic: Nic) -> None:
            trainer = Trainer(nic, (1, MANY), COUNTED_CHUNK_BYTES)
            for repeat in range(-1, repeats):  # the first step finds caches cold
                trainer.begin()
                found = []
                for unit, chunks_count in enumerate((1, MANY)):
                    written = _written(cluster, chunks_count * COUNTED_CHUNK_BYTES)
                    found.append(calls.of(trainer.push(unit), written))
                trainer.commit()
                for unit in (0, 1):
                    found.append(calls.of(trainer.pull(unit), lambda: True))
                    trainer.check(unit)
                if repeat >= 0:
                    for kept, seen in zip(
                        (pushes.of_one, pushes.of_many, pulls.of_one, pulls.of_many), found,
                        strict=True,
                    ):  # fmt: skip
                        kept.append(seen)

        cluster.run(work)
    return pushes, pulls


def cpu_seconds(
    transport: str, has_switch: bool, extent_chunks: int, chunks_count: int, repeats: int
) -> list[float]:
    """CPU time of a chunk of 16 KiB, from its push until its step is decided."""
    seconds: list[float] = []
    with _cluster(transport, has_switch, extent_chunks, TIMED_CHUNK_BYTES) as cluster:

        def work(nic: Nic) -> None:
            trainer = Trainer(nic, (chunks_count,), TIMED_CHUNK_BYTES)
            for repeat in range(-1, repeats):
                trainer.begin()
                push = trainer.push(0)
                start_ns = time.process_time_ns()
                push()
                trainer.commit()
                if repeat >= 0:
                    seconds.append((time.process_time_ns() - start_ns) / 1e9 / chunks_count)
            trainer.pull(0)()
            trainer.check(0)

        cluster.run(work)
    return seconds


def _counts_row(
    name: str, transport: str, has_switch: bool, extent_chunks: int, counted: Counted
) -> Row:
    return {
        "case": name, "arm": transport, "switch": has_switch, "label": "measured",
        "extent_chunks": extent_chunks,
        "frames": counted.frames(), "files": counted.files_count(),
        "functions": len(counted.functions()),
        "packages": {name: frames for name, frames in counted.packages() if frames >= 0.5},
        "way": list(counted.way()),
    }  # fmt: skip


def main() -> int:
    """Run the benchmark; the exit code."""
    parser = harness.flags("frames", __doc__ or "")
    parser.add_argument("--no-way", action="store_true", help="do not print the way itself")
    return _run(parser.parse_args())


def _run(arguments: argparse.Namespace) -> int:
    repeats = arguments.repeats or (1 if arguments.smoke else harness.REPEATS)
    chunks_count = 8 if arguments.smoke else 256
    counted: list[Row] = []
    timed: list[Row] = []
    for case in SMOKE_CASES if arguments.smoke else CASES:
        transport, has_switch, extent_chunks = case
        for name, found in zip(("push", "pull"), count(*case, repeats), strict=True):
            counted.append(_counts_row(name, *case, found))
        seconds = cpu_seconds(*case, chunks_count, repeats)
        timed.append(
            harness.row(
                "chunk of 16 KiB", transport, seconds, nbytes=TIMED_CHUNK_BYTES, workers=1,
                switch=has_switch, extent_chunks=extent_chunks,
            )
        )  # fmt: skip
    if not arguments.no_way:
        _print_ways(counted)
    _print_sums(counted)
    harness.print_table(
        ("transport", "switch", "extent", "CPU of a 16 KiB chunk, us", "least", "spread"),
        [
            (
                each["arm"], "yes" if each["switch"] else "no", each["extent_chunks"],
                f"{each['seconds_median'] * 1e6:.0f}", f"{each['seconds_min'] * 1e6:.0f}",
                f"{each['seconds_spread']:.2f}",
            )
            for each in timed
        ],
    )  # fmt: skip
    harness.write(arguments.json, harness.document("frames", timed, {}, counted=counted))
    return 0


def _print_ways(counted: Sequence[Row]) -> None:
    for each in counted:
        say(f"{_title(each)}, one chunk: each function at its first call")
        for line in each["way"]:
            say(line)
        say("")


def _print_sums(counted: Sequence[Row]) -> None:
    packages = sorted({package for each in counted for package in each["packages"]})
    lines: list[Sequence[object]] = [
        ("files", *(each["files"] for each in counted)),
        ("functions", *(each["functions"] for each in counted)),
        ("frames", *(f"{each['frames']:.0f}" for each in counted)),
    ]
    for package in packages:
        frames = [each["packages"].get(package) for each in counted]
        lines.append((f"  {package}", *("-" if x is None else f"{x:.0f}" for x in frames)))
    harness.print_table(("one chunk", *(_title(each) for each in counted)), lines)
    say("")


def _title(each: Row) -> str:
    extent = f" x{each['extent_chunks']}" if each["extent_chunks"] > 1 else ""
    return f"{each['case']} {each['arm']}{'' if each['switch'] else ' no switch'}{extent}"


if __name__ == "__main__":
    sys.exit(main())
