"""LuWu: an in-network optimizer in software.

    luwu.init()                                          join the run this process was started in
    luwu.fully_shard_each(model, Block)                  every Block, then the model
    optimizer = luwu.optim.AdamW(model.parameters())     weights go to the optimizer node

The rest of a training script stays as it was. Names are imported when they are first used, so that
programs which only need `luwu.wire` or the command line never load torch.

Packages, the lowest layer first (docs/architecture.md has the picture and the rules):

    base/          configuration, errors, limits, clock, events
    layout/        parameters -> units -> chunks -> pages
    aggregate/     forms in which gradients travel and are summed
    tensor_files/  directories of safetensors, slice by slice
    transport/     links between processes
    wire/          messages and their bytes
    report/        tables, pages and timelines of runs
    protocol/      what the cores of worker, switch and node are made of
    nic/           the worker's side of the protocol: core and shell
    join/          the connection file, and joining a run by it
    predict/       the performance model
    training/      `fully_shard`, hooks, state dicts: everything that knows torch modules
    checkpoint/    export and import of a state
    optim/         optimizers that a script constructs
    launch/        processes of a run
    monitor/       what a run does and did: its status, its report
    engines/       other programs that place processes on hosts: Ray
    integrations/  training loops of other libraries
    estimate/      what a job needs before it runs
    compare/       arms side by side
    commands/      the `luwu` command
    testing/       clusters for tests, the pytest plugin
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luwu import optim
    from luwu.base.errors import ConfigError, LuwuError, StepAborted, StepOrderError
    from luwu.launch.local_cluster import init_local
    from luwu.optim.app_state import AppState
    from luwu.optim.averages import ema, swa
    from luwu.optim.state_dict import (
        get_model_state_dict,
        get_optimizer_state_dict,
        set_model_state_dict,
        set_optimizer_state_dict,
    )
    from luwu.training.script.elastic_sampler import ElasticSampler
    from luwu.training.script.fully_shard import (
        fully_shard,
        fully_shard_each,
        register_forward_method,
    )
    from luwu.training.script.module import LuwuModule
    from luwu.training.script.run import device, finish, init, rank, session, world_size
    from luwu.training.script.state_calls import attach, init_weights, load_pretrained
    from luwu.training.script.step_calls import (
        clip_grad_norm_,
        empty_backward,
        log,
        set_gradient_weight,
    )
    from luwu.training.state.attached import random_state
    from luwu.training.steps.loss_scale import DynamicLossScale

_HOME = {
    name: module
    for module, names in (
        ("luwu.base.errors", "ConfigError LuwuError StepAborted StepOrderError"),
        ("luwu.launch.local_cluster", "init_local"),
        ("luwu.optim.app_state", "AppState"),
        ("luwu.optim.averages", "ema swa"),
        (
            "luwu.optim.state_dict",
            "get_model_state_dict get_optimizer_state_dict "
            "set_model_state_dict set_optimizer_state_dict",
        ),
        ("luwu.training.script.elastic_sampler", "ElasticSampler"),
        (
            "luwu.training.script.fully_shard",
            "fully_shard fully_shard_each register_forward_method",
        ),
        ("luwu.training.script.module", "LuwuModule"),
        ("luwu.training.script.run", "device finish init rank session world_size"),
        ("luwu.training.script.state_calls", "attach init_weights load_pretrained"),
        (
            "luwu.training.script.step_calls",
            "clip_grad_norm_ empty_backward log set_gradient_weight",
        ),
        ("luwu.training.state.attached", "random_state"),
        ("luwu.training.steps.loss_scale", "DynamicLossScale"),
    )
    for name in names.split()
}
"""Public name -> the module that defines it."""

__all__ = [
    "AppState",
    "ConfigError",
    "DynamicLossScale",
    "ElasticSampler",
    "LuwuError",
    "LuwuModule",
    "StepAborted",
    "StepOrderError",
    "attach",
    "clip_grad_norm_",
    "device",
    "ema",
    "empty_backward",
    "finish",
    "fully_shard",
    "fully_shard_each",
    "get_model_state_dict",
    "get_optimizer_state_dict",
    "init",
    "init_local",
    "init_weights",
    "load_pretrained",
    "log",
    "optim",
    "random_state",
    "rank",
    "register_forward_method",
    "session",
    "set_gradient_weight",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "swa",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name == "optim":
        value: Any = importlib.import_module("luwu.optim")
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'luwu' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
