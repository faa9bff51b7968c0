"""The specification that nodes and switches have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luwu.base.job_spec import JobSpec
from luwu.base.links import LinkPair


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec(JobSpec):
    """Endpoints, keys and files of a role, and the network it emulates."""

    listen: str
    """Endpoint for its children; `tcp://127.0.0.1:0` and `ipc://auto` let the system choose."""
    advertise: str | None = None
    """Host, or host and port, that is announced instead of `listen`."""
    incarnation: int | None = None
    """Number of this start, larger than the one before; None: taken from the clock."""
    keys: Path | None = None
    """Directory of keys, where connections over tcp have keys; `key_name`: our own."""
    key_name: str = ""
    events: Path | None = None
    counters: Path | None = None
    """File of the counters, written once a second and at the end."""
    link: LinkPair | None = None
    """The emulated link to each child; None: none."""
    link_seed: int = 0
    fidelity: str = "functional"
    """Fidelity of the switch, or of a node's own."""
    slots: int | None = None
    """Slots in protocol fidelity; None: as many as fit in memory, up to a default."""
