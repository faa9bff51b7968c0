"""The meaning of `--on-worker-loss` for the node and for the launcher.

stop    all workers of its host are ended; with --worker-restarts all of them are started again
wait    the lost one alone is started again, at most --worker-restarts times in all; the others
        wait, and compute the open step again with it
drop    after --drop-after the others go on without it; started again (--worker-restarts) it is
        let in at the next attempt. With fewer than --workers-min left, the job waits
"""

from __future__ import annotations

from typing import Final

from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError

_RESTARTS: Final = {"stop": 0, "wait": 3, "drop": 0}


def drops_workers(config: RunConfig) -> bool:
    """True if the job goes on without workers that are lost."""
    return config.on_worker_loss == "drop"


def drop_after_ns(config: RunConfig) -> int | None:
    """The time that a worker may be away; None: the job waits for it."""
    return int(config.drop_after * 1e9) if drops_workers(config) else None


def worker_restarts(config: RunConfig) -> int:
    """Times lost workers are started again."""
    given = config.worker_restarts
    return _RESTARTS[config.on_worker_loss] if given is None else given


def check_worker_loss(config: RunConfig) -> None:
    """Refuse what cannot be. Raises ConfigError."""
    policy = config.on_worker_loss
    if drops_workers(config) and config.workers_min > config.workers:
        raise ConfigError(
            f"workers_min: {config.workers_min} is more than the {config.workers} workers there "
            "are; the job would wait from the first loss on, as with --on-worker-loss wait"
        )
    for name in ("drop_after", "workers_min", "workers_max"):
        if policy != "drop" and getattr(config, name) != KEYS[name].default:
            raise ConfigError(
                f"{name}: on_worker_loss is {policy}, with which the job waits for all workers; "
                f"give --on-worker-loss drop too, or leave {KEYS[name].flag} out"
            )
