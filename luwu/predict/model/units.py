"""Units of a job: what is pulled, computed and pushed together, and how long each is computed."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.predict.hardware.curves import Notes
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit that is pulled and pushed as a whole, and the seconds of its compute."""

    name: str
    parameters: float
    forward_s: float
    backward_s: float


def units_of(job: TrainingJob) -> list[Unit]:
    """A unit for each layer, and one for embedding and output, which is used last."""
    model = job.model
    whole = compute_time(job, operators_of(job, Notes()))
    head_s = whole.pop("output layer")
    again_s = whole.pop("recomputation")
    forward_s = sum(whole.values()) / 3
    layers = [
        Unit(
            name=f"layer {index}", parameters=model.layer_parameters,
            forward_s=forward_s / model.layers,
            backward_s=(2 * forward_s + again_s) / model.layers,
        )
        for index in range(model.layers)
    ]  # fmt: skip
    rest = float(model.parameters - model.layers * model.layer_parameters)
    head = Unit(name="head", parameters=rest, forward_s=head_s / 3, backward_s=2 * head_s / 3)
    return [*layers, head]
