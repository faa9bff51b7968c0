"""Modules on the meta device: what they are as a model to predict, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from luwu.base.errors import ConfigError
from luwu.predict.ask.question import make_question
from luwu.predict.hardware.catalogue import load
from luwu.predict.model.meta_model import count, model_of, to_toml, write
from workers.gpt import GPT, GPTConfig, without_storage


def gpt(**changes: Any) -> GPT:
    """A small GPT without storage; its vocabulary is as wide as its MLP, to confuse."""
    sizes = {"layers": 3, "width": 64, "heads": 4, "context": 48, "vocab": 256}
    return without_storage(GPTConfig(**(sizes | changes)))


class Gated(nn.Module):
    """A layer as in Llama: fewer heads of keys, a gated MLP, no biases."""

    def __init__(self, width: int = 64, heads: int = 8, kv_heads: int = 2, ffn: int = 160) -> None:
        super().__init__()
        self.heads, self.kv_heads, own = heads, kv_heads, width // heads
        self.attention = nn.ModuleDict(
            {"q": nn.Linear(width, width, bias=False), "o": nn.Linear(width, width, bias=False),
             "k": nn.Linear(width, kv_heads * own, bias=False),
             "v": nn.Linear(width, kv_heads * own, bias=False)}
        )  # fmt: skip
        self.attention.forward = self._attend  # type: ignore[method-assign]
        self.gate = nn.Linear(width, ffn, bias=False)
        self.up = nn.Linear(width, ffn, bias=False)
        self.down = nn.Linear(ffn, width, bias=False)
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))

    def _attend(self, x_BTD: Tensor) -> Tensor:
        def heads(name: str, count: int) -> Tensor:
            flat: Tensor = self.attention[name](x_BTD)
            return flat.unflatten(-1, (count, -1)).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            heads("q", self.heads), heads("k", self.kv_heads), value=heads("v", self.kv_heads),
            is_causal=True, enable_gqa=True,
        )  # fmt: skip
        out: Tensor = self.attention["o"](y.transpose(1, 2).flatten(-2))
        return out

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """[B, T, D] -> [B, T, D], and something else beside it."""
        x = x + self.attention(self.norms[0](x))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), None


class Decoder(nn.Module):
    """Layers between an embedding and an output layer."""

    def __init__(self, layers: list[nn.Module], width: int = 64, vocab: int = 1000) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, V]"""
        x = self.tokens(ids)
        for layer in self.layers:
            x, _ = layer(x)
        out: Tensor = self.output(self.norm(x))
        return out


@pytest.mark.parametrize(
    "changes",
    [{}, {"tied": True}, {"layers": 1}, {"heads": 1}, {"width": 96, "heads": 3, "vocab": 999},
     {"dropout": 0.1}, {"checkpointing": "reentrant"}, {"dtype": torch.bfloat16}],
    ids=str,
)  # fmt: skip
def test_predict_laws_a_gpt_on_meta_is_its_closed_form(changes: dict[str, Any]) -> None:
    """M1 to M3. Goal: the project's own model has exactly the parameters of its description, and
    its products are those of the closed form, at a length that was not counted too."""
    module = gpt(**changes)
    model = model_of(module, name="own")
    config = module.config
    assert model.parameters == sum(each.numel() for each in module.parameters())
    assert (model.layers, model.hidden, model.heads) == (config.layers, config.width, config.heads)
    assert (model.vocab, model.tied, model.gated) == (config.vocab, config.tied, False)
    assert model.other_parameters == config.context * config.width + 2 * config.width
    assert model.dropout == (config.dropout > 0)
    counted = count(module, torch.zeros(1, 48, dtype=torch.int64))
    assert counted.parameters == model.parameters
    assert counted.operations * 3 == model.step_operations(48, 48)
    assert counted.by_module["blocks.0"] == model.layer_operations(48, 48)


def test_predict_laws_a_gated_decoder_on_meta_is_its_closed_form() -> None:
    """Goal: heads of keys, a gated MLP and an untied output layer are found."""
    module = Decoder([Gated() for _ in range(4)])
    model = model_of(module, name="gated", layers="layers")
    assert (model.heads, model.kv_heads, model.ffn, model.gated) == (8, 2, 160, True)
    assert (model.head_width, model.vocab, model.tied, model.layers) == (8, 1000, False, 4)
    assert model.parameters == sum(each.numel() for each in module.parameters())
    assert model.other_parameters == 64
    counted = count(module, torch.zeros(2, 40, dtype=torch.int64))
    assert counted.operations * 3 == model.step_operations(80, 40)


def test_a_module_is_left_as_it_was() -> None:
    """Goal: values, mode and hooks of a module on another device stay."""
    module = Decoder([Gated() for _ in range(3)]).train()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    model_of(module, name="gated", layers="layers")
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    assert all(each.training for each in module.modules())
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
    assert module.output.weight.device.type == "cpu"


def test_a_module_answers_a_question(tmp_path: Path) -> None:
    """Goal: what was measured is written, read and predicted as any model; no file is replaced."""
    model = model_of(gpt(), name="own")
    path = tmp_path / "mine.toml"
    write(model, path)
    catalogue = load(path)
    assert catalogue.model("own") == model
    table = {
        "system": "ddp", "model": "own", "device": "A100-80", "network": "ib-hdr",
        "software": "composer-2023", "devices": 8, "sequence": 2048, "batch": 64,
    }  # fmt: skip
    assert make_question(table, catalogue).answer().seconds > 0
    with pytest.raises(ConfigError, match=r"mine.toml: exists; take another name"):
        write(model, path)
    tied = model_of(gpt(tied=True, dropout=0.5), name="own")
    path.write_text(to_toml(tied))
    assert load(path).model("own") == tied


# ---------------------------------------------------------------------- refused


class Wider(Gated):
    """A layer that multiplies once more."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """As a gated layer."""
        x, _ = super().forward(x)
        return x + self.gate(x) @ self.down.weight.T, None


class Choosing(Gated):
    """A layer that looks at values."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """As a gated layer, or not."""
        return super().forward(x) if x.sum().item() > 0 else (x, None)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(4, 4), r"layers: no list of modules whose parameters have equal shapes"),
        (Decoder([Gated(), Gated()]), r"layers: several lists are equally long: layers, layers.0"),
        (Decoder([Wider() for _ in range(3)]), r"operations for 16 tokens are not the .* of a dec"),
        (Decoder([Choosing() for _ in range(3)]), r"Decoder: cannot be run without values: .*item"),
        (Decoder([Gated() for _ in range(3)], vocab=1000).layers, r"layers: no list|cannot be run"),
    ],
    ids=["linear", "two lists", "wider", "choosing", "no model"],
)
def test_bad_prediction_modules(module: nn.Module, said: str) -> None:
    """Goal: what is no decoder of equal layers says why."""
    with pytest.raises(ConfigError, match=said):
        model_of(module, name="bad")


def test_bad_prediction_names_of_layers() -> None:
    """Goal: a name that is no list names those that are; a module without attention is refused."""
    with pytest.raises(ConfigError, match=r"layers: 'blokcs' is no list .*; such are blocks"):
        model_of(gpt(), name="own", layers="blokcs")
    plain = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(ConfigError, match=r"layers: no list|own: .* has no module of its own"):
        model_of(
            nn.Sequential(plain, nn.Linear(8, 30)), name="own", layers="0",
            inputs=lambda length: (torch.zeros(1, length, 8),),
        )  # fmt: skip


def test_the_performance_model_imports_no_torch() -> None:
    """Goal: torch is imported by those alone who measure a module."""
    code = (
        "import sys, luwu.commands.predict, luwu.predict.model.meta_model; "
        "print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert found.stdout.strip() == "False"
