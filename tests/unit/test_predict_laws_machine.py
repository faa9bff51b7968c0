"""Laws of a step on one machine: work is conserved, and more of anything is never slower."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import simpy

from luwu.predict.driven.machine_play import predict_machine_step
from luwu.predict.machine.machine import MachineFloors, MachineJob, MachineStep, compute_by_unit
from luwu.predict.machine.machine_cores import Cores, Device, Thread

MIB = 1024 * 1024
FLOORS = MachineFloors(
    cores=2, forward_s=0.07, backward_s=0.14, root_ratio=0.1, end_s=60e-6, handed_s=12e-6,
    send_s_per_byte=0.2e-9, receive_s_per_byte=0.15e-9,
    gradient_s_per_byte=0.1e-9, weights_s_per_byte=0.1e-9, sum_s_per_byte=0.1e-9,
    update_s_per_byte=1e-9, reading_s_per_byte=0.2e-9, write_s_per_byte=0.5e-9,
    mixed_s_per_byte=1e-9, pull_s_per_byte=0.5e-9,
)  # fmt: skip
"""Round numbers of no machine."""
FREE = MachineFloors(
    cores=1, forward_s=0.1, backward_s=0.2, root_ratio=0.0,
    **{name: 0.0 for name in (
        "end_s", "handed_s", "send_s_per_byte", "receive_s_per_byte",
        "gradient_s_per_byte", "weights_s_per_byte", "sum_s_per_byte", "update_s_per_byte",
        "reading_s_per_byte",
    )},
)  # fmt: skip
"""Only compute takes time."""
RAM = MachineJob(chunks=((MIB,), *(((7 * MIB),),) * 3), workers=2)
DISK = MachineJob(chunks=((MIB,), *((MIB,) * 4,) * 2), workers=2, out_of_core=True)
SHARED = replace(RAM, in_place=True)
ANOMALY = 0.01
"""What comes early may take its turn before what others wait for: a faster part then costs a little
(Graham 1969, Bounds on multiprocessing timing anomalies). 0.03 % were seen."""
TWO_NODES = replace(DISK, nodes=2, resident=((1,), (1, 2, 0, 0), (1, 2, 0, 0)))
REPLICAS = replace(TWO_NODES, replicas=2, resident=((3,), (1, 2, 0, 0), (3, 0, 0, 0)))
JOBS = [
    replace(job, workers=workers)
    for job in (RAM, DISK, SHARED, TWO_NODES, REPLICAS)
    for workers in (1, 2, 4)
]


@cache
def step_of(job: MachineJob, floors: MachineFloors) -> MachineStep:
    """A step, played once: many laws compare others with the same one."""
    return predict_machine_step(job, floors)


@pytest.mark.parametrize("job", JOBS)
def test_predict_laws_machine_no_step_is_shorter_than_its_work(job: MachineJob) -> None:
    """X10. Goal: neither cores nor disk do more than they can; parts are the whole."""
    step = step_of(job, FLOORS)
    assert step.step_s >= step.cores_s * (1 - 1e-9)
    assert step.step_s >= step.disk_s * (1 - 1e-9)
    assert sum(step.parts.values()) == pytest.approx(step.step_s)
    assert step.work_s["compute"] == pytest.approx(job.workers * 0.21)


@pytest.mark.parametrize(("job", "step_s", "disk_s"), [
    (RAM, 0.2766617482666649, 0.0),
    (DISK, 0.25024558079999626, 0.03638558720000008),
    (SHARED, 0.25629578133333153, 0.0),
    (
        replace(DISK, workers=3, resident=((True,), (True, False, True, False), (False,) * 4)),
        0.3570309062400003, 0.029464985600000042,
    ),
], ids=["RAM", "disk", "shared", "some-resident"])  # fmt: skip
def test_predict_laws_machine_single_chunks_are_predicted_as_before(
    job: MachineJob, step_s: float, disk_s: float
) -> None:
    """Goal: where an extent is a chunk, a step is to the bit what it was before there were extents.
    The numbers are that program's; they change with a decision of a core or with X5 to X9."""
    step = step_of(job, FLOORS)
    assert (step.step_s, step.disk_s) == (step_s, disk_s)


def test_predict_laws_machine_nodes_share_the_pages_and_replicas_repeat_them() -> None:
    """X5, X6. Goal: two nodes do the updates of one, two replicas twice as many, and receive twice
    as much; workers and switch add the same, and a page that stays at one node is read at the
    other."""
    one, two, both = (
        step_of(job, FLOORS)
        for job in (DISK, replace(DISK, nodes=2), replace(DISK, nodes=2, replicas=2))
    )
    for kind in ("compute", "copies", "sums"):
        assert one.work_s[kind] == pytest.approx(two.work_s[kind])
        assert one.work_s[kind] == pytest.approx(both.work_s[kind])
    assert two.work_s["updates"] == pytest.approx(one.work_s["updates"])
    assert both.work_s["updates"] == pytest.approx(2 * one.work_s["updates"])
    assert both.work_s["wire"] > two.work_s["wire"]
    assert one.work_s["messages"] < two.work_s["messages"] < both.work_s["messages"]
    own = replace(DISK, nodes=2, replicas=2)
    stays = [((n,), (n,) * 4, (n,) * 4) for n in (0, 1, 3)]
    disk_s = [step_of(replace(own, resident=each), FLOORS).disk_s for each in stays]
    assert disk_s == sorted(disk_s, reverse=True)
    assert len(set(disk_s)) == 3


@pytest.mark.parametrize("extent_chunks", [1, 3, 4, 16])
@pytest.mark.parametrize("job", [RAM, DISK, SHARED])
def test_predict_laws_machine_extents_do_the_same_work(job: MachineJob, extent_chunks: int) -> None:
    """X5 to X7. Goal: however many chunks travel together, the same bytes are copied, carried,
    summed and updated."""
    own, found = (
        step_of(replace(job, extent_chunks=count), FLOORS) for count in (1, extent_chunks)
    )
    for kind in ("compute", "copies", "sums", "updates", "wire"):
        assert found.work_s[kind] == pytest.approx(own.work_s[kind])
    assert found.work_s["messages"] <= own.work_s["messages"] * (1 + 1e-9)


@pytest.mark.parametrize("job", JOBS)
def test_predict_laws_machine_more_cores_are_never_slower(job: MachineJob) -> None:
    """Q3. Goal: more cores do not slow a step. The work stays the same, but for reads of weights:
    those that are asked for before the update are handed out by it."""
    steps = [step_of(job, replace(FLOORS, cores=n)) for n in (1, 2, 4, 64)]
    for less, more in pairwise(steps):
        assert more.step_s <= less.step_s * (1 + ANOMALY)
        for kind in {*more.work_s} - {"reads", "hand-overs"}:
            assert more.work_s[kind] == pytest.approx(less.work_s[kind])


@pytest.mark.parametrize("name", [
    "end_s", "handed_s", "send_s_per_byte", "receive_s_per_byte",
    "gradient_s_per_byte", "weights_s_per_byte", "sum_s_per_byte", "update_s_per_byte",
    "reading_s_per_byte", "write_s_per_byte", "mixed_s_per_byte", "pull_s_per_byte", "forward_s",
    "backward_s",
])  # fmt: skip
@pytest.mark.parametrize("job", [RAM, DISK])
def test_predict_laws_machine_a_faster_part_is_never_slower(job: MachineJob, name: str) -> None:
    """Goal: each floor that is lower, bandwidths that are higher among them, never slows a step."""
    seconds = [
        step_of(job, replace(FLOORS, **{name: factor * getattr(FLOORS, name)})).step_s
        for factor in (0.0, 0.5, 1.0, 2.0)
    ]
    for faster, slower in pairwise(seconds):
        assert faster <= slower * (1 + ANOMALY)


@pytest.mark.parametrize(("workers", "cores", "expected_s"), [
    (1, 1, 0.3), (1, 2, 0.3), (2, 1, 0.6), (2, 2, 0.3), (4, 2, 0.6), (3, 2, 0.45),
])  # fmt: skip
def test_predict_laws_machine_compute_alone_shares_the_cores(
    workers: int, cores: int, expected_s: float
) -> None:
    """X9, Q3. Goal: where only compute costs anything, a step is its work over the cores that can
    be used; a worker has one thread."""
    job = replace(RAM, workers=workers)
    step = step_of(job, replace(FREE, cores=cores))
    assert step.step_s == pytest.approx(expected_s)


def test_predict_laws_machine_one_core_never_waits() -> None:
    """Goal: in memory a single core has work all the time: the closed form."""
    step = step_of(RAM, replace(FLOORS, cores=1))
    assert step.step_s == pytest.approx(step.cores_s, rel=0.01)


def test_predict_laws_machine_a_unit_of_one_chunk_and_one_worker() -> None:
    """Goal: sizes of 1. The step is all that is done, one thing after the other, on many cores."""
    job = MachineJob(chunks=((MIB,),), workers=1)
    floors = replace(FLOORS, cores=64, root_ratio=1.0)
    step = step_of(job, floors)
    assert 0.21 < step.step_s < sum(step.work_s.values()) * (1 + 1e-9)


def test_predict_laws_machine_threads_of_compute_divide_it() -> None:
    """X9. Goal: two threads on enough cores take half as long, for as much work."""
    one = step_of(RAM, replace(FREE, cores=64))
    two = step_of(replace(RAM, compute_threads=2), replace(FREE, cores=64))
    assert two.step_s == pytest.approx(one.step_s / 2)
    assert two.work_s == pytest.approx(one.work_s)


def test_predict_laws_machine_two_plays_are_identical() -> None:
    """Goal: nothing random."""
    assert predict_machine_step(DISK, FLOORS) == predict_machine_step(DISK, FLOORS)


def test_predict_laws_machine_units_share_what_a_pass_takes() -> None:
    """Goal: blocks and root come to the whole."""
    assert sum(compute_by_unit(RAM, FLOORS, 0.5)) == pytest.approx(0.5)
    assert compute_by_unit(MachineJob(chunks=((1,),), workers=1), FLOORS, 0.5) == [0.5]


def test_predict_laws_machine_threads_share_cores_evenly() -> None:
    """Q3 to Q5. Goal: three threads with a second each on two cores are done at 1.5 s; a thread
    keeps its order; a device serves one request after the other and needs no core."""
    env = simpy.Environment()
    cores, work_s, ends_s = Cores(env, 2), dict[str, float](), dict[str, float]()
    threads = [Thread(env, cores, work_s) for _ in range(3)]
    device = Device(env)

    def note(name: str, event: simpy.Event) -> None:
        assert event.callbacks is not None
        event.callbacks.append(lambda _: ends_s.__setitem__(name, env.now))

    for index, thread in enumerate(threads):
        note(f"thread {index}", thread.do("a", 1.0))
    note("behind", threads[0].do("b", 0.25))
    note("first", device.do("read", 1.0))
    note("second", device.do("read", 2.0))
    env.run()
    assert ends_s == pytest.approx({
        "thread 0": 1.5, "thread 1": 1.5, "thread 2": 1.5, "behind": 1.75, "first": 1.0,
        "second": 3.0,
    })  # fmt: skip
    assert cores.busy_s == pytest.approx(sum(work_s.values())) == 3.25
