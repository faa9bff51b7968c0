"""Start an optimizer node process from its specification; write its summary at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from luwu.base.clock import new_incarnation
from luwu.base.directories import memory_kind
from luwu.base.events import Recorder
from luwu.base.expendable import Expendable
from luwu.base.json_file import write_json
from luwu.base.links import push_window_bytes
from luwu.transport.curve import open_security
from luwu.transport.interface import Transport
from luwu.transport.opening import open_transport
from switch_emu.links.linked import link_rows, linked
from switch_emu.node.core import NodeCore
from switch_emu.node.pages import weights_digest
from switch_emu.node.plan import NodePlan
from switch_emu.node.shell import NodeShell
from switch_emu.node.spec import NodeSpec
from switch_emu.node.storage import NodeStorage
from switch_emu.process.counting import CountersFile
from switch_emu.switch.capacity import with_slots
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import SwitchLimits

DURABILITY_WORDS = {
    "step": "every decided step survives power loss",
    "process": "every decided step survives the end of any process, not power loss",
    "none": "nothing survives the end of this process",
}


def plan_lines(spec: NodeSpec) -> list[str]:
    """State, durability and memory plan of a node, as text."""
    durability = "none" if spec.state is None else spec.durability
    place = "in RAM" if spec.state is None else f"in {spec.state}"
    kind = None if spec.state is None else memory_kind(spec.state)
    words = DURABILITY_WORDS["process" if kind and durability == "step" else durability]
    place += f" (memory: {kind})" if kind else ""
    count = spec.optimizer_nodes
    which = "" if count == 1 else f"optimizer node {spec.number} of {count}: "
    return [f"{which}state {place}; durability {durability}: {words}", spec.plan().line]


def serve_node(
    spec: NodeSpec, *, on_listening: Callable[[str], None], should_stop: Callable[[], bool],
    is_over: Callable[[], bool] = lambda: False,
) -> bool:  # fmt: skip
    """Serve one job until it is over (True), or `should_stop` (False).

    `on_listening` receives the endpoint that children dial.

    Raises: ConfigError, StateError.
    """
    plan = spec.plan()
    limits = own_switch_limits(spec, plan)
    role = "node" if spec.number == 0 else f"node-{spec.number}"
    with Recorder(role=role, path=spec.events) as recorder:
        for line in plan_lines(spec):
            recorder.event("node.plan", text=line)
        arena_bytes = plan.shared_bytes if spec.arena_bytes else 0
        inner = open_transport(
            spec.listen,
            arena_bytes=arena_bytes,
            insecure=spec.insecure,
            security=open_security(spec.keys, spec.key_name, *spec.lets_in),
            peers_count=1 if spec.has_switch else spec.world_size,
        )
        with linked(inner, spec.link, seed=spec.link_seed) as transport:
            shell = make_node_shell(spec, transport, recorder, limits)
            try:
                shell.open_existing()  # before we listen: a wrong directory is found at once
                on_listening(transport.listen(spec.listen, advertise=spec.advertise))
                is_finished = shell.run(should_stop, is_over)
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
) -> NodeShell:  # fmt: skip
    """A node on a transport, by its specification; nothing is opened yet.

    `limits`: limits of its own switch; by default those of the specification.
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
        limits=replace(
            spec.limits,
            sum_bytes_max=plan.sums_bytes,
            updates_max=plan.updates_max,
            reads_max=plan.reads_count * 4,
            extent_chunks=plan.extent_chunks,
            push_window_bytes=_push_window(spec, plan),
            raw_bytes_max=spec.arena_bytes // 4 or None,
        ),
    )
    own_switch = None
    if not spec.has_switch:
        own_switch = SwitchCore(
            job=spec.job,
            incarnation=incarnation,
            children=[1 << rank for rank in range(spec.world_size)],
            limits=limits or own_switch_limits(spec, plan),
        )
    return NodeShell(
        transport,
        core,
        recorder,
        NodeStorage(spec, plan, transport.reserve),
        job=spec.job,
        node=spec.node,
        plan=plan,
        own_switch=own_switch,
        counters=None
        if spec.counters is None
        else CountersFile(spec.counters, spec.counters.stem, spec.job),
    )


def _push_window(spec: NodeSpec, plan: NodePlan) -> int:
    """Credit of the child: what the plan has for it; of shared memory, an eighth of an arena."""
    most = plan.window_bytes or max(spec.extent_bytes, spec.arena_bytes // 8)
    return push_window_bytes(spec.link, spec.extent_bytes, most)


def own_switch_limits(spec: NodeSpec, plan: NodePlan) -> SwitchLimits:
    """Limits of the node's own switch, if it has one. Raises ConfigError."""
    if spec.has_switch:
        return SwitchLimits()
    if spec.arena_bytes:
        limits = spec.own_switch.in_arenas(spec.arena_bytes, spec.world_size, spec.extent_bytes)
    else:
        limits = replace(
            spec.own_switch, slot_bytes_max=plan.slots_bytes, copies_bytes_max=plan.copies_bytes,
            push_window_bytes=max(spec.extent_bytes, plan.window_bytes // spec.world_size),
        )  # fmt: skip
    window_bytes = push_window_bytes(spec.link, spec.extent_bytes, limits.push_window_bytes)
    limits = replace(limits, push_window_bytes=window_bytes, extent_chunks=spec.extent_chunks)
    return with_slots(
        limits, spec.fidelity, spec.slots, child_count=spec.world_size, chunk_bytes=spec.chunk_bytes
    )


def _write_summary(spec: NodeSpec, plan: NodePlan, shell: NodeShell) -> None:
    """Write the results of the run, for `compare`; as a whole or not at all."""
    store, description = shell.store, shell.description
    if store is None or description is None:
        return
    spill, is_alone = shell.spill, spec.optimizer_nodes == 1
    summary = {
        "schema": 1,
        "steps": shell.core.out.step,
        # None of several nodes has all weights: the launcher adds the digest.
        "weights_digest": weights_digest(store, description.layout) if is_alone else None,
        "node_state_bytes": store.config.state_bytes,
        "disk_space_bytes": store.disk_bytes + (spill.disk_bytes if spill else 0),
        "disk_bytes": {
            "read": store.stats.bytes_read + (spill.bytes_read if spill else 0),
            "written": store.stats.bytes_written + (spill.bytes_written if spill else 0),
        },
        # Part of disk_bytes: sums that did not fit in RAM.
        "spill_bytes": {
            "read": spill.bytes_read if spill else 0,
            "written": spill.bytes_written if spill else 0,
        },
        "network_bytes": {**shell.payload_bytes(), "headers": shell.links.total().header_bytes},
        "memory_budget_bytes": spec.memory_budget_bytes,
        "resident_bytes": plan.resident_bytes,
        "chunk_bytes": spec.chunk_bytes,
        "spilled_count": shell.core.budget.spilled_count,
        "links": link_rows(
            shell.transport, "node" if spec.has_switch else "worker", shell.machine.name_of
        ),
        "pool": None if shell.own_switch is None else shell.own_switch.counts(),
    }
    with Expendable().writing(spec.summary):
        write_json(spec.summary, summary)
