"""The description of a version for its reader: canonical JSON, the payload of `Opened`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from luwu.base.errors import RemoteProtocolError
from luwu.wire.description import Description, parse_description

ATTACHED = "attached."
"""Field `attached.3`, chunk 1: piece 1 of what rank 3 keeps beside the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFacts:
    """A decided version, beside its pages."""

    version: int
    """Count of decided steps: what it holds is the state before step `version`."""
    description: bytes
    """The job's, as `Description.to_bytes` gives it."""
    hyper: bytes = b""
    """Hyper-parameters of the step that made it; empty for the initial weights."""
    applied: bool = True
    grad_norm: float | None = None
    attempt: int = 0
    """In which it was made."""
    extra: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> bytes of each piece that it keeps beside this version."""
    measured_step: int | None = None
    """The step whose statistics can be read: the last measured one; see `statistics.py`."""

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        document = {
            "version": self.version,
            "description": self.description.decode(),
            "hyper": self.hyper.hex(),
            "applied": self.applied,
            "grad_norm": None if self.grad_norm is None else self.grad_norm.hex(),
            "attempt": self.attempt,
            "extra": dict(self.extra),
            "attached": {str(rank): list(sizes) for rank, sizes in self.attached.items()},
            "measured_step": self.measured_step,
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def job(self) -> Description:
        """The description, read. Raises RemoteProtocolError."""
        return parse_description(self.description)


def parse_facts(encoded: bytes) -> VersionFacts:
    """The facts that a node sent. Raises RemoteProtocolError if they are malformed."""
    try:
        found = json.loads(encoded)
        norm = found["grad_norm"]
        extra, measured = found["extra"], found["measured_step"]
        attached = {int(rank): tuple(sizes) for rank, sizes in found["attached"].items()}
        numbers = [
            found["version"],
            found["attempt"],
            *(s for each in attached.values() for s in each),
        ]
        if measured is not None:
            numbers.append(measured)
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a number is of another type, or negative")
        if type(found["applied"]) is not bool:
            raise ValueError("applied is of another type")
        if not all(type(text) is str for pair in extra.items() for text in pair):
            raise ValueError("extra holds something else than texts")
        return VersionFacts(
            version=found["version"],
            description=found["description"].encode(),
            hyper=bytes.fromhex(found["hyper"]),
            applied=found["applied"],
            grad_norm=None if norm is None else float.fromhex(norm),
            attempt=found["attempt"],
            extra=extra,
            attached=attached,
            measured_step=measured,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise RemoteProtocolError(f"the facts of a version cannot be read: {exc}") from exc
