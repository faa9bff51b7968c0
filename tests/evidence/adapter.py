"""The one file of the evidence that knows how cores are built, called and named.

Records speak the names of the day on which they were made. A core, an event, a parameter, an
action or a field that is called otherwise today is translated here; the records stay as they are.

    a core's class was moved or renamed    `CORES`
    two kinds of core are one class        `kind_of`
    it is built in another way             `make`
    an event is a method of another name   `RENAMED_EVENTS`: (kind, event) -> method
    a parameter of one is renamed          `RENAMED_PARAMETERS`: (kind, event, parameter) -> new
    an event is given in another way       `call`
    an action or a value is renamed        `RENAMED_TYPES`: new class -> the name in the records
    a field of one is renamed              `RENAMED_FIELDS`: (name in the records, field) -> new
    a field of a note is renamed           `RENAMED_NOTED`: (note, new) -> field in the records
    texts for people were changed          `TEXTS_ARE_COMPARED = False`
    a difference that is meant             a recording of its own, in the commit that means it
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from luwu.aggregate import make_aggregator
from luwu.base.outstanding import RetryPolicy
from luwu.nic.core import NicCore
from luwu.nic.core import actions as nic_actions
from luwu.nic.core import reader as reader_actions
from luwu.nic.core.reader import ReaderCore
from luwu.protocol import actions as wire_actions
from luwu.protocol.epoch import Epoch
from luwu.wire.messages import MESSAGE_TYPES, DataMessage
from luwu.wire.reading import VersionFacts
from switch_emu.node.core import NodeCore
from switch_emu.node.core import actions as node_actions
from switch_emu.switch.core import SwitchCore, slots
from switch_emu.switch.core import actions as switch_actions
from switch_emu.switch.core.fixed_slots import PoolRange

TEXTS_ARE_COMPARED: Final = False
"""Whether a replay asks for the same texts, as of `Refuse`, `Abort` or a log line."""

CORES: Final[dict[str, type[Any]]] = {
    "worker": NicCore,
    "switch": SwitchCore,
    "switch below several nodes": SwitchCore,
    "node": NodeCore,
    "reader": ReaderCore,
}
"""By kind of process: what is told of events and answers with actions."""

CONSTRUCTOR: Final = "__init__"
_OF_MEMBERS = ("received", "tick")
EVENTS: Final[dict[str, tuple[str, ...]]] = {
    "worker": (
        *_OF_MEMBERS, "reconnected", "join", "load", "pull", "push", "measured", "encoded",
        "begin", "commit", "keep", "cancel", "leave", "forget",
    ),
    "switch": (*_OF_MEMBERS, "reconnected", "summed", "cached", "lost"),
    "switch below several nodes": (*_OF_MEMBERS, "reconnected", "summed", "cached", "lost"),
    "node": (
        *_OF_MEMBERS, "lost", "store_opened", "store_refused", "page_loaded", "inspected", "folded",
        "updated", "written", "weights_read", "piece_kept", "prepared", "decided", "pinned",
        "pin_failed", "field_read", "page_filled", "page_copied",
    ),
    "reader": (*_OF_MEMBERS, "reconnected", "open", "read", "shut"),
}  # fmt: skip
"""What a core is told, and answers with actions, by kind of process."""

RENAMED_EVENTS: Final[dict[tuple[str, str], str]] = {("worker", "keep"): "attach"}
RENAMED_PARAMETERS: Final[dict[tuple[str, str, str], str]] = {
    ("node", CONSTRUCTOR, "place"): "node",
    ("worker", "pull", "chunks"): "extents",
    ("worker", "push", "chunks"): "extents",
}

_TYPES: Final[tuple[type[Any], ...]] = (
    Epoch, RetryPolicy, PoolRange, VersionFacts, slots.Contribution,
    wire_actions.Send, wire_actions.Drop, wire_actions.Expel, wire_actions.End, wire_actions.Note,
    nic_actions.Joined, nic_actions.Fill, nic_actions.Done, nic_actions.Judged,
    nic_actions.StepDecided, nic_actions.Aborted, nic_actions.Refused, nic_actions.Left,
    nic_actions.Measure, nic_actions.Encode, nic_actions.Gradient,
    reader_actions.VersionOpened, reader_actions.FieldReceived, reader_actions.ReaderGone,
    switch_actions.Sum, switch_actions.Cache, switch_actions.SwitchLimits,
    node_actions.NodeLimits, node_actions.NodeNumber, node_actions.PreparedVersion,
    node_actions.StoreFacts, node_actions.OpenStore, node_actions.LoadPage,
    node_actions.KeepPiece, node_actions.RecordAttempt, node_actions.Discard, node_actions.Spill,
    node_actions.Inspect, node_actions.Fold, node_actions.Update, node_actions.ReadWeights,
    node_actions.Prepare, node_actions.Decide, node_actions.GiveUp, node_actions.PinVersion,
    node_actions.ReadField, node_actions.Unpin, node_actions.BeginFilling, node_actions.FillPage,
    node_actions.CopyPage,
)  # fmt: skip
"""Actions, and values that events and constructors are given."""

RENAMED_TYPES: Final[dict[type[Any], str]] = {
    nic_actions.StepDecided: "Settled",
    node_actions.NodeNumber: "NodePlace",
    reader_actions.FieldReceived: "FieldCame",
}
RENAMED_FIELDS: Final[dict[tuple[str, str], str]] = {
    ("Gradient", "chunk"): "index",
    **{(m.__name__, "chunk"): "index" for m in MESSAGE_TYPES if issubclass(m, DataMessage)},
    **{(name, "chunk"): "extent" for name in ("Fill", "Inspect", "Fold", "Update", "ReadWeights")},
}
RENAMED_NOTED: Final[dict[tuple[str, str], str]] = {("node.overflow", "extent"): "chunk"}
"""(name of a note, its field today) -> the field in the records."""

NAME_OF_TYPE: Final = {each: RENAMED_TYPES.get(each, each.__name__) for each in _TYPES}
TYPE_OF_NAME: Final = {name: each for each, name in NAME_OF_TYPE.items()}

UNASKED: Final = frozenset({"Send", "Drop", "Expel", "End", "Note"})
"""Actions that no event answers."""
TEXT_FIELDS: Final = frozenset({"text"})
"""Fields of messages, actions and notes that people read."""


def field_of(type_name: str, field: str) -> str:
    """What a field of the records is called today."""
    return RENAMED_FIELDS.get((type_name, field), field)


def noted(note: wire_actions.Note) -> wire_actions.Note:
    """A note with the fields that it has in the records."""
    named = ((RENAMED_NOTED.get((note.name, name), name), value) for name, value in note.fields)
    return replace(note, fields=tuple(named))


def method_of(kind: str, event: str) -> str:
    """What an event of the records is called today."""
    return RENAMED_EVENTS.get((kind, event), event)


def event_of(kind: str, method: str) -> str:
    """What a method of today is called in the records."""
    return next(event for event in EVENTS[kind] if method_of(kind, event) == method)


def kind_of(core: Any, given: dict[str, Any]) -> str:
    """Of a core that is being made; where two kinds are one class, by what it is given."""
    if isinstance(core, SwitchCore) and given["parents_count"] > 1:
        return "switch below several nodes"
    return next(kind for kind, each in CORES.items() if isinstance(core, each))


def parameter_of(kind: str, event: str, name: str) -> str:
    """What a parameter of an event of the records is called today."""
    return RENAMED_PARAMETERS.get((kind, event, name), name)


def make(kind: str, made: dict[str, Any]) -> Any:
    """A core, from what its constructor was given when it was recorded."""
    return CORES[kind](**_named(kind, CONSTRUCTOR, made))


def call(kind: str, core: Any, event: str, given: dict[str, Any]) -> Any:
    """Tell a core of an event; the actions that it answers with."""
    return getattr(core, method_of(kind, event))(**_named(kind, event, given))


def _named(kind: str, event: str, given: dict[str, Any]) -> dict[str, Any]:
    return {parameter_of(kind, event, name): value for name, value in given.items()}


def state(core: Any) -> list[Any]:
    """What a shell asks a core between events, beside its actions."""
    return [core.next_tick_ns(), bool(getattr(core, "finished", False))]


def aggregator(name: str, world_size: int) -> Any:
    """The aggregator of a job."""
    return make_aggregator(name, world_size)
