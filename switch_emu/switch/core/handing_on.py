"""What the switch hands on as it is: weights downwards, raw gradients and initial weights upwards.

    Pull, Weights   asked for once, one copy to each child that asks (`copies.py`)
    Push, raw       a chunk without a slot: every contribution singly (`raw.py`; S5)
    Load            initial weights, chunk by chunk
    Keep            what a worker keeps beside a step

Pure. A child hears `Received` when its bytes are in the window to the parent; of initial weights,
when the parent has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import Payload, Send
from luwu.protocol.contribution import Contribution
from luwu.protocol.members import Member, ranks_text
from luwu.protocol.uplink import Cargo
from luwu.wire import messages as wire
from luwu.wire.kinds import Verb
from switch_emu.switch.core.actions import SwitchLimits
from switch_emu.switch.core.agreeing import SwitchAgreeing
from switch_emu.switch.core.copies import WeightsCopies
from switch_emu.switch.core.raw import RawContributions
from switch_emu.switch.core.slots import SlotKey


class SwitchHandingOn(SwitchAgreeing):
    """See the module."""

    def __init__(
        self, job: int, incarnation: int, rank: int, children: Sequence[int],
        limits: SwitchLimits, retry: RetryPolicy,
    ) -> None:  # fmt: skip
        super().__init__(job, incarnation, rank, children, limits, retry)
        self.copies = WeightsCopies(child_count=len(children), bytes_max=limits.copies_bytes_max)
        self._raw = RawContributions()
        self.raw_count = 0
        """Contributions that found no slot and went on raw."""
        self._loads: set[int] = set()
        """Chunks of initial weights that were handed on."""
        self._keeps: set[tuple[int, int, int]] = set()
        """(step, ranks, piece) that the parent has."""

    def _forget(self, step: int | None = None) -> None:
        super()._forget(step)
        self._drop_all(self.copies.forget(step_max=step))
        self._raw.forget(step)
        if step is None:
            self._loads.clear()
            self.copies.serve(len(self._members.counted))
        self._keeps = {key for key in self._keeps if step is not None and key[0] > step}

    @staticmethod
    def _fault_of_ranks(member: Member, m: wire.Push) -> str:
        """A member speaks for its own ranks only, whatever its header says."""
        if m.contributors and not m.contributors & ~member.ranks:
            return ""
        said = ranks_text([m.contributors])
        return f"it pushed for ranks {said}, and speaks for {ranks_text([member.ranks])}"

    # ---------------------------------------------------------------------- weights, downwards

    def _pull(self, peer: str, member: Member, m: wire.Pull) -> None:
        part = m.part
        if self._limits.only_forwards:  # each child's use is one of its own to the parent
            children = self._members.children
            part = m.part * len(children) + children.index(member.ranks)
        key = (m.step, part, m.chunk)
        if not self._step <= m.step <= self._step + 1:
            return
        copy = self.copies.asked(key, peer)
        if copy is not None and copy.weights is not None:
            self._actions.append(Send((peer,), copy.weights, copy.payload))
            self._drop_all(self.copies.trim(key))
        elif not self._uplink.asks(("pull", *key)):
            pull = self._ours(wire.Pull, step=m.step, part=part, chunk=m.chunk)
            self._uplink.ask(self._now_ns, ("pull", *key), pull)

    def _weights(self, m: wire.Weights, payload: Payload, payload_bytes: int) -> None:
        key = (m.step, m.part, m.chunk)
        if not self._uplink.answered(("pull", *key)) or not self.copies.awaits(key):
            self._drop(payload)
            return
        self._loaded = True
        part = m.part // len(self._members.children) if self._limits.only_forwards else m.part
        weights = self._ours(
            wire.Weights, step=m.step, part=part, chunk=m.chunk, dtype=m.dtype,
            in_place=m.in_place,
        )  # fmt: skip
        askers = self.copies.came(key, weights, payload, payload_bytes)
        self._actions.append(Send(askers, weights, payload))
        if self._limits.only_forwards:
            self._drop_all(self.copies.let_go(key))
        else:
            self._drop_all(self.copies.trim(key))

    # ---------------------------------------------------------------------- gradients, upwards

    def _hand_on_raw(
        self, peer: str, key: SlotKey, said: Contribution, receipt: wire.Received
    ) -> None:
        """A contribution that finds no slot; it is received when it enters the window."""
        if self._raw.take(key, said.contributors):
            self.raw_count += 1

            def on_way() -> None:
                self._raw.sent(key, said.contributors)
                self._tell(peer, receipt)

            self._push_up(key, said, raw=True, on_way=on_way)
        else:
            self._drop(said.payload)
            if self._raw.is_sent(key, said.contributors):
                self._tell(peer, receipt)

    def _hand_on_held(
        self, key: SlotKey, held: Contribution, tell: Callable[[], None] | None
    ) -> None:
        """A contribution that was in a slot when the chunk lost it.

        `tell` its child as it enters the window; None: the child has heard that it is received.
        """
        self.raw_count += 1
        self._raw.take(key, held.contributors)
        if tell is None:
            self._raw.sent(key, held.contributors)

        def on_way() -> None:
            if tell is not None:
                self._raw.sent(key, held.contributors)
                tell()

        self._push_up(key, held, raw=True, on_way=on_way)

    def _push_up(
        self, key: SlotKey, said: Contribution, *, raw: bool,
        on_way: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        step, part, chunk = key
        push = self._ours(
            wire.Push, step=step, part=part, chunk=chunk, contributors=said.contributors,
            absent=said.absent, weight=said.weight, last=said.last, raw=raw, dtype=said.dtype,
        )  # fmt: skip
        cargo = Cargo(push, said.payload, said.payload_bytes, on_way)
        self._uplink.load(self._now_ns, ("push", *key, said.contributors), cargo)

    # ---------------------------------------------------------------------- initial weights

    def _load(self, peer: str, m: wire.Load, payload: Payload, payload_bytes: int) -> None:
        if self._loaded or m.chunk in self._loads:
            self._drop(payload)
            if self._loaded or not self._uplink.holds(("load", m.chunk)):
                self._tell(peer, self._receipt(m, Verb.LOAD))
            return
        self._loads.add(m.chunk)
        load = self._ours(wire.Load, step=0, part=0, chunk=m.chunk)
        self._uplink.load(self._now_ns, ("load", m.chunk), Cargo(load, payload, payload_bytes))

    # ---------------------------------------------------------------------- what workers keep

    def _keep(self, peer: str, member: Member, m: wire.Keep, payload: Payload, nbytes: int) -> None:
        key = (m.step, m.contributors, m.chunk)
        if m.contributors & ~member.ranks or m.step > self._step + 1:
            self._drop(payload)
        elif key in self._keeps or m.step < self._step:
            self._drop(payload)
            self._tell(peer, self._receipt(m, Verb.KEEP, m.contributors))
        elif self._uplink.holds(("keep", *key)):
            self._drop(payload)
        else:
            keep = self._ours(
                wire.Keep, step=m.step, part=0, chunk=m.chunk, contributors=m.contributors,
                pieces=m.pieces,
            )  # fmt: skip
            self._uplink.load(self._now_ns, ("keep", *key), Cargo(keep, payload, nbytes))

    def _received(self, m: wire.Received) -> None:
        """The parent has what was handed on: its child may know."""
        if m.verb is Verb.LOAD:
            if self._uplink.arrived(self._now_ns, ("load", m.chunk)):
                self._tell_all(self._receipt(m, Verb.LOAD))
        elif m.verb is Verb.KEEP:
            key = (m.step, m.contributors, m.chunk)
            if self._uplink.arrived(self._now_ns, ("keep", *key)):
                self._keeps.add(key)
                self._tell_all(self._receipt(m, Verb.KEEP, m.contributors))
        elif m.verb is Verb.BEGIN:
            self._heard_begin(m)
        elif m.verb is Verb.LEAVE:
            self._heard_leave(m)
        elif m.verb is Verb.PRESENT:
            self._heard_present(m)

    def _drop_all(self, payloads: Iterable[Payload | None]) -> None:
        for payload in payloads:
            self._drop(payload)
