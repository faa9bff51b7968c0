"""Do several workers train the weights that one process trains?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from luwu.base.errors import ConfigError

if TYPE_CHECKING:
    from luwu.testing.fixtures import InprocRunner, Runner


def assert_same_weights_as_single(
    run: Runner | InprocRunner, fn: Callable[..., Any], *, workers: int | None = None,
    args: Sequence[object] = (), single: Callable[..., Any] | None = None,
    rtol: float | None = None, atol: float | None = None,
) -> None:  # fmt: skip
    """Assert that fn(rank, *args) returns the same weights from several workers as from one.

    `run` is luwu_run or luwu_inproc. `fn` trains with its worker's part of each batch, that is
    `batch[rank :: luwu.world_size()]`, and returns the weights in rank 0 at least, as
    `luwu.get_model_state_dict(model)` does; other ranks may return an empty dict. `single` is
    called in place of `fn` in the one process, such as the same training without LuWu, which
    returns `dict(model.state_dict())`.

    Weights of several ranks must be the same bits. Those of one process differ in the order in
    which gradients are summed: `rtol` and `atol` are the tolerances of torch.testing.assert_close,
    by default its own for the dtype (float32: 1.3e-6 and 1e-5).

    Raises: AssertionError with the parameter and its largest difference; ConfigError if no
    weights are returned; what `run` raises.
    """
    found = run(fn, workers=workers, args=args)
    first = _weights(found[0], fn)
    for rank, weights in enumerate(found[1:], start=1):
        if weights:
            _compare(weights, first, f"rank {rank} differs from rank 0", rtol=0.0, atol=0.0)
    (expected,) = run(single or fn, workers=1, args=args)
    what = f"{len(found)} workers differ from a single process"
    _compare(first, _weights(expected, single or fn), what, rtol=rtol, atol=atol)


def _weights(value: Any, fn: Callable[..., Any]) -> Any:
    if not isinstance(value, dict) or not value:
        raise ConfigError(
            f"{getattr(fn, '__qualname__', fn)} returned {value!r:.60} in rank 0; return a dict of "
            "names and tensors, such as luwu.get_model_state_dict(model)"
        )
    return value


def _compare(
    actual: Any, expected: Any, what: str, *, rtol: float | None, atol: float | None
) -> None:
    from torch.testing import assert_close

    assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=True, check_device=False,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip
