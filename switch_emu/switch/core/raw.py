"""Contributions that found no slot and go on singly (S5): which were taken, which are on their way.

A child is told `Received` only when its bytes are on their way, in the window to the parent; until
then its repetitions are dropped without an answer. Pure.
"""

from __future__ import annotations

from switch_emu.switch.core.slots import SlotKey


class RawContributions:
    """Ranks of every chunk that is summed at the node and not here."""

    def __init__(self) -> None:
        self._taken: dict[SlotKey, int] = {}
        self._on_way: dict[SlotKey, int] = {}

    def __contains__(self, key: SlotKey) -> bool:
        return key in self._taken

    def take(self, key: SlotKey, contributors: int) -> bool:
        """Take ranks in; False if any was taken already."""
        taken = self._taken.get(key, 0)
        if taken & contributors:
            return False
        self._taken[key] = taken | contributors
        return True

    def sent(self, key: SlotKey, contributors: int) -> None:
        """Their bytes are on their way."""
        self._on_way[key] = self._on_way.get(key, 0) | contributors

    def is_sent(self, key: SlotKey, contributors: int) -> bool:
        """Whether any of these ranks' bytes are on their way."""
        return bool(self._on_way.get(key, 0) & contributors)

    def forget(self, step: int | None = None) -> None:
        """Forget all chunks, or those of a step."""
        for ranks_of in (self._taken, self._on_way):
            for key in [key for key in ranks_of if step is None or key[0] == step]:
                del ranks_of[key]
