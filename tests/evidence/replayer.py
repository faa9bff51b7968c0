"""Gives recorded events to new cores, and compares what they answer byte for byte.

Cores are replayed one by one, each from its own record: the messages, ticks and results that it was
given are those of the record, whatever other cores answer today.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack

from luwu.base.limits import PROTOCOL_VERSION
from luwu.wire.codec import encode
from tests.evidence import adapter
from tests.evidence.record import Head, Life, Recorded, read
from tests.evidence.values import Coder, message_of


@dataclass(frozen=True)
class Difference:
    """The first event at which a core of today answers something else."""

    where: str
    """History, process and index of the event."""
    event: str
    expected: list[str]
    found: list[str]

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.event}"]
        for index in range(max(len(self.expected), len(self.found))):
            expected = self.expected[index] if index < len(self.expected) else "nothing more"
            found = self.found[index] if index < len(self.found) else "nothing more"
            if expected != found:
                lines += [f"  answer {index}", f"    expected {expected}", f"    found    {found}"]
                break
        return "\n".join(lines)


@dataclass
class Replayed:
    """What was replayed, and what differed."""

    histories_count: int = 0
    lives_count: int = 0
    events_count: int = 0
    actions_count: int = 0
    differences: list[Difference] = field(default_factory=list)
    """At most one a core: what follows upon it means nothing."""


def replay_file(
    path: Path, replayed: Replayed, *, texts: bool = adapter.TEXTS_ARE_COMPARED
) -> None:
    """Replay all histories of a file."""
    head, histories = read(path)
    if head.protocol != PROTOCOL_VERSION:
        raise ValueError(
            f"{path.name} is of protocol {head.protocol}, this is {PROTOCOL_VERSION}: record it "
            "again in the commit that changes the protocol, after a replay with the old one"
        )
    replay(head, histories, replayed, texts=texts)


def replay(
    head: Head, histories: Iterable[Recorded], replayed: Replayed, *,
    texts: bool = adapter.TEXTS_ARE_COMPARED,
) -> None:  # fmt: skip
    """Replay histories; without `texts`, what people read may differ."""
    for history in histories:
        replayed.histories_count += 1
        for number, life in enumerate(history.lives):
            replayed.lives_count += 1
            where = f"history {history.name}, process {number} ({life.kind})"
            difference = _replay_life(head, life, where, replayed, texts=texts)
            if difference is not None:
                replayed.differences.append(difference)


def _replay_life(
    head: Head, life: Life, where: str, replayed: Replayed, *, texts: bool
) -> Difference | None:
    coder = Coder(head.types)
    parameters = head.events[life.kind]
    names = parameters[adapter.CONSTRUCTOR]
    values = [coder.decode(value) for value in life.made]
    core = adapter.make(life.kind, dict(zip(names, values, strict=True)))
    state: list[Any] | None = None
    for index, (event, given, answered, new_state) in enumerate(life.events):
        values = [coder.decode(value) for value in given]
        named = dict(zip(parameters[event], values, strict=True))
        found = _answer(coder, life.kind, core, event, named)
        state = state if new_state is None else new_state
        replayed.events_count += 1
        replayed.actions_count += len(answered)
        expected, found_state = answered, adapter.state(core)
        if not texts:
            expected, found = without_texts(head, expected), without_texts(head, found)
        if msgpack.packb([expected, state]) != msgpack.packb([found, found_state]):
            return Difference(
                f"{where}, event {index}", f"{event}({', '.join(map(shown, given))})",
                _lines(expected, state), _lines(found, found_state),
            )  # fmt: skip
    return None


def _answer(coder: Coder, kind: str, core: Any, event: str, given: dict[str, Any]) -> Any:
    try:
        actions = adapter.call(kind, core, event, given)
    except Exception as exc:  # a core that raises something else is a difference as any other
        return {"raised": type(exc).__name__}
    return coder.answered(actions or ())


# ---------------------------------------------------------------------- for people


def _lines(answered: Any, state: list[Any] | None) -> list[str]:
    actions = [shown(each) for each in answered] if isinstance(answered, list) else [str(answered)]
    return [*actions, f"wants a tick at {state[0]}, finished: {state[1]}" if state else "no state"]


def shown(value: Any) -> str:
    """A value of a record, for people."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {value[:16].hex()}"
    if not isinstance(value, dict):
        return repr(value)
    [(name, inner)] = value.items()
    if name == "m":
        return str(message_of(inner))
    if name == "p":
        return f"payload {inner if isinstance(inner, int) else inner[0]}"
    return f"{name}{shown(inner)}"


def without_texts(head: Head, value: Any) -> Any:
    """The same, where every text for people is empty."""
    if isinstance(value, list):
        return [without_texts(head, each) for each in value]
    if not isinstance(value, dict):
        return value
    [(name, inner)] = value.items()
    if name == "m":
        message: Any = message_of(inner)
        found = {each: "" for each in adapter.TEXT_FIELDS if hasattr(message, each)}
        return {"m": encode(replace(message, **found)) if found else inner}
    if name == "Note":
        event, pairs, level = inner
        kept = [[key, "" if key in adapter.TEXT_FIELDS else each] for key, each in pairs]
        return {name: [event, kept, level]}
    if name in head.types:
        fields = zip(head.types[name], inner, strict=True)
        return {
            name: [
                "" if each in adapter.TEXT_FIELDS else without_texts(head, part)
                for each, part in fields
            ]
        }
    return value
