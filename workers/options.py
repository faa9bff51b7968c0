"""The options of `workers/train.py`, checked once before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from luwu.base.dtypes import COMPUTE_DTYPES, MASTER_DTYPES, STATE_DTYPES
from luwu.base.errors import ConfigError
from luwu.layout import StoredForm
from workers.gpt import Checkpointing, GPTConfig

ARM_NAMES = ("luwu", "fsdp", "ddp", "single", "fsdp_offload", "diloco")
HEAD_WIDTH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run of one arm. Raises ConfigError if it cannot work."""

    arm: str
    """The system that holds the weights and sums the gradients: `luwu`, `fsdp`, `ddp`, ..."""

    steps: int = 120
    """Optimizer updates of the whole run, those done before a resume included."""

    layers: int = 4
    width: int = 128
    heads: int | None = None
    """Attention heads; without it, one for every 32 of `width`."""

    context: int = 64
    """Tokens in a sample."""

    batch: int = 16
    """Samples of one worker in a step."""

    tied: bool = False
    """The token embedding is the output head too."""

    dropout: float = 0.0
    seed: int = 0
    lr: float = 1e-3

    dtype: str = "float32"
    """Dtype of the computation and of weights and gradients on the wire."""

    state_dtype: str = "float32"
    """`luwu` only: dtype in which the node keeps moments (`luwu.optim.NetworkArguments`)."""

    master_dtype: str = "float32"
    """Dtype of master weights."""

    data: Path | None = None
    """Text, or `.bin` of uint16 tokens; without it, the source of Python's standard library."""

    max_grad_norm: float | None = None
    """Clip the gradient of the whole model to this norm."""

    checkpointing: Checkpointing = "none"
    """Compute blocks again in backward instead of keeping their activations."""

    reshard_after_forward: bool | None = None
    """Free a block's weights between forward and backward; without it, FSDP2's rule (yes)."""

    compute_ms: float = 0.0
    """Least time of each unit's forward, and of its backward: slower compute than there is."""

    global_workers: int | None = None
    """`single` only: how many workers' batches make up a step."""

    local_steps: int = 50
    """`diloco` only: steps of a worker alone, between two rounds."""

    log_every: int = 10
    """Steps between two lines of progress; 0 for none."""

    result: Path | None = None
    """File for results: FILE.json becomes FILE.rank0.json, FILE.rank1.json, ..."""

    def __post_init__(self) -> None:
        if self.arm not in ARM_NAMES:
            raise ConfigError(f"unknown arm {self.arm!r}; the arms are {', '.join(ARM_NAMES)}")
        if self.dtype not in COMPUTE_DTYPES:
            raise ConfigError(
                f"unknown dtype {self.dtype!r}; there are {', '.join(COMPUTE_DTYPES)}"
            )
        if self.arm != "luwu" and not self.stored.is_float32:
            raise ConfigError(
                f"--state-dtype and --master-dtype belong to --arm luwu, not to {self.arm}; leave "
                "them out"
            )
        for name in ("steps", "batch", "context", "layers", "width", "local_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{_flag(name)} must be at least 1, got {getattr(self, name)}")
        for name in ("seed", "log_every", "compute_ms"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ConfigError(f"{_flag(name)} must not be negative, got {value}")
        for name in ("lr", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{_flag(name)} must be above 0, got {value}")
        if self.global_workers is not None and self.arm != "single":
            raise ConfigError(
                f"--global-workers belongs to --arm single, not to {self.arm}; leave it out: "
                "the launcher says how many workers there are"
            )
        if self.global_workers is not None and self.global_workers < 1:
            raise ConfigError(f"--global-workers must be at least 1, got {self.global_workers}")
        if self.result is not None and self.result.suffix != ".json":
            raise ConfigError(f"--result must name a .json file, got {self.result}")

    @property
    def stored(self) -> StoredForm:
        """How the node keeps what it updates."""
        return StoredForm(self.state_dtype, self.master_dtype)

    def gpt(self, vocab: int) -> GPTConfig:
        """The model to build for data of that vocabulary."""
        heads = self.heads if self.heads is not None else max(1, self.width // HEAD_WIDTH)
        return GPTConfig(
            layers=self.layers,
            width=self.width,
            heads=heads,
            context=self.context,
            vocab=vocab,
            dropout=self.dropout,
            tied=self.tied,
            dtype=getattr(torch, self.dtype),
            checkpointing=self.checkpointing,
        )

    def result_path(self, rank: int) -> Path | None:
        """The file of one rank: `FILE.json` becomes `FILE.rank0.json`."""
        if self.result is None:
            return None
        return self.result.with_suffix(f".rank{rank}.json")


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Options of a command line. Raises ConfigError; argparse's own errors end with code 2."""
    parser = argparse.ArgumentParser(
        prog="train.py",
        description="Train a small GPT on real text by one arm, alone or under torchrun.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    # The class of a slotted dataclass has no defaults as attributes: ask its fields.
    default = {each.name: each.default for each in dataclasses.fields(Options)}

    def add(name: str, kind: type, text: str, *, choices: Sequence[str] = ()) -> None:
        parser.add_argument(
            _flag(name),
            type=kind,
            default=default[name],
            help=text,
            choices=choices or None,
        )

    parser.add_argument(
        "--arm", required=True, choices=ARM_NAMES, help="who keeps the weights and sums gradients"
    )
    add("steps", int, "optimizer updates of the whole run")
    add("layers", int, "transformer blocks")
    add("width", int, "width of the residual stream")
    add("heads", int, f"attention heads; one for every {HEAD_WIDTH} of width unless given")
    add("context", int, "tokens in a sample")
    add("batch", int, "samples of one worker in a step")
    add("dropout", float, "share of activations set to zero")
    add("seed", int, "every random number derives from it")
    add("lr", float, "learning rate of AdamW")
    add("dtype", str, "dtype of compute, weights and gradients on the wire", choices=COMPUTE_DTYPES)
    add("state_dtype", str, "dtype of moments on the optimizer node", choices=STATE_DTYPES)
    add("master_dtype", str, "dtype of master weights there", choices=MASTER_DTYPES)
    add("data", Path, "text or .bin of uint16; Python's standard library unless given")
    add("max_grad_norm", float, "clip the gradient to this norm")
    add(
        "checkpointing",
        str,
        "compute blocks again in backward, and how",
        choices=["none", "reentrant", "nonreentrant"],
    )
    add("compute_ms", float, "least milliseconds of each unit's forward, and of its backward")
    add("global_workers", int, "--arm single: workers' batches in a step; 1 unless given")
    add("local_steps", int, "--arm diloco: steps of a worker alone, between two rounds")
    add("log_every", int, "steps between lines of progress; 0 for none")
    add("result", Path, "FILE.json: rank r writes its results to FILE.rank<r>.json")
    parser.add_argument(
        "--tied", action="store_true", help="the token embedding is the output head too"
    )
    parser.add_argument(
        "--reshard-after-forward",
        type=_true_or_false,
        default=None,
        metavar="true|false",
        help="free a block's weights between forward and backward; FSDP2's rule unless given",
    )
    return Options(**vars(parser.parse_args(arguments)))


def env_int(name: str, default: int) -> int:
    """A whole number from the environment. Raises ConfigError."""
    text = os.environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r} in the environment is not a whole number; fix it")
    return int(text)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _true_or_false(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"
