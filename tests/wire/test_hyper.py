"""Hyper-parameters of a step: canonical bytes, and nothing believed of what a peer sent."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import msgpack
import pytest

from luwu.base.errors import RemoteProtocolError
from luwu.base.limits import CLIPS_MAX
from luwu.wire.hyper import StepHyper, decode_hyper, encode_hyper
from luwu.wire.norms import Clip

ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "maximize": False}
SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "warmup": 100}


@pytest.mark.parametrize("max_grad_norm", [None, 1.0, 0.1])
def test_round_trip(max_grad_norm: float | None) -> None:
    """Goal: what is read is what was written, types and last bits included."""
    clips = tuple(Clip(*each) for each in product((1.0, 2.0, math.inf), (0.1, math.inf)))
    hyper = StepHyper(groups=(ADAMW, SGD), max_grad_norm=max_grad_norm, clips=clips)
    found = decode_hyper(encode_hyper(hyper))
    assert found == hyper
    for group, expected in zip(found.groups, hyper.groups, strict=True):
        assert {name: type(value) for name, value in group.items()} == {
            name: type(value) for name, value in expected.items()
        }


def test_equal_hyper_parameters_are_equal_bytes() -> None:
    """Goal: the order in which a script wrote a group down does not matter; anything else does."""
    encoded = encode_hyper(StepHyper(groups=(ADAMW,)))
    backwards = dict(reversed(ADAMW.items()))
    assert encode_hyper(StepHyper(groups=(backwards,))) == encoded
    others = [
        StepHyper(groups=(ADAMW | {"lr": math.nextafter(1e-3, 1)},)),
        StepHyper(groups=(ADAMW | {"maximize": True},)),
        StepHyper(groups=(ADAMW, ADAMW)),
        StepHyper(groups=(ADAMW,), max_grad_norm=1.0),
        StepHyper(groups=(ADAMW,), clips=(Clip(2.0, 1.0),)),
        StepHyper(groups=(ADAMW,), clips=(Clip(2.0, 1.0), Clip(math.inf, math.inf))),
        StepHyper(groups=(ADAMW | {"more": 0},)),
        StepHyper(groups=()),
    ]
    everything = [encoded, *(encode_hyper(other) for other in others)]
    assert len(set(everything)) == len(everything)


@pytest.mark.parametrize("later", [(), ("a b",), ("a b", [[2.0, 1.0]])])
def test_records_of_older_states_are_read(later: tuple[Any, ...]) -> None:
    """Goal: a record has a flag more, and may lack clips, and the name of what is frozen."""
    encoded = msgpack.packb([[[["lr", 0.1]]], 2.0, 1.0, False, True, *later])
    frozen, clips = later + ("", [])[len(later) :]
    expected = StepHyper(
        groups=({"lr": 0.1},), max_grad_norm=2.0, frozen=frozen,
        clips=tuple(Clip(*each) for each in clips),
    )  # fmt: skip
    assert decode_hyper(encoded) == expected
    assert expected.all_clips(1.0)[-1] == Clip(1.0, 2.0)


@pytest.mark.parametrize(
    "clips",
    [7, [7], [[2.0]], [[2.0, 1.0, 1.0]], [[3.0, 1.0]], [[2.0, 0.0]], [[2.0, -1.0]],
     [[2.0, math.nan]], [[2.0, "x"]], [[2.0, 1.0]] * (CLIPS_MAX + 1)],
)  # fmt: skip
def test_clips_that_are_none_are_refused(clips: Any) -> None:
    """I5, I7. Goal: three norms, limits above 0, and no more than there may be."""
    encoded = msgpack.packb([[], None, 1.0, False, "", clips])
    with pytest.raises(RemoteProtocolError, match="hyper-parameters cannot be read"):
        decode_hyper(encoded)


@pytest.mark.parametrize(
    "sent",
    [b"", b"\xc1", b"\x93", encode_hyper(StepHyper(groups=(ADAMW,)))[:-1],
     encode_hyper(StepHyper(groups=(ADAMW,))) + b"\x00", b"\x91" * 2000,
     7, [], [[], None, None], [7, None], [[7], None], [[], "much"], [[], [1.0]],
     [[[["lr"]]], None], [[[["lr", 1, 2]]], None], [[[[1, 0.1]]], None], [[[["lr", "0.1"]]], None],
     [[[["lr", None]]], None], [[[["lr", [0.1]]]], None], [[[[b"lr", 0.1]]], None]],
)  # fmt: skip
def test_what_is_no_hyper_parameters_is_refused(sent: Any) -> None:
    """I7. Goal: one kind of error, whatever a peer sent: bytes, or msgpack of something else."""
    with pytest.raises(RemoteProtocolError, match="hyper-parameters cannot be read"):
        decode_hyper(sent if isinstance(sent, bytes) else msgpack.packb(sent))
