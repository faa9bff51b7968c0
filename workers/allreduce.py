"""A replicated model whose gradients are summed in the network: SwitchML's way, for comparison.

Every worker keeps all weights and its own optimizer. A unit's gradient is pushed when its backward
ends and the mean over all workers is pulled back, through the same switch as LuWu's:

    push        worker -> switch -> node     one gradient up; the switch forwards one sum
    pull        node -> switch -> workers    one mean down; the switch sends each worker a copy

The node is the root that only mirrors: its pages hold the mean gradient of the last step (optimizer
`mirror`), where SwitchML's switch would multicast the sum itself. So the links of workers carry
what SwitchML's do, one gradient in each direction, and the mean is one hop further away.

A worker has its own copy of the weights, so a step that is lost after its verdict cannot be taken
back: that ends the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from luwu.base.errors import LuwuError, StepAborted
from luwu.layout import Layout, Parameter, Placement, Unit
from luwu.nic.flat_push import push_flat
from luwu.nic.handles import Handle, StepHandle
from luwu.nic.shell import Nic
from luwu.wire.description import Description
from luwu.wire.hyper import StepHyper, encode_hyper

MIRROR = "mirror"


class NetworkAllReduce:
    """Sums the gradients of a model's units over all workers, behind its backward."""

    def __init__(
        self, nic: Nic, units: Sequence[tuple[str, Sequence[tuple[str, nn.Parameter]]]],
        dtype: torch.dtype, agree: Mapping[str, str],
    ) -> None:  # fmt: skip
        """`units`: names with their parameters, each parameter once, in order of forward."""
        self._nic, self._dtype_name = nic, str(dtype).removeprefix("torch.")
        self._parameters = [parameter for _, members in units for _, parameter in members]
        self._layout = _layout(units, self._dtype_name, nic)
        elems = self._layout.unit_elems
        self._gradients = [torch.zeros(count, dtype=dtype) for count in elems]
        self._means = [torch.zeros(count, dtype=dtype) for count in elems]
        self._missing: list[int] = []
        """Missing gradients in this step, per unit."""
        self._pushes: list[Handle] = []
        self._pulls: list[tuple[int, Handle]] = []
        self._last: StepHandle | None = None
        self._hyper = encode_hyper(StepHyper(groups=({},)))
        joined = nic.join(
            Description(
                layout=self._layout, optimizer=MIRROR, update="streaming", agreement=dict(agree)
            )
        )
        if joined.step:
            raise LuwuError(
                f"the node's state is that of step {joined.step}, but the weights of a replicated "
                "model are lost with its workers; start again on a fresh --state"
            )
        if nic.rank == 0 and not joined.loaded:
            zeros = memoryview(bytes(max(chunk.sum_bytes for chunk in self._layout.chunks)))
            nic.load((chunk.index, zeros[: chunk.sum_bytes]) for chunk in self._layout.chunks)
        self._step = 0
        self._start()
        for index, parameter in enumerate(self._parameters):
            place = self._layout.placements[index]
            parameter.register_post_accumulate_grad_hook(self._hook(place))

    @property
    def step(self) -> int:
        """Step of the gradients that are summed next."""
        return self._step

    def finish_step(self) -> None:
        """After backward: every `.grad` becomes the mean over all workers. Blocks.

        Raises LuwuError if a gradient is missing or not finite, or the step is lost.
        """
        late = [self._layout.units[unit].name for unit, n in enumerate(self._missing) if n]
        if late:
            raise LuwuError(
                f"step {self._step}: not all parameters of {', '.join(late[:3])} got a gradient; "
                "a replicated model here needs one of each in every step"
            )
        try:
            for push in self._pushes:
                self._nic.wait(push)
            self._last = self._nic.commit(self._step, 1, self._hyper)
            applied, (norm, *_) = self._last.verdict()
            if not applied:
                raise LuwuError(f"step {self._step}: the gradient is not finite (norm {norm})")
            for unit, pull in self._pulls:
                self._nic.wait(pull)
                self._give(unit)
        except StepAborted as error:
            raise self._lost(error) from error
        self._step += 1
        self._start()

    def leave(self) -> None:
        """Return when the last step is decided, and part from the others."""
        try:
            if self._last is not None:
                self._last.decision()
        except StepAborted as error:
            raise self._lost(error) from error
        self._nic.leave()
        self._nic.close()

    def _start(self) -> None:
        self._missing = [len(unit.parameters) for unit in self._layout.units]
        self._pushes, self._pulls = [], []

    def _hook(self, place: Placement) -> Callable[[torch.Tensor], None]:
        def ready(parameter: torch.Tensor) -> None:
            gradient = parameter.grad
            assert gradient is not None
            flat = self._gradients[place.unit][place.start : place.start + place.elems]
            flat.copy_(gradient.flatten())
            self._missing[place.unit] -= 1
            if self._missing[place.unit] == 0:
                self._push(place.unit)

        return ready

    def _push(self, unit: int) -> None:
        nic, step = self._nic, self._step
        if not self._pushes:
            nic.begin(step, self._hyper)
        gradient = _bytes_of(self._gradients[unit])
        self._pushes += push_flat(
            nic, self._layout, gradient, self._dtype_name, step=step, unit=unit, last=True
        )
        # What the node mirrors of step t is, to the protocol, the weights for step t + 1.
        mean = _bytes_of(self._means[unit])
        self._pulls.append((unit, nic.pull(step + 1, 0, unit, lambda: mean)))

    def _give(self, unit: int) -> None:
        for index in self._layout.units[unit].parameters:
            place, parameter = self._layout.placements[index], self._parameters[index]
            assert parameter.grad is not None
            mean = self._means[unit][place.start : place.start + place.elems]
            parameter.grad.copy_(mean.view(parameter.shape))

    def _lost(self, error: StepAborted) -> LuwuError:
        return LuwuError(
            f"step {error.step} was lost ({error}), and a replicated model cannot go back: its "
            "weights are in its workers; start again"
        )


def _layout(
    units: Sequence[tuple[str, Sequence[tuple[str, nn.Parameter]]]], dtype: str, nic: Nic
) -> Layout:
    rows: list[Parameter] = []
    members: list[Unit] = []
    for name, parameters in units:
        first = len(rows)
        rows += [
            Parameter(name=each, shape=tuple(parameter.shape), wire_dtype=dtype)
            for each, parameter in parameters
        ]
        members.append(Unit(name=name, parameters=tuple(range(first, len(rows)))))
    return Layout(
        parameters=tuple(rows), units=tuple(members), chunk_bytes=nic.chunk_bytes,
        extent_chunks=nic.extent_chunks,
    )  # fmt: skip


def _bytes_of(vector: torch.Tensor) -> memoryview:
    """The memory of a flat vector of this process."""
    octets: np.ndarray[Any, np.dtype[np.uint8]] = vector.view(torch.uint8).numpy()
    return octets.data
