"""Messages of step 0 that come before its weights are decided. Pure.

A worker that does not pull before it pushes (a replicated model, an empty backward) may be that
early. What it sends is kept, within the window, until version 0 is decided: its sender repeats what
is not answered only after seconds.
"""

from __future__ import annotations

from typing import Any, Final

from luwu.protocol.outbox import Outbox
from luwu.wire import messages as wire

_KINDS: Final = (wire.Push, wire.Propose, wire.Commit, wire.Keep)


class Early:
    """What is received again, as it came, when there are weights."""

    def __init__(self, outbox: Outbox, bytes_max: int) -> None:
        self._outbox, self._bytes_max = outbox, bytes_max
        self._bytes = 0
        self._kept: dict[tuple[str, wire.Message], tuple[Any, int]] = {}
        """Sender and message -> its payload."""

    def is_early(self, m: wire.Message) -> bool:
        """True if this message must wait, as long as there are no weights."""
        return m.step == 0 and isinstance(m, _KINDS)

    def keep(self, peer: str, m: wire.Message, payload: Any, payload_bytes: int) -> None:
        """Keep a message; a repetition, and what is beyond the window, is dropped."""
        if (peer, m) in self._kept or self._bytes + payload_bytes > self._bytes_max:
            self._outbox.ignore(m, payload)
            return
        self._kept[peer, m] = payload, payload_bytes
        self._bytes += payload_bytes

    def take(self) -> list[tuple[str, wire.Message, Any, int]]:
        """All that is kept, in the order in which it came."""
        found = [(peer, m, *kept) for (peer, m), kept in self._kept.items()]
        self._kept.clear()
        self._bytes = 0
        return found

    def forget(self) -> None:
        """A new attempt: what came under the older one does not count."""
        for _, m, payload, _ in self.take():
            self._outbox.ignore(m, payload)
