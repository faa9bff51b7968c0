"""What no machine and no job can be is refused, with the name of what is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from luwu.base.errors import ConfigError, LuwuError
from luwu.commands.main import main
from luwu.measure import machine_parts
from luwu.predict.machine.machine import MachineJob
from luwu.transport.interface import PeerUp
from luwu.transport.opening import open_transport
from tests.unit.test_predict_laws_machine import FLOORS, RAM


@pytest.mark.parametrize("wrong", [
    {"cores": 0}, {"end_s": -1.0}, {"sum_s_per_byte": math.nan}, {"root_ratio": 1.5},
    {"forward_s": math.inf},
])  # fmt: skip
def test_bad_prediction_of_a_machine_names_the_floor(wrong: dict[str, Any]) -> None:
    """A floor that cannot be."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(FLOORS, **wrong)


@pytest.mark.parametrize("wrong", [
    {"workers": 0}, {"updates_count": 0}, {"ahead": 0}, {"chunks": ()}, {"chunks": ((1,), ())},
    {"chunks": ((0,),)}, {"resident": ((True,),)}, {"nodes": 0}, {"replicas": 2},
])  # fmt: skip
def test_bad_prediction_of_a_machine_names_what_the_job_lacks(wrong: dict[str, Any]) -> None:
    """A job that cannot be."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        replace(RAM, **wrong)


def test_bad_prediction_of_a_machine_says_what_it_is_of(capfd: pytest.CaptureFixture[str]) -> None:
    """`--machine` belongs to `validate`, which takes nothing else with it."""
    assert main(["predict", "step", "--machine", "FILE"]) == 2
    assert "no flag --machine; it belongs to luwu predict validate" in capfd.readouterr().err
    assert main(["predict", "validate", "--machine", "FILE"]) == 2
    assert "takes no 'FILE'" in capfd.readouterr().err


def test_bad_prediction_of_a_machine_has_one_chunk_at_least() -> None:
    """A unit has a chunk."""
    with pytest.raises(ConfigError, match="chunks: a unit without any"):
        MachineJob(chunks=((),), workers=1)


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
