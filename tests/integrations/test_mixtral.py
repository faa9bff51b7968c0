"""A Mixtral of transformers whose tokens use few experts: the bits of torch, and what is written.

In transformers 5 the experts of a layer are two parameters of three dimensions: those that no token
came to have gradients of zero, by which AdamW moves them all the same. As modules of their own, as
in transformers 4, they have none, and torch leaves them alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.launch.local_cluster import LocalCluster
from luwu.layout import Layout
from luwu.nic.shell import Nic
from luwu.wire.description import parse_description
from switch_emu.node import placement
from switch_emu.store import StoreConfig
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.geometry import Geometry
from switch_emu.store.sums import SumShape
from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.real_training import MIB, digest_of, seeded
from tests.helpers.training_harness import alone, reference
from tests.integrations.hugging_face import Later, needs_hf

pytestmark = needs_hf
transformers = Later("transformers")
mixtral = Later("transformers.models.mixtral.modeling_mixtral")

WORLD_SIZE, STEPS, EXPERTS, TOKENS, SLOTS = 2, 8, 8, 3, 3


class Expert(nn.Module):
    """One expert of Mixtral."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return out


class Experts(nn.ModuleList):
    """Those of a layer, each a module: the parameters of one that no token came to have no
    gradient."""

    def forward(self, x_TD: Tensor, chosen_TK: Tensor, weights_TK: Tensor) -> Tensor:
        out = torch.zeros_like(x_TD)
        for index in chosen_TK.unique().tolist():
            token, place = torch.where(chosen_TK == index)
            made = self[index](x_TD[token]) * weights_TK[token, place, None]
            out = out.index_add(0, token, made)
        return out


def make_model(*, apart: bool) -> nn.Module:
    """`apart`: each expert has parameters of its own."""
    config = transformers.MixtralConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=EXPERTS,
        num_experts_per_tok=1, max_position_embeddings=32, experts_implementation="eager",
    )  # fmt: skip
    model: nn.Module = transformers.MixtralForCausalLM(config)
    for layer in model.model.layers if apart else ():
        layer.mlp.experts = Experts(Expert(64, 128) for _ in range(EXPERTS))
    return model.train()


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    """Of all tokens: each expert that is used has a gradient that is not zero."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    tokens_BT = torch.randint(0, 64, (1, TOKENS), generator=generator)
    logits_BTV = model(input_ids=tokens_BT).logits
    return nn.functional.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten())


@dataclass(frozen=True)
class Reference:
    digest: str
    sums: Sequence[Mapping[str, Tensor]]
    """By step: the means of gradients, of the parameters that have any."""


@functools.cache
def by_torch(*, apart: bool) -> Reference:
    """The same training in one process, by plain torch."""
    found: list[dict[str, Tensor]] = []

    def note(model: nn.Module, optimizer: Any, step: int) -> None:
        given = ((name, each.grad) for name, each in model.named_parameters())
        found.append({name: grad for name, grad in given if grad is not None})

    weights = reference(
        lambda: seeded(lambda: make_model(apart=apart)),
        lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        lambda model, step, rank, part: loss_of(model, step, rank),
        world_size=WORLD_SIZE, steps=STEPS, before_step=note,
    )  # fmt: skip
    return Reference(digest_of(weights), found)


class Written:
    """What steps write, by page: as it should be."""

    def __init__(self, layout: Layout, config: StoreConfig, *, slots: int) -> None:
        """`slots`: of the log; 0: there is none."""
        self._layout, self._config, self._slots = layout, config, slots
        self._turns = SumShape(config, slots, 8).turns if slots else []
        bodies = Geometry(config).body_bytes
        self._bodies = [bodies[kind] for kind in config.page_kinds]
        self._behind: set[int] = set()

    def step(self, number: int, sums: Mapping[str, Tensor]) -> int:
        """Bytes that a step writes to pages, and to the log without its header."""
        nbytes = 0
        for page in range(self._config.page_count):
            parts = self._parts(page, sums)
            has_turn = self._slots and self._turns[page] == number % self._slots
            if has_turn or not self._slots:
                nbytes += self._bodies[page] * bool(parts or page in self._behind)
                self._behind.discard(page)
            elif parts:
                self._behind.add(page)
                if any(part.any() for part in parts):  # of zeros the header has it
                    nbytes += 4 * self._layout.chunks[page].elems
        return nbytes

    def _parts(self, page: int, sums: Mapping[str, Tensor]) -> list[Tensor]:
        """The sums in a page, of the parameters that have any."""
        found = []
        for each in self._layout.segments(page):
            total = sums.get(self._layout.parameters[each.parameter].name)
            if total is not None:
                found.append(total.flatten()[each.parameter_start :][: each.elems])
        return found


WAYS: dict[str, dict[str, Any]] = {
    "a log": {"log_steps": SLOTS},
    "a log, extents": {"log_steps": SLOTS, "extent_chunks": 8},
    "in RAM": {"log_steps": 1, "transport": "shm"},
    "in RAM, extents": {"log_steps": 1, "transport": "shm", "extent_chunks": 8},
    "on disk": {"memory_budget_bytes": 3 * MIB},
    "on disk, extents": {"memory_budget_bytes": 3 * MIB, "extent_chunks": 8, "cached": 2 * MIB},
    "on disk, places": {"memory_budget_bytes": 3 * MIB, "cached": 4 * MIB, "transport": "shm"},
}
"""Where the state is, and weights on their way: at places of the node or of a switch, in the
cache of a switch, or sent by the node for each use."""
CASES = [
    pytest.param(
        way, update, apart, id=f"{way}-{update}-{'apart' if apart else 'as it is'}",
        marks=[] if apart == (number % 2 == 0) or way == "a log" else [pytest.mark.slow],
    )
    for number, (way, update) in enumerate(itertools.product(WAYS, ("streaming", "at_step")))
    for apart in (True, False)
]  # fmt: skip


@pytest.mark.feature("a parameter without a gradient beside others that have one")
@pytest.mark.parametrize(("way", "update", "apart"), CASES)
def test_what_is_written_follows_the_experts(
    way: str, update: str, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4, P4. Goal: a step writes the pages, or sums of pages, that have a gradient, and no others;
    weights are those of torch, bit for bit. Method: two layers of eight experts, at most six of
    which are used in a step; count the bytes of each step."""
    monkeypatch.setattr(placement, "memory_kind", lambda _: None)
    plain = by_torch(apart=apart)
    written: list[int] = []
    models = [seeded(lambda: make_model(apart=apart)) for _ in range(WORLD_SIZE)]

    def count() -> None:
        store = cluster.node.store
        assert store is not None
        written.append(store.stats.bytes_written)

    def work(nic: Nic) -> None:
        luwu.init(nic=nic, device="cpu")
        model = models[nic.rank]
        luwu.fully_shard_each(model, mixtral.MixtralDecoderLayer)
        optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-2, update=update)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step, nic.rank)
            if nic.rank == 0 and step == 0:  # the first weights are decided
                count()
            loss.backward()
            optimizer.step().wait()
            if nic.rank == 0:
                count()
        luwu.finish()

    options = {"memory_budget_bytes": 64 * MIB, "state": tmp_path / "state"} | WAYS[way]
    options["switch_limits"] = SwitchLimits(cache_bytes_max=options.pop("cached", 0))
    with alone(), LocalCluster(
        world_size=WORLD_SIZE, summary=tmp_path / "summary.json", **options
    ) as cluster:  # fmt: skip
        cluster.run(work)
        store = cluster.node.store
        assert store is not None
        assert cluster.weights_digest() == plain.digest
        config = store.config
    layout = parse_description(config.description, 1).layout
    expected = Written(layout, config, slots=SLOTS if "log" in way else 0)
    steps = [after - before for before, after in itertools.pairwise(written)]
    others = [
        nbytes - expected.step(number, plain.sums[number]) for number, nbytes in enumerate(steps)
    ]
    # Beside pages and sums: the header of the slot, and what fills up the last block of each; pages
    # that are no whole blocks have a gradient in every step.
    filled_up = BLOCK_BYTES * sum(4 * each.elems % BLOCK_BYTES > 0 for each in layout.chunks)
    spread = filled_up if "log" in way else 0
    assert max(others) - min(others) <= spread < layout.chunk_bytes, (steps, others)
    assert 0 <= min(others) <= filled_up + max(steps) // 100
