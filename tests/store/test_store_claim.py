"""The place of a state that is not made yet: one node holds it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError
from switch_emu.store import FilePageStore
from switch_emu.store.directory import CLAIM_NAME, Claim
from tests.suites.store_suite import small_config

ROOT = Path(__file__).resolve().parents[2]
HOLD = """if True:
    import os, signal, sys
    from pathlib import Path
    from switch_emu.store.directory import Claim
    Claim(Path(sys.argv[1]), "job 7").take()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.feature("two jobs on one state")
def test_the_later_of_two_is_refused_at_its_start(tmp_path: Path) -> None:
    """Goal: the message names the directory, the other job and what to do."""
    state = tmp_path / "jobs" / "state"
    with Claim(state, "job 7") as first:
        first.take()
        with Claim(state, "job 8") as second, pytest.raises(ConfigError) as caught:
            second.take()
        assert str(caught.value).startswith(f"{state} is taken by job 7 (process {os.getpid()} on ")
        assert "--state" in str(caught.value)
        assert caught.value.code == "E204"
        with pytest.raises(ConfigError, match="is taken by job 7"):
            FilePageStore.create(state, small_config())
        FilePageStore.create(state, small_config(), claim=first).close()
    FilePageStore.open(state).close()
    assert not (state / CLAIM_NAME).exists()


def test_a_place_that_was_not_used_is_left_as_it_was(tmp_path: Path) -> None:
    """Goal: a directory that was made for nothing goes; one that was there stays."""
    for is_there in (False, True):
        state = tmp_path / f"state-{is_there}"
        if is_there:
            state.mkdir()
        with Claim(state) as claim:
            claim.take()
            assert [path.name for path in state.iterdir()] == [CLAIM_NAME]
        assert state.exists() == is_there
    assert list((tmp_path / "state-True").iterdir()) == []


def test_the_place_of_a_node_that_was_killed_is_free(tmp_path: Path) -> None:
    """Goal: neither the next node nor an import is kept from it."""
    for number in range(2):
        state = tmp_path / f"state-{number}"
        done = subprocess.run([sys.executable, "-c", HOLD, str(state)], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        assert (state / CLAIM_NAME).exists()
        if number == 0:
            with Claim(state) as claim:
                claim.take()
        else:
            FilePageStore.create(state, small_config()).close()
        assert not (state / CLAIM_NAME).exists()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """Goal: said when the node starts, and nothing is touched."""
    (tmp_path / "thesis.tex").touch()
    with Claim(tmp_path) as claim, pytest.raises(ConfigError, match=r"holds thesis\.tex and no"):
        claim.take()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
