"""The part that all optimizers here share: parameter groups go out, steps come back.

`param_groups` is the source of truth: each step sends the groups' hyper-parameters as they are then
(`luwu.wire.hyper`).

Nothing of the state is here: `state_dict()` has the groups and no state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, TypedDict

import torch

from luwu.base.dtypes import MASTER_DTYPES, STATE_DTYPES
from luwu.base.errors import ConfigError, StepAborted
from luwu.layout import StoredForm
from luwu.optim.averages import WeightAverage
from luwu.training.devices.weights import WEIGHTS
from luwu.training.script.optimizers import OptimizerPart, StepSettings
from luwu.training.script.session import Session, session_of
from luwu.training.steps.loss_scale import DynamicLossScale, checked_loss_scale
from luwu.training.steps.result import StepResult, checked_max_norm, checked_norm_type
from luwu.wire.hyper import Number
from luwu.wire.stored import AVERAGE

MEANINGLESS = {
    "amsgrad": "the node keeps no maximum of the second moments",
    "capturable": "no update runs on this worker, so there is nothing to capture",
    "differentiable": "no update runs on this worker, so autograd cannot follow it",
    "foreach": "the update runs on the optimizer node, with its own kernel",
    "fused": "the update runs on the optimizer node, with its own kernel",
}

SWITCHES = ("decoupled_weight_decay", "maximize", "nesterov")
"""Hyper-parameters that are on or off."""


class NetworkArguments(TypedDict, total=False):
    """Arguments that every optimizer of `luwu.optim` takes beside torch's.

    Examples:
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> network = luwu.optim.NetworkArguments(max_grad_norm=1.0, norm_type=1.0)
        >>> optimizer = luwu.optim.AdamW(model.parameters(), **network)
        >>> optimizer.max_grad_norm
        1.0
    """

    update: str
    """"at_step" (the default): exact for every loop. "streaming": pages are updated behind the
    backward; what that cannot honour raises StepOrderError."""
    max_grad_norm: float | None
    """Clip the global norm of each step's mean gradient to this, after `luwu.clip_grad_norm_`. With
    "streaming", pages are updated once more in steps that are clipped."""
    norm_type: float
    """The norm of `max_grad_norm`, and of `result.grad_norm`: 1, 2 (the default) or infinity."""
    loss_scale: float | str | DynamicLossScale | None
    """For float16, a number or "dynamic"; then call `optimizer.scale(loss).backward()`."""
    average: WeightAverage | None
    """An average of the weights that the node keeps beside them: `luwu.ema` or `luwu.swa`."""
    state_dtype: str
    """Dtype in which the node stores moments: "float32" (the default), "bfloat16" or "int8". A
    group may have its own. Embeddings and parameters of fewer than 4,096 elements stay in
    float32."""
    master_dtype: str
    """Dtype in which the node stores the weights: "float32" (the default) or "bfloat16", rounded
    stochastically. A group may have its own."""


class NetworkOptimizer(torch.optim.Optimizer):
    """Base class of all optimizers here: weights, state and update are in the network.

    It is a `torch.optim.Optimizer`: learning rate schedulers, parameter groups and step hooks work,
    since every step sends the groups' hyper-parameters as they are then. Derive from it for an
    optimizer of your own: give it a `name`, `hyper_names` and `state_fields`.

    Args:
        params: Parameters of a sharded model, or groups of them.
        defaults: torch's arguments: the hyper-parameters of groups that do not set them.
        update: See `NetworkArguments`, as the arguments below.
        max_grad_norm: See there.
        norm_type: See there.
        loss_scale: See there.
        average: See there.
        state_dtype: See there.
        master_dtype: See there.
        **not_taken: Arguments of torch that mean nothing here, such as `fused`; unless None or
            False each raises, with the reason.

    Raises:
        ConfigError: If an argument is out of its range, or the parameters are not in the network.
        TypeError: For an argument that torch's class does not take either.

    Examples:
        >>> class Signum(luwu.optim.NetworkOptimizer):
        ...     name = "signum"  # the node finds the update by this name
        ...     hyper_names = ("lr", "momentum")
        ...
        ...     def state_fields(self):
        ...         return ("momentum",)
        >>> issubclass(Signum, torch.optim.Optimizer)
        True
    """

    name: ClassVar[str]
    """Name of the update in the job description."""
    hyper_names: ClassVar[tuple[str, ...]]
    """Names of a group's hyper-parameters, as torch has them."""
    also_updates: ClassVar[tuple[str, ...]] = ()
    """Names of other optimizers whose groups this one's update takes too, in the same run."""
    whole: ClassVar[bool] = False
    """The update sees each parameter as a whole, in its shape; else it is element by element."""
    _is_made = False

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], *, update: str = "at_step",
        max_grad_norm: float | None = None, norm_type: float = 2.0,
        loss_scale: float | str | DynamicLossScale | None = None,
        average: WeightAverage | None = None, state_dtype: str = "float32",
        master_dtype: str = "float32", **not_taken: object,
    ) -> None:  # fmt: skip
        """`defaults` are torch's arguments; for the others see `NetworkArguments`."""
        for argument, value in not_taken.items():
            if argument not in MEANINGLESS:
                raise TypeError(f"luwu.optim.{type(self).__name__} takes no {argument}=")
            if value not in (None, False):
                raise ConfigError(
                    f"luwu.optim.{type(self).__name__}: {argument}={value!r} means nothing here: "
                    f"{MEANINGLESS[argument]}; leave it out"
                )
        self.max_grad_norm = None if max_grad_norm is None else checked_max_norm(max_grad_norm)
        norm_type = checked_norm_type(norm_type)
        scale_rule = checked_loss_scale(loss_scale)
        _check_average(average)
        self._average = average
        super().__init__(params, defaults)
        for group in self.param_groups:
            self._check_group(group)
        stored = StoredForm(state_dtype, master_dtype)
        self._session: Session = _session_of(self.param_groups)
        self._part = OptimizerPart(
            class_name=type(self).__name__,
            name=self.name,
            also_updates=self.also_updates,
            state_fields=self.state_fields() + (() if average is None else (AVERAGE,)),
            groups=[group["params"] for group in self.param_groups],
            stored=[
                _stored(group, stored)._replace(whole=self._sees_whole(group))
                for group in self.param_groups
            ],
            settings=StepSettings(
                update=update, norm_type=norm_type, loss_scale=scale_rule,
                keeps_average=average is not None,
            ),
            max_grad_norm=lambda: self.max_grad_norm,
            numbers=lambda: tuple(self._numbers(group) for group in self.param_groups),
        )  # fmt: skip
        self._session.add_optimizer(self._part)
        self._is_made = True

    @property
    def _step_supports_amp_scaling(self) -> NoReturn:
        """torch's GradScaler asks for it in its `step`. Raises: it would find no gradient."""
        raise ConfigError(
            "torch.amp.GradScaler does nothing here: gradients are pushed inside backward and "
            "checked on the node. Compute in bfloat16, which needs no scale; or make the optimizer "
            'with loss_scale="dynamic" and call optimizer.scale(loss).backward(), '
            "optimizer.step()"
        )

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Multiply the loss by the scale of this step; call `backward` on the result.

        Args:
            loss: A tensor of one element.

        Returns:
            The scaled loss; the loss itself without `loss_scale`.
        """
        return self._session.loss_scale.scale(loss)

    def state_fields(self) -> tuple[str, ...]:
        """Return the names of what the node keeps for each parameter beside its weights.

        Each has the shape of the parameter, and is float32 when the update sees it. One called "v"
        is never below zero: `state_dtype="int8"` has no sign for it.
        """
        raise NotImplementedError

    @property
    def average(self) -> WeightAverage | None:
        """The average of the weights that is kept; its rule may be changed.

        Raises:
            ConfigError: If one is assigned where none is kept, or None where one is.
        """
        return self._average

    @average.setter
    def average(self, average: WeightAverage | None) -> None:
        _check_average(average)
        if (average is None) != (self._average is None):
            raise ConfigError(
                "average: whether an average of the weights is kept is fixed when the optimizer is "
                "created; only its rule can be changed"
            )
        self._average = average

    @property
    def next_step(self) -> int:
        """Number of the step to compute next: 0, or that of a resumed state."""
        return self._session.step

    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None
    ) -> StepResult:
        """Commit the step; returns when the network has received every gradient of this rank.

        Args:
            closure: Computes forward and backward, and returns the loss; may be called several
                times. With it the call returns when the step is decided, and computes the step
                again if it was lost.

        Returns:
            The step's result: its `number` from 0, `applied` (False if a gradient was not finite),
            `grad_norm` (of the mean gradient over all ranks, before clipping) and `loss` (what the
            closure returned). Reading `applied` or `grad_norm` waits for the sums of all ranks;
            `wait()` waits until the step is decided and cannot be lost any more.

        Raises:
            StepAborted: If a step was lost: go back to `error.step`.
            StepOrderError: Without a backward on this rank.
        """
        session = self._session
        if closure is None:
            return session.commit(self._part)
        while True:
            number = session.step
            try:
                with torch.enable_grad():
                    loss = closure()
                session.commit(self._part).wait()
            except StepAborted as error:
                if error.step < number:
                    raise  # an earlier step was lost, which another closure computed
                if error.step == number:
                    continue
                # What was lost is of the next step: this one is decided.
            result = session.results.last
            assert result is not None
            assert result.number == number
            result.loss = loss
            return result

    def skip_step(self) -> StepResult:
        """Leave this step out on all ranks; call it in place of `step()`, after the backward.

        One rank is enough, for example where its loss has a spike; the others call `step()`.
        Weights and optimizer state stay as they were.

        Returns:
            The step's result: `applied` is False on every rank, and `grad_norm` is what it would
            have been.

        Raises:
            StepAborted: If a step was lost.
        """
        return self._session.commit(self._part, skip=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients since the last step. After `step()` there are none.

        Between backward and `step()` they are in the network already: the step is aborted on all
        ranks, and this call or the next raises `StepAborted` on each of them.

        Args:
            set_to_none: As torch's default; False raises.

        Raises:
            ConfigError: For `set_to_none=False`: no gradient is left to be 0.
            StepAborted: If gradients had been pushed.
        """
        self._session.zero_grad(set_to_none, self._part)

    @property
    def state(self) -> NoReturn:
        """Raises: the state is on the optimizer node."""
        raise ConfigError(
            "the optimizer's state (moments, counts of steps) is in the network; "
            "luwu.get_optimizer_state_dict(model, optimizer) collects it"
        )

    @state.setter
    def state(self, value: object) -> None:
        """torch's constructor makes an empty one."""

    def state_dict(self) -> NoReturn:
        """Raises: the state is on the optimizer node."""
        raise ConfigError(
            "state_dict() of the optimizer would hold no moments and no counts of steps: they are "
            "in the network. The node's state is the checkpoint (luwu run --resume); "
            "luwu.get_optimizer_state_dict(model, optimizer) collects what torch would have here"
        )

    def load_state_dict(self, state_dict: object) -> NoReturn:
        """Raises: the state is on the optimizer node."""
        raise ConfigError(
            "load_state_dict() of the optimizer would load nothing: the moments are in the "
            "network. Before the first forward call luwu.set_optimizer_state_dict(model, "
            "optimizer, state), or bring a state in with luwu import"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises after construction: the layout of the model is fixed by then."""
        if self._is_made:
            raise ConfigError(
                "add_param_group after the optimizer was made: the groups are part of the layout "
                "all ranks agreed on; pass all groups to the constructor"
            )
        # torch wraps it for its compiler, and imports that, which takes a second, at the call.
        inspect.unwrap(torch.optim.Optimizer.add_param_group)(self, param_group)

    def _sees_whole(self, group: dict[str, Any]) -> bool:
        """True if the update sees each parameter of a group as a whole."""
        return self.whole

    def _check_group(self, group: dict[str, Any]) -> None:
        """Check the hyper-parameters of a group. Raises ConfigError."""
        for name in self.hyper_names:
            if name in SWITCHES:
                continue
            values = group[name] if name == "betas" else [group[name]]
            for value in values:
                if isinstance(value, torch.Tensor) and value.numel() != 1:
                    raise ConfigError(
                        f"{name} must be a number or a tensor of one element, got one of shape "
                        f"{tuple(value.shape)}"
                    )
                if not float(value) >= 0:  # also catches NaN
                    raise ConfigError(f"{name} must not be below 0, got {group[name]!r}")
            if name == "betas":
                check_betas(values)

    def _numbers(self, group: dict[str, Any]) -> dict[str, Number]:
        numbers = self._hyper_of(group)
        return numbers if self._average is None else numbers | self._average.numbers

    def _hyper_of(self, group: dict[str, Any]) -> dict[str, Number]:
        """The hyper-parameters of a group, as they are sent."""
        numbers: dict[str, Number] = {}
        for name in self.hyper_names:
            value = group[name]
            if name == "betas":
                numbers["beta1"], numbers["beta2"] = map(float, value)
            else:
                numbers[name] = bool(value) if name in SWITCHES else float(value)
        return numbers


def check_betas(betas: Sequence[Any]) -> None:
    """Raises ConfigError unless there are two in [0, 1)."""
    if len(betas) != 2 or not all(0 <= float(beta) < 1 for beta in betas):
        raise ConfigError(f"betas must be two numbers in [0, 1), got {betas!r}")


def _stored(group: Mapping[str, Any], otherwise: StoredForm) -> StoredForm:
    """The dtypes in which a group is stored. Raises ConfigError."""
    found = StoredForm(
        group.get("state_dtype", otherwise.state), group.get("master_dtype", otherwise.master)
    )
    if found.state not in STATE_DTYPES:
        raise ConfigError(f"state_dtype must be one of {STATE_DTYPES}, got {found.state!r}")
    if found.master not in MASTER_DTYPES:
        raise ConfigError(f"master_dtype must be one of {MASTER_DTYPES}, got {found.master!r}")
    return found


def _check_average(average: object) -> None:
    if average is not None and not isinstance(average, WeightAverage):
        raise ConfigError(f"average must be luwu.ema(...), luwu.swa(...) or None, got {average!r}")


def _session_of(groups: list[dict[str, Any]]) -> Session:
    parameters = [parameter for group in groups for parameter in group["params"]]
    session = session_of(parameters)
    if session is None and any(parameter in WEIGHTS for parameter in parameters):
        raise ConfigError(
            "the model was used before this optimizer was made, and its weights are here now; "
            "make the optimizer before the first forward"
        )
    if session is None:
        raise ConfigError(
            "the optimizer got parameters that are not in the network, so it could not update "
            "them; call luwu.fully_shard on the model before, and pass only its parameters"
        )
    return session
