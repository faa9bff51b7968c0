"""Start an optimizer node process from its specification, and account for it at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from luwu.aggregate import Aggregator, make_aggregator
from luwu.base.clock import new_incarnation
from luwu.base.errors import ConfigError
from luwu.base.events import Recorder
from luwu.base.expendable import Expendable
from luwu.base.json_file import write_json
from luwu.base.links import push_window_bytes
from luwu.base.quantities import format_bytes
from luwu.layout import Chunk
from luwu.protocol.actions import PARENT
from luwu.protocol.sum_order import depth
from luwu.transport.curve import open_security
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from luwu.wire.description import Description, parse_description
from switch_emu.links.link_report import link_rows
from switch_emu.links.linked import linked
from switch_emu.node.core import NodeCore
from switch_emu.node.core.actions import NodeLimits, NodeNumber
from switch_emu.node.kernels.make import check_known, make_kernel
from switch_emu.node.pages import node_layout_hash, store_config, weights_digest
from switch_emu.node.places import WeightsPlaces, places_bytes
from switch_emu.node.plan import NodePlan, budget_for_pages, plan_node
from switch_emu.node.shell import NodeShell
from switch_emu.process.counting import CountersFile
from switch_emu.process.role_spec import RoleSpec
from switch_emu.store import (
    Durability,
    FilePageStore,
    MemoryPageStore,
    PageStore,
    TieredPageStore,
)
from switch_emu.store.claim import Claim
from switch_emu.store.directory import CONFIG_NAME
from switch_emu.store.kept import KeptFiles
from switch_emu.store.paced import PacedPageStore
from switch_emu.store.spill import SpillFile
from switch_emu.switch.capacity import planned_slots, with_slots
from switch_emu.switch.core.actions import SwitchLimits, patience_ns
from switch_emu.switch.ranges import SlotRanges, lent_range
from switch_emu.switch.recorded import make_switch_core, record_file

DURABILITY_WORDS = {
    "step": "every decided step survives power loss",
    "process": "every decided step survives the end of any process, not power loss",
    "none": "nothing survives the end of this process",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec(RoleSpec):
    """What an optimizer node process is started with; `retry`: of nodes after the first."""

    world_size: int
    memory_budget_bytes: int
    summary: Path
    """Where the account of the run is written at the end."""
    state: Path | None = None
    """Directory of the page store; None: keep everything in RAM."""
    durability: Durability = "step"
    has_switch: bool = True
    resume: bool = False
    ranks_min: int | None = None
    """The job goes on without lost workers, as long as so many are left; None: it waits."""
    redoes: bool = False
    """Decided steps that the state lacks are made again, where members know of them."""
    disk_bytes_per_s: float | None = None
    """Rate of an emulated disk for pages; None: as fast as the real one."""
    groups: tuple[int, ...] = ()
    """Bitmaps of the ranks that each switch of a tree sums, the smaller ones first."""
    number: int = 0
    count: int = 1
    """Which of how many optimizer nodes this is."""
    first: str | None = None
    """Endpoint of node 0, for the others."""

    @property
    def lets_in(self) -> tuple[str, ...]:
        """Roles of the keys that may connect: no worker's, where a switch stands before it."""
        children = ("switch",) if self.has_switch else ("worker", "reader")
        return (*children, "node") if self.count > 1 else children

    @property
    def node(self) -> NodeNumber:
        """Which node this is."""
        return NodeNumber(number=self.number, count=self.count)

    def plan(self) -> NodePlan:
        """The memory plan. Raises ConfigError if the budget cannot work."""
        return plan_node(  # an array more for each level of the tree: `scratch.Adder`
            budget_bytes=self.memory_budget_bytes - depth(self.groups) * self.chunk_bytes,
            chunk_bytes=self.chunk_bytes,
            world_size=self.world_size,
            has_switch=self.has_switch,
            slot_count=self.own_slot_count,
        )

    @property
    def own_slot_count(self) -> int:
        """Slots in the memory budget, at least."""
        return planned_slots(
            self.fidelity, self.slots, has_switch=self.has_switch, in_arenas=self.arena_bytes > 0
        )


def plan_lines(spec: NodeSpec) -> list[str]:
    """What this node will do, for people, before it does it."""
    durability = "none" if spec.state is None else spec.durability
    place = "in RAM" if spec.state is None else f"in {spec.state}"
    which = "" if spec.count == 1 else f"optimizer node {spec.number} of {spec.count}: "
    return [
        f"{which}state {place}; durability {durability}: {DURABILITY_WORDS[durability]}",
        *spec.plan().lines(),
    ]


def serve_node(
    spec: NodeSpec, *, on_listening: Callable[[str], None], should_stop: Callable[[], bool],
    ranges: SlotRanges | None = None,
) -> bool:  # fmt: skip
    """Serve one job until it is over (True), or until somebody wants us to stop before (False).

    `on_listening` is told the endpoint that children dial; `ranges` are the slots that the switches
    of several jobs share.

    Raises: ConfigError, StateError.
    """
    plan = spec.plan()
    role = "node" if spec.number == 0 else f"node-{spec.number}"
    with (
        lent_range(ranges, own_switch_limits(spec, plan)) as limits,
        Recorder(role=role, path=spec.events) as recorder,
    ):
        for line in plan_lines(spec):
            recorder.event("node.plan", text=line)
        arena_bytes = plan.shared_bytes if spec.arena_bytes else 0
        inner = open_transport(
            spec.listen,
            arena_bytes=arena_bytes,
            insecure=spec.insecure,
            security=open_security(spec.keys, spec.key_name, *spec.lets_in),
            stripes=spec.stripes,
            peers_count=(1 if spec.has_switch else spec.world_size) + spec.count - 1,
        )
        with (
            linked(inner, spec.link, seed=spec.link_seed) as transport,
            record_file(None if spec.has_switch else spec.record) as file,
        ):
            shell = make_node_shell(spec, transport, recorder, limits, file)
            try:
                shell.open_existing()  # before we listen: a wrong directory is found at once
                on_listening(transport.listen(spec.listen, advertise=spec.advertise))
                if spec.first is not None:
                    transport.dial(PARENT, spec.first)
                is_finished = shell.run(should_stop)
                shell.drain(2.0)
                shell.write_counters()
                if is_finished:
                    _write_summary(spec, plan, shell)
                recorder.event("node.finished" if is_finished else "node.stopped")
            finally:
                shell.close()
    return is_finished


def make_node_shell(
    spec: NodeSpec, transport: Transport, recorder: Recorder, limits: SwitchLimits | None = None,
    record: IO[bytes] | None = None,
) -> NodeShell:  # fmt: skip
    """A node on a transport, as its specification says; nothing is opened yet.

    `limits`: of a switch of its own; unless given, what the specification comes to.
    """
    plan = spec.plan()
    incarnation = spec.incarnation or new_incarnation()
    ranks = (1 << spec.world_size) - 1
    core = NodeCore(
        job=spec.job,
        incarnation=incarnation,
        ranks=ranks,
        groups=spec.groups,
        node=spec.node,
        retry=spec.retry,
        limits=NodeLimits(
            sum_bytes_max=plan.sums_bytes,
            updates_max=plan.updates_max,
            reads_max=plan.reads_count * 4,
            push_window_bytes=push_window_bytes(spec.link, spec.chunk_bytes, plan.window_bytes),
            raw_bytes_max=spec.arena_bytes // 4 or None,
            ranks_min=spec.ranks_min,
            redoes=spec.redoes,
        ),
    )
    own_switch = None
    if not spec.has_switch:
        own_switch = make_switch_core(
            job=spec.job,
            incarnation=incarnation,
            children=[1 << rank for rank in range(spec.world_size)],
            limits=limits or own_switch_limits(spec, plan),
            file=record,
        )

    claim = None if spec.state is None else Claim(spec.state, f"job {spec.job}")

    def make_spill(description: Description) -> SpillFile:
        layout = description.layout
        owned = [chunk for chunk in layout.chunks if layout.owner(chunk.index) == spec.number]
        aggregator = make_aggregator(description.aggregate, spec.world_size)
        return SpillFile(
            spec.state,
            place_bytes=max(_held_bytes(aggregator, chunk) for chunk in owned),
            places_count=sum(chunk.trainable for chunk in owned),
            buffers_count=plan.spill_bytes // spec.chunk_bytes,
        )

    def make_places(description: Description) -> WeightsPlaces | None:
        nbytes = _places_bytes(spec, plan, description)
        if not nbytes:
            return None
        return WeightsPlaces(description.layout, transport.reserve(nbytes))

    return NodeShell(
        transport,
        core,
        recorder,
        job=spec.job,
        node=spec.node,
        plan=plan,
        open_store=lambda: _open_existing(spec, plan, claim),
        make_store=lambda description: _make_store(spec, plan, description, claim),
        claim=claim,
        make_spill=make_spill,
        make_kernel=lambda description: make_kernel(
            description.optimizer,
            description.state_fields,
            cache=None,
        ),
        make_kept=lambda decided: KeptFiles(
            spec.state, synced=spec.durability == "step", decided=decided
        ),
        make_places=make_places,
        own_switch=own_switch,
        grace_s=spec.grace_s,
        where="in RAM" if spec.state is None else f"in {spec.state}",
        counters=None
        if spec.counters is None
        else CountersFile(spec.counters, spec.counters.stem, spec.job),
    )


def _open_existing(spec: NodeSpec, plan: NodePlan, claim: Claim | None) -> PageStore | None:
    if spec.state is None or claim is None:
        return None
    if not (spec.state / CONFIG_NAME).exists():
        claim.take()
        return None
    store = FilePageStore.open(spec.state, durability=spec.durability)
    if store.decided is not None and not spec.resume:
        version = store.decided.version
        store.close()
        raise ConfigError(
            f"{spec.state} holds the state of a job after {version} decided "
            f"{'step' if version == 1 else 'steps'}; "
            "go on with it by --resume, or name another directory with --state",
            code="E203",
        )
    if store.config.chunk_bytes != spec.chunk_bytes:
        store.close()
        raise ConfigError(
            f"{spec.state} was made with chunks of {store.config.chunk_bytes // 1024}KiB, asked "
            f"for {spec.chunk_bytes // 1024}KiB; use --chunk {store.config.chunk_bytes // 1024}KiB",
            code="E203",
        )
    description = parse_description(store.config.description)
    count = description.layout.node_count
    is_ours = store.config.layout_hash == node_layout_hash(description, spec.number)
    if count != spec.count or not is_ours:
        store.close()
        raise ConfigError(
            f"{spec.state} belongs to {'another' if count == spec.count else f'one of {count}'} "
            f"optimizer node{'s'[: count != spec.count]}, this is node {spec.number} of "
            f"{spec.count}; give the --state it was made with, and --optimizer-nodes {count}",
            code="E203",
        )
    return _tiered(store, spec, plan, description)


def _make_store(
    spec: NodeSpec, plan: NodePlan, description: Description, claim: Claim | None
) -> PageStore:
    if description.layout.node_count != spec.count:
        raise ConfigError(
            f"optimizer_nodes: the workers speak of {description.layout.node_count}, there are "
            f"{spec.count}; start both with the same --optimizer-nodes"
        )
    config = store_config(description, spec.number)
    # What cannot be added or updated is refused here, before there are pages of it.
    make_aggregator(description.aggregate, spec.world_size)
    check_known(description.optimizer, description.state_fields)
    if spec.state is None:
        needed = 2 * config.state_bytes
        if needed > plan.resident_bytes:
            raise ConfigError(
                f"memory_budget: two sides of the state take {format_bytes(needed)} of RAM, "
                f"{format_bytes(plan.resident_bytes)} are left of the budget; give "
                f"{_budget_for_ram(spec, description) // 1024}KiB, or a directory with --state",
                code="E205",
            )
        return MemoryPageStore(config)
    store = FilePageStore.create(spec.state, config, durability=spec.durability, claim=claim)
    return _tiered(store, spec, plan, description)


def _tiered(
    store: PageStore, spec: NodeSpec, plan: NodePlan, description: Description
) -> PageStore:
    if spec.disk_bytes_per_s is not None:
        store = PacedPageStore(store, spec.disk_bytes_per_s)
    return TieredPageStore(store, plan.resident_bytes - _places_bytes(spec, plan, description))


def _held_bytes(aggregator: Aggregator, chunk: Chunk) -> int:
    """The most that one payload of a chunk's gradient takes while it waits."""
    elems = chunk.elems
    return max(chunk.sum_bytes, aggregator.encoded_bytes(elems), aggregator.sum_bytes(elems))


def _places_bytes(spec: NodeSpec, plan: NodePlan, description: Description) -> int:
    if spec.count > 1:
        return 0  # a unit's chunks would not lie one behind the other
    in_ram_bytes = 0 if spec.state is not None else 2 * store_config(description).state_bytes
    wanted_bytes = places_bytes(description.layout) if spec.arena_bytes else 0
    return plan.in_place_bytes(wanted_bytes, state_in_ram_bytes=in_ram_bytes)


def own_switch_limits(spec: NodeSpec, plan: NodePlan) -> SwitchLimits:
    """What the node's own switch may hold, if it has one. Raises ConfigError."""
    if spec.has_switch:
        return SwitchLimits()
    limits = SwitchLimits(
        slot_bytes_max=plan.slots_bytes,
        copies_bytes_max=plan.copies_bytes,
        push_window_bytes=max(spec.chunk_bytes, plan.window_bytes // spec.world_size),
    )
    if spec.arena_bytes:
        limits = SwitchLimits.in_arenas(spec.arena_bytes, spec.world_size, spec.chunk_bytes)
    window_bytes = push_window_bytes(spec.link, spec.chunk_bytes, limits.push_window_bytes)
    limits = replace(
        limits, push_window_bytes=window_bytes, patience_ns=patience_ns(spec.drop_after_s)
    )
    return with_slots(
        limits, spec.fidelity, spec.slots, child_count=spec.world_size, chunk_bytes=spec.chunk_bytes
    )


def _budget_for_ram(spec: NodeSpec, description: Description) -> int:
    """A budget that leaves room for two sides of all pages."""

    def needed(chunk_bytes: int) -> int:
        layout = replace(description.layout, chunk_bytes=chunk_bytes)
        return 2 * store_config(replace(description, layout=layout), spec.number).state_bytes

    return budget_for_pages(
        needed, budget_bytes=spec.memory_budget_bytes, chunk_bytes=spec.chunk_bytes,
        world_size=spec.world_size, has_switch=spec.has_switch, slot_count=spec.own_slot_count,
    )  # fmt: skip


def _write_summary(spec: NodeSpec, plan: NodePlan, shell: NodeShell) -> None:
    """What the run came to, for `compare`; written whole or not at all."""
    store, description = shell.store, shell.description
    if store is None or description is None:
        return
    spill = shell.spill
    summary = {
        "schema": 1,
        "steps": shell.core.next_step,
        # Of several nodes none has all weights: whoever started them adds the digest.
        "weights_digest": weights_digest(store, description.layout) if spec.count == 1 else None,
        "node_state_bytes": store.state_bytes,
        "disk_space_bytes": store.disk_bytes + (spill.disk_bytes if spill else 0),
        "disk_bytes": {
            "read": store.stats.bytes_read + (spill.bytes_read if spill else 0),
            "written": store.stats.bytes_written + (spill.bytes_written if spill else 0),
        },
        # Part of disk_bytes: sums that found no room in RAM, written through the kernel's cache.
        "spill_bytes": {
            "read": spill.bytes_read if spill else 0,
            "written": spill.bytes_written if spill else 0,
        },
        "network_bytes": {
            "into_node": shell.payload_bytes_in,
            "out_of_node": shell.payload_bytes_out,
            "headers": shell.links.total().header_bytes,
        },
        "memory_budget_bytes": spec.memory_budget_bytes,
        "resident_bytes": plan.resident_bytes,
        "chunk_bytes": spec.chunk_bytes,
        "spilled_count": shell.core.budget.spilled_count,
        "overflow_count": shell.core.overflow_count,
        "links": link_rows(
            shell.transport, "node" if spec.has_switch else "worker", shell.link_name
        ),
        "pool": None if shell.own_switch is None else shell.own_switch.report(),
    }
    with Expendable().writing(spec.summary):
        write_json(spec.summary, summary)
