"""What parts of the switch's core are handed, and their answers as lines that a test can read.

A script is a list of (event, what it is given, expected lines): each event is a method of the part,
and the lines are the actions that it led to. A line shows the receivers, the message, its fields
that are not 0, False or empty, and the payload; or another action, and its fields that are not
empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.retry import RetryPolicy
from luwu.protocol.actions import Drop, Note, Send
from luwu.protocol.children import Children, Member
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.description import Description
from luwu.wire.messages import Role, Verb
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.attempts import Attempts
from tests.simulate.job import make_layout

LEFT, RIGHT = 0b011, 0b100
"""Another switch, which stands for two ranks, and a worker."""
DESCRIPTION = Description(layout=make_layout(), optimizer="test")
_BLANK: dict[str, Any] = {
    "int": 0, "bool": False, "float": 0.0, "str": "", "Verb": Verb.PUSH,
    "tuple[float, ...]": (0.0,),
}  # fmt: skip
_NOTHING: tuple[Any, ...] = (None, "", b"", ())
SHOWN_BYTES_MAX = 16
_STAMP = tuple(wire.Message.__slots__)
Script = Sequence[tuple[str, tuple[Any, ...], list[str]]]


def message(kind: type[Any], **given: Any) -> Any:
    """A message with these fields; the others are blank."""
    blank = {
        each.name: _BLANK.get(str(each.type)) for each in fields(kind) if each.default is MISSING
    }
    return kind(**{**blank, "job": 1, "role": Role.WORKER, "incarnation": 7, **given})


def hello(ranks: int, **given: Any) -> Any:
    """Hello of a child, with the description of `DESCRIPTION`."""
    return message(
        wire.Hello,
        **{
            "protocol": PROTOCOL_VERSION, "contributors": ranks, "present": ranks, "world_size": 3,
            "description_hash": DESCRIPTION.hash, **given,
        },
    )  # fmt: skip


def line(action: Any) -> str:
    """An action, for comparison."""
    if isinstance(action, Drop):
        return f"drop {action.payload}"
    if isinstance(action, Note):
        return f"note {action.name}"
    if not isinstance(action, Send):
        given = ((each.name, getattr(action, each.name)) for each in fields(action))
        shown = [f"{name}={_value(each)}" for name, each in given if each not in _NOTHING]
        return " ".join([type(action).__name__, *shown])
    m = action.message
    shown = [f"step={m.step}"] if m.step else []
    for each in fields(m):
        value = getattr(m, each.name)
        if each.name not in _STAMP and value not in (0, "", (0.0,), each.default):
            shown.append(f"{each.name}={getattr(value, 'name', value)}")
    payload = [] if action.payload is None else [f"+ {action.payload!r}"]
    if isinstance(action.payload, bytes) and len(action.payload) > SHOWN_BYTES_MAX:
        payload = [f"+ {len(action.payload)} bytes"]
    return " ".join([f"{','.join(action.peers)}: {type(m).__name__}", *shown, *payload])


def _value(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


class Handed:
    """What a part is handed: two children, `left` and `right`, that have joined."""

    def __init__(self, *, joined: bool = True, **limits: Any) -> None:
        self.outbox = Outbox(job=1, role=Role.SWITCH, rank=0, incarnation=1)
        self.children = Children(self.outbox, [LEFT, RIGHT])
        self.uplink = Uplink(self.outbox.actions, RetryPolicy())
        self.uplink.window_bytes = 100
        self.attempts = Attempts(self.outbox, self.children, self.uplink)
        self.limits = SwitchLimits(**limits)
        if joined:
            self.left = self.join("left", LEFT)
            self.right = self.join("right", RIGHT)

    def join(self, peer: str, ranks: int) -> Member:
        """A child that has sent Hello."""
        members = self.children.members
        members.join(peer, hello(ranks), DESCRIPTION.to_bytes())
        member = members.member_at(peer)
        assert member is not None
        return member

    def play(self, part: Any, script: Script) -> None:
        """Give a part events, and compare its answers with the script."""
        for number, (event, given, expected) in enumerate(script):
            getattr(part, event)(*given)
            found = [line(each) for each in self.outbox.take()]
            assert found == expected, f"entry {number}: {event}"
