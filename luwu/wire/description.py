"""The job as all ranks must see it: layout, optimizer, and whatever else a script agrees on.

It travels once, as the payload of `Hello`, in canonical JSON; its SHA-256 is the *layout hash* that
every later Hello is compared with. Two ranks that differ are shown the difference.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from luwu.aggregate import FLOAT32
from luwu.base.errors import ConfigError, RemoteProtocolError
from luwu.base.foreign import MALFORMED, natural, parse_json, plain_text, typed
from luwu.base.limits import NODE_COUNT_MAX
from luwu.layout import ALL_FLOAT32, Layout, Parameter, StoredForm, Unit

DIFFERENCES_SHOWN_MAX = 6
AGGREGATE = "aggregate"
"""Key of the agreement that holds the aggregator's name."""
BESIDE = "beside"
"""Key of the agreement that holds the frozen models beside the trained one: a state is
resumed by a job that has the same ones."""
NORM_TYPE = "norm_type"
"""Key of the agreement that holds another norm than the 2-norm."""
NORM_TYPES: Final = (1.0, 2.0, math.inf)
"""Norms by which gradients can be clipped."""
DIMENSIONS_MAX = 64
"""Dimensions of one parameter: the most that torch allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The job: the model, the optimizer and the settings that all ranks share."""

    layout: Layout
    optimizer: str
    """Name of the update: `adamw`, `sgd`; `none` for a reader."""
    update: str = "at_step"
    """Order of work: `at_step` or `streaming`."""
    state_fields: tuple[str, ...] = ()
    """Names of the fields an updated page holds beside its weights (`luwu.wire.stored`)."""
    agreement: Mapping[str, str] = field(default_factory=dict)
    """Further values that must be equal on all ranks: data digest, seed, ..."""

    @property
    def aggregate(self) -> str:
        """The name of the aggregator by which gradients are added (`luwu.aggregate`)."""
        return self.agreement.get(AGGREGATE, FLOAT32)

    @property
    def norm_type(self) -> float:
        """The norm of a step's gradient: 1, 2 or infinity."""
        return float(self.agreement.get(NORM_TYPE, "2"))

    def aggregated_by(self, name: str) -> Description:
        """The same job with this aggregator. float32 is not written down: it is what is meant."""
        kept = {key: value for key, value in self.agreement.items() if key != AGGREGATE}
        return replace(self, agreement=kept if name == FLOAT32 else {**kept, AGGREGATE: name})

    def to_bytes(self) -> bytes:
        """Canonical JSON: equal descriptions are equal bytes."""
        layout = self.layout
        document = {
            "parameters": [_row(parameter) for parameter in layout.parameters],
            "units": [[unit.name, list(unit.parameters)] for unit in layout.units],
            "chunk_bytes": layout.chunk_bytes,
            "node_count": layout.optimizer_nodes,
            "optimizer": self.optimizer,
            "update": self.update,
            "state_fields": list(self.state_fields),
            "agreement": dict(self.agreement),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical bytes, in hex."""
        return description_hash(self.to_bytes())


def description_hash(encoded: bytes | memoryview) -> str:
    """SHA-256 in hex of a description's bytes."""
    return hashlib.sha256(encoded).hexdigest()


def parse_description(encoded: bytes | memoryview, extent_chunks: int = 1) -> Description:
    """The description a peer sent, or a state has; chunks travel as `extent_chunks` says.

    Raises RemoteProtocolError if it is not one.
    """
    try:
        document = parse_json(encoded)
        layout = Layout(
            parameters=tuple(_parameter(row) for row in _rows(document, "parameters")),
            units=tuple(
                Unit(name=plain_text(name), parameters=tuple(map(natural, typed(members, list))))
                for name, members in _rows(document, "units")
            ),
            chunk_bytes=natural(document["chunk_bytes"]),
            optimizer_nodes=natural(document["node_count"], NODE_COUNT_MAX),
            extent_chunks=extent_chunks,
        )
        found = Description(
            layout=layout,
            optimizer=typed(document["optimizer"], str),
            update=typed(document["update"], str),
            state_fields=tuple(typed(n, str) for n in _rows(document, "state_fields")),
            agreement={
                typed(k, str): typed(v, str) for k, v in typed(document["agreement"], dict).items()
            },
        )
    except (ConfigError, *MALFORMED) as exc:
        text = f"the job description of a peer cannot be read: {exc!s:.400}"
        raise RemoteProtocolError(text) from exc
    if found.update not in ("at_step", "streaming"):
        raise RemoteProtocolError(f"the job description asks for update={found.update!r:.40}")
    if found.agreement.get(NORM_TYPE, "2") not in ("1", "2", "inf"):
        said = found.agreement[NORM_TYPE]
        raise RemoteProtocolError(f"the job description asks for norm_type={said!r:.40}")
    return found


def aggregate_of(encoded: bytes | memoryview) -> str:
    """The aggregator's name in a description that is not read yet; float32 if it cannot be read.

    Never raises: the reader of the description reports what is wrong with it.
    """
    try:
        name = parse_json(encoded)["agreement"].get(AGGREGATE, FLOAT32)
    except MALFORMED:
        return FLOAT32
    return name if isinstance(name, str) else FLOAT32


def differences(found: bytes | memoryview, expected: bytes | memoryview) -> list[str]:
    """The differences of two descriptions, a line each, for people; the first few only.

    Never raises: either may be anything a peer sent.
    """
    lines: list[str] = []
    try:
        ours, theirs = parse_json(expected), parse_json(found)
        for key in sorted(set(ours) | set(theirs)):
            lines.extend(_differences_at(key, theirs.get(key), ours.get(key)))
    except MALFORMED:
        return ["a job description cannot be read"]
    if len(lines) > DIFFERENCES_SHOWN_MAX:
        more = len(lines) - DIFFERENCES_SHOWN_MAX
        lines = [*lines[:DIFFERENCES_SHOWN_MAX], f"and {more} more"]
    return lines


def _differences_at(key: str, found: object, expected: object) -> list[str]:
    if found == expected:
        return []
    if isinstance(found, list) and isinstance(expected, list):
        lines = []
        if len(found) != len(expected):
            lines.append(f"{key}: {len(found)} entries, expected {len(expected)}")
        for index, (one, other) in enumerate(zip(found, expected, strict=False)):
            if one != other:
                lines.append(f"{key}[{index}]: {_brief(one)}, expected {_brief(other)}")
        return lines
    if isinstance(found, dict) and isinstance(expected, dict):
        return [
            line
            for name in sorted(set(found) | set(expected))
            for line in _differences_at(f"{key}.{name}", found.get(name), expected.get(name))
        ]
    return [f"{key}: {_brief(found)}, expected {_brief(expected)}"]


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _row(p: Parameter) -> list[object]:
    """A parameter in JSON. Storage fields are omitted for float32 updated element by element."""
    row: list[object] = [p.name, list(p.shape), p.dtype, p.wire_dtype, p.trainable, p.group]
    return row if p.form == ALL_FLOAT32 else [*row, *p.form]


def _parameter(row: Any) -> Parameter:
    name, shape, dtype, wire_dtype, trainable, group, *stored = typed(row, list)
    state, master, whole = stored or ALL_FLOAT32
    if len(typed(shape, list)) > DIMENSIONS_MAX:
        raise ValueError(f"a parameter has {len(shape)} dimensions")
    return Parameter(
        name=plain_text(name),
        shape=tuple(natural(extent) for extent in shape),
        dtype=typed(dtype, str),
        wire_dtype=typed(wire_dtype, str),
        trainable=typed(trainable, bool),
        group=natural(group),
        form=StoredForm(typed(state, str), typed(master, str), typed(whole, bool)),
    )


def _rows(document: Any, key: str) -> list[Any]:
    rows: list[Any] = typed(document[key], list)
    return rows
