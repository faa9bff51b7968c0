"""What children of a switch agree on about a chunk: how to encode it, whether it was a sum. Pure.

    Propose    waits for all children, folds what they say, says one       Agreed, when the parent
    Confirm    asks the parent once                                        Confirmed; says so

An answer is kept until its step is decided, for children that ask late or again. Which aggregator
folds follows from the job's description, which the first child brings.
"""

from __future__ import annotations

from collections.abc import Sequence

from luwu.aggregate import Aggregator, Float32, make_aggregator
from luwu.base.errors import ConfigError
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.members import Member, RefusedError
from luwu.wire import messages as wire
from luwu.wire.description import aggregate_of
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.slots import SlotKey
from switch_emu.switch.core.statements import SwitchStatements


class SwitchAgreeing(SwitchStatements):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, rank: int, children: Sequence[int],
        limits: SwitchLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, rank, children, limits, retry)
        self.aggregator: Aggregator = Float32(self._members.ranks.bit_count())
        """The job's, known from the first Hello on."""
        self._described = False
        self._proposed: dict[SlotKey, dict[int, bytes]] = {}
        """What children said; complete where the parent is asked."""
        self._agreed: dict[SlotKey, bytes] = {}
        self._confirmed: dict[SlotKey, bool] = {}

    def _forget(self, step: int | None = None) -> None:
        super()._forget(step)
        for of_chunks in (self._proposed, self._agreed, self._confirmed):
            for key in [key for key in of_chunks if step is None or key[0] <= step]:
                del of_chunks[key]

    def _hello(self, peer: str, m: wire.Hello, description: bytes) -> None:
        super()._hello(peer, m, description)
        first = self._members.first
        if first is None or self._described:
            return
        try:
            name = aggregate_of(self._members.description)
            self.aggregator = make_aggregator(name, first.world_size)
            self._described = True
        except ConfigError as exc:
            self._refuse_child(peer, RefusedError(f"the switch cannot add: {exc}"))

    # ---------------------------------------------------------------------- before a chunk

    def _propose(self, peer: str, member: Member, m: wire.Propose, statement: bytes) -> None:
        key = (m.step, m.part, m.chunk)
        agreed = self._agreed.get(key)
        if agreed is not None:
            self._announce((peer,), self._agreement(key), agreed)
            return
        if not self._step <= m.step <= self._step + 1 or not self.aggregator.asks_first:
            return
        said = self._proposed.setdefault(key, {})
        if member.ranks in said:
            return
        said[member.ranks] = statement
        if len(said) == len(self._members.counted):
            self._ask_parent(key, [each for each in said.values() if each])

    def _ask_parent(self, key: SlotKey, statements: list[bytes]) -> None:
        step, part, chunk = key
        try:
            folded = self.aggregator.fold(statements) if statements else b""
        except ValueError as exc:
            self._cancel(f"chunk {chunk}: {exc}")
            return
        ranks = self._members.active
        propose = self._ours(wire.Propose, step=step, part=part, chunk=chunk, contributors=ranks)
        self._uplink.ask(self._now_ns, ("propose", *key), propose, folded)

    def _heard_agreed(self, m: wire.Agreed, agreed: bytes) -> None:
        key = (m.step, m.part, m.chunk)
        if self._uplink.answered(("propose", *key)):
            self._agreed[key] = agreed
            self._announce(self._members.peers, self._agreement(key), agreed)

    def _agreement(self, key: SlotKey) -> wire.Agreed:
        step, part, chunk = key
        return self._ours(wire.Agreed, step=step, part=part, chunk=chunk)

    # ---------------------------------------------------------------------- after a chunk

    def _confirm(self, peer: str, m: wire.Confirm) -> None:
        key = (m.step, m.part, m.chunk)
        fits = True if m.step < self._step else self._confirmed.get(key)
        if fits is not None:
            self._tell(peer, self._confirmation(key, fits))
        elif not self._uplink.asks(("confirm", *key)):
            confirm = self._ours(wire.Confirm, step=m.step, part=m.part, chunk=m.chunk)
            self._uplink.ask(self._now_ns, ("confirm", *key), confirm)

    def _heard_confirmed(self, m: wire.Confirmed) -> None:
        """Also unasked: the parent tells all when it knows."""
        key = (m.step, m.part, m.chunk)
        self._uplink.answered(("confirm", *key))
        if key not in self._confirmed and m.step >= self._step:
            self._confirmed[key] = m.fits
            self._tell_all(self._confirmation(key, m.fits))

    def _confirmation(self, key: SlotKey, fits: bool) -> wire.Confirmed:
        step, part, chunk = key
        return self._ours(wire.Confirmed, step=step, part=part, chunk=chunk, fits=fits)
