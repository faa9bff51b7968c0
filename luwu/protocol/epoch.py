"""The epoch of a job with several optimizer nodes, as each of them has recorded it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple


class Epoch(NamedTuple):
    """See E1 to E3 of `switch_emu/switch/core/lead.py`."""

    number: int = 0
    members: int = 0
    """Bitmap of its nodes; 0: none was recorded, and all of the job are members."""
    promised: int = 0
    """Incarnation of the newest switch that this node has answered; older ones are refused."""


NO_EPOCH: Final = Epoch()


def nodes_of(members: int) -> tuple[int, ...]:
    """The nodes of a bitmap, by number."""
    return tuple(number for number in range(members.bit_length()) if members >> number & 1)


def nodes_text(members: int) -> str:
    """The same, for people: `node 1`, `nodes 0, 2`."""
    nodes = nodes_of(members)
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"
