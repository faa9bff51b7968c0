"""Models of transformers as they are, in a loop of one's own: losses are those of plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import luwu
from luwu.base.errors import ConfigError, LuwuError
from tests.helpers.fake_nic import FakeNetwork
from tests.helpers.real_training import in_cluster
from tests.helpers.training_harness import worker
from tests.integrations.hugging_face import alone, finetune, make_batches, needs_hf, through_a_node

pytestmark = needs_hf
FLOAT32 = 1e-4
BFLOAT16 = 2e-2
LORA_RANK = 2
"""Of adapters on two of a block's seven matrices."""

families = pytest.mark.parametrize("family", ["llama", "bert"])
one_family = pytest.mark.parametrize(
    "family", ["llama", pytest.param("bert", marks=pytest.mark.slow)]
)


def options_of(family: str, **changes: Any) -> Any:
    options = finetune.parse_options(["--model", family])
    for name, value in changes.items():
        assert hasattr(options, name)
        setattr(options, name, value)
    return options


@families
@pytest.mark.feature("an unmodified transformers model")
def test_transformers_losses_are_those_of_plain_torch(family: str, tmp_path: Path) -> None:
    """I4. Goal: 30 steps of 2 workers give the losses of one process. Llama's head and BERT's
    decoder are tied to the embedding. 1e-4: the gradients are added in another order."""
    options = options_of(family)
    expected, _ = alone(tmp_path, options)
    losses, _, _ = through_a_node(tmp_path, options)
    assert len(losses) == 30
    assert losses == pytest.approx(expected, abs=FLOAT32)
    assert losses[-1] < losses[0] - 0.5


@one_family
@pytest.mark.feature("an unmodified transformers model")
def test_transformers_losses_in_bfloat16(family: str, tmp_path: Path) -> None:
    """I4. Goal: with mp_policy the losses follow those of float32 masters that are computed with
    in bfloat16 (`alone` says how): 2e-2, for the sums of two bfloat16 gradients differ."""
    options = options_of(family, dtype="bfloat16")
    expected, _ = alone(tmp_path, options)
    losses, _, _ = through_a_node(tmp_path, options)
    assert losses == pytest.approx(expected, abs=BFLOAT16)
    assert losses[-1] < losses[0] - 0.5


def checkpointing(*, reentrant: bool) -> Callable[[Any], object]:
    arguments = {"use_reentrant": reentrant}
    return lambda model: model.activation_checkpointing_enable(
        activation_checkpointing_kwargs=arguments
    )


def untie(model: Any) -> None:
    """A head of its own."""
    torch.manual_seed(3)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.02)


VARIANTS: dict[str, Callable[[Any], object]] = {
    "untied": untie,
    "eager": lambda model: model.set_attn_implementation("eager"),
    "checkpointing": checkpointing(reentrant=False),
    "checkpointing-reentrant": checkpointing(reentrant=True),
    "cache": lambda model: setattr(model.config, "use_cache", True),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.feature("tied or not, attention, checkpointing, caches")
def test_transformers_variants(variant: str, tmp_path: Path) -> None:
    options = options_of("llama", steps=5)
    expected, model = alone(tmp_path, options, change=VARIANTS[variant])
    losses, _, _ = through_a_node(tmp_path, options, change=VARIANTS[variant])
    assert losses == pytest.approx(expected, abs=1e-6)
    if variant == "eager":
        assert model.config._attn_implementation == "eager"  # type: ignore[union-attr]


@pytest.mark.feature("an unmodified transformers model")
def test_transformers_loss_of_hidden_states(tmp_path: Path) -> None:
    """Goal: what transformers collects inside of units (hidden states, attention) may be part of
    the loss."""
    options = options_of("llama")
    inputs = finetune.batch_of(options, make_batches(tmp_path, options), 0, rank=0, world_size=1)
    wanted = {"output_hidden_states": True, "output_attentions": True}

    def train(model: Any, optimizer: Any) -> list[float]:
        losses = []
        for _ in range(3):
            output = model(input_ids=inputs["input_ids"], **wanted)
            collected = [*output.hidden_states, *output.attentions, output.logits]
            loss = torch.stack([each.square().mean() for each in collected]).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def make() -> Any:
        model: Any = finetune.make_model(options)
        model.set_attn_implementation("eager")
        return model

    plain = make()
    expected = train(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    with worker(FakeNetwork(1)):
        model = make()
        finetune.shard(model, options)
        losses = train(model, luwu.optim.SGD(model.parameters(), lr=0.1))
    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses[-1] < losses[0]


@families
@pytest.mark.feature("an unmodified transformers model")
def test_transformers_padding(family: str, tmp_path: Path) -> None:
    """Goal: an attention mask goes through units in bfloat16; a padded place changes no loss."""
    options = options_of(family, dtype="bfloat16")
    inputs = finetune.batch_of(options, make_batches(tmp_path, options), 0, rank=0, world_size=1)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, 16:] = 0
    labels = inputs["labels"].masked_fill(mask == 0, finetune.IGNORED)
    other_ids = inputs["input_ids"].masked_fill(mask == 0, 7)
    with worker(FakeNetwork(1)):
        model: Any = finetune.make_model(options)
        finetune.shard(model, options)
        optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
        losses = [
            model(input_ids=ids, labels=labels, attention_mask=mask).loss
            for ids in (inputs["input_ids"], other_ids)
        ]
        assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
        losses[0].backward()
        assert optimizer.step().applied


@one_family
@pytest.mark.feature("a transformers model made on meta")
def test_transformers_model_made_on_meta(family: str, tmp_path: Path) -> None:
    """Goal: a model larger than its worker is made without memory, and filled unit by unit by the
    model's own initialisation, its tied weights and its buffers included."""
    options = options_of(family, steps=20)
    batches = make_batches(tmp_path, options)
    with torch.device("meta"):
        models: list[Any] = [finetune.make_model(options) for _ in range(2)]

    def work(rank: int) -> list[float]:
        model = models[rank]
        finetune.shard(model, options)
        luwu.init_weights(model, model._init_weights)
        return finetune.train(options, batches, model, at_end=lambda: None)

    losses = in_cluster(tmp_path, work, world_size=2).results[0]
    made_here = dict(finetune.make_model(options).named_buffers())
    for name, buffer in models[0].named_buffers():
        assert torch.equal(buffer, made_here[name]), name
    assert losses[0] == pytest.approx(math.log(finetune.BYTE_VOCAB), abs=0.2)
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.feature("model.generate")
def test_transformers_evaluate_and_generate(tmp_path: Path) -> None:
    """Goal: after training, evaluation and generation, with a KV cache and without, give what the
    model gives that was trained alone; by `generate` itself, and registered as a forward method."""
    options = options_of("llama", steps=5)
    batches = make_batches(tmp_path, options)
    inputs = finetune.batch_of(options, batches, 99, rank=0, world_size=1)
    prompt = inputs["input_ids"][:2, :8]

    @torch.no_grad()
    def look(model: Any) -> tuple[float, list[Tensor]]:
        model.eval()
        texts = [
            model.generate(prompt, max_new_tokens=8, do_sample=False, use_cache=use_cache)
            for use_cache in (True, False)
        ]
        if isinstance(model, luwu.LuwuModule):
            luwu.register_forward_method(model, "generate")
            texts.append(model.generate(prompt, max_new_tokens=8, do_sample=False))
        return model(**inputs).loss.item(), texts

    _, plain = alone(tmp_path, options)
    loss, (expected, _) = look(plain)
    _, found, _ = through_a_node(tmp_path, options, at_end=look)
    for found_loss, texts in found:
        assert found_loss == pytest.approx(loss, abs=FLOAT32)
        assert len(texts) == 3
        assert all(torch.equal(text, expected) for text in texts)


@pytest.mark.feature("save_pretrained, resize_token_embeddings")
def test_transformers_methods_that_need_weights_are_refused(tmp_path: Path) -> None:
    """Goal: a model whose weights are in the network is not saved, cast or resized as if they were
    here."""
    with worker(FakeNetwork(1)):
        options = options_of("llama")
        model: Any = finetune.make_model(options)
        finetune.shard(model, options)
        luwu.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(LuwuError, match=r"state_dict\(\) of a sharded model"):
            model.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match="cannot be moved or cast"):
            model.to(torch.bfloat16)
        with pytest.raises(LuwuError, match=r"embed_tokens\.weight are in the network"):
            model.resize_token_embeddings(300)


# ---------------------------------------------------------------------------- LoRA


@one_family
@pytest.mark.feature("LoRA")
def test_lora_losses_are_those_of_plain_torch(family: str, tmp_path: Path) -> None:
    """I4. Goal: 30 steps of 2 workers give the losses of one process."""
    options = options_of(family, lora=LORA_RANK, lr=1e-2)
    expected, _ = alone(tmp_path, options)
    losses, _, _ = through_a_node(tmp_path, options)
    assert losses == pytest.approx(expected, abs=FLOAT32)
    assert losses[-1] < losses[0]


@families
@pytest.mark.feature("LoRA")
def test_lora_pushes_adapters_and_pulls_everything(family: str, tmp_path: Path) -> None:
    """Goal: less than 2 % of the bytes of full fine-tuning are pushed. The frozen base is pulled
    like a trained one: the adapters, which full fine-tuning has not, are less than 1 % of it.
    Nothing is pulled ahead, for whether the last such pull comes before the end is left to time."""

    def count(lora: int) -> Any:
        options = options_of(family, width=128, steps=3, lora=lora)
        return through_a_node(tmp_path, options, prefetch_units=0)[2]

    full, adapters = count(0), count(LORA_RANK)
    assert 0 < adapters.push_bytes < 0.02 * full.push_bytes
    assert full.pull_bytes < adapters.pull_bytes < 1.01 * full.pull_bytes


@pytest.mark.feature("LoRA")
def test_lora_base_stays_as_it_was(tmp_path: Path) -> None:
    """Goal: without its adapters the model is the base, which no step has changed, to the bit."""
    options = options_of("llama", lora=LORA_RANK, steps=5)
    inputs = finetune.batch_of(
        options, make_batches(tmp_path, options), 99, rank=0, world_size=1
    )  # fmt: skip

    @torch.no_grad()
    def look(model: Any) -> tuple[float, float]:
        model.eval()
        with model.disable_adapter():
            base = model(**inputs).loss.item()
        return base, model(**inputs).loss.item()

    _, found, _ = through_a_node(tmp_path, options, at_end=look)
    base, _ = look(finetune.make_model(options))
    _, trained = look(alone(tmp_path, options)[1])
    for found_base, found_trained in found:
        assert found_base == base
        assert found_trained == pytest.approx(trained, abs=FLOAT32)
        assert found_trained != base


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.feature("LoRA")
def test_lora_with_checkpointing(reentrant: bool, tmp_path: Path) -> None:
    """Goal: adapters over a frozen base that is computed again in backward, as peft says it must
    be set up (the embedding's output requires a gradient)."""

    def change(model: Any) -> None:
        model.enable_input_require_grads()
        checkpointing(reentrant=reentrant)(model)

    options = options_of("llama", lora=LORA_RANK, lr=1e-2, steps=5)
    expected, _ = alone(tmp_path, options, change=change)
    losses, _, _ = through_a_node(tmp_path, options, change=change)
    assert losses == pytest.approx(expected, abs=1e-5)


@pytest.mark.feature("LoRA")
def test_lora_of_a_model_in_bfloat16(tmp_path: Path) -> None:
    """Goal: peft keeps adapters in float32 beside a base in bfloat16; a unit travels in one dtype,
    so this is refused without mp_policy, and works with it."""

    def halve(model: Any) -> None:
        for parameter in model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(torch.bfloat16)

    mixed = options_of("llama", lora=LORA_RANK, steps=3)
    with pytest.raises(ConfigError, match=r"several dtypes.*mp_policy="):
        through_a_node(tmp_path, mixed, change=halve)
    options = options_of("llama", lora=LORA_RANK, steps=3, dtype="bfloat16")
    expected, _ = alone(tmp_path, options, change=halve)
    losses, _, _ = through_a_node(tmp_path, options, change=halve)
    assert losses == pytest.approx(expected, abs=BFLOAT16)
