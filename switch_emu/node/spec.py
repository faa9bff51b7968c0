"""What an optimizer node is started with, and the memory plan that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luwu.protocol.sum_order import depth
from switch_emu.node.core.actions import NodeNumber
from switch_emu.node.plan import NodePlan, plan_node
from switch_emu.process.role_spec import RoleSpec
from switch_emu.store import Durability
from switch_emu.switch.capacity import planned_slots


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
            extent_chunks=self.extent_chunks,
            in_arenas=self.arena_bytes > 0,
        )

    @property
    def own_slot_count(self) -> int:
        """Slots in the memory budget, at least."""
        return planned_slots(
            self.fidelity, self.slots, has_switch=self.has_switch, in_arenas=self.arena_bytes > 0
        )
