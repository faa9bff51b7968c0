"""What a reader is told of the version it holds: canonical JSON, the payload of `Opened`."""

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
    extra: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        document = {
            "version": self.version,
            "description": self.description.decode(),
            "hyper": self.hyper.hex(),
            "applied": self.applied,
            "grad_norm": None if self.grad_norm is None else self.grad_norm.hex(),
            "extra": dict(self.extra),
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    def attached_sizes(self) -> dict[int, list[int]]:
        """Rank -> bytes of each piece that it keeps beside this version."""
        record = self.extra.get("kept")
        if record is None:
            return {}
        pieces = json.loads(record)["pieces"]
        return {int(rank): [size for _, _, size, _ in each] for rank, each in pieces.items()}

    @property
    def job(self) -> Description:
        """The description, read. Raises RemoteProtocolError."""
        return parse_description(self.description)


def parse_facts(encoded: bytes) -> VersionFacts:
    """What a node sent. Raises RemoteProtocolError if it is none."""
    try:
        found = json.loads(encoded)
        norm = found["grad_norm"]
        extra = found["extra"]
        if type(found["version"]) is not int or type(found["applied"]) is not bool:
            raise ValueError("version or applied is of another type")
        if not all(type(text) is str for pair in extra.items() for text in pair):
            raise ValueError("extra holds something else than texts")
        return VersionFacts(
            version=found["version"],
            description=found["description"].encode(),
            hyper=bytes.fromhex(found["hyper"]),
            applied=found["applied"],
            grad_norm=None if norm is None else float.fromhex(norm),
            extra=extra,
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        raise RemoteProtocolError(f"the facts of a version cannot be read: {exc}") from exc
