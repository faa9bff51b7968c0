"""Signals that ask a command to stop."""

from __future__ import annotations

import signal

import pytest

from luwu.base.errors import STOP_SIGNALS
from luwu.launch.processes.stopping import stop_requests


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_a_request(number: signal.Signals, capfd: pytest.CaptureFixture[str]) -> None:
    """Goal: none ends the process; each but Ctrl-C is named, once; handlers come back."""
    before = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    try:
        with stop_requests() as should_stop:
            assert not should_stop()
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert should_stop()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    named = f"luwu: {number.name}: stopping\n"
    assert capfd.readouterr().err == ("" if number == signal.SIGINT else named)


def test_what_is_ignored_stays_ignored() -> None:
    """Goal: nohup works: a terminal that is closed stops nothing."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_requests() as should_stop:
            signal.raise_signal(signal.SIGHUP)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)
