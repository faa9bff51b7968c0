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
    activations.py activations on disk between forward and backward
    launch/        processes of a run
    monitor/       what a run does and did: its status, its report, its live page
    engines/       other programs that place processes on hosts: Ray
    integrations/  training loops of other libraries
    estimate/      what a job needs before it runs, and what limited its steps
    compare/       arms side by side
    commands/      the `luwu` command
    testing/       clusters for tests, the pytest plugin
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luwu import optim as optim
    from luwu.activations import activation_stats as activation_stats
    from luwu.activations import offload_activations as offload_activations
    from luwu.base.errors import ConfigError as ConfigError
    from luwu.base.errors import LuwuError as LuwuError
    from luwu.base.errors import StepAborted as StepAborted
    from luwu.base.errors import StepOrderError as StepOrderError
    from luwu.base.errors import StepsLost as StepsLost
    from luwu.launch.local_cluster import init_local as init_local
    from luwu.optim.app_state import AppState as AppState
    from luwu.optim.averages import ema as ema
    from luwu.optim.averages import swa as swa
    from luwu.optim.diloco import DiLoCo as DiLoCo
    from luwu.optim.state_dict import get_model_state_dict as get_model_state_dict
    from luwu.optim.state_dict import get_optimizer_state_dict as get_optimizer_state_dict
    from luwu.optim.state_dict import set_model_state_dict as set_model_state_dict
    from luwu.optim.state_dict import set_optimizer_state_dict as set_optimizer_state_dict
    from luwu.training.script.elastic_sampler import ElasticSampler as ElasticSampler
    from luwu.training.script.fully_shard import fully_shard as fully_shard
    from luwu.training.script.fully_shard import fully_shard_each as fully_shard_each
    from luwu.training.script.fully_shard import register_forward_method as register_forward_method
    from luwu.training.script.module import LuwuModule as LuwuModule
    from luwu.training.script.run import device as device
    from luwu.training.script.run import finish as finish
    from luwu.training.script.run import init as init
    from luwu.training.script.run import rank as rank
    from luwu.training.script.run import session as session
    from luwu.training.script.run import world_size as world_size
    from luwu.training.script.state_calls import attach as attach
    from luwu.training.script.state_calls import init_weights as init_weights
    from luwu.training.script.state_calls import load_pretrained as load_pretrained
    from luwu.training.script.state_calls import stats as stats
    from luwu.training.script.step_calls import clip_grad_norm_ as clip_grad_norm_
    from luwu.training.script.step_calls import empty_backward as empty_backward
    from luwu.training.script.step_calls import log as log
    from luwu.training.script.step_calls import set_gradient_weight as set_gradient_weight
    from luwu.training.state.attached import random_state as random_state
    from luwu.training.steps.loss_scale import DynamicLossScale as DynamicLossScale

_HOME = {
    "AppState": "luwu.optim.app_state",
    "ConfigError": "luwu.base.errors",
    "DiLoCo": "luwu.optim.diloco",
    "DynamicLossScale": "luwu.training.steps.loss_scale",
    "ElasticSampler": "luwu.training.script.elastic_sampler",
    "LuwuError": "luwu.base.errors",
    "LuwuModule": "luwu.training.script.module",
    "StepAborted": "luwu.base.errors",
    "StepOrderError": "luwu.base.errors",
    "StepsLost": "luwu.base.errors",
    "activation_stats": "luwu.activations",
    "attach": "luwu.training.script.state_calls",
    "clip_grad_norm_": "luwu.training.script.step_calls",
    "device": "luwu.training.script.run",
    "ema": "luwu.optim.averages",
    "empty_backward": "luwu.training.script.step_calls",
    "finish": "luwu.training.script.run",
    "fully_shard": "luwu.training.script.fully_shard",
    "fully_shard_each": "luwu.training.script.fully_shard",
    "get_model_state_dict": "luwu.optim.state_dict",
    "get_optimizer_state_dict": "luwu.optim.state_dict",
    "init": "luwu.training.script.run",
    "init_local": "luwu.launch.local_cluster",
    "init_weights": "luwu.training.script.state_calls",
    "load_pretrained": "luwu.training.script.state_calls",
    "log": "luwu.training.script.step_calls",
    "offload_activations": "luwu.activations",
    "random_state": "luwu.training.state.attached",
    "rank": "luwu.training.script.run",
    "register_forward_method": "luwu.training.script.fully_shard",
    "session": "luwu.training.script.run",
    "set_gradient_weight": "luwu.training.script.step_calls",
    "set_model_state_dict": "luwu.optim.state_dict",
    "set_optimizer_state_dict": "luwu.optim.state_dict",
    "stats": "luwu.training.script.state_calls",
    "swa": "luwu.optim.averages",
    "world_size": "luwu.training.script.run",
}
"""Public name -> the module that defines it."""

__all__ = [
    "AppState",
    "ConfigError",
    "DiLoCo",
    "DynamicLossScale",
    "ElasticSampler",
    "LuwuError",
    "LuwuModule",
    "StepAborted",
    "StepOrderError",
    "StepsLost",
    "activation_stats",
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
    "offload_activations",
    "optim",
    "random_state",
    "rank",
    "register_forward_method",
    "session",
    "set_gradient_weight",
    "set_model_state_dict",
    "set_optimizer_state_dict",
    "stats",
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
