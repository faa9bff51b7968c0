"""The page update: torch's arithmetic, however pages are cut and whoever computes (I3, I4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from luwu.base.errors import ConfigError
from luwu.layout import padded
from luwu.wire.hyper import Number, StepHyper
from luwu.wire.norms import Clip, clip_factor
from switch_emu.node.kernels import kernel_name
from tests.helpers.kernel_calls import kernel_for, update_page
from tests.helpers.kernel_jobs import adam, adamw, sgd


@pytest.fixture(autouse=True)
def torch_threads() -> Iterator[None]:
    """A test may choose how many threads torch uses."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def torch_arguments(group: dict[str, Number]) -> dict[str, Any]:
    """The same hyper-parameters as `torch.optim` names them."""
    arguments: dict[str, Any] = dict(group)
    if "beta1" in arguments:
        arguments["betas"] = (arguments.pop("beta1"), arguments.pop("beta2"))
    return arguments


@dataclass(frozen=True)
class Case:
    """An optimizer and its hyper-parameters."""

    name: str
    optimizer: str
    state_fields: tuple[str, ...]
    group: dict[str, Any]

    @property
    def torch_kind(self) -> Any:
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
        return kinds[self.optimizer]


CASES = [
    Case("adam", "adam", ("m", "v"), adam()),
    Case("adam without decay", "adam", ("m", "v"), adam(weight_decay=0.0)),
    Case("adam, maximize", "adam", ("m", "v"), adam(lr=0.3, maximize=True)),
    Case("adam, decoupled decay", "adam", ("m", "v"), adam(decoupled_weight_decay=True)),
    Case("adamw", "adamw", ("m", "v"), adamw()),
    Case("adamw without decay", "adamw", ("m", "v"), adamw(weight_decay=0.0)),
    Case("adamw, maximize", "adamw", ("m", "v"), adamw(lr=0.3, maximize=True)),
    Case("sgd", "sgd", (), sgd(momentum=0.0)),
    Case("sgd, decay, maximize", "sgd", (), sgd(momentum=0.0, weight_decay=0.1, maximize=True)),
    Case("sgd, momentum", "sgd", ("momentum",), sgd()),
    Case("sgd, dampening", "sgd", ("momentum",), sgd(dampening=0.4, weight_decay=0.02)),
    Case("sgd, nesterov", "sgd", ("momentum",), sgd(nesterov=True, weight_decay=0.02)),
    Case("sgd, nesterov, maximize", "sgd", ("momentum",), sgd(nesterov=True, maximize=True)),
    Case("sgd, dampening, maximize", "sgd", ("momentum",), sgd(dampening=0.4, maximize=True)),
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def gradients(elems: int, steps: int, seed: int = 0) -> list[Any]:
    """Mean gradients, float32, of very different sizes; some elements never get one."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.uniform(-12, 3, elems)) * (rng.random(elems) > 0.02)
    return [(rng.standard_normal(elems) * scale).astype(np.float32) for _ in range(steps)]


def start(elems: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(elems, dtype=np.float32)


def by_torch(case: Case, weights: Any, grads: list[Any]) -> Any:
    """`torch.optim` with its fused kernel, on one whole tensor."""
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    optimizer = case.torch_kind([parameter], fused=True, **torch_arguments(case.group))
    for grad in grads:
        parameter.grad = torch.from_numpy(grad.copy())
        optimizer.step()
    return parameter.detach().numpy()


def by_pages(case: Case, weights: Any, grads: list[Any], *, page_elems: int) -> Any:
    """`update_page` on one page after another; every page has its own count of updates."""
    kernel = kernel_for(case.optimizer, case.state_fields)
    hyper = StepHyper(groups=(case.group,))
    weights = weights.copy()
    state = tuple(np.zeros_like(weights) for _ in kernel.state_fields)
    for updates_count, grad in enumerate(grads):
        for first in range(0, weights.size, page_elems):
            cut = slice(first, min(first + page_elems, weights.size))
            update_page(
                kernel=kernel,
                weights=weights[cut],
                state=tuple(array[cut] for array in state),
                grad=grad[cut],
                runs=((0, cut.stop - cut.start, 0),),
                hyper=hyper,
                divisor=1.0,
                scale=1.0,
                updates_count=updates_count,
            )
    return weights


@every_case
def test_update_equals_torch_bit_for_bit(case: Case) -> None:
    """I3, I4. Goal: a page's update is torch's fused kernel on the mean gradient, for every chunk
    size and number of threads. Method: four steps on seven units of 4,096 elements and 64 more,
    against one whole tensor; pages of several multiples, 1 to 3 threads."""
    elems = 7 * 4096 + 64
    grads = gradients(elems, steps=4)
    expected = by_torch(case, start(elems), grads).view(np.uint32)
    for threads, page_elems in [(1, 64), *itertools.product((1, 2, 3), (4096, 3 * 4096, elems))]:
        torch.set_num_threads(threads)
        found = by_pages(case, start(elems), grads, page_elems=page_elems).view(np.uint32)
        np.testing.assert_array_equal(found, expected, err_msg=f"{threads=} {page_elems=}")


@every_case
@pytest.mark.parametrize("tail", [1, 33, 63])
def test_ragged_tail_stays_close_to_torch(case: Case, tail: int) -> None:
    """I4. Goal: where a parameter is no multiple of 64, the result differs from torch's only in the
    rounding of scalar code.

    Method: torch on the ragged tensor, pages padded with zeros as the layout does. Whole vectors
    are equal bit for bit. The last 64 elements may differ by a few roundings of the terms that an
    element is made of, three steps long: bound 4 eps of the largest value in the calculation."""
    elems = 8192 + tail
    grads = gradients(elems, steps=3)
    weights = start(elems)
    expected = by_torch(case, weights, grads)
    room = padded(elems)
    wide = [np.concatenate([grad, np.zeros(room - elems, np.float32)]) for grad in grads]
    wide_weights = np.concatenate([weights, np.zeros(room - elems, np.float32)])
    found = by_pages(case, wide_weights, wide, page_elems=4096)

    whole = elems // 64 * 64
    np.testing.assert_array_equal(found[:whole], expected[:whole])
    terms = [np.abs(weights), np.abs(expected), *(np.abs(grad) for grad in grads)]
    largest = np.maximum.reduce([*terms, np.ones(elems, np.float32)])[whole:]
    error = np.abs(found[whole:elems].astype(np.float64) - expected[whole:])
    assert (error <= 4 * np.finfo(np.float32).eps * largest).all()
    assert not found[elems:].any(), "padding is zero and stays zero"


def test_without_clipping_nothing_is_scaled() -> None:
    """Goal: no clip, no factor; the norm need not even be known."""
    assert clip_factor((), ()) == clip_factor((), (1e9,)) == 1.0
    assert clip_factor([Clip(2.0, 1.0)], (0.0, 0.0)) == 1.0
    assert clip_factor([Clip(2.0, math.inf)], (1e9, 1e9)) == 1.0


def test_kernels_have_different_names() -> None:
    """Goal: the name in a store's configuration tells which arithmetic made it."""
    kinds = {(case.optimizer, case.state_fields) for case in CASES} | {("none", ())}
    names = {kind: kernel_for(*kind).name for kind in kinds}
    assert len(set(names.values())) == len(names) == 5
    for kind, name in names.items():
        assert name == kernel_name(*kind)
        assert kernel_for(*kind).state_fields == kind[1]


@pytest.mark.parametrize(
    ("optimizer", "state_fields"),
    [("adagrad", ("m",)), ("adamw", ()), ("adamw", ("m", "v", "v_max")), ("sgd", ("m", "v"))],
)
def test_unknown_kernels_are_refused(optimizer: str, state_fields: tuple[str, ...]) -> None:
    """Goal: the message names what was asked for and what there is."""
    with pytest.raises(ConfigError, match="it has adam, adamw, lion, muon, none, sgd") as caught:
        kernel_for(optimizer, state_fields)
    assert repr(optimizer) in str(caught.value)
    assert str(list(state_fields)) in str(caught.value)
