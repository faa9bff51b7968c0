"""Everything in which the arms differ; the training loop and the model are the same for all.

Those of torch, FSDP2 and DDP, are in `baselines.py`.

    arm            who keeps the weights            who sums the gradients
    luwu           an optimizer node, out of core   the SmartSwitch
    fsdp           every rank its shard (FSDP2)     reduce-scatter: NCCL on GPUs, gloo on CPUs
    fsdp_offload   the same, in the host's memory, where it is updated too (CPUOffloadPolicy)
    ddp            every rank all of them           all-reduce: NCCL on GPUs, gloo on CPUs
    diloco         every rank all of them           none: each trains alone, and every so many
                                                    steps the node averages the weights
    single         one process that computes every worker's batch, one after the other

All start from the same weights, bit for bit, and update them with AdamW, all but diloco on the mean
gradient. The single arm adds in rank order and divides once, as an optimizer node does.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import torch

from luwu.base.errors import ConfigError, LuwuError, StepAborted
from workers.arm import Arm, initialised, local_device, precision
from workers.gpt import Block, GPTConfig, init_weights, without_storage
from workers.options import Options, env_int
from workers.pace import pace_units


class LuwuArm(Arm):
    """Weights and optimizer state live in the network; see `luwu`."""

    def __init__(self, options: Options, *, data_digest: str) -> None:
        super().__init__(options)
        luwu = self._luwu = _import_luwu()
        luwu.init(
            agree={
                "data": data_digest,
                "seed": str(options.seed),
                "batch": str(options.batch),
                "context": str(options.context),
            }
        )
        self._session = luwu.session()  # still there to be read after `finish`
        self.rank, self.world_size = luwu.rank(), luwu.world_size()
        self.device = luwu.device()

    def build(self, config: GPTConfig) -> None:
        luwu, options = self._luwu, self.options
        model = without_storage(config)
        pace_units(model, options.compute_ms)
        for block in model.blocks:
            luwu.fully_shard(
                block,
                reshard_after_forward=options.reshard_after_forward,
                **precision(options),
            )
        luwu.fully_shard(model, **precision(options))
        luwu.init_weights(model, functools.partial(init_weights, seed=options.seed))
        self.module = model
        # Streaming updates a page before the norm of the whole gradient is known.
        optimizer = luwu.optim.AdamW(
            model.parameters(),
            lr=options.lr,
            update="streaming" if options.max_grad_norm is None else "at_step",
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

    def finish(self) -> None:
        self._luwu.finish()

    def weights_digest(self) -> None:
        """None: the weights are not here; the optimizer node's store gives their digest."""
        return None

    def measurements(self) -> dict[str, Any]:
        session = self._session
        early_ratio = session.pull_before_use_ratio
        return {
            **_network_bytes(session.nic),
            "worker_optimizer_bytes": session.optimizer_bytes,
            "worker_parameter_bytes_peak": session.parameter_bytes_peak,
            "unit_bytes_max": session.unit_bytes_max,
            "prefetch_units": session.prefetch_units,
            "pull_before_use_ratio": None if math.isnan(early_ratio) else early_ratio,
        }


class DilocoArm(Arm):
    """A replicated model on each worker, averaged in rounds; see `luwu.DiLoCo`."""

    def __init__(self, options: Options, *, data_digest: str) -> None:
        super().__init__(options)
        luwu = self._luwu = _import_luwu()
        agreed = {"data": data_digest, "seed": str(options.seed), "arm": options.arm}
        self._session = luwu.init(agree=agreed)
        self.rank, self.world_size = luwu.rank(), luwu.world_size()
        self.device = luwu.device()

    def build(self, config: GPTConfig) -> None:
        self.module = initialised(config, self.options, self.device)
        self.optimizer = self._fused_adamw()
        self._outer = self._luwu.DiLoCo(self.module, Block, every=self.options.local_steps)
        self.first_step = self._outer.round * self.options.local_steps

    def step(self, *, want_norm: bool) -> float | None:
        norm = super().step(want_norm=want_norm)
        try:
            self._outer.step()
        except StepAborted as error:
            raise LuwuError(
                f"round {error.step} was lost after it was decided ({error}); the weights of the "
                "rounds since are in the workers alone: start again"
            ) from error
        return norm

    def finish(self) -> None:
        if self._outer.local_steps:
            self._outer.end_round()
        self._luwu.finish()

    def measurements(self) -> dict[str, Any]:
        return super().measurements() | _network_bytes(self._session.nic)


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


def make_arm(options: Options, *, data_digest: str) -> Arm:
    """Join the run as a worker of the chosen arm."""
    if options.arm == "luwu":
        return LuwuArm(options, data_digest=data_digest)
    if options.arm == "diloco":
        return DilocoArm(options, data_digest=data_digest)
    if options.arm == "single":
        return SingleArm(options)
    from workers.baselines import BASELINES  # torch's half of it takes a second to import

    return BASELINES[options.arm](options)


def _network_bytes(nic: Any) -> dict[str, Any]:
    counters = nic.counters
    return {"network_bytes": {"push": counters.push_bytes, "pull": counters.pull_bytes}}


def _import_luwu() -> Any:
    """The public API; imported here so that the baselines run without it."""
    return importlib.import_module("luwu")
