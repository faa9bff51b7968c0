"""Every way to run has the weights that it had, and states of before are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evidence import digests, jobs, states


@pytest.mark.parametrize("name", digests.CHEAP)
def test_weights_are_what_they_were(name: str) -> None:
    """I3, I4. Goal: the digest of the file, from workers, switches and nodes in threads."""
    check_digest(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in digests.WAYS if name not in digests.CHEAP])
def test_weights_are_what_they_were_every_way(name: str) -> None:
    """I3, I4. The same, of the ways that add nothing but another combination."""
    check_digest(name)


@pytest.mark.parametrize("name", sorted(states.STATES))
def test_a_state_of_before_is_read_and_gone_on_from(name: str, tmp_path: Path) -> None:
    """Goal: the format of states is what it was."""
    way = states.STATES[name]
    states.unpack(name, tmp_path)
    assert jobs.digest_at(digests.WAYS[way], tmp_path) == states.expected()[name]
    jobs.run(digests.WAYS[way], tmp_path, resume=True)
    if digests.is_comparable():
        assert jobs.digest_at(digests.WAYS[way], tmp_path) == digests.table()[way]


def check_digest(name: str) -> None:
    expected = digests.expected(name)
    if expected is None:
        pytest.skip("this processor rounds as none of the file's did")
    assert digests.digest(name) == expected
