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
    """Assert that a function returns the same weights from several workers as from one.

    Several ranks must return the same bits. One process sums gradients in another order, so its
    weights are compared with tolerances.

    Args:
        run: `luwu_run` or `luwu_inproc`.
        fn: Called as `fn(rank, *args)`. It trains with its worker's part of each batch, such as
            `batch[rank :: luwu.world_size()]`, and returns the weights on rank 0 at least, as
            `luwu.get_model_state_dict(model)` does; other ranks may return an empty dict.
        workers: Number of workers, as an argument of `run`.
        args: More arguments of `fn`.
        single: Called in place of `fn` in the one process, such as the same training without LuWu.
        rtol: Relative tolerance of `torch.testing.assert_close`; by default its own for the dtype.
        atol: Absolute tolerance, likewise.

    Raises:
        AssertionError: With the parameter and its largest difference.
        ConfigError: If rank 0 returns no weights.

    Examples:
        ```python
        import torch

        import luwu
        from luwu.testing import assert_same_weights_as_single


        def train(rank):
            model = torch.nn.Linear(4, 2)
            for parameter in model.parameters():  # threads share torch's random generator
                torch.nn.init.constant_(parameter, 0.5)
            luwu.init()
            luwu.fully_shard(model)
            optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
            batch = torch.arange(16.0).view(4, 4)[rank :: luwu.world_size()]
            model(batch).mean().backward()
            optimizer.step()
            return luwu.get_model_state_dict(model)


        def test_two_workers_train_what_one_does(luwu_inproc):
            assert_same_weights_as_single(luwu_inproc, train, workers=2)
        ```
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
