"""I5, I6: floods of every message of the protocol, with keys and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.local_job import every_place
from tests.intruders.floods import WHO, flooded

COUNT = 2_000


@pytest.mark.feature("intruders and floods of every message while a job trains")
@pytest.mark.parametrize("who", WHO)
@every_place
def test_a_flood_of_every_message_changes_nothing(
    has_switch: bool, who: str, tmp_path: Path
) -> None:
    """Goal: the weights are those of plain training; between two ticks a bounded number of
    messages and bytes is handled; the log grows by at most 100 lines."""
    flooded(tmp_path, who, has_switch=has_switch, count=COUNT)
