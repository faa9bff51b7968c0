"""One object of a model and its optimizer, for torch's distributed checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from luwu.optim.base import NetworkOptimizer
from luwu.optim.state_dict import (
    checked_optimizers,
    get_model_state_dict,
    get_optimizer_state_dict,
    groups_by_name,
    model_template,
    session_of_model,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from luwu.wire.stored import AVERAGE, STEP, state_keys


class AppState:
    """A model and its optimizer, as `torch.distributed.checkpoint` saves and loads them.

    It is what torch's documents call so: a `Stateful` with `"model"` and `"optim"`, in the names of
    torch's `get_state_dict`. So a checkpoint of an FSDP2 script gives a run of LuWu its first
    weights and moments, and the other way. Rank 0 has all of it, the other ranks nothing: save and
    load on rank 0 with `no_dist=True`, or on all ranks of a process group. Load before the first
    forward; a run that resumes a state keeps its own. A model that is larger than a worker goes
    through `luwu export` instead. Groups have no arguments without a meaning here, such as `fused`:
    to load such a checkpoint into plain torch give `DefaultLoadPlanner(allow_partial_load=True)`.

    Args:
        model: A module that `fully_shard` was called on, or that has such modules.
        optimizer: The `luwu.optim` optimizer of the model, or several of the run.

    Raises:
        ConfigError: If the model is not sharded, or the optimizer is not that of the model.

    Examples:
        >>> import torch.distributed.checkpoint as dcp
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step().wait()
        >>> app = luwu.AppState(model, optimizer)
        >>> saved = dcp.save({"app": app}, checkpoint_id="saved", no_dist=True)
        >>> luwu.finish()
        >>> session = luwu.init_local()
        >>> model = luwu.fully_shard(torch.nn.Linear(4, 2))
        >>> optimizer = luwu.optim.AdamW(model.parameters(), lr=0.01)
        >>> app = luwu.AppState(model, optimizer)
        >>> dcp.load({"app": app}, checkpoint_id="saved", no_dist=True)
        >>> luwu.get_optimizer_state_dict(model, optimizer)["state"]["weight"]["step"]
        tensor(1.)
    """

    def __init__(
        self, model: nn.Module, optimizer: NetworkOptimizer | Iterable[NetworkOptimizer]
    ) -> None:
        self._model, self._session = model, session_of_model(model)
        self._optimizers = checked_optimizers(self._session, optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return weights, moments and groups of the last step; before the first forward tensors of
        their shapes, for `load` to fill.

        Returns:
            `{"model": ..., "optim": ...}` on rank 0; on other ranks both are empty.

        Raises:
            StepAborted: If the last step was lost.
        """
        if self._session.progress.is_begun or self._session.is_resumed:
            model = get_model_state_dict(self._model)
            optim = get_optimizer_state_dict(self._model, self._optimizers)
            return {"model": model, "optim": optim}
        if self._session.rank != 0:
            return {"model": {}, "optim": {}}
        return {"model": model_template(self._model), "optim": self._optimizer_template()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Set first weights and moments, and the groups' hyper-parameters.

        Args:
            state_dict: As `state_dict` returns it.

        Raises:
            StepOrderError: After the first forward.
            ConfigError: If it is not of this model and optimizer; the message lists what differs.
        """
        set_model_state_dict(self._model, state_dict["model"])
        optimizer = dict(state_dict["optim"])
        if optimizer:  # an average that was not loaded is NaN
            optimizer["state"] = {
                name: {
                    k: value for k, value in of.items() if k != AVERAGE or not value.isnan().any()
                }
                for name, of in optimizer["state"].items()
            }
        set_optimizer_state_dict(self._model, self._optimizers, optimizer)

    def _optimizer_template(self) -> dict[str, Any]:
        """Zeros: the state of parameters that were never updated. An average is NaN, so that one
        that was not loaded is known: it begins with the weights."""
        job, state = self._session.optimizers, dict[str, dict[str, Tensor]]()
        groups = groups_by_name(self._optimizers)
        names = {name for group in groups for name in group["params"]}
        for parameter in self._session.layout.parameters:
            if parameter.name not in names:
                continue
            keys = state_keys(job.name, job.state_fields, whole=parameter.form.whole)
            state[parameter.name] = {
                key: torch.full(
                    () if field == STEP else parameter.shape,
                    math.nan if field == AVERAGE else 0.0,
                    dtype=torch.float32,
                )
                for key, field in keys
            }
        return {"state": state, "param_groups": groups}
