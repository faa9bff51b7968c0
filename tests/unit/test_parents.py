"""Several nodes as one parent of a switch: what the core receives, and what it does not."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from luwu.layout import Layout, Parameter, Unit
from luwu.protocol.actions import PARENT, Send
from luwu.wire import messages as wire
from luwu.wire.kinds import Role, Verb
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.parents import Parents, parent_names
from tests.unit.switch_parts import DESCRIPTION, LEFT, hello, line, message

STAMP: dict[str, Any] = {
    "job": 7, "epoch": 0, "role": Role.NODE, "rank": 0, "incarnation": 1, "generation": 1,
}  # fmt: skip
BLANK: dict[str, Any] = {
    "int": 0, "bool": False, "float": 0.0, "str": "",
    "tuple[float, ...]": (0.0,),
}  # fmt: skip


def sent(kind: type[Any], attempt: int, step: int, **values: Any) -> Any:
    """A message; what `Parents` does not look at is blank."""
    given = {**STAMP, "attempt": attempt, "step": step, **values}
    blank = {each.name: BLANK.get(str(each.type)) for each in fields(kind)}
    return kind(**blank | given)


def to(parents: Parents, *messages: wire.Message) -> list[tuple[int, ...]]:
    return [parents.concerned(m) for m in messages]


def test_a_message_goes_to_those_it_concerns() -> None:
    """Goal: which nodes a message goes to, by kind."""
    parents = Parents(3)
    assert parents.names == parent_names(3) == ("parent-0", "parent-1", "parent-2")
    assert to(
        parents, message(wire.Pull, index=1), message(wire.Push, index=5, last=True),
        message(wire.Begin), message(wire.Leave),
    ) == [(1,), (2,), (0, 1, 2), (0, 1, 2)]  # fmt: skip


def test_an_extent_goes_to_the_node_of_its_chunks() -> None:
    """Goal: extents are counted otherwise than chunks: a Load goes by its chunk, all else by the
    owner of the extent; what is asked of an extent that there is not reaches a node, which ignores
    it. Method: two units of five chunks; two nodes, three chunks an extent."""
    layout = Layout(
        parameters=tuple(Parameter(name=name, shape=(5 * 4096,)) for name in "ab"),
        units=(Unit(name="a", parameters=(0,)), Unit(name="b", parameters=(1,))),
        chunk_bytes=16 * 1024, node_count=2, extent_chunks=3,
    )  # fmt: skip
    owned = [list(extent.chunks) for extent in layout.extents]
    assert owned == [[0, 2, 4], [1, 3], [5, 7, 9], [6, 8]]
    parents = Parents(2)
    parents.learn(layout)
    pulls = [message(wire.Pull, index=extent) for extent in range(4)]
    loads = [message(wire.Load, index=chunk) for chunk in (2, 3)]
    unknown = message(wire.Propose, index=1 << 60)
    found = to(parents, *pulls, *loads, unknown)
    assert found == [(0,), (1,), (1,), (0,), (0,), (1,), (0,)]


def test_the_owners_of_a_page_are_one() -> None:
    """Goal: a sum goes to all owners of its pages, and counts as received when each has it; the
    extents of a stripe are pulled from its owners in turn. Method: three nodes, two replicas."""
    layout = Layout(
        parameters=(Parameter(name="a", shape=(12 * 4096,)),),
        units=(Unit(name="a", parameters=(0,)),),
        chunk_bytes=16 * 1024, node_count=3,
    )  # fmt: skip
    parents = Parents(3, 2)
    parents.learn(layout)
    ups = [message(kind, index=2) for kind in (wire.Load, wire.Push, wire.Propose)]
    assert set(to(parents, *ups)) == {(2, 0)}
    pulls = [message(wire.Pull, index=extent) for extent in range(0, 12, 3)]
    assert to(parents, *pulls) == [(0,), (1,)] * 2
    for verb in (Verb.PUSH, Verb.LOAD):
        data = sent(wire.Received, 1, 0, verb=verb, index=5, contributors=3)
        for number, received in ((2, []), (2, []), (0, [data]), (0, [])):
            assert parents.received(number, data) == received
    agreed = sent(wire.Agreed, 1, 0, index=1)
    assert parents.received(1, agreed) == []
    assert parents.received(2, agreed) == [agreed]


def test_answers_of_all_become_one() -> None:
    """Goal: a receipt of Begin counts when all have sent it, once."""
    parents = Parents(2)
    begun = sent(wire.Received, 1, 0, verb=Verb.BEGIN)
    for number, received in ((0, []), (0, []), (1, [begun])):
        assert parents.received(number, begun) == received
    data = sent(wire.Received, 1, 0, verb=Verb.PUSH)
    assert parents.received(0, data) == [data]


def test_nodes_that_do_not_count_own_nothing() -> None:
    """E4. Goal: what they were sent is sent to the other owners, whose answers are enough."""
    parents = Parents(3, 2)
    begun = sent(wire.Received, 1, 0, verb=Verb.BEGIN)
    parents.received(0, begun)
    parents.count_only(0b101)
    assert [parents.covers(each) for each in (0b101, 0b110, 0b100)] == [True, True, False]
    ups = [message(wire.Push, index=chunk) for chunk in (0, 1, 2)]
    assert to(parents, *ups, message(wire.Begin)) == [(0,), (2,), (2, 0), (0, 2)]
    for number, received in ((0, []), (2, [begun])):
        assert parents.received(number, begun) == received


def test_one_parent_is_called_parent() -> None:
    """Goal: with one parent its name is that by which any child knows its parent."""
    parents = Parents(1)
    assert parents.is_one
    assert parents.names == (PARENT,)


def test_a_core_with_two_parents() -> None:
    """Goal: the wiring inside the core: Hello goes to both, children are welcomed when both have
    taken an attempt over, a Pull goes to the owner of its extent, and a reader's Open to both."""
    core = SwitchCore(job=1, incarnation=1, children=[LEFT], parents_count=2)
    description = replace(DESCRIPTION, layout=replace(DESCRIPTION.layout, node_count=2))
    greeting = hello(LEFT, description_hash=description.hash)
    up = core.received(5, "left", greeting, description.to_bytes())
    names = ["parent-0", "parent-1"]
    assert [line(each).partition(" ")[0] for each in up] == [f"{name}:" for name in names]
    standing = message(wire.Standing, generation=1, loaded=True)
    assert core.received(6, "parent-0", standing) == []
    adopts = core.received(6, "parent-1", standing)
    assert [type(each.message) for each in adopts if isinstance(each, Send)] == [wire.Adopt] * 2
    admitted = message(
        wire.Welcome, generation=1, attempt=1, loaded=True, contributors=LEFT, push_window_bytes=9
    )
    assert core.received(6, "parent-0", admitted) == []
    assert not core.is_joined
    (down,) = core.received(7, "parent-1", admitted)
    assert line(down).startswith("left: Welcome")
    pull = message(wire.Pull, index=1, generation=1, attempt=1)
    assert [line(each) for each in core.received(8, "left", pull)] == ["parent-1: Pull index=1"]
    opens = [line(each) for each in core.received(9, "reader", message(wire.Open, reader=3))]
    assert opens == ["parent-0: Open reader=3", "parent-1: Open reader=3"]
    assert [core.name_of(peer) for peer in ("parent-1", "left")] == ["parent-1", "ranks 0, 1"]
