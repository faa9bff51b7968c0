"""What stands in a module for a parameter whose weights are not here.

A `Placeholder` is an `nn.Parameter` with shape, dtype, device and `requires_grad`, and no storage.
Names, parameter groups and counts work as ever. Whatever would read or write a value raises, and
so does `.grad`: the gradient is pushed inside backward, and a `.grad` of None would let
`torch.nn.utils.clip_grad_norm_` clip nothing without a word. (`stand_in.py` says how.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import Tensor, nn

from luwu.base.errors import LuwuError
from luwu.training.stand_in import StandIn, become

if TYPE_CHECKING:
    from luwu.training.session import Session


class PlaceholderError(LuwuError):
    """The script asked a placeholder for what only the real parameter has."""

    code = "E103"


class Placeholder(StandIn):
    """See the module."""

    luwu_session: Session
    luwu_place: tuple[nn.Module, str]
    """The root that it is in, and its name there; known when the optimizer is made."""
    luwu_value: Tensor | None
    """The parameter as the script made it, until its values are uploaded."""

    @staticmethod
    def __new__(cls, parameter: nn.Parameter, session: Session) -> Placeholder:
        """Stand in for `parameter` on the session's device."""
        self: Placeholder = torch.Tensor._make_wrapper_subclass(
            cls,
            parameter.shape,
            dtype=parameter.dtype,
            device=session.device,
            requires_grad=parameter.requires_grad,
        )
        self.luwu_session = session
        self.luwu_name = "?"
        keeps_value = parameter.is_meta or session.rank == 0
        self.luwu_value = parameter if keeps_value else None
        return self

    def __init__(self, parameter: nn.Parameter, session: Session) -> None:
        pass

    @property
    def grad(self) -> NoReturn:
        """Raises: gradients are pushed inside backward."""
        raise PlaceholderError(
            f"the gradient of parameter {self.luwu_name} is not here: it is pushed to the network "
            "inside backward. To clip, call luwu.clip_grad_norm_ or pass max_grad_norm= to the "
            "optimizer; to drop gradients, call zero_grad() of the optimizer; instead of "
            "torch.amp.GradScaler give the optimizer loss_scale=; instead of "
            "get_optimizer_state_dict of torch.distributed.checkpoint call "
            "luwu.get_optimizer_state_dict"
        )

    @grad.setter
    def grad(self, value: object) -> NoReturn:
        raise PlaceholderError(
            f"the gradient of parameter {self.luwu_name} cannot be set here: it is pushed to the "
            "network inside backward. To drop gradients, call zero_grad() of the optimizer"
        )

    @property
    def data(self) -> NoReturn:
        """Raises: there are no values."""
        self.refuse("data", self.luwu_name)

    @data.setter
    def data(self, value: object) -> NoReturn:
        self.refuse("data", self.luwu_name)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Placeholder({self.luwu_name}, shape={tuple(self.shape)}, dtype={dtype})"

    @staticmethod
    def refuse(what: str, name: str) -> NoReturn:
        """The weights are in the network."""
        if what == "grad":
            raise PlaceholderError(
                f"torch.autograd.grad: the gradient of parameter {name} is pushed to the network "
                "inside backward, and is nowhere else; call loss.backward()"
            )
        raise PlaceholderError(
            f"{what}: the weights of parameter {name} are in the network, not in this process. "
            "They are here only inside the forward and backward of the module that fully_shard was "
            "called on, and only as attributes of their modules (a list or a variable that holds "
            "the parameter has none): call that module itself, or luwu.register_forward_method for "
            "another method than forward. To read weights use luwu.get_model_state_dict; to set "
            "the first ones, luwu.set_model_state_dict. Later only the optimizer changes them"
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise PlaceholderError(
            f"parameter {self.luwu_name} cannot be copied: its weights are in the network. Copy "
            "the model before luwu.fully_shard"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise PlaceholderError(
            f"parameter {self.luwu_name} cannot be saved: its weights are in the network; "
            "luwu.get_model_state_dict collects them"
        )


def become_placeholder(parameter: nn.Parameter, session: Session, name: str) -> None:
    """Turn this very tensor into a placeholder, with its first values beside it.

    Raises: ConfigError if torch cannot: see `stand_in.become`.
    """
    placeholder = Placeholder(parameter, session)
    placeholder.luwu_name = name
    keeps_value, placeholder.luwu_value = placeholder.luwu_value is not None, None
    become(parameter, placeholder, "luwu.fully_shard")
    # The two tensors have changed places: what was made above has the values now.
    if keeps_value:
        cast("Placeholder", parameter).luwu_value = placeholder
