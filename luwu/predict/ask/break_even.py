"""Tokens per device and step with which compute hides the rest of the step.

Compute of T tokens takes o Psi T/F on a device that achieves F operations per second, where o is 8
with full recomputation and 6 without; an exchange takes its bytes per parameter, times Psi, over
its rate. They are equal at

    B8   pull         F pulls e / (o B_down), of a micro-batch
    B9   push         F e_g / (o B_up), of a micro-batch
    B10  drives       S (1 - cached) F / (o drives B), of a step; to write, and to read
    B11  ZeRO-3       F (gathers e + e_g) (N - 1) / (o N eta B), of a micro-batch

e and e_g are bytes of a weight and of a gradient on the wire, S those of the state (L3). None
depends on Psi, and B8 to B10 not on the number of devices. Below, tokens a second fall in
proportion with T. Of experts, F counts all parameters as the bytes do. Derived.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from luwu.base.identifiers import by_identifier, words
from luwu.predict.hardware.curves import Notes
from luwu.predict.model.job import TrainingJob
from luwu.predict.model.layers import compute_time, operators_of
from luwu.predict.model.operators import WIRE_BYTES
from luwu.predict.model.traffic import GATHERS
from luwu.predict.systems.in_network import OptimizerNodes, pull_rate, push_rate
from luwu.predict.systems.zero import kept_rate, sharded_path

OPERATIONS: Final = 6
"""Operations per parameter and token, forward and backward; recomputation adds 2."""
_AGAIN: Final = {"full": 2.0, "half": 1.0}


def operations_of_a_token(recompute: str) -> float:
    """Operations of a token per parameter."""
    return OPERATIONS + _AGAIN.get(recompute, 0.0)


def exchange_tokens(achieved: float, nbytes: float, rate: float, operations: float) -> float:
    """Tokens that hide so many bytes of a parameter at a rate (B8 to B11)."""
    return achieved * nbytes / (operations * rate)


# ---------------------------------------------------------------------- of a job


def achieved_of(job: TrainingJob) -> float:
    """Operations a second of a device of a job whose devices have the whole model each: those of
    B8 to B11 over the seconds of a micro-batch's compute."""
    seconds = sum(compute_time(job, operators_of(job, Notes())).values())
    tokens = job.micro_batch * job.sequence
    return operations_of_a_token(job.recompute) * job.model.parameters * tokens / seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The break-even of a job on a cluster."""

    achieved: float
    """Operations a second of a device."""
    micro_batch_tokens: int
    """That a device has now in a micro-batch."""
    step_tokens: int
    """And in a step."""
    of_a_micro_batch: dict[str, float]
    """Tokens needed, by what they hide."""
    of_a_step: dict[str, float]

    @property
    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "achieved_operations_per_s": self.achieved,
            "micro_batch_tokens": self.micro_batch_tokens, "step_tokens": self.step_tokens,
            "of_a_micro_batch": by_identifier(self.of_a_micro_batch),
            "of_a_step": by_identifier(self.of_a_step),
        }  # fmt: skip


def break_even(job: TrainingJob, nodes: OptimizerNodes | None) -> BreakEven:
    """Break-even of LuWu with its nodes and of ZeRO-3 without, on the ports of the job."""
    achieved, gradient = achieved_of(job), job.software.gradient_bytes
    operations = operations_of_a_token(job.recompute)
    tokens = partial(exchange_tokens, achieved, operations=operations)
    if nodes is None:
        nbytes = (GATHERS * WIRE_BYTES + gradient) * (job.devices - 1) / job.devices
        rate = kept_rate(job) * sharded_path(job).rate
        exchanges = {"gathers and reductions": tokens(nbytes, rate)}
        states: dict[str, float] = {}
    else:
        exchanges = {
            "pull": tokens(nodes.pulls * WIRE_BYTES, pull_rate(job, nodes)),
            "push": tokens(gradient, push_rate(job, nodes)),
        }
        rates, away = _drive_rates(nodes), (1 - nodes.cached) * nodes.state_bytes
        states = {name: tokens(away, rate) for name, rate in rates.items()}
    return BreakEven(
        achieved=achieved, micro_batch_tokens=job.micro_batch * job.sequence,
        step_tokens=job.tokens // job.devices, of_a_micro_batch=exchanges, of_a_step=states,
    )  # fmt: skip


def _drive_rates(nodes: OptimizerNodes) -> dict[str, float]:
    """Bytes a second of all drives; none where nothing is on them."""
    disk, drives = nodes.host.disk, nodes.nodes * nodes.host.disks
    if disk is None or nodes.cached == 1:
        return {}
    return {"disk read": drives * disk.read_rate, "disk write": drives * disk.write_rate}


def break_even_text(found: dict[str, Any]) -> list[str]:
    """For people; `found` is a document."""
    lines = [
        f"tokens per device that hide the rest, at {found['achieved_operations_per_s'] / 1e12:.0f}"
        " TFLOP/s:"
    ]
    for what, has in (("micro_batch", "micro_batch_tokens"), ("step", "step_tokens")):
        lines += [
            f"  {words(name):<24} {tokens:9,.0f} of a {what.replace('_', '-')}, which has "
            f"{found[has]:,}"
            for name, tokens in found[f"of_a_{what}"].items()
        ]
    return lines
