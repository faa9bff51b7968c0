"""Fine-tune an unmodified Hugging Face model: a plain loop over all weights, or LoRA's alone.

    luwu run --workers 2 docs/examples/huggingface/finetune.py --model llama
    luwu run --workers 2 docs/examples/huggingface/finetune.py --model bert --lora 4

The model is made from a small config and text is read as bytes, so nothing is downloaded; a model
of yours takes the place of `make_model`, and its tokens that of `make_inputs`. `loss[k]` is this
worker's loss before update k: compare their mean over the ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import luwu
from luwu.base.dtypes import COMPUTE_DTYPES
from luwu.base.errors import LuwuError, StepAborted
from luwu.base.seeds import derive
from workers.data import BYTE_VOCAB, Batches, load_corpus

BLOCKS: dict[str, type[nn.Module]] = {"llama": LlamaDecoderLayer, "bert": BertLayer}
"""The repeated module of each family: it becomes a unit."""
LORA_TARGETS = {"llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}
MASK = BYTE_VOCAB
"""The token behind the bytes: BERT guesses what was there."""
IGNORED = -100
"""A label that does not count."""
MASKED_RATIO = 0.15
HEAD_WIDTH = 16


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Options of a command line; argparse's errors end with code 2."""
    parser = argparse.ArgumentParser(
        prog="finetune.py",
        description="Fine-tune a small model of transformers on text.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", choices=[*BLOCKS], default="llama", help="the family")
    parser.add_argument("--steps", type=int, default=30, help="optimizer updates of the whole run")
    parser.add_argument("--layers", type=int, default=2, help="blocks")
    parser.add_argument("--width", type=int, default=64, help="width of the residual stream")
    parser.add_argument("--context", type=int, default=32, help="tokens in a sample")
    parser.add_argument("--batch", type=int, default=4, help="samples of one worker in a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate of AdamW")
    parser.add_argument("--lora", type=int, default=0, help="rank of LoRA's adapters; 0: none")
    parser.add_argument(
        "--dtype",
        choices=[*COMPUTE_DTYPES],
        default="float32",
        help="dtype of compute, and of weights and gradients on the wire",
    )
    parser.add_argument("--seed", type=int, default=0, help="every random number derives from it")
    parser.add_argument("--data", type=Path, help="text; Python's standard library unless given")
    parser.add_argument("--result", type=Path, help="FILE.json: rank r writes FILE.rank<r>.json")
    return parser.parse_args(arguments)


def make_model(options: argparse.Namespace) -> nn.Module:
    """The model as transformers (and peft) make it; the same on every rank."""
    torch.manual_seed(derive(options.seed, "model"))
    sizes = {
        "hidden_size": options.width,
        "intermediate_size": 3 * options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // HEAD_WIDTH,
        "max_position_embeddings": options.context,
    }
    model: nn.Module
    if options.model == "llama":
        config = LlamaConfig(vocab_size=BYTE_VOCAB, tie_word_embeddings=True, **sizes)
        model = LlamaForCausalLM(config)
    else:
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model = BertForMaskedLM(BertConfig(vocab_size=BYTE_VOCAB + 1, **sizes, **no_dropout))
    if options.lora:
        targets = LORA_TARGETS[options.model]
        model = get_peft_model(model, LoraConfig(r=options.lora, target_modules=targets))
    return model.train()


def make_inputs(options: argparse.Namespace, text_BT: Tensor, seed: int) -> dict[str, Tensor]:
    """Inputs of the model, for some text as bytes."""
    if options.model == "llama":
        return {"input_ids": text_BT, "labels": text_BT}  # it shifts them itself
    generator = torch.Generator().manual_seed(seed)
    is_masked_BT = torch.rand(text_BT.shape, generator=generator) < MASKED_RATIO
    is_masked_BT[:, 0] = True  # a loss over nothing is NaN
    return {
        "input_ids": text_BT.masked_fill(is_masked_BT, MASK),
        "labels": text_BT.masked_fill(~is_masked_BT, IGNORED),
    }


def shard(model: nn.Module, options: argparse.Namespace) -> None:
    """Every block is a unit, and what is left; frozen weights are pulled, and never pushed."""
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype)
    luwu.fully_shard_each(model, BLOCKS[options.model], mp_policy=policy)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters for the optimizer."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def batch_of(
    options: argparse.Namespace, batches: Batches, step: int, *, rank: int, world_size: int
) -> dict[str, Tensor]:
    """A rank's inputs of a step, a pure function of these numbers: a lost step sees them again."""
    text_BT, _ = batches.batch(step, rank=rank, world_size=world_size, per_rank=options.batch)
    return make_inputs(options, text_BT, derive(options.seed, "mask", step, rank))


def train(
    options: argparse.Namespace, batches: Batches, model: nn.Module, *,
    at_end: Callable[[], object] = luwu.finish,
) -> list[float]:  # fmt: skip
    """Train a sharded model, going back where a step is lost; the losses of this worker."""
    rank, world_size, device = luwu.rank(), luwu.world_size(), luwu.device()
    optimizer = luwu.optim.AdamW(trainable(model), lr=options.lr)
    losses: dict[int, float] = {}
    step = optimizer.next_step
    while True:
        try:
            if step == options.steps:
                at_end()
                break
            inputs = batch_of(options, batches, step, rank=rank, world_size=world_size)
            output: Any = model(**{name: each.to(device) for name, each in inputs.items()})
            output.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[step] = output.loss.item()
            if rank == 0 and step % 10 == 0:
                print(f"step {step} loss {losses[step]:.4f}", flush=True)
            step += 1
        except StepAborted as error:
            step = error.step
    return [losses[k] for k in sorted(losses)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Fine-tune as the command line says; returns the exit code."""
    options = parse_options(arguments)
    try:
        corpus = load_corpus(options.data)
        session = luwu.init(agree={"data": corpus.digest, "seed": str(options.seed)})
        model = make_model(options).to(luwu.device())
        shard(model, options)
        batches = Batches(corpus.tokens, context=options.context, seed=options.seed)
        losses = train(options, batches, model)
    except LuwuError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    if options.result is not None:
        counters = session.nic.counters
        result = {
            "loss": losses,
            "push_bytes": counters.push_bytes,
            "pull_bytes": counters.pull_bytes,
        }
        path = options.result.with_suffix(f".rank{session.rank}.json")
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
