"""An arm: one way to train; and functions that several arms share.

`arms.py` has the table of arms and those of the network, `baselines.py` those of torch.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError
from workers.gpt import GPT, GPTConfig, init_weights
from workers.options import Options, env_int
from workers.pace import pace_units


class Arm(ABC):
    """One way to train. The constructor joins the other workers; nothing else is done before."""

    rank: int
    world_size: int
    """Workers whose batches make up a step."""

    device: torch.device
    first_step: int = 0
    """The step to go on with: 0, or that of a resumed state."""

    module: nn.Module
    """The module that the loop calls; set by `build`."""

    optimizer: torch.optim.Optimizer

    def __init__(self, options: Options) -> None:
        self.options = options

    @property
    def batch_ranks(self) -> range:
        """The ranks whose batches this process computes in a step."""
        return range(self.rank, self.rank + 1)

    @abstractmethod
    def build(self, config: GPTConfig) -> None:
        """Make the model with its first weights, and its optimizer."""

    def step(self, *, want_norm: bool) -> float | None:
        """Update the weights; the gradient's norm before clipping, if it is wanted or needed."""
        norm = self._clip_or_measure(want_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def finish(self) -> None:  # noqa: B027 - most arms have nothing to wait for
        """Return when the last step is final."""

    def leave(self) -> None:
        """Part from the other workers, after the results are collected."""
        # The model goes first: if DDP's reducer is the last to hold the process group (seen with
        # torch 2.13 and gloo), Python's lock is held while a thread that needs it is joined.
        del self.module, self.optimizer
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()

    def weights_digest(self) -> str | None:
        """Fingerprint of the weights, on rank 0; all ranks must call it."""
        digest = WeightsDigest()
        for name, parameter in _model_of(self.module).named_parameters():
            full = _full(parameter)
            if self.rank == 0:
                values: np.ndarray[Any, Any] = full.detach().cpu().numpy()
                digest.update(name, _dtype_name(parameter.dtype), tuple(parameter.shape), values)
        return digest.hexdigest() if self.rank == 0 else None

    def parameters_count(self) -> int:
        """Parameters of the whole model."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def measurements(self) -> dict[str, Any]:
        """Measurements of a worker that only this arm has, for the result file."""
        state = (value for each in self.optimizer.state.values() for value in each.values())
        return {"worker_optimizer_bytes": sum(_local_bytes(value) for value in state)}

    def _clip_or_measure(self, want_norm: bool) -> float | None:
        limit = self.options.max_grad_norm
        if limit is not None:
            norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit)
        elif want_norm:
            gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
        else:
            return None
        return float(_full(norm))

    def _fused_adamw(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.module.parameters(), lr=self.options.lr, fused=True)


def precision(options: Options) -> dict[str, Any]:
    """The same policy for both sharded arms; none for float32, which needs no casts."""
    dtype = getattr(torch, options.dtype)
    if dtype == torch.float32:
        return {}
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return {"mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)}


def initialised(config: GPTConfig, options: Options, device: torch.device) -> GPT:
    """The model with its first weights, all here."""
    with device:
        model = GPT(config)
    for module in model.modules():
        init_weights(module, options.seed)
    pace_units(model, options.compute_ms)
    return model


def local_device() -> torch.device:
    """The GPU of this process, one process each; the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local_rank, count = env_int("LOCAL_RANK", 0), torch.cuda.device_count()
    if local_rank >= count:
        raise ConfigError(
            f"local rank {local_rank} has no GPU: this host has {count}, one for each process; "
            "start fewer processes, or set CUDA_VISIBLE_DEVICES= to train on CPUs"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be FSDP2's; all ranks must ask."""
    full: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full


def _model_of(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, DistributedDataParallel) else module


def _local_bytes(value: object) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.nbytes if isinstance(local, torch.Tensor) else 0


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
