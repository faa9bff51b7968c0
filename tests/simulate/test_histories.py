"""Histories from seeds: O1 to O6 hold, whatever happens; a seed replays; what fails is shrunk.

More of them: `python -m tests.simulate --seeds N --first S`. Histories that once failed stand
below, as shrinking left them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from luwu.base.retry import RetryPolicy
from tests.simulate.cluster import Cluster
from tests.simulate.faults import (
    Cancel,
    Crash,
    DiskFault,
    Hostile,
    Lasting,
    Noise,
    Partition,
    PowerCut,
    Stall,
    Zombie,
)
from tests.simulate.history import Simulation, run_history
from tests.simulate.plan import History, Options, make_history
from tests.simulate.seeds import seeds
from tests.simulate.shrink import Shrinker
from tests.simulate.trees import TREES
from tests.simulate.world import Faults

TENS = 30


@pytest.mark.parametrize("seed", seeds(TENS))
def test_ten_histories(seed: int) -> None:
    """O1 to O6. Goal: no plan of faults breaks what holds, and all jobs finish. A failure names
    its history: `python -m tests.simulate --first S --seeds 1` replays it and makes it smaller."""
    for each in range(10 * seed, 10 * (seed + 1)):
        try:
            run_history(make_history(each))
        except AssertionError as exc:
            raise AssertionError(f"history {each}: {exc}") from exc


@pytest.mark.parametrize("seed", seeds(8, quick=2))
def test_where_nothing_is_lost_nothing_is_repeated(seed: int) -> None:
    """O4, I6. Goal: on a network that loses nothing no worker, switch or node waits for a
    repetition, which comes 10 s later: whatever is sent can be taken, however far a rank is ahead
    of a slow decision. Method: ten jobs, half of them with a rank that is ahead of the others. (Of
    fixed slots a few may wait for a timer: `aggregation.py`.)"""
    for each in range(10 * seed, 10 * (seed + 1)):
        options = make_history(each, own_switch=each % 5 == 0).options
        options = replace(
            options, stored=False, slot_count=None, idle=options.idle or each % 2 == 1
        )
        retry = RetryPolicy(first_ns=10**10, most_ns=10**10)
        job = replace(
            options.job(),
            retry=retry,
            begins_early=seed % 2 == 1,
            prepare_ns=3 * 10**8 * (each % 3),
        )
        cluster = Cluster(each, job, Faults(is_ordered=True))
        cluster.run_to_the_end()
        assert cluster.world.now_ns < retry.first_ns, f"job {each} waited for a repetition"


def test_a_switch_that_missed_a_start_of_the_node_hears_of_it() -> None:
    """O4. Goal: below a switch that was welcomed to a later start of the node, another one whose
    Welcome was lost asks how the step came out; it is sent the Abort, for it follows no decision of
    a start that it does not know."""
    run_history(make_history(1145))


@pytest.mark.parametrize("aggregate", ["float32", "shared-exponent"])
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("seed", seeds(12))
def test_histories_of_trees(seed: int, tree: str, aggregate: str) -> None:
    """O1 to O6. Goal: the same in every tree, of float32 and of integers."""
    history = make_history(30_000 + seed)
    options = replace(history.options, tree=tree, aggregate=aggregate)
    run_history(replace(history, options=options))


def log_of(seed: int) -> list[tuple[int, str, str, str]]:
    """Everything that was sent in a history: when, by whom, to whom, what."""
    history = make_history(seed)
    found: list[tuple[int, str, str, str]] = []

    class Logged(Simulation):
        def __init__(self, history: History) -> None:
            super().__init__(history)
            hear = self.world.eavesdropper

            def heard(sender: str, receiver: str, message: object, payload: object) -> None:
                found.append((self.world.now_ns, sender, receiver, repr(message)))
                if hear is not None:
                    hear(sender, receiver, message, payload)  # type: ignore[arg-type]

            self.world.eavesdropper = heard

    run_history(history, Logged)
    return found


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("skip_step", [None, 0])
def test_an_evaluation_before_anything_is_attached(in_place: bool, skip_step: int | None) -> None:
    """O4. Goal: weights of the next step are there before what belongs to this one is: where a step
    overwrites the state, and where the step is skipped, for which they once waited for ever."""
    options = Options(
        update="at_step", evaluates=True, keeps=True, in_place=in_place, skip_step=skip_step
    )
    run_history(History(1, options, ()))


def test_a_seed_replays_its_history() -> None:
    """Goal: a seed says everything. Method: all messages of two runs, word for word."""
    first = log_of(7)
    assert len(first) > 100
    assert log_of(7) == first
    assert log_of(8) != first


def test_a_flip_that_nobody_notices_is_found() -> None:
    """Goal: the oracles see a single flipped bit of a gradient or of weights, so what carries them
    must not let one pass (design note 0028). Method: a world without checksums."""

    class Unchecked(Simulation):
        def __init__(self, history: History) -> None:
            super().__init__(history)
            self.world.flips_pass = True

    noise = Noise(at_ms=50, for_ms=500, flip_percent=10)
    with pytest.raises(AssertionError, match=r"explained by none|not equal"):
        run_history(History(3, Options(), (noise,)), Unchecked)


def test_shrinking_leaves_what_matters() -> None:
    """Goal: of a long plan and a large job remain the faults without which all is well, and the
    least job. Method: a history "fails" if it has a crash of a switch and anything of a node."""

    def fails(history: History) -> bool:
        whos = [f"{type(f).__name__} {getattr(f, 'who', '')}" for f in history.faults]
        crash = any(who.startswith("Crash switch") for who in whos)
        return crash and any("node" in who for who in whos) and history.options.steps >= 2

    history = next(h for h in map(make_history, range(10_000)) if fails(h) and len(h.faults) > 6)
    smallest = Shrinker(fails).shrink(history)
    assert fails(smallest)
    assert len(smallest.faults) == 2
    assert smallest.options == Options(world_size=1, steps=2)
    assert all(f.for_ms <= 50 for f in smallest.faults if isinstance(f, Lasting))
    assert smallest.text().startswith(f"def test_history_{history.seed}() -> None:")
    assert all(type(f).__name__ in smallest.text() for f in smallest.faults)


# Histories that once failed, as shrinking left them.
# fmt: off
ONCE_FAILED = {
    # I5. A gradient of ranks that the job does not have is nobody's, at a node too: it once kept
    # the sum of its chunk from ever being complete.
    "a push for ranks that are not of the job": History(502, Options(world_size=1, steps=2), (
        Noise(at_ms=0, for_ms=1250, drop_percent=5, delay_ms=30),
        Hostile(at_ms=657, who="node 0", kind="absurd", count=30),
    )),
    # I6. Several nodes go on after a step that was skipped and an attempt that was given up right
    # behind it.
    "an abort after a skipped step reaches everybody": History(3240, Options(
        world_size=4, units=3, optimizer_nodes=3, steps=4, poison_step=2, keeps=True,
    ), (
        Noise(at_ms=0, for_ms=5000, drop_percent=5, delay_ms=30),
        Cancel(at_ms=1210, who="worker 0"),
        Cancel(at_ms=2463, who="worker 3"),
    )),
    # I5. What nobody asked for takes no memory. A node once kept the payload of data that came with
    # the role of another node.
    "gradients of a stranger that calls itself a node are let go": History(20163, Options(
        world_size=1, optimizer_nodes=2, steps=1,
    ), (
        Hostile(at_ms=93, who="node 5", kind="stranger", count=30),
    )),
    # I3. What two starts of a worker pushed never meet in one step: it once was made of both, where
    # the switch's Cancel was lost until all had committed.
    "a start pushes in no attempt of the one before": History(763, Options(
        units=3, steps=2, keeps=True, aggregate="shared-exponent",
    ), (
        Noise(at_ms=0, for_ms=5000, drop_percent=10, delay_ms=5),
        Crash(at_ms=205, for_ms=200, who="worker 4"),
        Crash(at_ms=788, for_ms=1000, who="worker 3"),
        Crash(at_ms=1202, for_ms=200, who="worker 4"),
        Crash(at_ms=2350, for_ms=5, who="worker 4"),
    )),
    # I6. Weights that were asked for are not asked for again: the second answers came to a pull
    # that was done, which ended the worker.
    "a decision that comes after the abort that told of it": History(5257, Options(
        frozen=True, optimizer_nodes=2, steps=4, absent_unit=1, pulls_ahead=True, keeps=True,
        slot_count=2,
    ), (
        Noise(at_ms=0, for_ms=1250, drop_percent=5, delay_ms=5),
        PowerCut(at_ms=364, for_ms=200, who="node 2"),
    )),
    # I2, I5. A node that stalled before it made its store finds that of its successor, and ends; as
    # `create_directory` does.
    "a zombie makes no store over another": History(17303, Options(
        world_size=3, steps=3, stored=True,
    ), (
        Zombie(at_ms=8, for_ms=200, who="node 2"),
    )),
    # I6. A switch that was just started hears a skipped step decided again, stamped with a later
    # attempt; it must still hear of that attempt by its Abort.
    "a decision of before tells no attempt": History(11999, Options(
        world_size=1, optimizer_nodes=2, steps=4, update="at_step", backwards=2, poison_step=2,
    ), (
        Noise(at_ms=0, for_ms=5000, drop_percent=10, delay_ms=30),
        Stall(at_ms=794, for_ms=200, who="node 3"),
        Stall(at_ms=1007, for_ms=50, who="worker 3"),
        PowerCut(at_ms=1251, for_ms=50, who="node 1"),
        Partition(at_ms=2066, for_ms=200, sender="switch 2", receiver="node 4", two_way=False),
        Zombie(at_ms=2971, for_ms=50, who="switch 4"),
    )),
    # O5. What is held for a disk that stalls is let go when it is done, though the job is over
    # before: nobody waits for work of an attempt that was given up.
    "a slow disk is not a leak": History(50807, Options(
        world_size=3, update="at_step", absent_unit=1, pulls_ahead=True, stored=True, drops=True,
    ), (
        Zombie(at_ms=100, for_ms=1000, who="switch 0"),
        Zombie(at_ms=210, for_ms=5, who="worker 3"),
        Zombie(at_ms=346, for_ms=50, who="node 5"),
        DiskFault(at_ms=446, for_ms=1000, who="node 2", kind="stall"),
        DiskFault(at_ms=530, for_ms=50, who="node 1", kind="stall"),
        Zombie(at_ms=682, for_ms=1000, who="worker 5"),
    )),
    # I6. Whoever comes back as the last step is decided is refused at once, in every tree; it once
    # waited for the grace time, where all that had counted were under other switches.
    "a worker that was left out hears that the job is over": History(12656, Options(
        world_size=1, optimizer_nodes=3, steps=3, update="at_step", backwards=2, absent_unit=1,
        pulls_ahead=True, tree="three levels", drops=True,
    ), (
        Crash(at_ms=319, for_ms=1000, who="worker 0"),
        Crash(at_ms=320, for_ms=50, who="worker 3"),
        Crash(at_ms=546, for_ms=1000, who="worker 1"),
        Crash(at_ms=567, for_ms=200, who="worker 4"),
        Crash(at_ms=694, for_ms=1000, who="worker 4"),
        Crash(at_ms=747, for_ms=1000, who="worker 2"),
    )),
    # I6. Rank 0 ends while it loads the first weights, and its next start loads them to the end: a
    # receipt of the former load reached it before it had sent that chunk, and it waited.
    "a receipt of a former start ends no load": History(10608, Options(
        world_size=1, steps=1, slot_count=2,
    ), (
        Noise(at_ms=0, for_ms=312, drop_percent=5, delay_ms=30),
        Crash(at_ms=101, for_ms=5, who="worker 5"),
    )),
    # O6. Weights that streamed ahead, and whose copy into the switch's cache ends after the step
    # was skipped, are not sent to who asks under the new attempt.
    "weights of a skipped step that are being cached are void": History(3405, Options(
        units=3, steps=3, poison_step=1, keeps=True, slot_bytes_max=150000, cache_bytes_max=1000000,
        sum_bytes_max=50000, extent_chunks=4, rows=150,
    ), (
        Noise(at_ms=0, for_ms=312, drop_percent=5, repeat_percent=10, flip_percent=0, delay_ms=5),
    )),
    # O4. A switch below asks once more for weights, of which it had those of the step before; these
    # were dropped since, as that is decided. The switch above sends them, and no receipt.
    "who had the same weights is sent them once they are dropped": History(70252, Options(
        update="at_step", skip_step=0, absent_parameters=True, cache_bytes_max=1000000,
        tree="three levels", sheets=True,
    ), (
        Noise(at_ms=140, for_ms=1000, drop_percent=10, repeat_percent=90, delay_ms=150),
        Noise(at_ms=251, for_ms=50, drop_percent=0, repeat_percent=90, delay_ms=30),
        Noise(at_ms=360, for_ms=50, drop_percent=0, repeat_percent=90, flip_percent=20, delay_ms=1),
        Noise(at_ms=539, for_ms=200, drop_percent=0, delay_ms=30),
        Noise(at_ms=541, for_ms=1000, drop_percent=10, repeat_percent=90, delay_ms=150),
        Noise(at_ms=714, for_ms=50, drop_percent=0, delay_ms=1),
    )),
    # O4. A rank and the switch are started again while a step that is judged waits for what the
    # rank attaches. The new switch knows no former start of it, so nobody said that it is lost.
    "what a rank attached is lost with the switch": History(5011301, Options(
        steps=4, skip_step=2, idle=True, pulls_ahead=True, keeps=True, cache_bytes_max=1000000,
        aggregate="shared-exponent",
    ), (
        Noise(at_ms=0, for_ms=1250, drop_percent=10, repeat_percent=10, flip_percent=0, delay_ms=5),
        Crash(at_ms=131, for_ms=50, who="worker 3"),
        Crash(at_ms=1006, for_ms=200, who="switch 3"),
        Crash(at_ms=1181, for_ms=50, who="worker 0"),
    )),
}
# fmt: on


@pytest.mark.parametrize("history", ONCE_FAILED.values(), ids=ONCE_FAILED)
def test_what_once_failed(history: History) -> None:
    """O1 to O6. Goal: what each of these histories showed does not come back."""
    run_history(history)


def test_a_poisoned_step_without_who_poisons_it() -> None:
    """O2. Goal: the oracles know that a step is only skipped if whoever pushed what is not finite
    counts in it."""
    faults = (Crash(at_ms=55, for_ms=1000, who="worker 2"),)
    simulation = run_history(History(2024, Options(steps=3, poison_step=2, drops=True), faults))
    assert simulation.disks[0].ledger[3] == 0b10
