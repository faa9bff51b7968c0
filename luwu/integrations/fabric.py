"""`lightning_fabric.Fabric` over LuWu: a strategy, in the place of `FSDPStrategy`.

    fabric = Fabric(strategy=LuwuStrategy(auto_wrap_policy={Block}))
    fabric.launch()                                     joins the job, as luwu.init
    model = fabric.setup_module(model)                  luwu.fully_shard_each(model, Block)
    optimizer = fabric.setup_optimizers(luwu.optim.AdamW(model.parameters()))

The loop stays as it is. What differs is who does what:

    processes       `luwu run` or torchrun starts them, so Fabric launches none
    weights         are pulled by the hooks of `fully_shard`; gradients are pushed inside `backward`
    clipping        the optimizer node clips; the norm is known after `step()`
    collectives     `all_reduce`, `broadcast` and the like are those of torch.distributed, which is
                    started from RANK and WORLD_SIZE. No weight or gradient passes there.
    the state       is on the optimizer node. `save` collects it in one file, as FSDPStrategy does
                    with state_dict_type="full"; `load` gives a run its first weights and moments.

What cannot be honoured raises, with the remedy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

import luwu
from luwu.base.errors import ConfigError
from luwu.base.own import needs
from luwu.optim.base import NetworkOptimizer
from luwu.training.script import run
from luwu.training.script.module import LuwuModule
from luwu.training.steps.result import ClippedNorm

try:
    from lightning_fabric.plugins.environments import TorchElasticEnvironment
    from lightning_fabric.strategies import DDPStrategy
except ImportError as error:
    raise ConfigError(
        f"luwu.integrations.fabric needs lightning-fabric, which is not installed here; "
        f"{needs('fabric')}",
        code="E208",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.distributed.fsdp import MixedPrecisionPolicy

_PRECISIONS = ("32-true", "bf16-mixed", "bf16-true")
_CHECKPOINTING = "call torch's apply_activation_checkpointing on the model before setup_module"
_NOT_TAKEN = {
    "activation_checkpointing": _CHECKPOINTING,
    "activation_checkpointing_policy": _CHECKPOINTING,
    "cpu_offload": "nothing is left to offload: the weights are not on the worker",
    "device_mesh": "the weights are in the network, not on a mesh of ranks",
    "mixed_precision": "pass mp_policy=MixedPrecisionPolicy(...), or Fabric(precision=...)",
    "sharding_strategy": "all state is in the network; reshard_after_forward=False keeps weights "
    "from forward to backward, as SHARD_GRAD_OP does",
    "state_dict_type": "fabric.save writes one file; a model that is larger than a worker goes "
    "through luwu export",
}
"""Arguments of FSDPStrategy, and what to do instead."""


class LuwuStrategy(DDPStrategy):
    """A strategy for `lightning_fabric.Fabric` that trains in the network.

    Of DDPStrategy it has the collectives alone: no model is wrapped in DistributedDataParallel.

    Args:
        auto_wrap_policy: Classes of the modules that are pulled and freed together, usually one;
            as FSDPStrategy's set of classes. Without it the model is one unit, unless
            `luwu.fully_shard` was called on its parts.
        reshard_after_forward: See `luwu.fully_shard`.
        mp_policy: See there.
        process_group_backend: Backend of torch.distributed, for Fabric's collectives: by default
            Fabric's, or gloo where workers share a GPU, of which NCCL takes one rank.
        timeout: How long these wait.
        **not_taken: FSDPStrategy's other arguments; each raises, with the reason.

    Raises:
        ConfigError: If `auto_wrap_policy` has anything but classes of modules.
        TypeError: For an argument that has no meaning here.

    Examples:
        >>> from lightning_fabric import Fabric
        >>> session = luwu.init_local(device="cpu")  # under luwu run: fabric.launch() joins
        >>> fabric = Fabric(accelerator="cpu", strategy=LuwuStrategy({torch.nn.Linear}))
        >>> fabric.launch()
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
        >>> model = fabric.setup_module(model)
        >>> optimizer = fabric.setup_optimizers(luwu.optim.AdamW(model.parameters(), lr=0.01))
        >>> fabric.backward(model(torch.ones(3, 4)).square().mean())
        >>> optimizer.step().number
        0
    """

    def __init__(
        self, auto_wrap_policy: Collection[type[nn.Module]] | None = None, *,
        reshard_after_forward: bool | None = None, mp_policy: MixedPrecisionPolicy | None = None,
        process_group_backend: str | None = None, timeout: timedelta = timedelta(minutes=30),
        **not_taken: object,
    ) -> None:  # fmt: skip
        for name in not_taken:
            reason = _NOT_TAKEN.get(name, "no such argument")
            raise TypeError(f"LuwuStrategy takes no {name}=: {reason}")
        self._unit_classes = _checked_classes(auto_wrap_policy)
        self._arguments: dict[str, Any] = {
            "reshard_after_forward": reshard_after_forward, "mp_policy": mp_policy,
        }  # fmt: skip
        self._has_loaded = False
        """First weights or moments came from a checkpoint."""
        super().__init__(
            cluster_environment=_Workers(), process_group_backend=process_group_backend,
            timeout=timeout,
        )  # fmt: skip
        self._backward_sync_control = self  # Fabric calls its `no_backward_sync`

    # ---------------------------------------------------------------------- processes

    def _configure_launcher(self) -> None:
        """None: the processes are started already."""

    @property
    def root_device(self) -> torch.device:
        """The device of this worker; workers of a host may share one."""
        devices: list[torch.device] = self.parallel_devices
        return devices[self.local_rank % len(devices)]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any] | None:
        """How data is split among the workers; not at all for one, which keeps its order."""
        if self.world_size == 1:
            return None
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def setup_environment(self) -> None:
        """Join the job, unless the script has; start torch.distributed for several workers.

        Raises:
            ConfigError: If there is no job, or Fabric was given other processes or devices.
        """
        self.accelerator.setup_device(self.root_device)
        session = run.session() if run.is_running() else luwu.init(device=self.root_device)
        if (session.rank, session.world_size) != (self.global_rank, self.world_size):
            raise ConfigError(
                f"this process is worker {session.rank} of {session.world_size}, but RANK and "
                f"WORLD_SIZE name {self.global_rank} of {self.world_size}, and Fabric would split "
                "the data by these; start the script with luwu run or torchrun"
            )
        if session.device != self.root_device:
            raise ConfigError(
                f"Fabric computes on {self.root_device}, but the weights come to {session.device}; "
                "Fabric(accelerator=..., devices=...) and the device= of luwu.init must agree"
            )
        asked = self.num_processes * self.num_nodes
        if asked not in (session.world_size, self.accelerator.auto_device_count()):
            raise ConfigError(
                f"Fabric(devices={self.num_processes}, num_nodes={self.num_nodes}) asks for "
                f"{asked} processes, but this run has {session.world_size}: luwu run --workers "
                "chooses their number; leave devices and num_nodes out"
            )
        if session.world_size > 1:
            if not {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
                raise ConfigError(
                    "Fabric's collectives need torch.distributed, but MASTER_ADDR and MASTER_PORT "
                    "are not set: luwu run sets them with --on-worker-loss stop, its default, "
                    "since a group of torch.distributed outlives no worker, and where there is "
                    "127.0.0.1 or ::1"
                )
            self._setup_distributed()

    def _get_process_group_backend(self) -> str:
        if self._process_group_backend is None and run.gpus_shared(self.root_device) is not None:
            return "gloo"
        backend: str = super()._get_process_group_backend()
        return backend

    @DDPStrategy.precision.setter
    def precision(self, precision: Any) -> None:
        """Fabric's plugin for it. Raises ConfigError for one that cannot be honoured."""
        if precision is not None and precision.precision not in _PRECISIONS:
            raise ConfigError(
                f"Fabric(precision={precision.precision!r}) cannot be honoured: choose one of "
                f"{', '.join(_PRECISIONS)}; for float16 pass LuwuStrategy(mp_policy=...) and give "
                "the optimizer of luwu.optim a loss_scale"
            )
        self._precision = precision

    # ---------------------------------------------------------------------- model and optimizer

    def module_init_context(self, empty_init: bool | None = None) -> AbstractContextManager[Any]:
        """Make the model on the device, or with `empty_init` on meta: filled unit by unit."""
        if not empty_init:
            context: AbstractContextManager[Any] = super().module_init_context(empty_init=False)
            return context
        stack = ExitStack()
        stack.enter_context(torch.device("meta"))
        stack.enter_context(self.precision.module_init_context())
        return stack

    def module_to_device(self, module: nn.Module) -> None:
        """Move a model that is not sharded yet; one on meta is filled later."""
        tensors = [*module.parameters(), *module.buffers()]
        if not _is_sharded(module) and not any(tensor.is_meta for tensor in tensors):
            module.to(self.root_device)

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: list[Any], scheduler: Any = None
    ) -> tuple[nn.Module, list[Any], Any]:
        """Set up a model and optimizers that were made for it, after `luwu.fully_shard`."""
        for optimizer in optimizers:
            _check_optimizer(optimizer)
        return super().setup_module_and_optimizers(module, optimizers, scheduler)

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Shard the model: each module of `auto_wrap_policy` is a unit, and the rest is one."""
        if self._unit_classes and _is_sharded(module):
            raise ConfigError(
                "luwu.fully_shard was called on this model already, and auto_wrap_policy would be "
                "ignored; leave out one of them"
            )
        if self._unit_classes:
            luwu.fully_shard_each(module, *self._unit_classes, **self._arguments)
        elif not isinstance(module, LuwuModule):
            luwu.fully_shard(module, **self._arguments)
        return _Forward(module)

    def setup_optimizer(self, optimizer: Any) -> NetworkOptimizer:
        """Check that the optimizer is one of `luwu.optim`."""
        checked = _check_optimizer(optimizer)
        if self._has_loaded:
            self._check_first()
        return checked

    @contextmanager
    def no_backward_sync(self, module: nn.Module, enabled: bool) -> Iterator[None]:
        """Keep gradients on this worker, in float32, until a backward outside of the context."""
        root = _root(module)
        assert isinstance(root, LuwuModule)
        try:
            root.set_requires_gradient_sync(not enabled)
            root.set_is_last_backward(not enabled)
            yield
        finally:
            root.set_requires_gradient_sync(True)
            root.set_is_last_backward(True)

    # ---------------------------------------------------------------------- clipping

    def clip_gradients_norm(
        self, module: nn.Module, optimizer: Any, max_norm: float, norm_type: float = 2.0,
        error_if_nonfinite: bool = True,
    ) -> ClippedNorm:  # fmt: skip
        """Clip the coming step, as `luwu.clip_grad_norm_`.

        Returns the norm, an object that turns into a number once `step()` has returned. A step
        with a gradient that is not finite is left out; with `error_if_nonfinite` `step()` raises.
        """
        return luwu.clip_grad_norm_(module.parameters(), max_norm, norm_type, error_if_nonfinite)

    def clip_gradients_value(self, module: Any, optimizer: Any, clip_val: float) -> NoReturn:
        """Raises: the node clips by the norm."""
        raise ConfigError(
            f"clip_gradients(clip_val={clip_val!r}) cannot be honoured: gradients are summed in "
            "the network, where no single element is clipped; pass max_norm"
        )

    # ---------------------------------------------------------------------- checkpoints

    def get_module_state_dict(self, module: nn.Module) -> dict[str, Any]:
        """Weights of the last step, on rank 0; an empty dict on others."""
        root = _root(module)
        if isinstance(root, LuwuModule):
            return luwu.get_model_state_dict(root)
        return super().get_module_state_dict(root)

    def get_optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Moments and groups by names of parameters, on rank 0; an empty dict on others."""
        return luwu.get_optimizer_state_dict(_any_module(), optimizer)

    def load_module_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], strict: bool = True
    ) -> None:
        """Give the run its first weights.

        Raises:
            StepOrderError: After the first forward.
            ConfigError: If the run goes on from a state, or the dict is of another model.
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        root = _root(module)
        if not isinstance(root, LuwuModule):
            root.load_state_dict(state_dict, strict=strict)
            return
        self._check_first()
        luwu.set_model_state_dict(root, state_dict, options=StateDictOptions(strict=strict))
        self._has_loaded = True

    def load_optimizer_state(self, optimizer: NetworkOptimizer, state_dict: dict[str, Any]) -> None:
        """Give the run its first moments, and the optimizer its hyper-parameters.

        Raises:
            StepOrderError: After the first forward.
            ConfigError: If the run goes on from a state, or the dict is of another optimizer.
        """
        self._check_first()
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        if not all(isinstance(name, str) for name in names):
            raise ConfigError(
                "fabric.load: this optimizer's state numbers its parameters, as torch's "
                "state_dict() does, and LuWu wants their names; save it with "
                "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict, or load the "
                "model alone"
            )
        luwu.set_optimizer_state_dict(_any_module(), optimizer, state_dict)
        self._has_loaded = True

    def load_checkpoint(
        self, path: Any, state: Any = None, strict: bool = True, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, as every strategy; optimizers take `load_optimizer_state`. A file may
        hold tensors and plain values alone, also from a URL, unless `weights_only` is False."""
        weights_only = weights_only is not False
        if not isinstance(state, dict):
            return super().load_checkpoint(path, state, strict, weights_only)
        kept = {name: each for name, each in state.items() if isinstance(each, NetworkOptimizer)}
        state.update({name: _Loads(self, each) for name, each in kept.items()})
        try:
            return super().load_checkpoint(path, state, strict, weights_only)
        finally:
            state.update(kept)

    def _check_first(self) -> None:
        session = run.session()
        if session.is_resumed:
            raise ConfigError(
                f"fabric.load: this run goes on from a state, at step {session.step}, which has "
                "weights and moments of its own; load only `if not luwu.session().is_resumed`, "
                "after the optimizer is made"
            )


class _Workers(TorchElasticEnvironment):
    """Ranks as `luwu run` and torchrun name them; a process alone is rank 0 of 1."""

    def world_size(self) -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    def global_rank(self) -> int:
        return int(os.environ.get("RANK", "0"))

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))


class _Forward(nn.Module):
    """A sharded model, for Fabric to call.

    Fabric sends other methods than `forward` (`training_step`, those of `mark_forward_method`)
    through hooks and autocast only if what it calls is not the model itself.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class _Loads:
    """An optimizer, with the two methods by which Fabric recognises what it can load."""

    def __init__(self, strategy: LuwuStrategy, optimizer: NetworkOptimizer) -> None:
        self._strategy, self._optimizer = strategy, optimizer

    def state_dict(self) -> dict[str, Any]:
        return self._strategy.get_optimizer_state(self._optimizer)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._strategy.load_optimizer_state(self._optimizer, state_dict)


def _root(module: nn.Module) -> nn.Module:
    return module.module if isinstance(module, _Forward) else module


def _any_module() -> nn.Module:
    """A sharded module: by one of them `luwu` finds the session that the optimizer is of."""
    module: nn.Module = run.session().model.added[-1].modules[0]
    return module


def _is_sharded(module: nn.Module) -> bool:
    return any(isinstance(each, LuwuModule) for each in module.modules())


def _check_optimizer(optimizer: Any) -> NetworkOptimizer:
    if not isinstance(optimizer, NetworkOptimizer):
        raise ConfigError(
            f"Fabric got a {type(optimizer).__name__}, which would update nothing: the weights are "
            "in the network. First model = fabric.setup_module(model), then optimizer = "
            "fabric.setup_optimizers(luwu.optim.AdamW(model.parameters(), ...))"
        )
    return optimizer


def _checked_classes(policy: Any) -> tuple[type[nn.Module], ...]:
    if policy is None:
        return ()
    if callable(policy) or not all(
        isinstance(each, type) and issubclass(each, nn.Module) for each in policy
    ):
        raise ConfigError(
            f"auto_wrap_policy={policy!r}: give a set of classes of modules, such as {{Block}}; "
            "to choose modules one by one, call luwu.fully_shard on each after fabric.launch()"
        )
    return tuple(policy)
