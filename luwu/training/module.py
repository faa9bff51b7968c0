"""What `fully_shard` adds to a module: the class `LuwuModule`, put before its own.

As with FSDP2 the module stays the object it was; its class becomes `Luwu<Class>`, which derives
from `LuwuModule` and the class it had. Methods that would read or move weights say why they cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn

from luwu.base.errors import ConfigError, LuwuError

if TYPE_CHECKING:
    from luwu.training.unit import Unit


class LuwuModule:
    """A module that luwu.fully_shard was called on."""

    luwu_unit: Unit

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Making another one (a slice of a Sequential, say) makes the class it had before."""
        original: Any = cls.__mro__[2]
        made = original.__new__(original, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    def state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: the weights are in the network."""
        raise LuwuError(
            "state_dict() of a sharded model would save placeholders: the weights are in the "
            "network. The node's state is the checkpoint; luwu.get_model_state_dict collects "
            "weights"
        )

    def load_state_dict(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises: the weights are in the network."""
        raise LuwuError(
            "load_state_dict() into a sharded model would write placeholders: the weights are in "
            "the network. Load before luwu.fully_shard, or in the function of luwu.init_weights"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what was pushed since the last step, as the optimizer's method does."""
        self.luwu_unit.session.zero_grad()

    def _apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ConfigError(
            "a sharded model cannot be moved or cast: its weights are in the network. Call .to() "
            "before luwu.fully_shard; choose the dtype of compute with mp_policy="
        )

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise LuwuError(
            "a sharded model cannot be copied: its weights are in the network. Copy it before "
            "luwu.fully_shard"
        )


def class_name(module: nn.Module) -> str:
    """The name of a module's class as the script knows it."""
    kind = type(module)
    return kind.__mro__[2].__name__ if isinstance(module, LuwuModule) else kind.__name__


_sharded_classes: dict[type[nn.Module], type[nn.Module]] = {}


def become_sharded(module: nn.Module, unit: Unit) -> None:
    """Put `LuwuModule` before the module's class."""
    original = type(module)
    sharded = _sharded_classes.get(original)
    if sharded is None:
        sharded = type(f"Luwu{original.__name__}", (LuwuModule, original), {})
        sharded.__module__ = original.__module__
        _sharded_classes[original] = sharded
    module.__class__ = sharded
    module.__dict__["luwu_unit"] = unit
