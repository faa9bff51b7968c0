"""Hyper-parameters of one step on the wire: what rank 0 sends and every rank's hash must match.

One dictionary of plain numbers a parameter group, in the order of the groups, and what concerns the
step as a whole. Canonical msgpack: equal hyper-parameters are equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgpack

from luwu.base.errors import RemoteProtocolError

Number = float | int | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHyper:
    """The hyper-parameters and settings of one step's update."""

    groups: tuple[Mapping[str, Number], ...]
    """One a parameter group, e.g. {"lr": 1e-3, "beta1": 0.9, ...}."""
    max_grad_norm: float | None = None
    """Clip the global norm of the mean gradient to this; None: do not clip."""
    loss_scale: float = 1.0
    """The factor of every rank's loss; it is part of the weights of the pushes."""
    keeps: bool = False
    """Every rank sends something to keep beside the version that the step makes."""
    measure: bool = False
    """Take the norms of every parameter's gradient, weights and update."""
    frozen: str = ""
    """Names the parameters that the script has frozen for now: all ranks must have frozen the same
    ones. What is left alone follows from the pushes."""


def encode_hyper(hyper: StepHyper) -> bytes:
    """Canonical bytes."""
    groups = [sorted(group.items()) for group in hyper.groups]
    flags = (hyper.keeps, hyper.measure, hyper.frozen)
    packed: bytes = msgpack.packb([groups, hyper.max_grad_norm, hyper.loss_scale, *flags])
    return packed


def hyper_hash(encoded: bytes) -> str:
    """The hash that ranks compare: SHA-256 in hex."""
    return hashlib.sha256(encoded).hexdigest()


def decode_hyper(encoded: bytes) -> StepHyper:
    """The hyper-parameters a peer sent. Raises RemoteProtocolError if they are none."""
    try:
        groups, max_grad_norm, loss_scale, keeps, measure, *rest = msgpack.unpackb(encoded)
        (frozen,) = rest or [""]  # records of older states have none
        if type(keeps) is not bool or type(measure) is not bool or type(frozen) is not str:
            raise ValueError(f"{[keeps, measure, frozen]!r:.60} are not two flags and a name")
        return StepHyper(
            groups=tuple(_group(items) for items in groups),
            max_grad_norm=None if max_grad_norm is None else float(max_grad_norm),
            loss_scale=float(loss_scale),
            keeps=keeps,
            measure=measure,
            frozen=frozen,
        )
    except Exception as exc:  # msgpack raises a dozen kinds
        raise RemoteProtocolError(f"hyper-parameters cannot be read: {exc}") from exc


@lru_cache(maxsize=4)  # a node asks with each push
def keeps(encoded: object) -> bool:
    """True if, by these hyper-parameters, every rank attaches something to the step."""
    try:
        return isinstance(encoded, bytes) and decode_hyper(encoded).keeps
    except RemoteProtocolError:
        return False  # the update of a page reports it


def _group(items: Sequence[Sequence[object]]) -> dict[str, Number]:
    group: dict[str, Number] = {}
    for name, value in items:
        if not isinstance(name, str) or not isinstance(value, float | int | bool):
            raise ValueError(f"{name!r:.40} = {value!r:.40} is not a name and a number")
        group[name] = value
    return group
