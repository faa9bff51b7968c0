"""The arms that torch brings: FSDP2, with and without offloading, and DDP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from workers.arms import Arm, initialised, local_device, precision
from workers.gpt import GPTConfig, initial_values, without_storage
from workers.options import Options, env_int
from workers.pace import pace_units


class FsdpArm(Arm):
    """PyTorch's own sharded data parallel, FSDP2: the path a user would otherwise take."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._is_offloaded = options.arm == "fsdp_offload"
        """Shards, gradients and optimizer state are in the host's memory."""
        # Then the norm of the gradient and the weights' digest are exchanged there too.
        self.rank, self.world_size, self.device = join_process_group(self._is_offloaded)

    def build(self, config: GPTConfig) -> None:
        options = self.options
        shared: dict[str, Any] = {
            "mesh": init_device_mesh(self.device.type, (self.world_size,)), **precision(options),
        }  # fmt: skip
        if self._is_offloaded:
            shared["offload_policy"] = CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
        model = without_storage(config)
        pace_units(model, options.compute_ms)
        for block in model.blocks:
            fully_shard(block, reshard_after_forward=options.reshard_after_forward, **shared)
        fully_shard(model, **shared)
        model.to_empty(device="cpu" if self._is_offloaded else self.device)
        for module in model.modules():
            _init_shards(module, options.seed)
        self.module = model
        self.optimizer = self._fused_adamw()


class DdpArm(Arm):
    """PyTorch's replicated data parallel: every rank holds everything."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.rank, self.world_size, self.device = join_process_group()

    def build(self, config: GPTConfig) -> None:
        model = initialised(config, self.options, self.device)
        devices = [self.device] if self.device.type == "cuda" else None
        replica = DistributedDataParallel(model, device_ids=devices)
        if self.options.dtype == "bfloat16":
            # The lambda hides the hook's name, which torch refuses on gloo; gloo can sum bfloat16.
            replica.register_comm_hook(
                replica.process_group,
                lambda group, bucket: bf16_compress_hook(group, bucket),  # noqa: PLW0108
            )
        self.module = replica
        self.optimizer = self._fused_adamw()


@torch.no_grad()
def _init_shards(module: nn.Module, seed: int) -> None:
    """`init_weights` for FSDP2's sharded parameters: every rank keeps its part of the values."""
    for parameter, values in initial_values(module, seed):
        assert isinstance(parameter, DTensor)
        # src_data_rank=None: all ranks have drawn the same values, so nothing need be sent
        shard = distribute_tensor(
            values, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        parameter.to_local().copy_(shard.to_local())  # from the mesh's device to the shard's


def join_process_group(also_on_host: bool = False) -> tuple[int, int, torch.device]:
    """Join what torchrun started, or make a group of one: (rank, world_size, device).

    `also_on_host`: the ranks exchange tensors of the host too, which NCCL cannot.
    """
    device = local_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    if backend == "nccl" and also_on_host:
        backend = "cpu:gloo,cuda:nccl"
    if env_int("WORLD_SIZE", 0):
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    return dist.get_rank(), dist.get_world_size(), device


BASELINES: Final[Mapping[str, Callable[[Options], Arm]]] = {
    "fsdp": FsdpArm,
    "fsdp_offload": FsdpArm,
    "ddp": DdpArm,
}
"""Arms by name."""
