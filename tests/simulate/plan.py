"""A history as a value: options of its job, and the list of its faults, both drawn from one seed.

Each history enables a part of the kinds of faults only (swarm testing): what always happens
together hides what happens alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from luwu.aggregate import make_aggregator
from luwu.base.seeds import derive
from switch_emu.switch.core.actions import SwitchLimits
from tests.simulate import faults as f
from tests.simulate.device import KINDS as DISK_KINDS
from tests.simulate.faults import Fault
from tests.simulate.hostile import KINDS as HOSTILE_KINDS
from tests.simulate.job import SMALL_NODE, Job, make_layout
from tests.simulate.trees import TREES

FAULTS_MS = 3000
"""Faults begin within this; a job of five steps takes one to three seconds."""
CALM_IS_FASTER = 4
"""How much sooner a job is done where the network loses nothing."""
HEALED_MS = 5000
"""No fault lasts longer than this: then the second phase begins, and the job must finish."""
PATIENCE_MS = 400
"""Where lost ranks are left out. A rough network takes longer now and then: so are ranks that only
wait for an answer."""
GOING_BACK_RATIO = 0.05
"""Share of histories whose state comes back older."""
EXTENTS_RATIO = 0.75
"""Share of histories with extents, of those that may have any: of all, about half."""
CACHE_RATIO = 0.5
"""Share of histories whose switches cache weights, of those that have switches of their own."""
LOSSES_RATIO = 0.7
"""Share of histories in which a node is lost for good, of those whose pages have several owners."""
NODE_PATIENCE_MS = 1500
"""After so long the job goes on without it: no fault takes one away for longer, but its loss."""
LOST_AGAIN_RATIO = 0.4
"""Share of histories in which a node that comes back is lost once more."""
FILL_BYTES_PER_S = 1e6
"""At which a lost node is filled: in some steps of a history."""
REPLICAS_RATIO = 0.5
"""Share of histories whose pages have several owners, of those that have several nodes."""
FINISH_MS = 60_000
"""Virtual time that the second phase may take (O4)."""
SHEETS_RATIO = 0.25
"""Share of histories whose parameters are updated as a whole; most of these have several chunks."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The job of a history, in words that can be made simpler one by one."""

    world_size: int = 2
    units: int = 2
    frozen: bool = False
    optimizer_nodes: int = 1
    replicas: int = 1
    """Nodes that hold each page."""
    loses: bool = False
    """The job goes on without nodes that are lost, where others hold their pages."""
    steps: int = 5
    update: str = "streaming"
    backwards: int = 1
    poison_step: int | None = None
    skip_step: int | None = None
    absent_unit: int | None = None
    absent_parameters: bool = False
    idle: bool = False
    """The last of several ranks has no samples after step 0."""
    evaluates: bool = False
    """The last rank pulls the weights of odd steps once more."""
    pulls_ahead: bool = False
    keeps: bool = False
    max_grad_norm: float | None = None
    slot_bytes_max: int = 500_000
    copies_bytes_max: int = 500_000
    cache_bytes_max: int = 0
    """Weights that switches answer pulls with."""
    sum_bytes_max: int = 500_000
    """Of gradients in the RAM of a node: what is beyond is spilled."""
    slot_count: int | None = None
    aggregate: str = "float32"
    tree: str | None = None
    own_switch: bool = False
    """As with `--no-switch`."""
    stored: bool = False
    """Nodes run the real page store on simulated devices."""
    drops: bool = False
    """The job goes on without ranks that are lost."""
    workers_min: int = 1
    """As long as so many are left."""
    grows: bool = False
    """It begins without ranks that are not there yet."""
    extent_chunks: int = 1
    """Chunks that travel together at most."""
    in_place: bool = False
    """The node's state is in RAM, and a step overwrites it; without a log the node does not die."""
    log_slots: int = 0
    """Of the log of sums beside a state in RAM that is stored; 0: there is none."""
    rows: int = 70
    """Of each unit: more of them are more parameters and more chunks."""
    sheets: bool = False
    """Parameters are updated as a whole, and most have several chunks."""

    @property
    def may_have_extents(self) -> bool:
        """Whether several chunks may travel together."""
        return self.slot_count is None and make_aggregator(self.aggregate, 1).is_plain

    def job(self) -> Job:
        """What the cluster trains."""
        tree = None if self.tree is None else TREES[self.tree]
        return Job(
            make_layout(
                units=self.units, frozen=self.frozen, optimizer_nodes=self.optimizer_nodes,
                rows=self.rows, extent_chunks=self.extent_chunks if self.may_have_extents else 1,
                sheets=self.sheets,
            ),
            replicas=min(self.replicas, self.optimizer_nodes),
            world_size=self.world_size if tree is None else tree.workers,
            steps=self.steps, update=self.update,
            backwards=self.backwards if self.update == "at_step" else 1,
            poison_step=self.poison_step, skip_step=self.skip_step,
            absent_unit=self.absent_unit, absent_parameters=self.absent_parameters,
            idle=self.idle, evaluates=self.evaluates, pulls_ahead=self.pulls_ahead,
            keeps=self.keeps, max_grad_norm=self.max_grad_norm,
            switch_limits=SwitchLimits(
                slot_bytes_max=self.slot_bytes_max, copies_bytes_max=self.copies_bytes_max,
                cache_bytes_max=self.cache_bytes_max,
                push_window_bytes=60_000,
                drop_after_ns=PATIENCE_MS * 1_000_000 if self.drops else None,
                drop_node_after_ns=NODE_PATIENCE_MS * 1_000_000 if self.loses else None,
                fill_rate_bytes_per_s=FILL_BYTES_PER_S if self.loses else None,
            ),
            node_limits=replace(
                SMALL_NODE, sum_bytes_max=self.sum_bytes_max,
                workers_min=self.workers_min if self.drops else None,
                workers_max=self.world_size if self.grows else None,
            ),
            slot_count=self.slot_count, aggregate=self.aggregate,
            switches=tree, own_switch=self.own_switch,
        )  # fmt: skip


@dataclass(frozen=True)
class History:
    """What happens; with a seed for the order of all that is not said."""

    seed: int
    options: Options
    faults: tuple[Fault, ...]

    def text(self) -> str:
        """As a test that can be pasted."""
        options = ", ".join(
            f"{name}={value!r}"
            for name, value in vars(self.options).items()
            if value != getattr(Options(), name)
        )
        faults = "".join(f"        {fault!r},\n" for fault in self.faults)
        return (
            f"def test_history_{self.seed}() -> None:\n"
            '    """O1 to O6. Goal: what this history showed does not come back."""\n'
            f"    faults = (\n{faults}    )\n"
            f"    run_history(History({self.seed}, Options({options}), faults))"
        )


def make_history(seed: int, slot_count: int | None = None, *, own_switch: bool = False) -> History:
    """The history of a seed; with so many slots, in protocol fidelity.

    `own_switch`: as with `--no-switch`, which has one node and no tree.
    """
    options = make_options(Random(derive(seed, "options")))
    if slot_count is not None:
        options = replace(options, slot_count=slot_count)
    if own_switch:
        options = replace(options, own_switch=True, optimizer_nodes=1, tree=None)
    faults = make_faults(Random(derive(seed, "faults")), options)
    random = Random(derive(seed, "going back"))  # of its own: other histories stay what they were
    if random.random() < GOING_BACK_RATIO:
        back = f.GoBack(at_ms=_when(random) // CALM_IS_FASTER, for_ms=_long(random))
        faults = tuple(sorted((*faults, back), key=lambda fault: fault.at_ms))
    options = _with_extents(Random(derive(seed, "extents")), options)  # as are these two
    options = _with_cache(Random(derive(seed, "cache")), options)
    options = _with_replicas(Random(derive(seed, "replicas")), options)
    options, faults = _with_losses(Random(derive(seed, "losses")), options, faults)
    is_whole = Random(derive(seed, "sheets")).random() < SHEETS_RATIO
    options = replace(options, sheets=is_whole)
    return History(seed, *_in_place(Random(derive(seed, "in place")), options, faults))


def _with_extents(random: Random, options: Options) -> Options:
    """Several chunks travel together, of units that have more of them; or all is as it was."""
    if not options.may_have_extents or random.random() >= EXTENTS_RATIO:
        return options
    # With several nodes, an extent's chunks are so many apart.
    rows = (
        random.choice((70, 150, 260)) if options.optimizer_nodes == 1 else random.choice((150, 260))
    )
    return replace(options, extent_chunks=random.choice((2, 3, 4, 100)), rows=rows)


def _with_cache(random: Random, options: Options) -> Options:
    """Switches cache all weights, or some; or none, as with `--no-switch`."""
    if options.own_switch or random.random() >= CACHE_RATIO:
        return options
    return replace(options, cache_bytes_max=random.choice((40_000, 150_000, 1_000_000)))


def _with_replicas(random: Random, options: Options) -> Options:
    """Of several nodes, more than one hold each page in half of the histories."""
    if options.optimizer_nodes == 1 or random.random() >= REPLICAS_RATIO:
        return options
    return replace(options, replicas=random.randrange(2, options.optimizer_nodes + 1))


def _with_losses(
    random: Random, options: Options, faults: tuple[Fault, ...]
) -> tuple[Options, tuple[Fault, ...]]:
    """A node is lost with its directory, in most histories whose pages have several owners."""
    if options.replicas == 1 or random.random() >= LOSSES_RATIO:
        return options, faults
    if any(isinstance(fault, f.GoBack | f.Blackout | f.DiskFault) for fault in faults):
        return options, faults  # more than one loss at a time
    at_ms, number = _when(random), random.randrange(options.optimizer_nodes)
    if not any(isinstance(fault, f.Noise) for fault in faults):
        at_ms //= CALM_IS_FASTER
    # E6: of two nodes, one that is lost together with the switch must come back, be it empty.
    comes_back = random.random() < 0.5 or options.optimizer_nodes == 2
    losses = [
        f.LoseNode(at_ms=at_ms, for_ms=_long(random), who=f"node {number}", comes_back=comes_back)
    ]
    if comes_back and random.random() < LOST_AGAIN_RATIO:  # as it is being filled, perhaps
        at_ms += losses[0].for_ms + random.randrange(1, 1500)
        losses.append(replace(losses[0], at_ms=at_ms))
    found = tuple(sorted((*faults, *losses), key=lambda fault: fault.at_ms))
    return replace(options, loses=True), found


def _in_place(
    random: Random, options: Options, faults: tuple[Fault, ...]
) -> tuple[Options, tuple[Fault, ...]]:
    """The state is in RAM, in half of the histories that may have it so; beside half of these, and
    of those that are stored, there is a log of its sums."""
    is_alone, is_in_place = options.optimizer_nodes == 1, random.random() < 0.5
    is_in_place = is_in_place and is_alone and options.update == "at_step"
    if (is_in_place or options.stored) and random.random() < 0.5:
        log_slots = random.choice((2, 3, 5))
        return replace(options, in_place=is_in_place, stored=True, log_slots=log_slots), faults
    if not is_in_place:
        return options, faults
    deadly = ("node", "switch") if options.own_switch else ("node",)
    left = tuple(
        fault
        for fault in faults
        if not isinstance(fault, f.GoBack | f.Blackout | f.PowerCut | f.DieInStore | f.DiskFault)
        and not (isinstance(fault, f.Crash | f.Zombie) and fault.who.startswith(deadly))
    )
    return replace(options, in_place=True, stored=False), left


def make_options(random: Random) -> Options:
    """A job drawn at random."""
    update = random.choice(("streaming", "streaming", "at_step"))
    poison_step = random.choice((1, 2)) if random.random() < 0.2 else None
    # What poisons a step is pushed for unit 1, so that one is not absent too.
    absent_unit = 1 if poison_step is None and random.random() < 0.15 else None
    return Options(
        world_size=random.choice((1, 2, 2, 3, 4)),
        units=random.choice((2, 2, 3)),
        frozen=random.random() < 0.3,
        optimizer_nodes=random.choice((1, 1, 1, 2, 3)),
        steps=random.choice((3, 4, 5)),
        update=update,
        backwards=random.choice((1, 1, 2)) if update == "at_step" else 1,
        poison_step=poison_step,
        absent_unit=absent_unit,
        pulls_ahead=random.random() < 0.3,
        keeps=random.random() < 0.4,
        slot_bytes_max=150_000 if random.random() < 0.25 else 500_000,
        copies_bytes_max=50_000 if random.random() < 0.2 else 500_000,
        sum_bytes_max=50_000 if random.random() < 0.2 else 500_000,
        slot_count=random.choice((1, 2, 5)) if random.random() < 0.25 else None,
        # An aggregator that measures first sends most messages: rare, or histories are slow.
        aggregate="shared-exponent" if random.random() < 0.1 else "float32",
        tree=random.choice(sorted(TREES)) if random.random() < 0.15 else None,
        stored=random.random() < 0.6,
        drops=random.random() < 0.25,
        # A poisoned step needs the gradient that it poisons.
        absent_parameters=random.random() < 0.3 and poison_step is None,
        skip_step=random.choice((0, 1, 2)) if random.random() < 0.2 else None,
        idle=random.random() < 0.15,
        evaluates=random.random() < 0.15,
        # Above all of its norms, below all, and between: some steps are clipped, others are not.
        max_grad_norm=random.choice((None, None, 1e9, 1.0, 30.0, 60.0)),
    )


def make_faults(random: Random, options: Options) -> tuple[Fault, ...]:
    """Up to ten faults of some kinds, by time; half of all histories have a rough network."""
    enabled = random.sample(_KINDS, random.randrange(1, 6))
    found = [random.choice(enabled)(random) for _ in range(random.randrange(1, 11))]
    if random.random() < 0.5:  # nothing is lost: the job is soon done, so faults come sooner
        found = [replace(fault, at_ms=fault.at_ms // CALM_IS_FASTER) for fault in found]
    else:
        found.append(
            f.Noise(
                at_ms=0, for_ms=HEALED_MS, drop_percent=random.choice((1, 5, 10)),
                repeat_percent=random.choice((0, 10)), delay_ms=random.choice((5, 30)),
            )
        )  # fmt: skip
    found = [fault for fault in found if _is_in_scope(fault, options)]
    return tuple(sorted(found, key=lambda fault: fault.at_ms))


def _is_in_scope(fault: Fault, options: Options) -> bool:
    """Whether the system promises to take it: some only the real store can have."""
    is_stall = isinstance(fault, f.DiskFault) and fault.kind == "stall"
    return options.stored or is_stall or not isinstance(fault, f.DiskFault | f.DieInStore)


def _when(random: Random) -> int:
    return random.randrange(FAULTS_MS)


def _long(random: Random) -> int:
    return random.choice((5, 50, 200, 1000))


def _anyone(random: Random) -> str:
    return f"{random.choice(('worker', 'switch', 'node'))} {random.randrange(6)}"


def _node(random: Random) -> str:
    return f"node {random.randrange(3)}"


def _noise(random: Random) -> Fault:
    return f.Noise(
        at_ms=_when(random), for_ms=_long(random), drop_percent=random.choice((0, 10, 50)),
        repeat_percent=random.choice((0, 20, 90)), flip_percent=random.choice((0, 0, 20)),
        delay_ms=random.choice((1, 30, 150)),
    )  # fmt: skip


def _partition(random: Random) -> Fault:
    pairs = [("worker", "switch"), ("switch", "node"), ("switch", "switch"), ("node", "node")]
    sides = list(random.choice(pairs))
    random.shuffle(sides)
    sender, receiver = (f"{side} {random.randrange(6)}" for side in sides)
    return f.Partition(
        at_ms=_when(random), for_ms=_long(random), sender=sender, receiver=receiver,
        two_way=random.random() < 0.5,
    )  # fmt: skip


def _crash_worker(random: Random) -> Fault:
    who = f"worker {random.randrange(6)}"
    return f.Crash(at_ms=_when(random), for_ms=_long(random), who=who)


def _die_in_store(random: Random) -> Fault:
    return f.DieInStore(
        at_ms=_when(random), for_ms=_long(random), who=_node(random),
        failpoints=random.randrange(40), power_cut=random.random() < 0.7,
    )  # fmt: skip


def _disk(random: Random) -> Fault:
    kind = random.choice((*DISK_KINDS, "stall"))
    return f.DiskFault(at_ms=_when(random), for_ms=_long(random), who=_node(random), kind=kind)


def _hostile(random: Random) -> Fault:
    who = f"{random.choice(('switch', 'node'))} {random.randrange(6)}"
    return f.Hostile(
        at_ms=_when(random), who=who, kind=random.choice(HOSTILE_KINDS),
        count=random.choice((1, 5, 30)),
    )  # fmt: skip


_KINDS: tuple[Callable[[Random], Fault], ...] = (
    _noise,
    _partition,
    lambda random: f.Crash(at_ms=_when(random), for_ms=_long(random), who=_anyone(random)),
    _crash_worker,
    lambda random: f.PowerCut(at_ms=_when(random), for_ms=_long(random), who=_node(random)),
    lambda random: f.Blackout(at_ms=_when(random), for_ms=_long(random)),
    _die_in_store,
    lambda random: f.Stall(at_ms=_when(random), for_ms=_long(random), who=_anyone(random)),
    lambda random: f.Zombie(at_ms=_when(random), for_ms=_long(random), who=_anyone(random)),
    lambda random: f.Reconnect(at_ms=_when(random), who=_anyone(random)),
    lambda random: f.Cancel(at_ms=_when(random), who=f"worker {random.randrange(6)}"),
    _disk,
    _hostile,
)
"""One function a kind of fault. What a seed draws follows from their order, and from theirs."""
