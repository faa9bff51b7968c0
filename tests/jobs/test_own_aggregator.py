"""An aggregator that another package brings: the example of docs/aggregators.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import luwu
from luwu.aggregate import make_aggregator
from luwu.base.errors import ConfigError
from switch_emu.switch.core.actions import SwitchLimits
from tests.helpers.real_training import in_cluster, sharded
from tests.helpers.small_models import Stack, square_loss
from tests.optim.test_own_optimizer import install
from tests.wire.test_aggregators import ELEMS, combine, decode, encode, gradients

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "aggregator"
STEPS = 5


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        yield install(EXAMPLE, tmp_path_factory.mktemp("example") / "site", patch)


def train(rank: int) -> list[float]:
    """Losses of a small model."""
    model = sharded(lambda: Stack(blocks=2))
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        loss = square_loss(model, 0, rank, 0)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


@pytest.mark.feature("a custom aggregator")
@pytest.mark.usefixtures("example")
def test_own_aggregator_trains(tmp_path: Path) -> None:
    """Goal: losses fall beside float32's, and the bits are the same wherever contributions meet: in
    a slot, at the node without a switch, or there raw because no slot was free."""
    ways: list[dict[str, Any]] = [
        {},
        {"has_switch": False},
        {"switch_limits": SwitchLimits(slot_bytes_max=1)},
        {"transport": "shm"},
    ]
    found = [
        in_cluster(tmp_path / str(i), train, world_size=3, aggregate="fp8", **way)
        for i, way in enumerate(ways)
    ]
    plain = in_cluster(tmp_path / "plain", train, world_size=3)
    assert len({each.digest for each in found}) == 1
    assert found[0].digest != plain.digest
    losses, plain_losses = np.array(found[0].results[0]), np.array(plain.results[0])
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(losses, plain_losses, rtol=0.05)


@pytest.mark.feature("a custom aggregator")
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), magnitude=st.sampled_from([1e-44, 1e-30, 1.0, 1e30]))
def test_its_bound_holds(seed: int, magnitude: float, example: Any) -> None:
    """Goal: no element is off by more than the example says, and it is a quarter as large.
    Method: one contribution; then two, whose sum is that of what each decodes to."""
    kind = make_aggregator("fp8", 2)
    one, other = gradients(seed, 2, magnitude, [])
    encoded = [encode(kind, each) for each in (one, other)]
    assert encoded[0].nbytes < 0.27 * one.nbytes
    decoded = [decode(kind, each).astype(np.float64) for each in encoded]
    for exact, found in zip((one, other), decoded, strict=True):
        for block in (slice(0, 256), slice(256, ELEMS)):
            size = np.abs(exact[block].astype(np.float64))
            bound = np.maximum(size / 16, size.max() / 2**16) + 2.0**-149
            assert (np.abs(found[block] - exact[block]) <= bound).all()
    together = decode(kind, combine(kind, encoded))
    expected = decoded[0].astype(np.float32) + decoded[1].astype(np.float32)
    np.testing.assert_array_equal(together, expected)


@pytest.mark.usefixtures("example")
def test_what_is_not_finite_stays_so() -> None:
    """Goal: a NaN or an infinity of one rank reaches the sum, at its element alone."""
    kind = make_aggregator("fp8", 2)
    one, other = gradients(1, 2, 1.0, [])
    one[3], other[7] = np.inf, np.nan
    found = decode(kind, combine(kind, [encode(kind, one), encode(kind, other)]))
    assert np.flatnonzero(~np.isfinite(found)).tolist() == [3, 7]


def test_one_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """Goal: a worker whose host lacks the package is told, before anything is trained."""
    with pytest.raises(ConfigError, match=r"'unheard-of'.*luwu\.aggregators"):
        in_cluster(tmp_path, train, aggregate="unheard-of")
