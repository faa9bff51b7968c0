"""Today's cores answer what was recorded, and every way to run has the weights that it had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.evidence import adapter, digests, histories, jobs, states
from tests.evidence.__main__ import QUICK
from tests.evidence.record import read, write
from tests.evidence.replayer import Replayed, replay, replay_file

SHORT_SEED = 54
"""Of a recorded history with few faults, in which a worker cancels an attempt."""


def replayed(kind: str, core_class: type[Any], monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """The records, given to another core, up to the first history that differs."""
    monkeypatch.setitem(adapter.CORES, kind, core_class)
    found = Replayed()
    head, recorded = read(QUICK)
    for history in recorded:
        if not found.differences:
            replay(head, [history], found)
    return found


def test_cores_answer_what_was_recorded() -> None:
    """Goal: a change of structure changes no answer. Method: twenty histories that cover what the
    hundred and thirty of `python -m tests.evidence replay` do but for rare lines."""
    found = Replayed()
    replay_file(QUICK, found)
    assert not found.differences, str(found.differences[0])
    assert found.histories_count == histories.QUICK_COUNT
    assert found.actions_count > 20_000


class Forgetful(adapter.CORES["node"]):  # type: ignore[misc]
    """A node that decides nothing."""

    def prepared(self, prepare: Any, digests: bytes = b"") -> list[Any]:
        super().prepared(prepare, digests)
        return []


class Hurried(adapter.CORES["worker"]):  # type: ignore[misc]
    """A worker whose clock is a millisecond fast."""

    def tick(self, now_ns: int) -> list[Any]:
        return list(super().tick(now_ns + 1_000_000))


class Reversed(adapter.CORES["switch"]):  # type: ignore[misc]
    """A switch that sends the same, in another order."""

    def received(self, *given: Any, **named: Any) -> list[Any]:
        return list(reversed(super().received(*given, **named)))


@pytest.mark.parametrize(
    ("kind", "core_class", "event"),
    [
        ("node", Forgetful, "prepared"),
        ("worker", Hurried, "tick"),
        ("switch", Reversed, "received"),
    ],
    ids=["forgetful", "hurried", "reversed"],
)
def test_a_changed_core_is_found(
    kind: str, core_class: type[Any], event: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the first difference is named: history, process, event, expected and found."""
    found = replayed(kind, core_class, monkeypatch)
    assert found.differences
    first = found.differences[0]
    assert f"({kind}), event " in first.where
    assert first.event.startswith(f"{event}(")
    assert first.expected != first.found
    assert "expected" in str(first)


def test_texts_may_differ_where_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a change of texts can be told from a change of what is done."""
    head, recorded = histories.record([SHORT_SEED])
    for life in recorded[0].lives:
        for event in life.events:
            if event[0] == "cancel":
                event[1] = [event[1][0], "another text"]
    strict, free = Replayed(), Replayed()
    replay(head, recorded, strict, texts=True)
    replay(head, recorded, free, texts=False)
    assert strict.differences
    assert not free.differences


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    head, recorded = histories.record([SHORT_SEED])
    write(tmp_path / "one.rec.xz", head, recorded)
    head_read, read_again = read(tmp_path / "one.rec.xz")
    assert head_read == head
    assert [each.packed() for each in read_again] == [each.packed() for each in recorded]


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
    if not digests.is_comparable():
        pytest.skip("this processor rounds as none of the file's did: `python -m tests.evidence`")
    assert digests.digest(name) == digests.table()[name]
