"""DeepSpeed's arms of `benchmarks.peers`: ZeRO-3 that offloads to memory, and ZeRO-Infinity.

    zero3-offload   parameters, gradients and optimizer state in the host's memory, updated there
    zero-infinity   the same in files, read and written by libaio past the kernel's cache; they
                    survive nothing and are removed by whoever gave the directory

    LUWU_PEERS_SWAP=DIR|"" python -m benchmarks.peers_zero --arm ddp --steps 5 --result FILE.json

Both are DeepSpeed's ZeRO-3 with its own AdamW; gradients are summed by gloo on CPUs and NCCL on
GPUs. `--arm` is there because the options are those of `workers.train`; it is not used. Weights are
float32: of lower ones DeepSpeed would make other masters than the arms of torch and LuWu.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.peers_libraries import SWAP
from workers.arms import Arm
from workers.baselines import join_process_group
from workers.gpt import GPT, GPTConfig, initial_values, without_storage
from workers.options import Options
from workers.train import main

WEIGHT_DECAY = 0.01
"""That of torch.optim.AdamW, which DeepSpeed's does not have by itself."""
BUFFERS = 12
"""Of parameters and of optimizer state. With DeepSpeed's 5 and 4, step 0 ends in an assertion:
a block has four matrices, of which those in use and those read ahead need a buffer each; the
optimizer reads and writes a group of four tensors while it updates another."""


def zero_settings(
    config: GPTConfig, *, world_size: int, batch: int, swap: Path | None
) -> dict[str, Any]:  # fmt: skip
    """DeepSpeed's configuration for a model. `swap`: where its files lie; None: in memory.

    All that DeepSpeed sizes for GPUs of billions of parameters follows from the model here. By
    itself a rank would reserve 2 GB of buckets (`reduce_bucket_size`) and 2 GB of buffers, and keep
    up to 1e9 parameters (`stage3_max_live_parameters`), for which there are no buffers on a disk.
    """
    model = without_storage(config)
    largest = max(parameter.numel() for parameter in model.parameters())
    block = max(largest, sum(parameter.numel() for parameter in model.blocks[0].parameters()))
    zero: dict[str, Any] = {
        "stage": 3,
        "offload_param": {"device": "cpu"},
        "offload_optimizer": {"device": "cpu"},
        "reduce_bucket_size": block,
        "stage3_prefetch_bucket_size": block,
        "stage3_max_live_parameters": block,
        "sub_group_size": -(-block // world_size),  # of a rank's share
    }
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,  # by itself it clips to 1
        "zero_optimization": zero,
    }
    if swap is not None:
        disk = {"device": "nvme", "nvme_path": str(swap), "buffer_count": BUFFERS}
        zero["offload_param"] = {**disk, "buffer_size": -(-largest // world_size)}
        zero["offload_optimizer"] = {**disk, "pipeline_read": True, "pipeline_write": True}
        settings["aio"] = {
            "block_size": 2**20, "queue_depth": 32, "overlap_events": True, "single_submit": False,
        }  # fmt: skip
    return settings


class ZeroArm(Arm):
    """ZeRO-3 by DeepSpeed, its state in the host's memory or on a disk."""

    def __init__(self, options: Options, *, data_digest: str) -> None:
        super().__init__(options)
        swap = os.environ[SWAP]
        self._swap = Path(swap) if swap else None
        self.rank, self.world_size, self.device = join_process_group()
        # DeepSpeed takes the first accelerator that it finds a package of.
        os.environ["DS_ACCELERATOR"] = self.device.type
        os.environ.setdefault("LOCAL_RANK", "0")  # not there where no launcher is
        import deepspeed

        self._deepspeed: Any = deepspeed

    def build(self, config: GPTConfig) -> None:
        deepspeed, options = self._deepspeed, self.options
        settings = zero_settings(
            config, world_size=self.world_size, batch=options.batch, swap=self._swap
        )
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed\.")
        deepspeed.init_distributed()
        # With dtype=torch.float32, DeepSpeed 0.19 takes bfloat16 on CPUs without float16.
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = GPT(config)
        for module in model.modules():
            self._init_weights(module)
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        self.optimizer = DeepSpeedCPUAdam(
            model.parameters(), lr=options.lr, weight_decay=WEIGHT_DECAY
        )
        engine, *_ = deepspeed.initialize(model=model, optimizer=self.optimizer, config=settings)
        self._engine: Any = engine
        self.module = engine
        self._disk_before = disk_bytes()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """`init_weights` for partitioned parameters: rank 0 draws, all get their part."""
        own = list(module.parameters(recurse=False))
        if not own:
            return
        with self._deepspeed.zero.GatheredParameters(own, modifier_rank=0):
            if self.rank == 0:
                for parameter, values in initial_values(module, self.options.seed):
                    parameter.copy_(values)

    def step(self, *, want_norm: bool) -> float | None:
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if want_norm else None

    def finish(self) -> None:
        before, after = self._disk_before, disk_bytes()  # without what the digest reads
        self._disk_moved = {way: after[way] - before[way] for way in after}

    def leave(self) -> None:
        self._engine.destroy()
        del self._engine
        super().leave()

    def parameters_count(self) -> int:
        return sum(parameter.ds_numel for parameter in self._engine.parameters())

    def weights_digest(self) -> None:
        """None: DeepSpeed's AdamW has other bits than torch's."""

    def measurements(self) -> dict[str, Any]:
        return {} if self._swap is None else {"disk_bytes_kernel": self._disk_moved}


def disk_bytes() -> dict[str, int]:
    """The kernel's count of what this process has read from and written to block devices."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    rows = dict(line.split(": ") for line in lines)
    return {"read": int(rows["read_bytes"]), "written": int(rows["write_bytes"])}


if __name__ == "__main__":
    sys.exit(main(make=ZeroArm))
