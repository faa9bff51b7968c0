"""The built-in GPT: causality, first weights, checkpointing, pace."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from tests.helpers.training_harness import assert_same_bits
from workers.gpt import GPT, Checkpointing, GPTConfig, init_weights
from workers.options import parse_options
from workers.pace import pace_units

CONFIG = GPTConfig(layers=2, width=32, heads=4, context=16, vocab=50)


def initialised(config: GPTConfig, seed: int = 1) -> GPT:
    model = GPT(config)
    for module in model.modules():
        init_weights(module, seed)
    return model


def random_ids(count: int = 3) -> torch.Tensor:
    return torch.randint(50, (count, 16), generator=torch.Generator().manual_seed(0))


def backward(model: GPT, ids_BT: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(ids_BT).flatten(0, 1).float(), ids_BT.roll(-1, 1).flatten())
    loss.backward()
    return loss.detach()


def gradients(model: GPT) -> dict[str, torch.Tensor]:
    found = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    assert found.keys() == dict(model.named_parameters()).keys()
    return found


def test_a_position_sees_no_later_token() -> None:
    model = initialised(CONFIG)
    ids_BT = random_ids()
    changed_BT = ids_BT.clone()
    changed_BT[:, 9:] = (changed_BT[:, 9:] + 1) % 50
    with torch.no_grad():
        before, after = model(ids_BT), model(changed_BT)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=0)
    assert not torch.equal(before[:, 9:], after[:, 9:])


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ConfigError, match="17 tokens do not fit a context of 16"):
        initialised(CONFIG)(torch.zeros(1, 17, dtype=torch.int64))


@pytest.mark.parametrize("tied", [False, True])
def test_first_weights_depend_on_seed_and_name_alone(tied: bool) -> None:
    """I3. Goal: every arm, rank and order of construction starts from the same bits.
    Method: fill one model in order, another from meta backwards, after other random draws."""
    config = replace(CONFIG, tied=tied)
    expected = initialised(config).state_dict()

    with torch.device("meta"):
        model = GPT(config)
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.rand(100)
    for module in reversed(list(model.modules())):
        module.to_empty(device="cpu", recurse=False)
        init_weights(module, 1)

    assert_same_bits(model.state_dict(), expected)
    other = initialised(config, seed=2)
    assert not torch.equal(other.tokens.weight, expected["tokens.weight"])


def test_first_weights_have_the_spread_they_should() -> None:
    model = initialised(replace(CONFIG, layers=8, width=64, vocab=1000))
    std = 0.55 / math.sqrt(64)
    assert float(model.tokens.weight.detach().std()) == pytest.approx(std, rel=0.05)
    project = model.get_parameter("blocks.0.mlp.project.weight").detach()
    assert float(project.std()) == pytest.approx(std / 4, rel=0.05)  # 4 = sqrt(2 * 8 layers)
    assert not model.get_parameter("blocks.7.attention.project.bias").any()
    assert bool((model.norm.weight == 1).all())


@pytest.mark.parametrize("checkpointing", ["reentrant", "nonreentrant"])
def test_checkpointing_changes_no_bit(checkpointing: Checkpointing) -> None:
    """Dropout included: torch restores the generator before it computes again."""
    plain = initialised(replace(CONFIG, dropout=0.2))
    saving = initialised(replace(CONFIG, dropout=0.2, checkpointing=checkpointing))
    for model in (plain, saving):
        torch.manual_seed(7)
        backward(model, random_ids())
    assert_same_bits(gradients(plain), gradients(saving))


def test_bfloat16_compute_equals_a_model_whose_weights_are_bfloat16() -> None:
    """Goal: casting where a weight is used is what a sharding layer's casting does."""
    config = replace(CONFIG, dtype=torch.bfloat16)
    masters, delivered = initialised(config), initialised(config).to(torch.bfloat16)
    assert torch.equal(backward(masters, random_ids()), backward(delivered, random_ids()))
    assert all(parameter.dtype == torch.float32 for parameter in masters.parameters())
    assert_same_bits(gradients(masters), gradients(delivered))


def test_pace_slows_down_units_and_changes_no_bit() -> None:
    """Goal: 2 blocks and the head take 20 ms each in forward, and in backward."""
    plain, slow = initialised(CONFIG), initialised(CONFIG)
    pace_units(slow, 20.0)
    ids_BT = random_ids()
    loss = backward(plain, ids_BT)
    started_ns = SYSTEM_CLOCK.now_ns()
    logits = slow(ids_BT)
    forward_ns = SYSTEM_CLOCK.now_ns() - started_ns
    slow_loss = F.cross_entropy(logits.flatten(0, 1), ids_BT.roll(-1, 1).flatten())
    started_ns = SYSTEM_CLOCK.now_ns()
    slow_loss.backward()
    backward_ns = SYSTEM_CLOCK.now_ns() - started_ns
    assert forward_ns >= 60_000_000
    assert backward_ns >= 60_000_000
    assert torch.equal(loss, slow_loss.detach())
    assert_same_bits(gradients(plain), gradients(slow))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"heads": 5}, "width 32 cannot be split into 5 heads; make width"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
    ],
)
def test_impossible_models_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--arm fsdp --steps 0", "--steps must be at least 1, got 0"),
        ("--arm fsdp --lr nan", "--lr must be above 0, got nan"),
        ("--arm fsdp --max-grad-norm 0", "--max-grad-norm must be above 0"),
        ("--arm fsdp --compute-ms -1", "--compute-ms must not be negative"),
        ("--arm ddp --global-workers 2", "--global-workers belongs to --arm single"),
        ("--arm single --result x.txt", "--result must name a .json file"),
    ],
)
def test_options_that_cannot_work_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_options(arguments.split())


def test_options_say_which_model_and_which_files() -> None:
    line = "--arm luwu --width 96 --tied --reshard-after-forward false --dtype bfloat16"
    options = parse_options([*line.split(), "--result", "out/r.json"])
    config = options.gpt(vocab=300)
    assert (config.heads, config.vocab, config.tied) == (3, 300, True)
    assert config.dtype == torch.bfloat16
    assert options.reshard_after_forward is False
    assert str(options.result_path(3)) == "out/r.rank3.json"
