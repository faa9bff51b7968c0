"""The part of a process in an exchange: a worker of LuWu, a rank of gloo, the hub, the update.

A *part* has its `step` timed; `finish_step` is untimed work between two steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from benchmarks.exchange_model import Job

Document = dict[str, Any]


class Part(ABC):
    """The part of one process in an exchange."""

    has_weights = True
    """True if it ends with all weights of the model."""
    has_updates = True
    """True if these weights change; else they stay the first ones."""
    is_exact = False
    """True if its weights must be the reference's, bit for bit."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank

    @abstractmethod
    def step(self) -> None:
        """One exchange; returns when the new weights can be read."""

    def hello(self) -> Document:
        """The facts that the parent needs before the others start."""
        return {}

    def finish_step(self) -> None:  # noqa: B027 - most have nothing to do
        """After the clock has stopped."""

    def weights(self, unit: int) -> torch.Tensor:
        """A unit's weights as this process has them."""
        raise NotImplementedError

    def leave(self) -> None:  # noqa: B027 - most have nothing to do
        """Part from the others."""
