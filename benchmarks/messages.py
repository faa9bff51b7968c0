"""How many messages has a step, how many bytes are in them, and what is left of them with extents?

Metric:  messages, bytes of their headers and of their payloads in one step, as each process counts
         what it sends and receives (`luwu/wire/link_counts.py`): of a worker, the switch and the
         node, and by kind; the median of the steps
         cpu       CPU time in a step of the threads that send and receive: those of a NIC each,
                   of the switch (its sums are in it) and of the node, and libzmq's
Arms:    `one` chunk in each message, and `auto`: the extent that follows from the budget
Cases:   the job of `make demo`, and 25 M parameters with a budget of the whole
         state, a half and an eighth of it, with the chunk that follows from it. Large budgets give
         chunks of a MiB and more, which travel alone; so there is a state in chunks of 64 KiB too
Checked: what all processes sent they received; weights are those of torch's AdamW, bit for bit
Left out: compute, activations, and threads that read, update and write pages

Switch, node and two workers are threads of this process (`LocalCluster`), so their loops wait for
one another's interpreter lock: CPU time is what they took, not how long they waited. A step is
counted from its first pull until all is quiet again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks import harness
from benchmarks.exchange_model import Job, fused_adamw, hyper_bytes
from benchmarks.flat_push import push_flat
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.config import RunConfig, resolve
from luwu.base.errors import DeadlineError, LuwuError
from luwu.base.tree import one_switch
from luwu.compare.arm import SCRIPT, script_arguments
from luwu.estimate.script import script_job
from luwu.launch.local_cluster import LocalCluster
from luwu.launch.network import chosen_transport
from luwu.launch.sizes import Sizes, decide_sizes
from luwu.launch.switch_memory import widest_plan
from luwu.layout import Layout
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.link_counts import LinkCounts
from luwu.wire.messages import MESSAGE_TYPES
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.plan import SwitchPlan

WORKERS: Final = 2
STATE_BYTES_PER_PARAMETER: Final = 12
PARAMS: Final = 25_000_000
SMOKE_PARAMS: Final = 600_000
SHARES: Final = (1, 2, 8)
"""The budget is one part in so many of the state."""
SMALL_CHUNK: Final = "64KiB"
ONE, AUTO = "one", "auto"
ROLES: Final = ("worker", "switch", "node")
LIBZMQ: Final = "libzmq"
QUIET_NS: Final = 50_000_000
LIMIT_S: Final = 60.0

Counts = Counter[tuple[str, str, str, str]]
"""By role, kind of message, `sent` or `received`, and `messages`, `header_bytes` or
`payload_bytes`; of workers all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A job, and the sizes that follow from its budget."""

    name: str
    config: RunConfig
    sizes: Sizes
    layout: Callable[[int], Layout]
    """Its layout with so many chunks to an extent."""

    def extent_chunks(self, arm: str) -> int:
        """Chunks that travel together at most."""
        return self.sizes.extent_chunks if arm == AUTO else 1


def _case(
    name: str, flags: dict[str, str], make: Callable[[RunConfig, Sizes], Layout]
) -> Case:  # fmt: skip
    asked = {"workers": str(WORKERS), "durability": "process", **flags}
    config = resolve(flags=asked, environ={}).config
    sizes = decide_sizes(config, None)
    layout = make(config, sizes)
    return Case(
        name=name, config=config, sizes=sizes,
        layout=lambda count: replace(layout, extent_chunks=count),
    )  # fmt: skip


def cases(transport: str, *, smoke: bool) -> Iterator[Case]:
    """See the module."""
    shape = {"layers": "2"} if smoke else {}
    demo = {"transport": transport, **shape}
    yield _case("demo", {**demo, "memory_budget": "1270KiB"}, _demo_layout)
    params = SMOKE_PARAMS if smoke else PARAMS
    job = Job(params=params, workers=WORKERS)
    title = f"blocks of {harness.format_count(params)}"
    for share in SHARES[-1:] if smoke else SHARES:
        budget = params * STATE_BYTES_PER_PARAMETER // share
        flags = {"transport": transport, "memory_budget": f"{budget}B"}
        part = "the state" if share == 1 else f"1/{share}"
        yield _case(f"{title}, {part}", flags, lambda _, sizes: job.layout(sizes.chunk_bytes))
    if not smoke:
        flags["chunk"] = SMALL_CHUNK
        name = f"{title}, {part}, {SMALL_CHUNK}"
        yield _case(name, flags, lambda _, sizes: job.layout(sizes.chunk_bytes))


def _demo_layout(config: RunConfig, sizes: Sizes) -> Layout:
    command = [*SCRIPT, *script_arguments("luwu", config, None)]
    return script_job(command, config, sizes).description.layout


# ---------------------------------------------------------------------- what is trained


class Values:
    """Gradients that any thread can say, and the weights that must come of them."""

    def __init__(self, layout: Layout, steps: int) -> None:
        self._layout, self._steps = layout, steps
        self._trained = [np.zeros(elems, np.float32) for elems in layout.unit_elems]
        for place in layout.placements:
            self._trained[place.unit][place.start : place.start + place.elems] = 1.0

    def gradient(self, rank: int, unit: int) -> Any:
        """Small whole numbers, so that sums and means are exact; padding is zero."""
        elems = self._layout.unit_elems[unit]
        pattern = np.arange(elems, dtype=np.int32) % 7 - 3 + rank + unit % 5
        return pattern.astype(np.float32) * self._trained[unit]

    def expected(self, unit: int) -> Any:
        """A unit's weights after all steps: torch's AdamW on the mean, from zeros."""
        grads = [self.gradient(rank, unit) for rank in range(WORKERS)]
        mean = torch.from_numpy(sum(grads[1:], grads[0]) / np.float32(WORKERS))
        weights, *moments = (torch.zeros_like(mean) for _ in range(3))
        for step in range(self._steps):
            fused_adamw([weights], [mean], [moments[0]], [moments[1]], step)
        return weights.numpy()


class Trainer:
    """A worker that does all that a step of training does, but for the compute."""

    def __init__(self, nic: Nic, layout: Layout, values: Values) -> None:
        self._nic, self._layout, self._values = nic, layout, values
        self._hyper = hyper_bytes()
        self._units = range(len(layout.units))
        self._memory = [memoryview(bytearray(layout.unit_wire_bytes(unit))) for unit in self._units]
        self._step = 0
        nic.connect()
        joined = nic.join(
            Description(
                layout=layout, optimizer="adamw", update="streaming", state_fields=("m", "v")
            )
        )
        if not joined.loaded and nic.rank == 0:
            nic.load((each.index, memoryview(bytes(each.sum_bytes))) for each in layout.chunks)

    def step(self) -> None:
        """Forward, backward and commit; returns when the step is decided."""
        nic, step = self._nic, self._step
        for unit in self._units:
            self._pull(0, unit)
        nic.begin(step, self._hyper)
        pushes = []
        for unit in reversed(self._units):
            if self._layout.units[unit].name != "root":
                self._pull(1, unit)
            gradient = memoryview(self._values.gradient(nic.rank, unit)).cast("B")
            pushes += push_flat(
                nic, self._layout, gradient, "float32", step=step, unit=unit, last=True
            )
        for push in pushes:
            nic.wait(push)
        applied, _ = nic.commit(step, 1, self._hyper).decision()
        if not applied:
            raise LuwuError(f"step {step} was skipped: a sum was not finite")
        self._step += 1

    def check(self) -> None:
        """Compare all weights with what they must be. Raises LuwuError.

        All workers pull, as the node's memory for weights is free when all have them; one compares.
        """
        for unit in self._units:
            found = np.frombuffer(self._pull(0, unit), np.float32)
            if self._nic.rank == 0 and not np.array_equal(found, self._values.expected(unit)):
                raise LuwuError(f"the weights of unit {unit} are wrong after {self._step} steps")

    def _pull(self, part: int, unit: int) -> memoryview:
        memory = self._memory[unit]
        pulled = self._nic.pull(self._step, part, unit, lambda: memory)
        self._nic.wait(pulled)
        self._nic.forget(pulled)
        return memory


# ---------------------------------------------------------------------- counting


@dataclass(slots=True)
class Measured:
    """Results of an arm, step by step."""

    counts: list[Counts] = field(default_factory=list)
    cpu: list[dict[str, float]] = field(default_factory=list)
    """By role, workers together, and libzmq; seconds."""

    def of(self, role: str, what: str, way: str | None = None, kind: str | None = None) -> float:
        """The median over the steps; one worker's share."""
        found = [
            sum(
                count
                for key, count in counts.items()
                if key[0] == role and key[3] == what and way in (None, key[2])
                and kind in (None, key[1])
            )
            for counts in self.counts
        ]  # fmt: skip
        return harness.median(found) / (WORKERS if role == "worker" else 1)

    @property
    def messages(self) -> float:
        """That were sent in a step, by all processes."""
        return WORKERS * self.of("worker", "messages", "sent") + sum(
            self.of(role, "messages", "sent") for role in ROLES[1:]
        )

    @property
    def kinds(self) -> list[str]:
        """Kinds of the messages that were counted."""
        return sorted({key[1] for counts in self.counts for key in counts})

    @property
    def cpu_s(self) -> list[float]:
        """CPU seconds of all threads that send and receive, by step."""
        return [sum(found.values()) for found in self.cpu]


def _counts_of(links: dict[str, list[LinkCounts]]) -> Counts:
    found: Counts = Counter()
    for role, all_links in links.items():
        for each in all_links:
            for kind in (*MESSAGE_TYPES, None):
                name = "unreadable" if kind is None else kind.__name__
                for key, count in each.total(kind).document().items():
                    what, _, way = key.rpartition("_")
                    if what in ("messages", "header_bytes", "payload_bytes"):
                        found[role, name, way, what] += count
    return found


def _cpu_of_threads() -> dict[str, float]:
    """Seconds of a processor that each role's loop took so far, and libzmq's threads."""
    found = dict.fromkeys((*ROLES, LIBZMQ), 0.0)
    names = {each.native_id: each.name for each in threading.enumerate()}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = names.get(int(task.name), (task / "comm").read_text(encoding="ascii"))
            seconds = int((task / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        except OSError:
            continue  # it has ended
        role = "worker" if name.startswith("luwu-nic") else name
        if role in ROLES:
            found[role] += seconds
        elif name.startswith("ZMQbg"):
            found[LIBZMQ] += seconds
    return found


class _Counting:
    """Takes the counts of each step while all workers wait for one another."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.measured = Measured()
        self._links: dict[str, list[LinkCounts]] = {
            "worker": [], "switch": [cluster.switch.links], "node": [cluster.node.links]
        }  # fmt: skip
        self._before: tuple[Counts, dict[str, float]] | None = None
        self._barrier = threading.Barrier(WORKERS, self._take, LIMIT_S)

    def add(self, nic: Nic) -> None:
        """A worker takes part."""
        self._links["worker"].append(nic.links)

    def step_ends(self) -> None:
        """Wait for the others, and until nothing is under way."""
        self._barrier.wait()

    def _take(self) -> None:
        counts = self._quiet()
        cpu = _cpu_of_threads()
        if self._before is not None:
            counts_before, cpu_before = self._before
            self.measured.counts.append(
                Counter({key: count - counts_before[key] for key, count in counts.items()})
            )
            self.measured.cpu.append({name: cpu[name] - cpu_before[name] for name in cpu})
        self._before = counts, cpu

    def _quiet(self) -> Counts:
        end_ns = SYSTEM_CLOCK.now_ns() + int(LIMIT_S * 1e9)
        seen, since_ns = _counts_of(self._links), SYSTEM_CLOCK.now_ns()
        while SYSTEM_CLOCK.now_ns() < end_ns:
            sleep(QUIET_NS / 5 / 1e9)
            counts, now_ns = _counts_of(self._links), SYSTEM_CLOCK.now_ns()
            if counts != seen:
                seen, since_ns = counts, now_ns
            elif now_ns - since_ns > QUIET_NS:
                return counts
        raise DeadlineError(f"messages were still on their way after {LIMIT_S:.0f} s")


def _switch_plan(case: Case, layout: Layout) -> SwitchPlan:
    tree = one_switch(WORKERS)
    return widest_plan(case.config, tree, layout.extent_bytes, in_arenas=True)


def measure(case: Case, arm: str, steps: int) -> Measured:
    """Train some steps, the first of them uncounted. Raises LuwuError if the weights are wrong."""
    count = case.extent_chunks(arm)
    layout = case.layout(count)
    values = Values(layout, steps + 1)
    transport = chosen_transport(case.config)
    plan = _switch_plan(case, layout)
    limits = SwitchLimits().in_arenas(plan.arena_bytes, WORKERS, layout.extent_bytes)
    with (
        tempfile.TemporaryDirectory(prefix="luwu-messages-") as directory,
        LocalCluster(
            world_size=WORKERS, state=Path(directory) / "state",
            memory_budget_bytes=case.sizes.memory_budget_bytes,
            chunk_bytes=case.sizes.chunk_bytes, extent_chunks=count, transport=transport,
            arena_bytes=plan.arena_bytes,
            switch_limits=replace(limits, cache_bytes_max=plan.cache_bytes),
            summary=Path(directory) / "summary.json",
        ) as cluster,
    ):  # fmt: skip
        counting = _Counting(cluster)

        def work(nic: Nic) -> None:
            counting.add(nic)
            trainer = Trainer(nic, layout, values)
            for _ in range(steps + 1):
                trainer.step()
                counting.step_ends()
            trainer.check()

        cluster.run(work)
    for counts in counting.measured.counts:
        _check_conserved(counts)
    return counting.measured


def _check_conserved(counts: Counts) -> None:
    """Nothing was lost or counted twice. Raises LuwuError."""
    for what in ("messages", "header_bytes", "payload_bytes"):
        sent, received = (
            sum(count for key, count in counts.items() if key[2:] == (way, what))
            for way in ("sent", "received")
        )
        if sent != received:
            raise LuwuError(f"{what}: {sent} were sent in a step, and {received} received")


# ---------------------------------------------------------------------- the report


def _row(case: Case, arm: str, found: Measured) -> Row:
    layout = case.layout(case.extent_chunks(arm))
    names = ("messages", "header_bytes", "payload_bytes")
    roles = {
        role: {
            **{f"{name}_{way}": found.of(role, name, way) for name in names
               for way in ("sent", "received")},
            "kinds": {
                kind: {f"{name}_{way}": value for name in names for way in ("sent", "received")
                       if (value := found.of(role, name, way, kind))}
                for kind in found.kinds if found.of(role, "messages", kind=kind)
            },
        }
        for role in ROLES
    }  # fmt: skip
    return harness.row(
        case.name, arm, found.cpu_s, workers=WORKERS, dtype="float32", switch=True,
        transport=chosen_transport(case.config), chunk_bytes=layout.chunk_bytes,
        extent_chunks=layout.extent_chunks, chunks=len(layout.chunks), extents=len(layout.extents),
        memory_budget_bytes=case.sizes.memory_budget_bytes, messages=found.messages, roles=roles,
        cpu_seconds={
            name: harness.median([each[name] for each in found.cpu]) for name in (*ROLES, LIBZMQ)
        },
    )  # fmt: skip


def _show(one: Row, auto: Row) -> None:
    say(
        f"\n{one['case']}: {one['chunks']} chunks of {one['chunk_bytes'] // 1024} KiB, "
        f"{auto['extents']} extents of {auto['extent_chunks']} at most; {one['transport']}"
    )
    lines: list[Sequence[object]] = []
    for role in ROLES:
        for way in ("sent", "received"):
            lines.append((f"{role}, {way}", *_cells(one["roles"][role], auto["roles"][role], way)))
    kinds = sorted({kind for role in ROLES for kind in one["roles"][role]["kinds"]})
    for kind in kinds:
        lines.append(
            (f"  {kind}, of all", *_cells(_of_all(one, kind), _of_all(auto, kind), "sent"))
        )
    harness.print_table(
        ("a step", "messages", "auto", "ratio", "header KiB", "auto", "payload MiB", "auto"), lines
    )
    cpu = "; ".join(
        f"{row['arm']} {1000 * row['seconds_median']:.1f} ms ("
        + ", ".join(f"{name} {1000 * value:.1f}" for name, value in row["cpu_seconds"].items())
        + ")"
        for row in (one, auto)
    )
    say(f"CPU in messages: {cpu}")


def _cells(one: dict[str, float], auto: dict[str, float], way: str) -> list[str]:
    def of(found: dict[str, float], name: str) -> float:
        return found.get(f"{name}_{way}", 0)

    messages = of(one, "messages"), of(auto, "messages")
    return [
        *(f"{count:,.0f}" for count in messages),
        f"{messages[0] / messages[1]:.2f}" if messages[1] else "-",
        *(f"{of(each, 'header_bytes') / 1024:,.1f}" for each in (one, auto)),
        *(f"{of(each, 'payload_bytes') / 2**20:,.1f}" for each in (one, auto)),
    ]


def _of_all(row: Row, kind: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for role in ROLES:
        for name, value in row["roles"][role]["kinds"].get(kind, {}).items():
            found[name] = found.get(name, 0) + value * (WORKERS if role == "worker" else 1)
    return found


def main() -> int:
    """Run the benchmark; the exit code."""
    parser = harness.flags("messages", __doc__ or "")
    parser.add_argument("--transport", default="auto", help="auto, tcp, ipc or shm")
    try:
        return _run(parser.parse_args())
    except LuwuError as error:
        say(f"messages: {error}")
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)  # a thread's ragged end would be rounded otherwise
    steps = arguments.repeats or (1 if arguments.smoke else 3)
    rows: list[Row] = []
    claims: dict[str, float] = {}
    for case in cases(arguments.transport, smoke=arguments.smoke):
        one, auto = (_row(case, arm, measure(case, arm, steps)) for arm in (ONE, AUTO))
        _show(one, auto)
        rows += [one, auto]
        claims[f"{case.name}: messages"] = one["messages"] / auto["messages"]
        claims[f"{case.name}: cpu"] = one["seconds_median"] / auto["seconds_median"]
    say("")
    harness.print_table(
        ("one chunk over auto", "ratio"), [(name, f"{ratio:.2f}") for name, ratio in claims.items()]
    )
    harness.write(arguments.json, harness.document("messages", rows, claims))
    return 0


if __name__ == "__main__":
    sys.exit(main())
