"""Agreement of a switch's children about an extent before they push it. Pure.

    Propose    all children have sent it: one to the parent    Agreed, when the parent sends it

Propose says what a child must know of all before it encodes the extent. An answer is held until its
step is decided, for children that ask late or again. Which aggregator combines the proposals
follows from the job's description, which the first child brings.
"""

from __future__ import annotations

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.base.errors import ConfigError
from luwu.protocol.children import Children, Member, RefusedError
from luwu.protocol.outbox import Outbox
from luwu.protocol.uplink import Uplink
from luwu.wire import messages as wire
from luwu.wire.description import aggregate_of
from switch_emu.switch.core.attempts import Attempts
from switch_emu.switch.core.slots import SlotKey


class Agreement:
    """See the module."""

    def __init__(
        self, outbox: Outbox, children: Children, uplink: Uplink, attempts: Attempts
    ) -> None:
        self._outbox, self._uplink, self._attempts = outbox, uplink, attempts
        self._children, self._members = children, children.members
        self.aggregator: Aggregator = Float32(self._members.ranks.bit_count())
        """The job's, known from the first Hello on."""
        self._described = False
        self._proposed: dict[SlotKey, dict[int, bytes]] = {}
        """Proposals of children; complete when the parent is asked."""
        self._agreed: dict[SlotKey, bytes] = {}

    def forget(self, step: int | None = None) -> None:
        """Forget the extents up to a decided step; without one, all."""
        for of_extents in (self._proposed, self._agreed):
            for key in [key for key in of_extents if step is None or key[0] <= step]:
                del of_extents[key]

    def learn(self, peer: str) -> None:
        """Make the aggregator of the first description; `peer`, who brought it, is refused if that
        is not possible here."""
        first = self._members.first
        if first is None or self._described:
            return
        try:
            name = aggregate_of(self._members.description)
            self.aggregator = make_aggregator(name, first.world_size)
            self._described = True
        except ConfigError as exc:
            self._children.refuse(peer, RefusedError(f"the switch cannot add: {exc}"))

    def propose(self, child: Member, m: wire.Propose, proposal: bytes) -> None:
        """A child states what it must agree on with all others; empty: it has no gradient."""
        key = (m.step, m.part, m.index)
        agreed = self._agreed.get(key)
        if agreed is not None:
            self._outbox.send_all((child.peer,), self._agreement(key), agreed)
            return
        step = self._outbox.step
        if not step <= m.step <= step + 1 or not self.aggregator.asks_first:
            return
        proposed = self._proposed.setdefault(key, {})
        if child.ranks in proposed:
            return
        proposed[child.ranks] = proposal
        if len(proposed) == len(self._members.counted):
            self._ask_parent(key, [each for each in proposed.values() if each])

    def _ask_parent(self, key: SlotKey, proposals: list[bytes]) -> None:
        step, part, extent = key
        try:
            combined = self.aggregator.fold(proposals) if proposals else b""
        except ValueError as exc:
            self._attempts.cancel(f"extent {extent}: {exc}")
            return
        propose = self._outbox.stamped(
            wire.Propose, step=step, part=part, index=extent, contributors=self._members.active
        )
        self._uplink.ask(self._outbox.now_ns, ("propose", *key), propose, combined)

    def agreed(self, m: wire.Agreed, agreed: bytes) -> None:
        """The parent knows what all have proposed."""
        key = (m.step, m.part, m.index)
        if self._uplink.answered(("propose", *key)):
            self._agreed[key] = agreed
            self._children.send_all(self._agreement(key), agreed)

    def _agreement(self, key: SlotKey) -> wire.Agreed:
        step, part, extent = key
        return self._outbox.stamped(wire.Agreed, step=step, part=part, index=extent)
