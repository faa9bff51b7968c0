"""The norm of a step's gradient over several nodes, bit for bit that of one, and the clips by it.

A node's squares are those of its blocks of 4,096 elements, by the total weight that their sums are
divided by. Floats round when they are added; so a node sends not their sum but a few doubles whose
exact sum is that of all its squares. `math.fsum` rounds once, at the very end, wherever it is done.
(Magnitudes, for the 1-norm; the largest magnitudes, for the norm of infinity. What is stated of
squares here holds of them too, but that of the largest ones only the largest is sent.)

A step's clips come in their order: each acts on what the one before left. Every norm here is
homogeneous: that of a gradient times c is c times its norm. So clips are factors of the gradient as
it was summed, and each finds its norm times the factors of those before it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from luwu.base.errors import RemoteProtocolError
from luwu.base.foreign import MALFORMED, parse_json

Squares = Mapping[tuple[float, float], Sequence[float]]
"""(norm type, total weight) -> squares of the undivided sums that it divides."""


def norm_of(all_squares: Iterable[Squares | None], norm_type: float = 2.0) -> float:
    """The norm of the mean gradient over all nodes; inf if any has a sum that is not finite."""
    merged: dict[float, list[float]] = {}
    for squares in all_squares:
        if squares is None:
            return math.inf
        for (of_type, weight), values in squares.items():
            if of_type == norm_type:
                merged.setdefault(weight, []).extend(values)
    if norm_type == math.inf:
        return max((max(s) / w for w, s in merged.items() if s), default=0.0)
    if norm_type == 1:
        return math.fsum(math.fsum(s) / w for w, s in sorted(merged.items()))
    return math.sqrt(math.fsum(math.fsum(s) / w / w for w, s in sorted(merged.items())))


def condensed(values: Sequence[float], norm_type: float = 2.0) -> tuple[float, ...]:
    """A few doubles that count in the norm as all of these do; (inf,) if one is not finite."""
    if not all(map(math.isfinite, values)):
        return (math.inf,)
    if norm_type == math.inf:
        return (max(values),) if values else ()
    return tuple(exact_sum(values))


def exact_sum(values: Iterable[float]) -> list[float]:
    """The fewest doubles, each the rounded rest, that add up to exactly the same.

    Shapes: any number of finite doubles -> seldom more than three, none if the sum is zero.
    Source: each `fsum` is correctly rounded, so what is left is again a sum of doubles, and smaller
            by 53 bits (Shewchuk, Adaptive Precision Floating-Point Arithmetic, 1997).
    """
    rest, parts = list(values), []
    while part := math.fsum(rest):
        parts.append(part)
        rest.append(-part)
    return parts


def encode_squares(squares: Squares) -> bytes:
    """A node's squares as bytes."""
    rows = []
    for (of_type, weight), values in sorted(squares.items()):
        parts = [part.hex() for part in condensed(values, of_type)]
        rows.append([of_type.hex(), weight.hex(), parts])
    return json.dumps(rows, separators=(",", ":")).encode()


def encode_all(stripes: Sequence[Squares | None]) -> bytes | None:
    """A node's squares of each of its stripes; None: it has one, with a sum that is not finite."""
    if len(stripes) == 1 and stripes[0] is None:
        return None
    return b"\n".join(b"" if each is None else encode_squares(each) for each in stripes)


def parse_all(encoded: bytes | None, count: int) -> list[Squares | None]:
    """The squares of so many stripes that another node sent. Raises RemoteProtocolError."""
    if count == 1:
        return [None if encoded is None else parse_squares(encoded)]
    rows = [] if encoded is None else encoded.split(b"\n")
    if len(rows) != count:
        raise RemoteProtocolError(f"squares of {len(rows)} stripes, expected are {count}")
    return [parse_squares(row) if row else None for row in rows]


def parse_squares(encoded: bytes) -> Squares:
    """The squares that another node sent. Raises RemoteProtocolError if they are malformed."""
    try:
        found = {
            (float.fromhex(of_type), float.fromhex(weight)): [float.fromhex(part) for part in parts]
            for of_type, weight, parts in parse_json(encoded)
        }
        numbers = [part for parts in found.values() for part in parts]
        if not all(map(math.isfinite, numbers)) or not all(0 < w < math.inf for _, w in found):
            raise ValueError("a number is not finite, or a weight is not above 0")
    except MALFORMED as exc:
        raise RemoteProtocolError(f"the squares of a node cannot be read: {exc}") from exc
    return found


_EPSILON = 1e-6  # as torch.nn.utils.clip_grad_norm_ adds it


class Clip(NamedTuple):
    """One clip of a step's gradient."""

    norm_type: float
    """1, 2 or infinity."""
    max_norm: float
    """Infinity: the norm is only measured."""

    def factor(self, norm: float) -> float:
        """The factor by which it multiplies a gradient of this norm."""
        return min(1.0, self.max_norm / (norm + _EPSILON))


def norms_of(
    all_squares: Sequence[Squares | None], norm_type: float, clips: Iterable[Clip]
) -> tuple[float, ...]:
    """The norm of the mean gradient over all nodes, and then the norm that each clip finds."""
    found, factor = [norm_of(all_squares, norm_type)], 1.0
    for clip in clips:
        found.append(factor * norm_of(all_squares, clip.norm_type))
        factor *= clip.factor(found[-1])
    return tuple(found)


def clip_factor(clips: Iterable[Clip], norms: Sequence[float]) -> float:
    """The factor of the mean gradient: 1.0 unless it must be clipped. `norms`: `norms_of` them; if
    they are not known yet there are none, and nothing is clipped."""
    if not norms:
        return 1.0
    return math.prod(clip.factor(norm) for clip, norm in zip(clips, norms[1:], strict=True))
