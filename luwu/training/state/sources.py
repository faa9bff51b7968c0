"""Sources of first weights, as the script names them before the first forward.

luwu.init_weights                 a function that fills modules
luwu.load_pretrained              files
luwu.set_model_state_dict         values
luwu.set_optimizer_state_dict     the optimizer's state
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from luwu.training.state.pretrained import Pretrained
from luwu.training.units.model import Roots
from luwu.training.units.placeholder import Placeholder

Initialiser = Callable[[nn.Module], object]
"""Fills the parameters and buffers that a module owns directly."""


@dataclass(frozen=True, slots=True)
class GivenState:
    """An optimizer's state that a script brings along."""

    fields: Mapping[str, Mapping[str, torch.Tensor]]
    """State field of the optimizer -> parameter -> values, in the order of the fields."""
    updates: Mapping[str, int]
    """Parameter -> its updates so far."""
    of_whole: tuple[str, ...]
    """The fields that parameters have which are updated as a whole."""


class Sources:
    """The sources of one session."""

    def __init__(self) -> None:
        self.given: dict[int, torch.Tensor] = {}
        """Tensors of a state dict, by id of the placeholder."""
        self.has_state_dict = False
        """A state dict was set, on rank 0 at least."""
        self.state: GivenState | None = None
        """First state of the optimizer, if the script brings it."""
        self._initialisers: dict[nn.Module, Initialiser] = {}
        """Initialisers by the module that each was given for; later by the root around that."""
        self._files: dict[nn.Module, Pretrained] = {}
        """Files by the module that each was given for; later by the root around that."""

    def fill(self, model: nn.Module, fn: Initialiser) -> None:
        """Fill the model's modules with this function."""
        self._initialisers[model] = fn

    def read(self, model: nn.Module, files: Pretrained) -> None:
        """Read the model's weights from these files."""
        self._files[model] = files

    def expect_values(self) -> None:
        """A state dict is set, on rank 0 at least."""
        self.has_state_dict = True

    def give(self, placeholder: nn.Parameter, value: torch.Tensor) -> None:
        """Take this value for the parameter."""
        self.given[id(placeholder)] = value

    def give_state(self, state: GivenState) -> None:
        """Take this as the first state of an optimizer's parameters."""
        before = self.state
        if before is not None:
            fields = {name: {**before.fields[name], **of} for name, of in state.fields.items()}
            state = GivenState(fields, {**before.updates, **state.updates}, state.of_whole)
        self.state = state

    def laid_out(self, roots: Roots) -> None:
        """The models are complete: what was given for a part counts for the model around it."""
        self._initialisers = {roots.around(m): fn for m, fn in self._initialisers.items()}
        self._files = {roots.around(m): files for m, files in self._files.items()}

    def initialiser_of(self, root: nn.Module) -> Initialiser | None:
        """The function that fills the modules of a root; None: there is none."""
        return self._initialisers.get(root)

    def files_of(self, placeholder: Placeholder) -> Pretrained | None:
        """The files that the parameter is read from, if it is in files."""
        root, name = placeholder.luwu_place
        files = self._files.get(root)
        return files if files is not None and files.has(name) else None

    def open_files(self, placeholders: Iterable[Placeholder]) -> None:
        """Open and check all files, for these parameters. Raises: ConfigError, StateError."""
        places = [(*each.luwu_place, tuple(each.shape)) for each in placeholders]
        for root, files in self._files.items():
            files.open({name: shape for place, name, shape in places if place is root})

    def close_files(self) -> None:
        """Close them."""
        for files in self._files.values():
            files.close()

    def forget_values(self) -> None:
        """The weights are in the network."""
        self.given, self.state = {}, None
