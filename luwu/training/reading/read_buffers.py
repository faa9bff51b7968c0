"""Buffers of a model that reads its weights: they are not in the network, so the caller gives them.

Those on `meta` are filled as for training (`initialise.py`). Running statistics, as of BatchNorm,
would be filled with what they began with, and evaluation would be wrong without a word: they must
be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from luwu.base.errors import ConfigError
from luwu.training.base.names import class_name
from luwu.training.state.initialise import fill_meta_buffers

_STATISTICS = ("running_mean", "running_var")


@torch.no_grad()
def fill_buffers(
    model: nn.Module, values: Mapping[str, Tensor],
    init_weights: Callable[[nn.Module], object] | None,
) -> None:  # fmt: skip
    """Make buffers on `meta`, then set what is given. Raises ConfigError before anything is set."""
    known = dict(model.named_buffers())
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"read_from: buffers= has {name}, but the model has no such buffer")
        if value.shape != known[name].shape:
            raise ConfigError(
                f"read_from: buffers= has {name} of shape {tuple(value.shape)}, expected "
                f"{tuple(known[name].shape)}"
            )
    for name in known:
        if name.rpartition(".")[2] in _STATISTICS and name not in values:
            raise ConfigError(
                f"read_from: {name} holds running statistics, which are a worker's and not in the "
                "network; give them as buffers={name: tensor}, out of luwu.get_model_state_dict "
                "in the job, or dict(model.named_buffers()) if the model has them already"
            )

    def filler(module: nn.Module) -> Callable[[nn.Module], object]:
        fill = init_weights or getattr(type(module), "reset_parameters", None)
        if not callable(fill):
            raise ConfigError(
                f"read_from: a {class_name(module)} has buffers on the meta device and no "
                "reset_parameters(); give a function that fills them as init_weights="
            )
        return fill

    _set_buffers(model, values)  # a module with nothing else on `meta` needs no filling
    fill_meta_buffers(model, torch.device("cpu"), filler)
    _set_buffers(model, values)


def _set_buffers(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        prefix, _, local = name.rpartition(".")
        module = model.get_submodule(prefix)
        before = module._buffers[local]
        assert before is not None
        module._buffers[local] = value.to(device="cpu", dtype=before.dtype, copy=True)
