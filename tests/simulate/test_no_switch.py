"""Histories of a node with a switch of its own (`--no-switch`): O1 to O6, by seeds.

More of them: `python -m tests.simulate --no-switch --seeds N --first S`.
"""

from __future__ import annotations

import pytest

from switch_emu.switch.core.aggregation import Aggregation, Held
from tests.simulate.faults import Noise
from tests.simulate.history import run_history
from tests.simulate.plan import History, Options, make_history
from tests.simulate.seeds import seeds

TENS = 20


@pytest.mark.parametrize("seed", seeds(TENS))
def test_ten_histories_without_a_switch(seed: int) -> None:
    """O1 to O6. Goal: no plan of faults breaks what holds, and all jobs finish. A failure names its
    history: `python -m tests.simulate --no-switch --first S --seeds 1` replays it."""
    for each in range(10 * seed, 10 * (seed + 1)):
        try:
            run_history(make_history(each, own_switch=True))
        except AssertionError as exc:
            raise AssertionError(f"history {each}: {exc}") from exc


@pytest.mark.parametrize("has_switch", [True, False], ids=["switch", "no-switch"])
def test_a_payload_that_a_switch_does_not_let_go_of_is_found(
    monkeypatch: pytest.MonkeyPatch, has_switch: bool
) -> None:
    """O5. Goal: the end of a history finds payloads that are held for good, by a switch, whether it
    is a process or the node's own. Method: gradients that come again are answered and not dropped,
    and messages are repeated."""

    def leaking(self: Aggregation, held: Held) -> None:
        self._outbox.send(held.peer, held.receipt)

    monkeypatch.setattr(Aggregation, "_answer_repetition", leaking)
    repeats = Noise(at_ms=0, for_ms=5000, repeat_percent=20)
    who = "switch" if has_switch else "node"
    with pytest.raises(AssertionError, match=rf"O5: {who} holds \d+ bytes when all is done"):
        run_history(History(0, Options(own_switch=not has_switch), (repeats,)))
