"""Actions of the switch's core beside `Send`, `Drop`, `Note`, and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from luwu.protocol.actions import Drop, Note, Payload, Send
from switch_emu.switch.core.fixed_slots import PoolSize
from switch_emu.switch.core.slots import SlotKey


@dataclass(frozen=True, slots=True)
class Sum:
    """Add the payloads in this order, in float32, or combine them where they are encoded; answer
    with `SwitchCore.summed`.

    The payloads may be dropped by any later action: add before the next one is looked at.
    """

    key: SlotKey
    attempt: int
    payloads: tuple[Payload, ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """Copy the weights of an extent for a step to memory of ours; answer with `SwitchCore.cached`.

    The payload may be dropped by any later action: copy before the next one is looked at.
    """

    extent: int
    step: int
    part: int
    attempt: int
    dtype: str
    payload: Payload
    is_new: bool = True
    """False: they are ours already, and count for this step as for the one before."""


Action = Send | Drop | Note | Sum | Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLimits:
    """Limits of a switch."""

    slot_bytes_max: int = 256 * 1024 * 1024
    copies_bytes_max: int = 256 * 1024 * 1024
    """Weights kept for children that have not asked yet."""
    cache_bytes_max: int = 0
    """Weights that pulls are answered with (`weights_down.py`)."""
    push_window_bytes: int = 16 * 1024 * 1024
    """Credit of each child."""
    extent_chunks: int = 1
    """Chunks that travel together at most (`Layout`)."""
    slots: PoolSize | None = None
    """The fixed slots of protocol fidelity; None: functional, as many as the bytes allow."""
    drop_after_ns: int | None = None
    """How long a child may be away, or later than anybody usually is, before the job goes on
    without it; None: it is waited for, and so a child that is ahead of all others waits for a
    slot. (Who is late shows when the others commit, so no child may wait where late ones are left
    out.)"""
    drop_node_after_ns: int | None = None
    """How long one of several optimizer nodes may be gone before the job goes on without it, where
    others hold its pages; None: it is waited for."""
    fill_rate_bytes_per_s: float | None = None
    """Pages that are copied to a node that is being filled; None: a lost node stays left out."""
    workers_min: int | None = None
    """With several optimizer nodes: `NodeLimits.workers_min` of the job."""
    workers_max: int | None = None
    """The same of `NodeLimits.workers_max`."""

    def window(self, window_bytes: int) -> int:
        """A window of pushes, to us or to the parent: no more than the slots take at once."""
        return window_bytes if self.slots is None else min(window_bytes, self.slots.window_bytes)

    def in_arenas(self, arena_bytes: int, children_count: int, extent_bytes: int) -> SwitchLimits:
        """The same where what children push lies in shared memory of theirs, so much of each.

        Half of an arena may wait in slots and an eighth be under way; a quarter may wait at the
        node, raw (`NodeLimits.raw_bytes_max`). So a child that is ahead of all others always finds
        room for its next gradient.
        """
        return replace(
            self,
            slot_bytes_max=arena_bytes // 2 * children_count,
            push_window_bytes=max(extent_bytes, arena_bytes // 8),
        )
