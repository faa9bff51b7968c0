"""A step of 3-D parallel training, played through its pipeline's schedule.

    E7  layers         of l in p stages, l mod p have one more: those in the middle first, as the
                       ends have embedding and output layer too; where these take places of layers,
                       l + 2 places are shared so
    E8  embedding      a pass that reads and writes n h elements forward; backward one that reads
                       them and adds them to gradients of 4 bytes
    E9  exchange       of a stage by the parameters that it has: its layers, the embedding of the
                       first, the output layer of the last (a copy of it, where they are tied)

All seconds of a layer are those of the closed form (T3, T4); its data parallel exchange and its
optimizer are shared by parameters. Sends and the exchange have an engine each, so the step is made
no shorter than what one port needs for both (P2). The closed form does not have: stages
that differ, sends that wait for each other, exchange and optimizer of stages that end at different
times, gathers that the first forward waits for, stages that are slow in other places
than the last, which is where a job's slowdown is. Forward and backward share exchanges of tensor
parallel ranks by the number of them (2 of 4, 5 or 6), which does not change a step of equal stages
(E3).
Sources: `training.py`, `schedules.py`; derived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from luwu.predict.events.engines import Record
from luwu.predict.events.schedules import Part, Pipeline, longest_path_s, play_pipeline
from luwu.predict.model.job import StepTime, TrainingJob
from luwu.predict.model.layers import head_time, layer_time, operators_of
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.traffic import stage_bytes, three_d_busy
from luwu.predict.systems.training import predict_step, shown_sends

OF_STEP = (
    "output layer", "bubble", "pipeline exchange", "data exchange", "optimizer", "straggling",
)  # fmt: skip
"""Parts of the closed form that are not of every layer."""
ClosedForm = Callable[[TrainingJob], StepTime]
"""Closed form of a step, on the network of a job; `three_d_step` of a known topology."""
GRADIENT_BYTES = 4
"""Bytes of an element that the embedding's backward adds to."""
FORWARD_SHARE = {"full": 1 / 3, "half": 2 / 5}
"""Share of the first forward in exchanges of tensor parallel ranks; half if it is the only one."""


@dataclass(frozen=True, slots=True)
class PlayedTraining:
    """A step that was played, and the closed form's beside it; both without straggling, which
    stands for that of all devices."""

    record: Record
    closed_s: float


def layers_of_stages(job: TrainingJob) -> tuple[int, ...]:
    """Layers of each stage (E7)."""
    each, more = divmod(job.shared_layers, job.pipeline)
    order = [*range(1, job.pipeline - 1), 0, job.pipeline - 1]
    with_more = set(order[:more])
    return tuple(
        each + (stage in with_more) - _taken(job, stage) for stage in range(job.pipeline)
    )  # fmt: skip


def _taken(job: TrainingJob, stage: int) -> int:
    """Places of layers in a stage that embedding and output layer take."""
    return job.ends_as_layers * ((stage == 0) + (stage == job.pipeline - 1))


def pipeline_of(job: TrainingJob, *, predict: ClosedForm = predict_step) -> Pipeline:
    """A job's step as a pipeline that can be played. Raises ConfigError."""
    layers = layers_of_stages(job)
    seconds = _seconds_of_stages(job, predict)
    parts = tuple(
        tuple(seconds[stage].part(stage, part, layers[stage]) for part in range(job.virtual))
        for stage in range(job.pipeline)
    )
    return Pipeline(
        parts=parts, micro_batches=job.micro_batches, send_s=seconds[0].send_s,
        sent_bytes=stage_bytes(job),
        optimizer_s=tuple(
            seconds[stage].optimizer_s(stage, layers[stage]) for stage in range(job.pipeline)
        ),
        data_overlap=job.software.hidden,
        open_sends=1 - job.software.hidden if job.virtual > 1 else 0.0,
    )  # fmt: skip


def play_training_step(job: TrainingJob, *, predict: ClosedForm = predict_step) -> PlayedTraining:
    """Play a step of a job. Raises ConfigError."""
    closed = predict(job)
    played = play_pipeline(pipeline_of(job, predict=predict))
    return PlayedTraining(played.record, closed.seconds - closed.parts["straggling"])


def played_step_s(job: TrainingJob, *, predict: ClosedForm = predict_step) -> float:
    """The same by its longest path (E6), but with straggling, and no shorter than its port is busy
    (P2). Raises ConfigError."""
    path_s = longest_path_s(pipeline_of(job, predict=predict))
    return max(path_s, *three_d_busy(job).values()) + predict(job).parts["straggling"]


class _Seconds:
    """A job's, from its closed form: of a layer, of the ends, of an exchange."""

    def __init__(self, job: TrainingJob, predict: ClosedForm) -> None:
        closed, self.job = predict(job), job
        micro_batches, self._operators = job.micro_batches, operators_of(job, closed.notes)
        self.layer = {
            name: seconds / micro_batches / job.stage_layers
            for name, seconds in closed.parts.items()
            if name not in OF_STEP and not name.startswith("waiting for")
        }
        self._forward_s = self._layer_forward_s()
        self.head_s = head_time(job, self._operators)
        sends = shown_sends(job)
        self.send_s = closed.parts["pipeline exchange"] / sends if sends else 0.0
        self._own = job.model.parameters / job.pipeline
        self._optimizer_s = closed.parts["optimizer"]
        self._exchange_s = closed.parts["data exchange"] / (1 - job.software.hidden)

    @property
    def embedding_s(self) -> tuple[float, float]:
        """Seconds of a micro-batch, forward and backward (E8)."""
        job = self.job
        elements = job.micro_batch * job.sequence / job.context * job.model.hidden
        return (
            self._operators.passes(2 * WIRE_BYTES * elements),
            self._operators.passes((WIRE_BYTES + 2 * GRADIENT_BYTES) * elements),
        )

    def part(self, stage: int, part: int, layers: int) -> Part:
        """One of a stage with so many layers."""
        job = self.job
        is_first = stage == 0 and part == 0
        is_last = stage == job.pipeline - 1 and part == job.virtual - 1
        count = (layers + _taken(job, stage)) // job.virtual
        count -= job.ends_as_layers * (is_first + is_last)
        forward_s = count * self._forward_s
        backward_s = count * sum(self.layer.values()) - forward_s
        if is_first:
            forward_s += self.embedding_s[0]
            backward_s += self.embedding_s[1]
        if is_last:
            forward_s += self.head_s / 3
            backward_s += self.head_s * 2 / 3
        share = self._parameters(count, is_first, is_last) / self._own
        software = job.software
        back = WIRE_BYTES if software.shards_optimizer else software.gradient_bytes
        reduced = software.gradient_bytes / (software.gradient_bytes + back)
        return Part(
            forward_s=forward_s, backward_s=backward_s,
            reduce_s=self._exchange_s * share * reduced,
            gather_s=self._exchange_s * share * (1 - reduced),
        )  # fmt: skip

    def optimizer_s(self, stage: int, layers: int) -> float:
        """Seconds of a stage with so many layers."""
        parameters = self._parameters(layers, stage == 0, stage == self.job.pipeline - 1)
        return self._optimizer_s * parameters / self._own

    def _layer_forward_s(self) -> float:
        layer = layer_time(self.job, self._operators)
        compute_s = layer.products + layer.attention + layer.passes
        exchange_s = sum(
            seconds for name, seconds in self.layer.items() if name.endswith("exchange")
        )
        return compute_s + FORWARD_SHARE.get(self.job.recompute, 1 / 2) * exchange_s

    def _parameters(self, layers: int, is_first: bool, is_last: bool) -> float:
        """Parameters of so many layers and of the rest of the stage (E9)."""
        model = self.job.model
        ends = int(is_first) + int(is_last)
        if model.tied and is_first and is_last:
            ends = 1
        return layers * model.layer_parameters + ends * model.embedding_parameters


def _seconds_of_stages(job: TrainingJob, predict: ClosedForm) -> list[_Seconds]:
    """Seconds per stage; the slowest device is in the last, as in the closed form."""
    slowest = _Seconds(job, predict)
    if job.slowdown == 1:
        return [slowest] * job.pipeline
    others = _Seconds(replace(job, slowdown=1.0), predict)
    return [*[others] * (job.pipeline - 1), slowest]
