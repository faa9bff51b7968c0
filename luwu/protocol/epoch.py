"""The epoch of a job with several optimizer nodes, as each of them has recorded it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from luwu.base.tree import ranks_of


class Epoch(NamedTuple):
    """See E1 to E3 of `switch_emu/switch/core/lead.py`."""

    number: int = 0
    members: int = 0
    """Bitmap of its nodes; 0: none was recorded, and all of the job are members."""
    promised: int = 0
    """Incarnation of the newest switch that this node has answered; older ones are rejected."""


NO_EPOCH: Final = Epoch()

UNKNOWN_EPOCHS: Final = 1 << 20
"""More epochs than a node may have been a member of since those that others know of: an operator
who gives it up goes beyond them, so that it counts no more if it comes back after all."""


def are_enough(there: int, members: int) -> bool:
    """E3: all members of an epoch are there; of three or more, most. No later epoch is without one
    of these nodes, so none is unknown to all of them."""
    count, there_count = members.bit_count(), (members & there).bit_count()
    return there_count == count or (count >= 3 and 2 * there_count > count)


def is_beyond(epoch: int, known: int) -> bool:
    """True if an operator has given up the nodes that know of no later epoch than `known`."""
    return epoch >= known + UNKNOWN_EPOCHS // 2


def nodes_of(members: int) -> tuple[int, ...]:
    """The nodes of a bitmap, by number."""
    return tuple(ranks_of(members))


def nodes_text(members: int) -> str:
    """The same, for people: `node 1`, `nodes 0, 2`."""
    nodes = nodes_of(members)
    return f"node{'s' * (len(nodes) > 1)} {', '.join(map(str, nodes))}"


def change_text(*, lost: int, back: int = 0) -> str:
    """Why other nodes count: those of these bitmaps were lost, or started again."""
    reasons = [f"optimizer {nodes_text(lost)} lost"] if lost else []
    reasons += [f"optimizer {nodes_text(back)} started again"] if back else []
    return " and ".join(reasons)
