"""What no machine and no job can be is refused, with the name of what is wrong."""

from __future__ import annotations

import pytest

from luwu.base.errors import LuwuError
from luwu.commands.main import main
from luwu.measure import machine_parts
from luwu.transport.interface import PeerUp
from luwu.transport.opening import open_transport


def test_bad_prediction_of_a_machine_says_what_it_is_of(capfd: pytest.CaptureFixture[str]) -> None:
    """`--machine` belongs to `validate`, which takes nothing else with it."""
    assert main(["predict", "step", "--machine", "FILE"]) == 2
    assert "no flag --machine; it belongs to luwu predict validate" in capfd.readouterr().err
    assert main(["predict", "validate", "--machine", "FILE"]) == 2
    assert "takes no 'FILE'" in capfd.readouterr().err


def test_bad_prediction_of_a_link_whose_other_end_is_gone() -> None:
    """Goal: a part that waits for an answer ends with the end that would give it; it once waited
    for ever."""
    with open_transport("ipc://auto") as one:
        other = open_transport("ipc://auto")
        other.dial("peer", one.listen("ipc://auto"))
        while not isinstance(other.receive(None), PeerUp):
            pass
        while not isinstance(one.receive(None), PeerUp):
            pass
        other.close()
        with pytest.raises(LuwuError, match="the other end of the link is gone"):
            machine_parts._answer(one)
