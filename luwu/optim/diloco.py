"""DiLoCo: workers train by themselves, and a second optimizer in the network averages them.

    local steps     the script's own loop, with an optimizer of torch: nothing travels
    a round         worker -> network    start - weights, of every unit: to the node a gradient
                    network -> worker    the new weights; the next round starts there

So a slow link carries the model twice a round instead of two or three times a step. To the network
a round is a step like any other: the same sums, updates, faults, replicas and keys. The worker
holds the weights, and a copy of those that the round started with.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable

import torch
from torch import nn

from luwu.base.errors import ConfigError, StepAborted
from luwu.optim.algorithms import SGD
from luwu.optim.base import NetworkOptimizer
from luwu.optim.state_dict import set_model_state_dict
from luwu.training.base.names import class_name, is_sharded
from luwu.training.script import run
from luwu.training.script.fully_shard import fully_shard, fully_shard_each
from luwu.training.steps.result import StepResult

OuterOptimizer = Callable[[Iterable[nn.Parameter]], NetworkOptimizer]


class DiLoCo:
    """Average the weights of all workers every so many local steps (Douillard et al. 2023).

    Each worker trains the whole model with an optimizer of torch. After `every` calls of `step`, it
    sends by how much its weights have moved; the optimizer node takes the mean over all workers as
    a gradient, by default for SGD with Nesterov momentum, and all workers go on from its weights.
    State in the network, such as what `luwu export` reads, is that after the last round. Buffers,
    and the state of the local optimizer, stay with the worker.

    Args:
        model: A plain model, not sharded. Its weights become those of rank 0, or of the state that
            the job resumes.
        *classes: Classes of its repeated blocks, each of which travels separately; without any, the
            model travels as a whole.
        every: Local steps in a round.
        optimizer: Makes the outer optimizer of parameters; by default `luwu.optim.SGD` with
            `lr=0.7, momentum=0.9, nesterov=True`.

    Raises:
        ConfigError: If no job has begun, the model is sharded, or an argument is out of its range.

    Examples:
        >>> session = luwu.init_local()
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> outer = luwu.DiLoCo(model, every=10)
        >>> for _ in range(20):
        ...     model(torch.ones(8, 4)).square().mean().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     is_averaged = outer.step()
        >>> outer.round, is_averaged
        (2, True)
    """

    def __init__(
        self, model: nn.Module, *classes: type[nn.Module], every: int,
        optimizer: OuterOptimizer | None = None,
    ) -> None:  # fmt: skip
        if type(every) is not int or every < 1:
            raise ConfigError(f"DiLoCo: every must be a whole number, at least 1, got {every!r}")
        if any(is_sharded(module) for module in model.modules()):
            raise ConfigError(
                f"DiLoCo: luwu.fully_shard was called on this {class_name(model)}; each worker "
                "trains the whole model, so leave it out"
            )
        self.every = every
        """Local steps in a round; may be changed, on all workers alike."""
        self.local_steps = 0
        """Calls of `step` since the last round."""
        self._session = run.session()
        outer = _on_meta(model)
        if classes:
            fully_shard_each(outer, *classes)
        else:
            fully_shard(outer)
        self._session.first_weights.has_state_dict = True  # the model's, below
        make = optimizer or functools.partial(SGD, lr=0.7, momentum=0.9, nesterov=True)
        self.optimizer: NetworkOptimizer = make(outer.parameters())
        """The outer optimizer: hyper-parameters and schedulers are as with any of `luwu.optim`."""
        if not isinstance(self.optimizer, NetworkOptimizer):
            raise ConfigError(
                f"DiLoCo: optimizer made a {class_name(self.optimizer)}; the outer optimizer runs "
                "in the network: take one of luwu.optim"
            )
        self._session.settle()
        weights = dict(model.named_parameters(remove_duplicate=False))
        set_model_state_dict(outer, weights)
        self._weights = [
            [weights[member.placeholder.luwu_name] for member in unit.members]
            for unit in self._session.units
        ]
        """The model's weights by unit, in the order of its members."""
        self._starts = [[torch.empty_like(p) for p in of_unit] for of_unit in self._weights]
        """The weights that the round starts with; once it ends, their difference to `_weights`."""
        self._outer = outer  # the session knows it by its units alone
        self._take()

    @property
    def round(self) -> int:
        """Number of the round under way, from 0, or from that of a resumed state."""
        return self.optimizer.next_step

    def step(self) -> bool:
        """Count a local step; call it after that of the local optimizer.

        Returns:
            True if the round has ended: the weights are now those of the network.

        Raises:
            StepAborted: See `end_round`.
        """
        self.local_steps += 1
        if self.local_steps < self.every:
            return False
        self.end_round()
        return True

    @torch.no_grad()
    def end_round(self) -> StepResult:
        """End the round now, whatever the number of local steps; on all workers alike. Call it
        before `luwu.finish()`, so that the steps after the last round count too.

        Returns:
            The outer step's result. If a difference is not finite, `applied` is False: the weights
            are those that the round started with.

        Raises:
            StepAborted: If the network has lost rounds that had been decided; the round begins
                again, with the weights of `error.step` rounds.
        """
        for starts, weights in zip(self._starts, self._weights, strict=True):
            for start, now in zip(starts, weights, strict=True):
                torch.sub(start, now, out=start)
        number, self.local_steps = self.round, 0
        while True:
            try:
                result = self._give()
                result.wait()
                break
            except StepAborted as error:
                if error.step < number:
                    self._take()
                    raise
                if error.step > number:
                    break  # it is decided: what was lost is of the next round
        self._take()
        return result

    def _give(self) -> StepResult:
        """Send the differences, as a backward would its gradients."""
        session = self._session
        session.check_running()
        for unit, differences in zip(session.units, self._starts, strict=True):
            unit.kept = list(
                difference if member.requires_grad else None
                for member, difference in zip(unit.members, differences, strict=True)
            )
        session.backward.empty()
        return self.optimizer.step()

    @torch.no_grad()
    def _take(self) -> None:
        """Start a round with the weights of the network."""
        number, lost = self.round, None
        while True:
            try:
                for index, unit in enumerate(self._session.units):
                    with self._session.unit_here(unit) as values:
                        for now, start, value in zip(
                            self._weights[index], self._starts[index], values, strict=True
                        ):
                            now.copy_(value)
                            start.copy_(value)
                break
            except StepAborted as error:
                lost = error if error.step < number else lost
        if lost is not None:
            raise lost


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy of a model without values, and without buffers."""
    memo: dict[int, object] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad)
        for p in model.parameters()
    }
    memo |= {id(buffer): None for buffer in model.buffers()}
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        module._buffers.clear()
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks"):
            getattr(module, name).clear()  # they are of the model that computes
    return copied
