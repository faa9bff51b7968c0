"""The job of a prediction, and the prediction."""

from __future__ import annotations

from dataclasses import dataclass, field

from luwu.base.errors import ConfigError
from luwu.predict.hardware.hardware import Device, Network, Notes
from luwu.predict.hardware.model import Transformer
from luwu.predict.hardware.software import Software

RECOMPUTE = ("none", "selective", "half", "full")
"""Nothing; attention's scores; every second product or layer; every layer."""


def check_most(key: str, found: int, what: str, model: Transformer, most: str) -> None:
    """Raises ConfigError for more than a model has: layers, or heads."""
    has = getattr(model, most)
    if found > has:
        raise ConfigError(f"{key}: {found}{what}, but {model.name} has {has} {most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """A training job: model, devices, parallelism. Counts of 1 mean: not at all."""

    model: Transformer
    device: Device
    network: Network
    software: Software
    devices: int
    sequence: int
    batch: int
    """Sequences of a step, in all."""
    micro_batch: int = 1
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    context: int = 1
    expert: int = 1
    """Ranks that have different experts, of all ranks of a stage."""
    expert_tensor: int | None = None
    """Ranks that share one expert; as many as share a layer, unless given."""
    ends_as_layers: bool = False
    """Stages share the layers, the embedding and the output layer, each counted as one layer, so
    that the first stage and the last have a layer fewer."""
    sequence_parallel: bool = False
    recompute: str = "none"
    layers_in_hosts: int = 0
    """Whose activations go to the memory of hosts, of the whole model."""
    precision: str = "bf16"

    def __post_init__(self) -> None:
        inner = self.tensor * self.pipeline * self.context
        if self.recompute not in RECOMPUTE:
            raise ConfigError(f"recompute: {self.recompute!r} is not one of {', '.join(RECOMPUTE)}")
        if self.devices % inner:
            raise ConfigError(
                f"devices: {self.devices} are not a multiple of tensor x pipeline x context = "
                f"{inner}"
            )
        if self.batch % (self.data * self.micro_batch):
            raise ConfigError(
                f"batch: {self.batch} sequences cannot be shared by {self.data} data parallel "
                f"ranks in micro-batches of {self.micro_batch}; a multiple of "
                f"{self.data * self.micro_batch} fits"
            )
        check_most("pipeline", self.pipeline, " stages", self.model, "layers")
        check_most("layers_in_hosts", self.layers_in_hosts, "", self.model, "layers")
        if self.virtual > 1:
            self._check_interleaving()
        check_most("tensor", self.tensor, " ranks", self.model, "heads")
        self._check_experts()

    def _check_experts(self) -> None:
        model, ranks = self.model, self.tensor * self.context * self.data
        if model.experts == 1:
            for key, value in (("expert", self.expert > 1), ("expert_tensor", self.expert_tensor)):
                if value:
                    raise ConfigError(f"{key}: {model.name} has no experts; leave it out")
        if model.experts % self.expert:
            fits = [n for n in range(1, model.experts + 1) if model.experts % n == 0]
            raise ConfigError(
                f"expert: {self.expert} ranks do not share {model.experts} experts evenly; one of "
                f"{', '.join(map(str, fits))} fits"
            )
        if self.tensor % self.expert_width:
            raise ConfigError(
                f"expert_tensor: {self.expert_width} ranks of an expert do not divide the "
                f"{self.tensor} of a layer (tensor)"
            )
        if ranks % (self.expert * self.expert_width):
            raise ConfigError(
                f"expert: {self.expert} groups of {self.expert_width} ranks do not divide the "
                f"{ranks} of a stage (tensor x context x data)"
            )
        if self.spreads_experts and self.tensor > 1 and not self.sequence_parallel:
            raise ConfigError(
                "sequence_parallel: must be true where tensor parallel ranks have several experts "
                "among them, as each brings tokens of its own"
            )

    def _check_interleaving(self) -> None:
        parts = self.pipeline * self.virtual
        if self.pipeline == 1 or self.shared_layers % parts:
            raise ConfigError(
                f"virtual: {self.pipeline} stages of {self.virtual} parts do not share "
                f"{self.shared_layers} layers; take two stages or more, and parts that divide them"
            )
        if self.micro_batches % self.pipeline:
            raise ConfigError(
                f"virtual: {self.micro_batches} micro-batches are not a multiple of "
                f"{self.pipeline} stages, as an interleaved pipeline needs; change batch or "
                "micro_batch"
            )

    @property
    def data(self) -> int:
        """Data parallel ranks."""
        return self.devices // (self.tensor * self.pipeline * self.context)

    @property
    def expert_width(self) -> int:
        """Ranks that share one expert."""
        return self.expert_tensor or self.tensor

    @property
    def expert_copies(self) -> int:
        """Ranks of a stage that have the same part of the same experts."""
        return self.tensor * self.context * self.data // (self.expert * self.expert_width)

    @property
    def spreads_experts(self) -> bool:
        """Experts are shared otherwise than the rest of a layer."""
        return self.expert > 1 or self.expert_width != self.tensor

    @property
    def shared_layers(self) -> int:
        """That stages share; with `ends_as_layers` also embedding and output layer."""
        return self.model.layers + (2 if self.ends_as_layers else 0)

    @property
    def stage_layers(self) -> float:
        """Layers of a stage in the middle."""
        return self.shared_layers / self.pipeline

    @property
    def micro_batches(self) -> int:
        """That a pipeline takes in a step."""
        return self.batch // (self.data * self.micro_batch)

    @property
    def own_tokens(self) -> float:
        """Tokens of a micro-batch that a device has, with its tensor parallel ranks."""
        return self.micro_batch * self.sequence / self.context

    @property
    def again(self) -> float:
        """Share of the layers' forward that backward computes again, whole layers."""
        return {"full": 1.0, "half": 0.5}.get(self.recompute, 0.0)

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step, or of a round of inference, by what they go to."""

    parts: dict[str, float]
    notes: Notes = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    """Seconds that each is busy, where several work at once."""
    bound_by: str = ""
    """The one that the others wait for, where that is not who is busy longest."""
    port: str = ""
    """Whose port limits that one, of those that take part in it: "the node", "each worker" or "the
    switch"; empty where no port does, or several as much."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def binding(self) -> str:
        """The bottleneck; where several resources overlap, the one that the others wait for."""
        busy = self.resources or self.parts
        return self.bound_by or max(busy, key=lambda name: busy[name])


def utilisation(job: TrainingJob, seconds: float) -> dict[str, float]:
    """MFU without what is computed again, HFU with it; shares of the peak of the precision."""
    peak = getattr(job.device, job.precision)
    model = job.model.step_operations(job.tokens, job.sequence)
    layers = model / 3 - job.model.head_operations(job.tokens)
    again = job.again * layers
    return {
        "mfu": model / seconds / job.devices / peak,
        "hfu": (model + again) / seconds / job.devices / peak,
    }
