"""What the switch's core asks of its shell beside `Send`, `Drop`, `Note`, and what it may hold."""

from __future__ import annotations

from dataclasses import dataclass

from luwu.wire.actions import Drop, Note, Payload, Send
from switch_emu.switch.slots import SlotKey


@dataclass(frozen=True, slots=True)
class Sum:
    """Add the payloads in this order, in float32; answer with `SwitchCore.summed`.

    The payloads may be dropped by any later action: add before the next one is looked at.
    """

    key: SlotKey
    attempt: int
    payloads: tuple[Payload, ...]
    dtypes: tuple[str, ...]


Action = Send | Drop | Note | Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchLimits:
    """What a switch may hold."""

    slot_bytes_max: int = 256 * 1024 * 1024
    copies_bytes_max: int = 256 * 1024 * 1024
    """Weights kept for children that have not asked yet."""
    push_window_bytes: int = 16 * 1024 * 1024
    """Credit of each child."""
