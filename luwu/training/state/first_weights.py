"""The first weights of a model: where they come from, and when they leave this process.

chosen by script     luwu.init_weights, load_pretrained, set_model_state_dict and
                     set_optimizer_state_dict, until the first forward
first forward        `load`: rank 0 sends them, unit by unit (`initialise.py`)
first weights pulled `arrived`: they are decided, so they are forgotten here; a node that was killed
                     before has none (`lost`), and they are sent again
run resumed          the network has weights: nothing of this is used
"""

from __future__ import annotations

import torch

from luwu.base.errors import StepAborted
from luwu.training.base.interface import Nic
from luwu.training.state import initialise
from luwu.training.state.sources import Sources
from luwu.training.units.model import Model


class FirstWeights:
    """The first weights of one session's models."""

    def __init__(self, nic: Nic, model: Model) -> None:
        self._nic, self._model = nic, model
        self.sources = Sources()
        self._are_to_be_sent = self._are_undecided = False
        """Undecided: received by the node, which may yet be killed before they are decided."""

    def laid_out(self, device: torch.device) -> None:
        """The models are complete: check that each module can be filled; make their buffers."""
        self.sources.laid_out(self._model.roots)
        initialise.check(self._model, self.sources)
        initialise.fill_buffers(self._model, self.sources, device)

    def joined(self, *, is_resumed: bool) -> None:
        """The session is a member of its job; `is_resumed`: the network has weights."""
        self._are_to_be_sent = self._nic.rank == 0 and not is_resumed
        if not self._are_to_be_sent:
            self._forget()

    def load(self) -> None:
        """Rank 0 sends them, when they are needed; nothing to do if it has."""
        while self._are_to_be_sent:
            try:
                self._nic.load(initialise.chunks(self._model, self.sources))
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
        if self._are_undecided and not self._nic.is_loaded:
            self._are_to_be_sent, self._are_undecided = True, False

    def _forget(self) -> None:
        """The weights are in the network: they need not be here."""
        self.sources.forget_values()
        for placeholder in self._model.placeholders:
            placeholder.forget_value()
