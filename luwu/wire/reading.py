"""The description of a version for its reader: canonical JSON, the payload of `Opened`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from luwu.base.errors import RemoteProtocolError
from luwu.base.foreign import MALFORMED, natural, parse_json, plain_text, typed
from luwu.base.limits import PROTOCOL_VERSION
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
    """The attempt in which it was made."""
    extra: Mapping[str, str] = field(default_factory=dict)
    attached: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Rank -> bytes of each piece that it keeps beside this version."""

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        document = {
            "protocol": PROTOCOL_VERSION,
            "version": self.version,
            "description": self.description.decode(),
            "hyper": self.hyper.hex(),
            "applied": self.applied,
            "grad_norm": None if self.grad_norm is None else self.grad_norm.hex(),
            "attempt": self.attempt,
            "extra": dict(self.extra),
            "attached": {str(rank): list(sizes) for rank, sizes in self.attached.items()},
        }
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @property
    def job(self) -> Description:
        """The description, read. Raises RemoteProtocolError."""
        return parse_description(self.description)


def parse_facts(encoded: bytes) -> VersionFacts:
    """The facts that a node sent. Raises RemoteProtocolError if they are malformed."""
    try:
        found = parse_json(encoded)
        if found.get("protocol") != PROTOCOL_VERSION:  # a reader sends no Hello that would say so
            raise ValueError(
                f"the node's protocol version is {found.get('protocol', 'not stated (older)')}, "
                f"this side's is {PROTOCOL_VERSION}; install the same luwu on both sides"
            )
        norm = found["grad_norm"]
        return VersionFacts(
            version=natural(found["version"]),
            description=found["description"].encode(),
            hyper=bytes.fromhex(found["hyper"]),
            applied=typed(found["applied"], bool),
            grad_norm=None if norm is None else float.fromhex(norm),
            attempt=natural(found["attempt"]),
            extra={plain_text(k): plain_text(v) for k, v in typed(found["extra"], dict).items()},
            attached={
                int(rank): tuple(map(natural, sizes)) for rank, sizes in found["attached"].items()
            },
        )
    except MALFORMED as exc:
        raise RemoteProtocolError(f"the facts of a version cannot be read: {exc}") from exc
