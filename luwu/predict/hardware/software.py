"""Properties of a framework: its kernels, what it overlaps with compute, what it keeps.

Facts of a framework are data (`data/software.toml`); what was fitted to measurements is in
`data/fitted.toml`, at most twenty numbers in all, each with the rows it was fitted on.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from luwu.base.errors import ConfigError, suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """A framework in a version."""

    name: str
    fused_attention: bool
    """Scores are never written to memory."""
    counts_causal: float
    """Share of the scores that its attention computes: 1, or 1/2 if masked blocks are skipped."""
    overlaps: str
    """Exchanges of 3-D parallel ranks that compute hides: `none`; `tensor`, of the four of tensor
    parallel ranks in a layer the one beside the gradient of weights; `all`, those of tensor and
    data parallel ranks and sends of interleaved pipelines."""
    gradient_bytes: float
    """That data parallel ranks reduce, of each parameter."""
    shards_optimizer: bool
    shards_gradients: bool = False
    """With the optimizer."""
    exposed_gathers: float = 0.0
    """Share of the exchanges of sharded states that compute does not hide, at least."""
    kernels: str = "vendor"
    """`vendor`: Megatron's and NeMo's own; `torch`: what PyTorch and its compiler make;
    `deepspeed_2021`, `deepspeed`: DeepSpeed's of 2021 and of 2023."""
    ring: str = "hierarchical"
    """Ring between all devices: `hierarchical` uses all ports of a host at once, `flat` one."""
    host_devices: int | None = None
    """Devices of a host, each with its own port, for a testbed without the device's domain."""

    @property
    def hides(self) -> bool:
        """True if compute hides all exchanges that it can."""
        return self.overlaps == "all"

    @property
    def tensor_shown(self) -> float:
        """Share of the exchanges of tensor parallel ranks that compute does not hide."""
        return {"none": 1.0, "tensor": 0.75, "all": 0.0}[self.overlaps]


@cache
def data(name: str) -> dict[str, Any]:
    """A file of the package's data."""
    file = resources.files("luwu.predict") / "data" / name
    return tomllib.loads(file.read_text(encoding="utf-8"))


def software(name: str) -> Software:
    """A framework by its name. Raises ConfigError."""
    known = data("software.toml")
    if name not in known:
        raise ConfigError(
            f"software: {name!r} is unknown{suggestion(name, known)}; known are {', '.join(known)}"
        )
    fields = {key: value for key, value in known[name].items() if key != "source"}
    return Software(name=name, **fields)


@cache
def fitted(name: str) -> float:
    """A fitted number."""
    return float(data("fitted.toml")[name]["value"])
