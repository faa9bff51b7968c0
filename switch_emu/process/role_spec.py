"""What a node and a switch are both started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from luwu.base.job_spec import JobSpec
from luwu.base.links import LinkPair


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec(JobSpec):
    """Where a role listens and is known, what it writes, and the network it emulates."""

    listen: str
    """Endpoint for its children; `tcp://127.0.0.1:0` and `ipc://auto` let the system choose."""
    advertise: str | None = None
    """Host, or host and port, that is announced in place of the one listened on."""
    incarnation: int | None = None
    """Number of this start, larger than that of the one before; None: the clock says."""
    keys: Path | None = None
    """Directory of keys, where connections over tcp have keys; `key_name`: which is ours."""
    key_name: str = ""
    events: Path | None = None
    counters: Path | None = None
    """Where what was counted is put, once a second and at the end."""
    drop_after_s: float | None = None
    """How long a child of a switch may be away until the job goes on without it; None: it waits."""
    link: LinkPair | None = None
    """Emulated, to each child; None: none is."""
    link_seed: int = 0
    fidelity: str = "functional"
    """Of the switch, or of a node's own."""
    slots: int | None = None
    """In protocol fidelity; None: as many as there is memory for, up to a default."""
