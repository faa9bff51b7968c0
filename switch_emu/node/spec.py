"""The specification of an optimizer node process, and its memory plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from luwu.protocol.contribution import depth
from switch_emu.node.core.actions import NodeLimits, NodeNumber
from switch_emu.node.plan import NodePlan, plan_node
from switch_emu.process.role_spec import RoleSpec
from switch_emu.store import Durability
from switch_emu.switch.capacity import planned_slots
from switch_emu.switch.core.actions import SwitchLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec(RoleSpec):
    """The specification of an optimizer node process; `retry`: of one of several."""

    world_size: int
    memory_budget_bytes: int
    summary: Path
    """File of the results, written at the end of the run."""
    state: Path | None = None
    """Directory of the page store; None: the state is in RAM."""
    durability: Durability = "step"
    log_steps: int = 8
    """Steps in which each page of a state that fits in RAM is written once; 1: in every step."""
    has_switch: bool = True
    resume: bool = False
    limits: NodeLimits = field(default_factory=NodeLimits)
    """Limits of the node that are set; the memory plan adds its own."""
    own_switch: SwitchLimits = field(default_factory=SwitchLimits)
    """Limits of its own switch, if it has one."""
    disk_bytes_per_s: float | None = None
    """Rate of an emulated disk for pages; None: the real disk."""
    groups: tuple[int, ...] = ()
    """Bitmaps of the ranks that each switch of a tree sums, smaller ones first."""
    number: int = 0
    optimizer_nodes: int = 1
    """Their number; `number` is this one."""

    @property
    def lets_in(self) -> tuple[str, ...]:
        """Roles of the keys that may connect; workers only without a switch."""
        return ("switch",) if self.has_switch else ("worker", "reader")

    @property
    def node(self) -> NodeNumber:
        """Number, count and replicas as one value."""
        return NodeNumber(number=self.number, count=self.optimizer_nodes, replicas=self.replicas)

    def plan(self) -> NodePlan:
        """The memory plan. Raises ConfigError if the budget is too small."""
        return plan_node(
            budget_bytes=self.memory_budget_bytes,
            chunk_bytes=self.chunk_bytes,
            world_size=self.world_size,
            has_switch=self.has_switch,
            slot_count=self.own_slot_count,
            extent_chunks=self.extent_chunks,
            in_arenas=self.arena_bytes > 0,
            levels=depth(self.groups),
        )

    @property
    def own_slot_count(self) -> int:
        """The minimum of slots in the memory budget."""
        return planned_slots(
            self.fidelity, self.slots, has_switch=self.has_switch, in_arenas=self.arena_bytes > 0
        )
