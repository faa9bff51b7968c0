"""The attempt that counts at a switch, and its request to give it up. Pure.

A worker asks to give an attempt up with `Cancel`; the switch asks too, where what its children send
does not fit together. One request goes to the parent and is repeated until another attempt begins.
It names all ranks that were started again since the attempt began.
"""

from __future__ import annotations

from luwu.protocol.children import Children
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire

TEXT_CHARS = 900
"""Maximum length of a request's text: several texts, those of children included, share a
message."""


class Attempts:
    """See the module."""

    def __init__(self, outbox: Outbox, children: Children, uplink: Uplink) -> None:
        self._outbox, self._children, self._uplink = outbox, children, uplink
        self._lost = 0
        """Ranks that were started again since the attempt began."""

    def cancel(self, text: str, *, lost: int = 0) -> None:
        """Ask the parent to give the attempt up; `lost`: ranks that were started again."""
        self._lost |= lost
        if lost or not self._uplink.asks("cancel"):
            cancel = self._outbox.stamped(wire.Cancel, text=text[:TEXT_CHARS], lost=self._lost)
            self._uplink.ask(self._outbox.now_ns, "cancel", cancel)

    def withdraw(self) -> wire.Cancel | None:
        """Stop asking; what was asked for, if anything."""
        asked = self._uplink.answer("cancel")
        return asked.message if asked and isinstance(asked.message, wire.Cancel) else None

    def forget(self, step: int | None = None) -> None:
        """A new attempt has begun: nothing that was sent under the former awaits an answer, but
        which ranks are present."""
        if step is None:
            self._uplink.forget(lambda name: name == "present")
            self._lost = 0
            self._children.outcomes.undo(self._outbox.step)
