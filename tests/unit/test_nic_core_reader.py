"""The reader's core alone: a decided version, field by field, with a parent's messages by hand."""

from __future__ import annotations

from typing import Any, get_args

from luwu.nic.core.reader import ReaderCore
from luwu.wire import messages as wire
from tests.unit.nic_parts import check, from_parent

READER = 77


def make() -> ReaderCore:
    core = ReaderCore(job=7, reader=READER)
    core.out.attempt = 1
    return core


def content(chunk: int, reader: int = READER) -> tuple[Any, str]:
    return from_parent(wire.Content, part=0, index=chunk, reader=reader, field="m"), f"c{chunk}"


def test_every_answer_to_a_reader_has_a_method() -> None:
    """Goal: the table is complete."""
    assert set(ReaderCore.FROM_PARENT) == set(get_args(wire.ReaderAnswer))


def test_fields_are_received_once() -> None:
    """Goal: the same content again, and that of another reader, is dropped."""
    core = make()
    actions = core.read(0, 4, "m", "float32")
    core.out.actions += actions
    check(core.out, [(lambda: None, None, ["Read 0.0.4"])])
    for given, expected in [
        (content(4, reader=1), ["Drop c4"]),
        (content(4), ["FieldReceived 4 m c4"]),
        (content(4), ["Drop c4"]),
        ((from_parent(wire.Weights, part=0, index=4), "w4"), ["Drop w4"]),
    ]:
        core.out.actions += core.received(*given)
        check(core.out, [(lambda: None, None, expected)])


def test_a_version_that_is_gone_ends_all_requests() -> None:
    """Goal: nothing is repeated any more; what another reader has lost is no concern."""
    core = make()
    core.read(0, 4, "m", "float32")
    assert core.waits_for().startswith("the node to hold")
    assert core.received(from_parent(wire.Gone, reader=1, text="late"), None) == []
    assert core.next_tick_ns() is not None
    core.out.actions += core.received(from_parent(wire.Gone, reader=READER, text="late"), None)
    check(core.out, [(lambda: None, None, ["ReaderGone late"])])
    assert core.next_tick_ns() is None
    core.out.actions += core.shut(0)
    check(core.out, [(lambda: None, None, ["Shut 0"])])
