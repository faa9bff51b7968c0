"""Hyper-parameters of one step on the wire: every rank sends them, and all must be the same.

One dictionary of plain numbers a parameter group, in the order of the groups, and what concerns the
step as a whole. Canonical msgpack: equal hyper-parameters are equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgpack

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import CLIPS_MAX
from luwu.wire.description import NORM_TYPES
from luwu.wire.norms import Clip

Number = float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHyper:
    """The hyper-parameters and settings of one step's update."""

    groups: tuple[Mapping[str, Number], ...]
    """One a parameter group, e.g. {"lr": 1e-3, "beta1": 0.9, ...}."""
    max_grad_norm: float | None = None
    """The optimizer's own clip, by the job's norm, after `clips`; None: there is none."""
    loss_scale: float = 1.0
    """The factor of every rank's loss; it is part of the weights of the pushes."""
    keeps: bool = False
    """Every rank sends something to keep beside the version that the step makes."""
    frozen: str = ""
    """Names the parameters that the script has frozen for now: all ranks must have frozen the same
    ones. What is left alone follows from the pushes."""
    clips: tuple[Clip, ...] = ()
    """The script's calls of `clip_grad_norm_`, in their order."""

    def all_clips(self, norm_type: float) -> tuple[Clip, ...]:
        """Those of the script and of the optimizer, in their order; `norm_type`: the job's."""
        own = () if self.max_grad_norm is None else (Clip(norm_type, self.max_grad_norm),)
        return self.clips + own


def encode_hyper(hyper: StepHyper) -> bytes:
    """Canonical bytes."""
    groups = [sorted(group.items()) for group in hyper.groups]
    rest = (hyper.keeps, hyper.frozen, hyper.clips)
    packed: bytes = msgpack.packb([groups, hyper.max_grad_norm, hyper.loss_scale, *rest])
    return packed


@lru_cache(maxsize=4)  # a node asks with each push and each page
def decode_hyper(encoded: bytes) -> StepHyper:
    """The hyper-parameters a peer sent. Raises RemoteProtocolError if they are none."""
    try:
        groups, max_grad_norm, loss_scale, keeps, *rest = msgpack.unpackb(encoded)
        if rest and type(rest[0]) is bool:  # records of older states: a flag, and not all of this
            rest = rest[1:] + ["", []][len(rest) - 1 :]
        frozen, clips = rest
        if type(keeps) is not bool or type(frozen) is not str:
            raise ValueError(f"{[keeps, frozen]!r:.60} are not a flag and a name")
        return StepHyper(
            groups=tuple(_group(items) for items in groups),
            max_grad_norm=None if max_grad_norm is None else float(max_grad_norm),
            loss_scale=float(loss_scale),
            keeps=keeps,
            frozen=frozen,
            clips=_clips(clips),
        )
    except Exception as exc:  # msgpack raises a dozen kinds
        raise RemoteProtocolError(f"hyper-parameters cannot be read: {exc}") from exc


def stated_hyper(encoded: object) -> StepHyper:
    """The same, for a core: none if they are not known, or cannot be read."""
    try:
        return decode_hyper(encoded) if isinstance(encoded, bytes) else StepHyper(groups=())
    except RemoteProtocolError:
        return StepHyper(groups=())  # the update of a page reports it


def named_values(encoded: bytes) -> dict[str, str]:
    """The same, each value by its name, as text: for people who look for what differs."""
    try:
        hyper = decode_hyper(encoded)
    except RemoteProtocolError as exc:
        return {"what was sent": str(exc)}
    found = {
        f"{name} of group {index}": f"{value!r}"
        for index, group in enumerate(hyper.groups)
        for name, value in group.items()
    }
    found |= {
        f"call {number} of clip_grad_norm_": f"max_norm={max_norm!r}, norm_type={norm_type:g}"
        for number, (norm_type, max_norm) in enumerate(hyper.clips, 1)
    }
    return found | {
        "max_grad_norm": f"{hyper.max_grad_norm!r}",
        "loss_scale": f"{hyper.loss_scale!r}",
        "whether something is attached": f"{hyper.keeps}",
        "the digest of frozen parameters": hyper.frozen or "none",
    }


def _clips(rows: Sequence[Sequence[float]]) -> tuple[Clip, ...]:
    clips = tuple(Clip(float(norm_type), float(limit)) for norm_type, limit in rows)
    are_clips = all(norm_type in NORM_TYPES and limit > 0 for norm_type, limit in clips)
    if not are_clips or len(clips) > CLIPS_MAX:
        raise ValueError(f"{rows!r:.60} are not at most {CLIPS_MAX} clips")
    return clips


def _group(items: Sequence[Sequence[object]]) -> dict[str, Number]:
    group: dict[str, Number] = {}
    for name, value in items:
        if not isinstance(name, str) or not isinstance(value, float | int | bool):
            raise ValueError(f"{name!r:.40} = {value!r:.40} is not a name and a number")
        group[name] = value
    return group
