"""Parts of messages: roles, verbs, payload rules, and the decorator that numbers messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar, dataclass_transform

KindT = TypeVar("KindT")


class Role(IntEnum):
    """The role of a process in the job."""

    WORKER = 1
    READER = 2
    """Pulls and never pushes: evaluation, generation."""
    SWITCH = 3
    NODE = 4


class Verb(IntEnum):
    """The request that a `Received` answers."""

    LOAD = 1
    BEGIN = 2
    PUSH = 3
    LEAVE = 4
    KEEP = 5
    PRESENT = 6
    HELLO = 7
    """Not all ranks have joined; `contributors` are those that have, as far as the parent knows."""
    PAGE = 8


class PayloadRule(IntEnum):
    """The number of payload frames after the header."""

    NONE = 0
    ONE = 1
    OPTIONAL = 2


@dataclass_transform(frozen_default=True, kw_only_default=True)
def stamped(kind: type[KindT]) -> type[KindT]:
    """Make a class a dataclass whose objects do not change, though only type checkers see to it.

    A frozen dataclass calls a function to set each field, which took longer than all checks of a
    message that arrived. The codec alone gives fields by their place.
    """
    made: type[Any] = dataclass(slots=True, unsafe_hash=True)(kind)
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True)
def message(
    code: int, payload: PayloadRule = PayloadRule.NONE
) -> Callable[[type[KindT]], type[KindT]]:
    """Make a class a message: it knows its code on the wire; see `stamped`."""

    def make(kind: type[KindT]) -> type[KindT]:
        made: type[Any] = stamped(kind)
        made.CODE, made.PAYLOAD = code, payload
        return made

    return make
