"""Where a model's first weights come from, and when they leave this process.

said by the script   luwu.init_weights, load_pretrained, set_model_state_dict and
                     set_optimizer_state_dict, until the first forward
first forward        `load`: rank 0 sends them, unit by unit (`initialise.py`)
first weights pulled `arrived`: they are decided, so they are forgotten here; a node that was killed
                     before has none, says so (`lost`), and they are sent again
run resumed          the network has weights: nothing of this is used
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from luwu.base.errors import StepAborted
from luwu.training.placeholder import Placeholder
from luwu.training.roots import Roots
from luwu.training.state import initialise
from luwu.training.state.pretrained import Pretrained

if TYPE_CHECKING:
    from luwu.training.session import Session


@dataclass(frozen=True, slots=True)
class GivenState:
    """An optimizer's state that a script brings along."""

    fields: tuple[Mapping[str, torch.Tensor], ...]
    """By state field of the optimizer: parameter -> values."""
    updates: Mapping[str, int]
    """Parameter -> its updates so far."""


class FirstWeights:
    """Of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.initialisers: dict[nn.Module, Callable[[nn.Module], object]] = {}
        """What fills a model, by the module it was given for; later by the root around that."""
        self.pretrained: dict[nn.Module, Pretrained] = {}
        """Files with weights, by the same."""
        self.given: dict[int, torch.Tensor] = {}
        """What a state dict gave, by id of the placeholder."""
        self.has_state_dict = False
        """A state dict was set, on rank 0 at least."""
        self.state: GivenState | None = None
        """First state of the optimizer, if the script brings it."""
        self._are_to_be_sent = self._are_undecided = False
        """Undecided: received by the node, which may yet be killed before they are decided."""

    def laid_out(self, roots: Roots) -> None:
        """The models are complete: what was said of a part counts for the model around it."""
        self.initialisers = {roots.around(m): fill for m, fill in self.initialisers.items()}
        self.pretrained = {roots.around(m): files for m, files in self.pretrained.items()}

    def files_of(self, placeholder: Placeholder) -> Pretrained | None:
        """What the parameter is read from, if it is in files."""
        root, name = placeholder.luwu_place
        files = self.pretrained.get(root)
        return files if files is not None and files.has(name) else None

    def open_files(self) -> None:
        """Open and check all files. Raises: ConfigError, StateError."""
        for root, files in self.pretrained.items():
            placeholders = [m.placeholder for unit in self._session.units for m in unit.members]
            files.open(
                {
                    name: tuple(placeholder.shape)
                    for placeholder in placeholders
                    for place, name in [placeholder.luwu_place]
                    if place is root
                }
            )

    def close_files(self) -> None:
        """Close them."""
        for files in self.pretrained.values():
            files.close()

    def joined(self) -> None:
        """The session is a member of its job, and knows whether the network has weights."""
        session = self._session
        self._are_to_be_sent = session.rank == 0 and not session.is_resumed
        if not self._are_to_be_sent:
            self._forget()

    def load(self) -> None:
        """Rank 0 sends them, when they are needed; nothing to do if it has."""
        while self._are_to_be_sent:
            try:
                self._session.nic.load(initialise.chunks(self._session))
            except StepAborted:
                continue  # nothing was decided: at most the load is lost
            self._are_to_be_sent, self._are_undecided = False, True

    def arrived(self) -> None:
        """Weights were pulled, and only decided ones can be."""
        if self._are_undecided:
            self._are_undecided = False
            self._forget()

    def lost(self) -> None:
        """An attempt was aborted: if the network has no weights, they are needed again."""
        if self._are_undecided and not self._session.nic.is_loaded:
            self._are_to_be_sent, self._are_undecided = True, False

    def _forget(self) -> None:
        """The weights are in the network: they need not be here."""
        self.given, self.state = {}, None
        for unit in self._session.units:
            for member in unit.members:
                member.placeholder.luwu_value = None
