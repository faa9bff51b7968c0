"""The options of `workers/train.py`, checked once before anything starts."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from luwu.base.dtypes import COMPUTE_DTYPES, MASTER_DTYPES, STATE_DTYPES
from luwu.base.errors import ConfigError
from workers.gpt import Checkpointing, GPTConfig

ARM_NAMES = ("luwu", "fsdp", "ddp", "single", "fsdp_offload")
HEAD_WIDTH = 32


def _true_or_false(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def _option(kind: Callable[[str], object], default: object, text: str, **more: Any) -> Any:
    """A field that is a flag too; `more`: arguments of argparse."""
    return field(default=default, metadata={"type": kind, "help": text, **more})


# ruff: noqa: RUF009 - `_option` makes a field
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run of one arm. Raises ConfigError if it cannot work."""

    arm: str
    """The system that holds the weights and sums the gradients: `luwu`, `fsdp`, `ddp`, ..."""
    steps: int = _option(int, 120, "optimizer updates of the whole run, with those before a resume")
    layers: int = _option(int, 4, "transformer blocks")
    width: int = _option(int, 128, "width of the residual stream")
    heads: int | None = _option(
        int, None, f"attention heads; one for every {HEAD_WIDTH} of width unless given"
    )
    context: int = _option(int, 64, "tokens in a sample")
    batch: int = _option(int, 16, "samples of one worker in a step")
    dropout: float = _option(float, 0.0, "share of activations set to zero")
    seed: int = _option(int, 0, "every random number derives from it")
    lr: float = _option(float, 1e-3, "learning rate of AdamW")
    dtype: str = _option(
        str, "float32", "dtype of compute, weights and gradients on the wire",
        choices=COMPUTE_DTYPES,
    )  # fmt: skip
    state_dtype: str = _option(
        str, "float32", "--arm luwu: dtype of moments on the optimizer node", choices=STATE_DTYPES
    )
    master_dtype: str = _option(
        str, "float32", "--arm luwu: dtype of master weights there", choices=MASTER_DTYPES
    )
    data: Path | None = _option(
        Path, None, "text or .bin of uint16; Python's standard library unless given"
    )
    max_grad_norm: float | None = _option(float, None, "clip the gradient to this norm")
    update: str | None = _option(
        str, None, "--arm luwu: order of work; at_step with --max-grad-norm, else streaming",
        choices=("at_step", "streaming"),
    )  # fmt: skip
    checkpointing: Checkpointing = _option(
        str, "none", "compute blocks again in backward, and how",
        choices=("none", "reentrant", "nonreentrant"),
    )  # fmt: skip
    compute_ms: float = _option(
        float, 0.0, "least milliseconds of each unit's forward, and of its backward"
    )
    global_workers: int | None = _option(
        int, None, "--arm single: workers' batches in a step; 1 unless given"
    )
    log_every: int = _option(int, 10, "steps between lines of progress; 0 for none")
    result: Path | None = _option(
        Path, None, "FILE.json: rank r writes its results to FILE.rank<r>.json"
    )
    tied: bool = _option(bool, False, "the token embedding is the output head too")
    reshard_after_forward: bool | None = _option(
        _true_or_false, None,
        "free a block's weights between forward and backward; FSDP2's rule (yes) unless given",
        metavar="true|false",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.arm != "luwu" and {self.state_dtype, self.master_dtype} != {"float32"}:
            raise ConfigError(
                f"--state-dtype and --master-dtype belong to --arm luwu, not to {self.arm}; leave "
                "them out"
            )
        for name in ("steps", "batch", "context", "layers", "width"):
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
    parser.add_argument(
        "--arm", required=True, choices=ARM_NAMES, help="who keeps the weights and sums gradients"
    )
    for each in fields(Options):
        if each.metadata.get("type") is bool:
            parser.add_argument(_flag(each.name), action="store_true", help=each.metadata["help"])
        elif each.metadata:
            parser.add_argument(_flag(each.name), default=each.default, **each.metadata)
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
