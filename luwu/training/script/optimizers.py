"""The optimizers of a session: several objects of a script are one optimizer of its job.

    made      groups are collected; when they have all that requires a gradient, the job is joined
    step()    what an optimizer would update with is noted; when all have stepped whose parameters
              had a gradient, the step is committed

A step is one for all of the network, so it cannot leave a gradient behind for a later `step()` of
another optimizer, as torch can: that is rejected before anything else is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from luwu.base.errors import ConfigError, StepOrderError
from luwu.layout import StoredForm
from luwu.training.steps.loss_scale import UNSCALED, DynamicLossScale
from luwu.training.units.model import Model
from luwu.training.units.placeholder import Placeholder
from luwu.training.units.unit import Unit
from luwu.wire.hyper import Number
from luwu.wire.stored import AVERAGE

Numbers = tuple[Mapping[str, Number], ...]
"""Hyper-parameters of an optimizer's groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that concern a step as a whole; all optimizers of a job must have the same."""

    update: str = "at_step"
    norm_type: float = 2.0
    loss_scale: DynamicLossScale = UNSCALED
    keeps_average: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class OptimizerPart:
    """One optimizer object of the script, as its session sees it."""

    class_name: str
    name: str
    """Name of its update in the job description."""
    also_updates: tuple[str, ...]
    """Names of updates whose groups this update takes too."""
    state_fields: tuple[str, ...]
    groups: Sequence[Sequence[Placeholder]]
    stored: Sequence[StoredForm]
    settings: StepSettings
    max_grad_norm: Callable[[], float | None]
    numbers: Callable[[], Numbers]
    """The hyper-parameters as they are now."""

    @cached_property
    def parameter_ids(self) -> frozenset[int]:
        """Ids of the parameters of all groups: to hash a placeholder goes through torch."""
        return frozenset(id(placeholder) for group in self.groups for placeholder in group)


class Optimizers:
    """See the module."""

    def __init__(self) -> None:
        self.parts: list[OptimizerPart] = []
        """Optimizers in the order in which they were made."""
        self._stepped: dict[OptimizerPart, Numbers] = {}
        """Optimizers that have stepped, and what they update with."""
        self.skips = False
        """True if the optimizers that have stepped leave the step out."""
        self.idle: set[OptimizerPart] = set()
        """Optimizers that have not stepped since a step that the others made."""

    # ---------------------------------------------------------------------- one optimizer of a job

    def add(self, part: OptimizerPart) -> None:
        """An optimizer is made. Raises ConfigError if it cannot be in one job with the others."""
        for other in self.parts:
            if part.settings != other.settings:
                raise ConfigError(
                    f"luwu.optim.{other.class_name} and luwu.optim.{part.class_name} of one run "
                    "differ in what concerns whole steps, "
                    f"{_differences(other.settings, part.settings)}; make them alike"
                )
            if part.parameter_ids & other.parameter_ids:
                raise ConfigError(
                    f"luwu.optim.{part.class_name} got parameters that luwu.optim."
                    f"{other.class_name} has already; give each to one optimizer"
                )
        self.parts.append(part)
        try:
            self._update()
        except ConfigError:
            self.parts.remove(part)
            raise

    def cover(self, model: Model) -> bool:
        """True if they have all parameters that require a gradient."""
        given = frozenset[int]().union(*(part.parameter_ids for part in self.parts))
        return all(id(p) in given for p in model.placeholders_added if p.requires_grad)

    @property
    def name(self) -> str:
        """Name of the update that takes the groups of all; any, of a model that is not trained."""
        return self._update().name if self.parts else "sgd"

    @property
    def state_fields(self) -> tuple[str, ...]:
        """Names of what the job keeps of each parameter beside its weights, for any of them."""
        found = dict.fromkeys(field for part in self.parts for field in part.state_fields)
        return tuple(sorted(found, key=lambda field: field == AVERAGE))  # an average is the last

    @property
    def settings(self) -> StepSettings:
        """Those of all."""
        return self.parts[0].settings if self.parts else StepSettings()

    @property
    def groups(self) -> list[Sequence[Placeholder]]:
        """Those of all optimizers, in order."""
        return [group for part in self.parts for group in part.groups]

    @property
    def stored(self) -> list[StoredForm]:
        """How each of them is stored."""
        return [form for part in self.parts for form in part.stored]

    @property
    def max_grad_norm(self) -> float | None:
        """The norm that a step is clipped to, if any. Raises ConfigError if they differ in it."""
        found = {part.max_grad_norm() for part in self.parts}
        if len(found) > 1:
            raise ConfigError(
                f"optimizers of one run have max_grad_norm {sorted(map(str, found))}: a step is "
                "clipped by the norm of all its gradients; give them the same"
            )
        return found.pop()

    @property
    def may_clip(self) -> bool:
        """True if steps may be clipped by an optimizer."""
        return any(part.max_grad_norm() is not None for part in self.parts)

    def numbers(self) -> Numbers:
        """Hyper-parameters of all groups: of those who have stepped what they were then."""
        of_parts = (self._stepped.get(part) or part.numbers() for part in self.parts)
        return tuple(group for numbers in of_parts for group in numbers)

    def _update(self) -> OptimizerPart:
        """The one whose update takes the groups of all. Raises ConfigError if there is none."""
        names = {part.name for part in self.parts}
        for part in self.parts:
            if names <= {part.name, *part.also_updates}:
                return part
        raise ConfigError(
            f"{' and '.join(f'luwu.optim.{part.class_name}' for part in self.parts)} in one run: "
            "its optimizers are of one class, or Muon and AdamW; for another mix derive an "
            "optimizer from luwu.optim.NetworkOptimizer whose update knows its groups"
        )

    # ---------------------------------------------------------------------- one step

    @property
    def are_several(self) -> bool:
        """More than one."""
        return len(self.parts) > 1

    def note(self, part: OptimizerPart, step: int, *, skip: bool) -> None:
        """An optimizer steps. Raises ConfigError, StepOrderError."""
        if part not in self.parts:
            raise ConfigError(
                f"step() of a luwu.optim.{part.class_name} that is none of this run's: the job "
                "could not begin with it; make it again"
            )
        if part in self._stepped and self.are_several:
            raise StepOrderError(
                f"step() of luwu.optim.{part.class_name} for the second time in step {step}, "
                f"before {self._named(self.unstepped)}"
            )
        if self._stepped and skip != self.skips:
            raise StepOrderError(
                f"skip_step() of one optimizer and step() of another in step {step}: a step is "
                "left out for all; call skip_step() of each"
            )
        self._stepped[part], self.skips = part.numbers(), skip

    def take_back(self, part: OptimizerPart) -> bool:
        """It did not step after all; True if none has."""
        self._stepped.pop(part, None)
        return not self._stepped

    def is_ready(self, units: Sequence[Unit]) -> bool:
        """True if every optimizer that has to step has stepped.

        On a rank without samples no parameter had a gradient, so this cannot be known there.
        """
        if not self.are_several:
            return True
        must = self.with_gradient(units)
        return bool(must) and must <= self._stepped.keys()

    def missing(self, units: Sequence[Unit]) -> set[OptimizerPart]:
        """Those that have to step too, once one has."""
        if not self._stepped or not self.are_several:
            return set()
        return self.with_gradient(units) - self._stepped.keys()

    def check_ready(self, step: int, units: Sequence[Unit]) -> None:
        """Raises StepOrderError if one that must has not stepped."""
        missing = self.missing(units)
        if missing:
            raise StepOrderError(
                f"step {step} is that of {self._named(self._stepped.keys())}, but the parameters "
                f"of {self._named(missing)} got a gradient too, which cannot wait for a later "
                "step(): call step() of each, or freeze with requires_grad_(False), before the "
                "backward, what it is not to train"
            )

    @property
    def unstepped(self) -> set[OptimizerPart]:
        """Those that have not stepped in this step."""
        return set(self.parts) - self._stepped.keys()

    def reset(self) -> None:
        """Nothing of this step counts."""
        self._stepped.clear()
        self.idle.clear()
        self.skips = False

    def with_gradient(self, units: Sequence[Unit]) -> set[OptimizerPart]:
        """Those of whose parameters one had a gradient here, in this step."""
        found = {id(unit.members[i].placeholder) for unit in units for i in unit.with_gradient}
        return {part for part in self.parts if found & part.parameter_ids}

    def _named(self, parts: Container[OptimizerPart]) -> str:
        return " and ".join(
            f"luwu.optim.{part.class_name} ({index})"
            for index, part in enumerate(self.parts)
            if part in parts
        )


def _differences(one: StepSettings, other: StepSettings) -> str:
    triples = ((f.name, getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    return ", ".join(f"{name}: {a!r} and {b!r}" for name, a, b in triples if a != b)
