"""Everything in which the arms differ; the training loop and the model are the same for all.

Those of torch, FSDP2 and DDP, are in `baselines.py`.

    arm            who keeps the weights            who sums the gradients
    luwu           an optimizer node, out of core   the SmartSwitch
    fsdp           every rank its shard (FSDP2)     reduce-scatter: NCCL on GPUs, gloo on CPUs
    fsdp_offload   the same, in the host's memory, where it is updated too (CPUOffloadPolicy)
    ddp            every rank all of them           all-reduce: NCCL on GPUs, gloo on CPUs
    single         one process that computes every worker's batch, one after the other

All start from the same weights, bit for bit, and update them with AdamW on the mean gradient. The
single arm adds in rank order and divides once, as an optimizer node does.
"""

from __future__ import annotations

import functools
import gc
import importlib
import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from luwu.base.digest import WeightsDigest
from luwu.base.errors import ConfigError
from workers.gpt import GPT, GPTConfig, init_weights, without_storage
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

    def log(self, **scalars: float) -> None:  # noqa: B027 - most arms have no run that shows them
        """Record numbers of the last step, where `luwu status` looks for them."""

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
        model = self.module
        if isinstance(model, DistributedDataParallel):
            model = model.module
        for name, parameter in model.named_parameters():
            full = _full(parameter)
            if self.rank == 0:
                values: np.ndarray[Any, Any] = full.detach().cpu().numpy()
                digest.update(
                    name,
                    str(parameter.dtype).removeprefix("torch."),
                    tuple(parameter.shape),
                    values,
                )
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


def _local_bytes(value: object) -> int:
    local = value.to_local() if hasattr(value, "to_local") else value
    return local.nbytes if isinstance(local, torch.Tensor) else 0


class LuwuArm(Arm):
    """Weights and optimizer state live in the network; see `luwu`."""

    def __init__(self, options: Options, *, data_digest: str) -> None:
        super().__init__(options)
        luwu = self._luwu = importlib.import_module("luwu")  # baselines run without it
        agreed = {name: str(getattr(options, name)) for name in ("seed", "batch", "context")}
        session = self._session = luwu.init(agree={**agreed, "data": data_digest})
        self.rank, self.world_size, self.device = session.rank, session.world_size, session.device

    def build(self, config: GPTConfig) -> None:
        luwu, options = self._luwu, self.options
        model = without_storage(config)
        pace_units(model, options.compute_ms)
        for block in model.blocks:
            luwu.fully_shard(
                block, reshard_after_forward=options.reshard_after_forward, **precision(options)
            )
        luwu.fully_shard(model, **precision(options))
        luwu.init_weights(model, functools.partial(init_weights, seed=options.seed))
        self.module = model
        # Streaming updates pages twice where a step is clipped.
        default = "streaming" if options.max_grad_norm is None else "at_step"
        optimizer = luwu.optim.AdamW(
            model.parameters(),
            lr=options.lr,
            update=options.update or default,
            max_grad_norm=options.max_grad_norm,
            state_dtype=options.state_dtype,
            master_dtype=options.master_dtype,
        )
        self.optimizer = optimizer
        self.first_step = optimizer.next_step

    def step(self, *, want_norm: bool) -> float | None:
        result: Any = self.optimizer.step()
        self.optimizer.zero_grad()
        # Reading the norm waits for the step, so only the rank that prints it does.
        return result.grad_norm if want_norm and self.rank == 0 else None

    def log(self, **scalars: float) -> None:
        self._luwu.log(**scalars)

    def finish(self) -> None:
        self._luwu.finish()

    def weights_digest(self) -> None:
        """None: the weights are not here; the optimizer node's store gives their digest."""
        return None

    def measurements(self) -> dict[str, Any]:
        session, counters = self._session, self._session.nic.counters
        early_ratio = session.pulls.early_ratio
        return {
            "network_bytes": {"push": counters.push_bytes, "pull": counters.pull_bytes},
            "worker_optimizer_bytes": 0,
            "worker_parameter_bytes_peak": session.pulls.bytes_count.peak,
            "unit_bytes_max": session.model.unit_bytes_max,
            "prefetch_units": session.nic.prefetch_units,
            "pull_before_use_ratio": None if math.isnan(early_ratio) else early_ratio,
        }


class SingleArm(Arm):
    """One process with the whole batch: no exchange at all, and the reference for losses."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        launched = env_int("WORLD_SIZE", 1)
        if launched != 1:
            raise ConfigError(
                f"--arm single is one process, but {launched} were started; start it alone, "
                "with --global-workers for the batches of several"
            )
        self.rank, self.world_size = 0, options.global_workers or 1
        self.device = local_device()

    @property
    def batch_ranks(self) -> range:
        return range(self.world_size)

    def build(self, config: GPTConfig) -> None:
        self.module = initialised(config, self.options, self.device)
        self.optimizer = self._fused_adamw()

    def step(self, *, want_norm: bool) -> float | None:
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, float(self.world_size))
        return super().step(want_norm=want_norm)
