"""Planned memory: what a forward keeps, the switch's part, and all of it together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from luwu.estimate.gpt import activation_bytes
from luwu.estimate.plan import estimate
from luwu.estimate.shape import JobShape
from switch_emu.node.plan import plan_node
from switch_emu.switch.plan import plan_switch
from tests.helpers.unit_layouts import layout_of_units
from workers.gpt import GPT, Checkpointing, GPTConfig

KIB, MIB, GIB = 1024, 1024**2, 1024**3
CHUNK = 64 * KIB


@pytest.mark.parametrize("checkpointing", ["none", "reentrant", "nonreentrant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_those_that_autograd_saves(
    dtype: torch.dtype, checkpointing: Checkpointing
) -> None:
    """Goal: the sum over shapes is what a real forward keeps, to the byte, and two gradients as
    large as the largest of it. Method: hooks on a model with storage, whose attention is fused."""
    config = GPTConfig(
        layers=3, width=64, heads=4, context=48, dtype=dtype, checkpointing=checkpointing
    )
    model = GPT(config)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    kept: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    ids = torch.zeros(2, config.context, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        F.cross_entropy(model(ids).flatten(0, 1).float(), ids.flatten())
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in kept}
    sizes = [each.nbytes() for at, each in storages.items() if at not in weights]
    real = sum(sizes) + 2 * max(sizes)
    assert activation_bytes(config, batch=2) == real


def memory(transport: str, **changes: Any) -> tuple[dict[str, int], int]:
    """Planned bytes of one process of each role, and of all processes."""
    job = JobShape(
        layout=layout_of_units([8 * CHUNK // 4] * 40, chunk_bytes=CHUNK), workers=2,
        transport=transport, **changes,
    )  # fmt: skip
    plan = plan_node(
        budget_bytes=8 * MIB, chunk_bytes=CHUNK, world_size=2, has_switch=True,
        in_arenas=transport == "shm",
    )  # fmt: skip
    found = estimate(job, plan)
    return {use.role: use.nbytes for use in found.memory}, found.memory_bytes


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_the_budget_of_the_switch_is_planned(transport: str) -> None:
    """Goal: a larger budget of the switch shows in the switch, which may hold sums for all of it,
    and in the arenas that it sizes; activations show in each worker."""
    in_arenas = transport == "shm"

    def plan(budget_bytes: int) -> dict[str, Any]:
        return {
            "switch": plan_switch(
                budget_bytes=budget_bytes, child_count=2, extent_bytes=CHUNK, in_arenas=in_arenas
            )
        }

    small, small_all = memory(transport, **plan(3 * MIB))
    large, large_all = memory(transport, **plan(6 * MIB))
    grown = {role: large[role] - small[role] for role in large}
    if in_arenas:  # each worker's is a third of it
        assert grown == {"worker": 0, "switch": 3 * MIB, "node": 0, "arenas": MIB}
        assert large_all - small_all == 3 * MIB + 2 * MIB
    else:
        assert grown == {"worker": 0, "switch": 3 * MIB, "node": 0}
        assert large_all - small_all == 3 * MIB
    kept, kept_all = memory(transport, **plan(3 * MIB), activation_bytes=5 * MIB)
    assert kept["worker"] - small["worker"] == 5 * MIB
    assert kept_all - small_all == 10 * MIB
