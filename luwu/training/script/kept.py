"""State that a script keeps with every step, and statistics of measured ones."""

from __future__ import annotations

from typing import Any

from luwu.base.errors import ConfigError
from luwu.training.script import run
from luwu.training.state.statistics import StepStats, read_stats


def attach(name: str, thing: Any, *, per_rank: bool = False, late: bool | None = None) -> None:
    """Keep the state of `thing` with every step; see `state/attached.py`.

    `late`: it is changed after `step()`; None: if it is a learning rate scheduler. All ranks must
    attach, before the first forward. Raises: StepOrderError after it; ConfigError for a name that
    is taken, or a thing without a state.
    """
    run.session().attachments.attach(name, thing, per_rank=per_rank, late=late)


def stats() -> StepStats | None:
    """Statistics of the last measured step; any rank may ask, the others need not (16 at once).

    Waits until the last `step()` is decided. None: no measured step was decided since the node was
    started. A step that was skipped, or lost, has none: those of the measured step before it stay.
    Raises: ConfigError if there are none and the optimizer asks for none; StepAborted.
    """
    session = run.session()
    found = None
    if session.is_begun or session.is_resumed:  # else the first weights would be sent, for nothing
        with session.open_reader() as reader:
            found = read_stats(reader)
    if found is None and session.stats_every is None:
        raise ConfigError(
            "luwu.stats() of a run that measures no step; make the optimizer with stats_every=100, "
            "or set optimizer.stats_every, on every rank"
        )
    return found
