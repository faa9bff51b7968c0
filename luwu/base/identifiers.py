"""Names of quantities as keys of documents: `output_layer` there, `output layer` for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

ValueT = TypeVar("ValueT")


def identifier(name: str) -> str:
    """A name as a key in snake case."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def by_identifier(named: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """The same values by keys in snake case."""
    return {identifier(name): value for name, value in named.items()}


def words(key: str) -> str:
    """A key in snake case, for people."""
    return key.replace("_", " ")
