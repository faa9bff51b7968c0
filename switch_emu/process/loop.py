"""The event loop of the switch's and the node's process, between a transport and a machine.

The loop receives messages, hands them to the machine and carries out its actions; time comes from
the monotonic clock. Payloads are counted (`payload.py`), so a buffer returns to the transport when
the last core, thread or send has released it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import (
    ConfigError,
    ConnectionFailed,
    LuwuError,
    RemoteProtocolError,
    StateError,
)
from luwu.base.events import JOB_OVER, Recorder
from luwu.base.limits import (
    MALFORMED_MESSAGES_MAX,
    TEXT_CHARS_MAX,
    TURN_BYTES_MAX,
    TURN_MESSAGES_MAX,
    UNFLUSHED_BYTES_MAX,
    UNJOINED_MESSAGES_MAX,
)
from luwu.protocol.actions import PARENT, Drop, End, Expel, Note, Send
from luwu.transport.interface import (
    LISTENER,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    SendHandle,
    Transport,
)
from luwu.wire.codec import decode, encode
from luwu.wire.link_counts import LinkCount, LinkCounts
from luwu.wire.messages import Content, Hello, Message, Refuse, Role, Weights
from switch_emu.process.admission import Admission, RateLimit
from switch_emu.process.counting import CountersFile, Counts
from switch_emu.process.payload import Payload

_RECEIVE_NS_MAX = 200_000_000
_LAST_ANSWERS_NS_MAX = 10 * 10**9
_ABOUT_PEERS = ("refused", "misfit", "unexpected")
"""Last words of names of notes that a peer can cause without limit; a core's notes."""
_LEAVE_NS_MAX = 5 * 10**9
"""Time that rejected children have to leave."""


class Machine(Protocol):
    """A core, or several that act as one: what the loop gives it and asks of it."""

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any, payload_bytes: int
    ) -> Sequence[Any]:
        """A message has arrived."""

    def lost(self, now_ns: int, peer: str) -> Sequence[Any]:
        """A connection has ended."""

    def tick(self, now_ns: int) -> Sequence[Any]:
        """Repeat what is due."""

    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do; None while nothing waits."""

    def is_member(self, peer: str) -> bool:
        """True if a connection is that of a child that has joined."""

    def name_of(self, peer: str) -> str:
        """The name of a connection, for people."""

    def waits_for(self) -> str:
        """The events that it waits for, for people."""

    def counts(self) -> Counts:
        """Its counters."""

    @property
    def duplicates(self) -> Mapping[str, int]:
        """Gradients that came again, by the name of the link."""

    @property
    def finished(self) -> bool:
        """True if the job is over."""


class Loop:
    """Receives, sends and reports for a machine; a subclass carries out the machine's own actions
    (`do_own`)."""

    def __init__(
        self, transport: Transport, recorder: Recorder, machine: Machine, *,
        counters: CountersFile | None = None,
    ) -> None:  # fmt: skip
        self.transport = transport
        self.recorder = recorder
        self.machine = machine
        self.links = LinkCounts()
        self._counters = counters
        self._sending: deque[tuple[SendHandle, Payload]] = deque()
        self._progress_ns = SYSTEM_CLOCK.now_ns()
        self._report_ns = self._progress_ns + 15 * 10**9
        self._children: set[str] = set()
        """Open connections to us."""
        self._admission = Admission()
        self._refusals = RateLimit()
        self._reported_early: set[str] = set()
        """Connections with keys that sent messages before they joined; each is logged once."""
        self.turn_messages_max = self.turn_bytes_max = 0
        """The most that was handled between two checks of the timers."""
        self._malformed_counts: Counter[str] = Counter()
        """Messages that could not be read, by connection."""
        self._unjoined_counts: Counter[str] = Counter()
        """Messages of connections that have not joined."""
        self._reported_unread: set[str] = set()
        """Connections that did not read what was sent to them; each is logged once."""
        self._expelled: set[str] = set()
        """Connections that broke the protocol; their messages are dropped unread."""
        self._ends_with: tuple[LuwuError, int] | None = None
        """The reason why the job cannot be served, and the time until which children may leave."""

    # ---------------------------------------------------------------------- for subclasses

    def do_own(self, action: Any) -> None:
        """Carry out an action that no other machine has."""
        raise NotImplementedError

    def peer_up(self, now_ns: int, peer: str) -> None:
        """A connection is up, or up again."""

    def peer_failed(self, peer: str, failed: PeerFailed) -> None:
        """A peer cannot be reached."""

    def takes(self, peer: str, message: Weights, payload: Payload) -> bool:
        """False for weights that the machine must not be given."""
        return True

    def background(self) -> None:
        """Do what follows from work that other threads have finished, or from earlier actions."""

    def next_tick_ns(self) -> int | None:
        """When the loop has to look again, whatever arrives."""
        return self.machine.next_tick_ns()

    # ---------------------------------------------------------------------- the loop

    def run(
        self, should_stop: Callable[[], bool], is_over: Callable[[], bool] = lambda: False
    ) -> bool:
        """Serve until the job is over (True) or `should_stop` (False). `is_over`: the process
        that started us knows that all workers have left.

        Raises the error of a job that was rejected for good, after its children have left.
        """
        self.transport.gather()
        while not (self.machine.finished or is_over()):
            if should_stop():
                return False
            self._raise_if_refused()
            self._take_turn()
            self.do(self.machine.tick(SYSTEM_CLOCK.now_ns()))
            self.background()
            self.transport.flush()
            self._reap()
            now_ns = SYSTEM_CLOCK.now_ns()
            self._report_if_stuck(now_ns)
            if self._counters is not None and self._counters.is_due(now_ns):
                self.write_counters()
        self.recorder.event(JOB_OVER)
        self._await_last_answers(should_stop)
        return True

    def end_with(self, error: LuwuError) -> None:
        """End with this error once the children have received the refusal."""
        if self._ends_with is None:
            self._ends_with = error, SYSTEM_CLOCK.now_ns() + _LEAVE_NS_MAX

    def _raise_if_refused(self) -> None:
        if self._ends_with is not None:
            error, end_ns = self._ends_with
            if not self._children or SYSTEM_CLOCK.now_ns() > end_ns:
                raise error

    def _take_turn(self) -> None:
        """Handle received messages, up to limits: timers and finished work must not wait long.

        The rest is handled in the next turn. ZeroMQ reads its connections in turn, so a flood on
        one does not keep the others waiting.
        """
        item = self.transport.receive(self._timeout_ns())
        messages_count = nbytes = flushed_bytes = 0
        while item is not None:
            if isinstance(item, Delivery):
                messages_count += 1
                for buffer in item.buffers:
                    nbytes += buffer.nbytes
            self._handle(item)
            if messages_count >= TURN_MESSAGES_MAX or nbytes >= TURN_BYTES_MAX:
                break
            if nbytes - flushed_bytes >= UNFLUSHED_BYTES_MAX:
                self.transport.flush()
                flushed_bytes = nbytes
            item = self.transport.receive(0)
        self.turn_messages_max = max(self.turn_messages_max, messages_count)
        self.turn_bytes_max = max(self.turn_bytes_max, nbytes)

    def write_counters(self) -> None:
        """Write the counters, if there is a file for them."""
        if self._counters is not None:
            self._counters.write(self.link_counts(), self.machine.counts())

    def link_counts(self) -> dict[str, LinkCount]:
        """Messages of each link, with the repetitions that the machine counted."""
        links = self.links.by_name(self.machine.name_of)
        for name, count in self.machine.duplicates.items():
            links.setdefault(name, LinkCount()).duplicates_received += count
        if PARENT in links:
            links[PARENT].repeats_sent += self.machine.counts()["repeated_count"]
        return links

    def do(self, actions: Sequence[Any]) -> None:
        """Carry out the machine's actions, in order."""
        for action in actions:
            match action:
                case Send(peers, message, payload):
                    self.send(peers, message, payload)
                case Drop(payload):
                    payload.drop()  # type: ignore[attr-defined]
                case Expel(peer):
                    self._expel(peer)
                case End(text, code):
                    kind = ConfigError if code == "E207" else StateError
                    self.end_with(kind(text, code=code))
                case Note(name, fields, level):
                    if name.rpartition(".")[2] not in _ABOUT_PEERS or self._may_log():
                        self.recorder.event(name, level=level, **dict(fields))
                case _:
                    self.do_own(action)

    def send(self, peers: Sequence[str], message: Message, payload: Any) -> None:
        """Send one message to each peer; they share header and payload."""
        is_counted = isinstance(payload, Payload)
        if is_counted and payload.checksum and isinstance(message, Weights):
            message = replace(message, checksum=payload.checksum)
        header = encode(message)
        data = payload.view() if isinstance(payload, Payload) else payload
        buffers = () if data is None else (data,)
        nbytes = 0 if data is None else len(data)
        for peer in peers:
            try:
                handle = self.transport.send(peer, header, buffers)
            except PeerGone:
                continue  # it asks again when it is back
            except CreditExceeded as exc:
                self._drop_answer(peer, exc)
                continue
            if isinstance(message, Content):
                self._unjoined_counts.pop(peer, None)  # readers never join
            self.links.sent(peer, type(message), len(header), nbytes)
            if is_counted and not handle.done:
                self._sending.append((handle, payload.share()))

    def _drop_answer(self, peer: str, error: CreditExceeded) -> None:
        """Drop a message to a peer that reads nothing; if it lives, it asks again."""
        if peer not in self._reported_unread:
            self._reported_unread.add(peer)
            self._log_refused(peer, f"it does not read: messages to it are dropped: {error}")

    def drain(self, limit_s: float) -> None:
        """Wait until what was sent has left, at most so long."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        while self._sending and SYSTEM_CLOCK.now_ns() < end_ns:
            item = self.transport.receive(10_000_000)
            if isinstance(item, Delivery):
                self._handle(item)
            self._reap()

    def _await_last_answers(self, should_stop: Callable[[], bool]) -> None:
        """Serve until all connections to us are closed, for a while at most.

        A socket that is closed with something unread discards what it has not sent: our last
        answers, to a child that repeats its requests.
        """
        end_ns = SYSTEM_CLOCK.now_ns() + _LAST_ANSWERS_NS_MAX
        while self._children:
            if should_stop() or SYSTEM_CLOCK.now_ns() > end_ns:
                return
            item = self.transport.receive(_RECEIVE_NS_MAX)
            if item is not None:
                self._handle(item)
            self.background()
            self._reap()

    def _timeout_ns(self) -> int:
        tick_ns = self.next_tick_ns()
        if tick_ns is None:
            return _RECEIVE_NS_MAX
        return max(0, min(_RECEIVE_NS_MAX, tick_ns - SYSTEM_CLOCK.now_ns()))

    def _expel(self, peer: str) -> None:
        """Ignore a connection from now on, as if it had ended."""
        self._expelled.add(peer)
        self._forget(peer)
        self._children.discard(peer)
        self._admission.down(peer)
        self.do(self.machine.lost(SYSTEM_CLOCK.now_ns(), peer))

    def _forget(self, peer: str) -> None:
        """Drop the counts of a connection."""
        for counts in (self._malformed_counts, self._unjoined_counts):
            counts.pop(peer, None)
        self._reported_unread.discard(peer)

    def _end_flood(self, peer: str, text: str) -> None:
        """Expel a connection that exceeded a limit which honest ones never reach."""
        self._log_refused(peer, f"{text}; its messages are ignored from now on")
        self._expel(peer)

    def _handle(self, item: Any) -> None:
        match item:
            case Delivery() if item.peer in self._expelled:
                item.release()
            case Delivery():
                self._delivered(item)
            case PeerUp(peer, identity):
                if not peer.startswith(PARENT):
                    self._children.add(peer)
                self._admission.up(peer, identity)
                self.peer_up(SYSTEM_CLOCK.now_ns(), peer)
                key = self._admission.name_of(peer)
                self.recorder.event("peer.up", level="DEBUG", peer=peer, key=key)
            case PeerDown(peer, reason):
                self._children.discard(peer)
                self._expelled.discard(peer)
                self._forget(peer)
                self.do(self.machine.lost(SYSTEM_CLOCK.now_ns(), peer))
                self._reported_early.discard(peer)
                self._admission.down(peer)
                self.recorder.event("peer.down", level="DEBUG", peer=peer, reason=reason)
            case PeerFailed(peer) if peer in self._expelled:
                pass
            case PeerFailed(peer, RemoteProtocolError() as error, False) if peer in self._children:
                self._is_malformed(peer, error)
            case PeerFailed(peer, error, False) if peer == LISTENER:
                # If it ended before its handshake: our own process may have died.
                level = "INFO" if isinstance(error, ConnectionFailed) else "WARNING"
                self._log_refused(peer, str(error), level=level)
            case PeerFailed(peer, error, final):
                self.peer_failed(peer, item)
                level = "WARNING" if final else "DEBUG"
                self.recorder.event("peer.failed", level=level, peer=peer, text=str(error))

    def _delivered(self, delivery: Delivery) -> None:
        peer, buffers = delivery.peer, delivery.buffers
        header_bytes = len(delivery.header)
        try:
            message = decode(delivery.header, len(buffers))
        except RemoteProtocolError as exc:
            self.links.received(peer, None, header_bytes, sum(each.nbytes for each in buffers))
            delivery.release()
            self._is_malformed(peer, exc)
            return
        payload_bytes = buffers[0].nbytes if buffers else 0
        self.links.received(peer, type(message), header_bytes, payload_bytes)
        now_ns = SYSTEM_CLOCK.now_ns()
        if peer.startswith(PARENT) or self.machine.is_member(peer):
            self._progress_ns = now_ns
        else:
            self._unjoined_counts[peer] += 1
            if self._unjoined_counts[peer] > UNJOINED_MESSAGES_MAX:
                delivery.release()
                text = f"it sent {UNJOINED_MESSAGES_MAX} messages and has not joined"
                self._end_flood(peer, text)
                return
        if peer in self._admission.identities and not self._is_allowed(peer, message):
            delivery.release()
            return
        if message.IS_DATA and buffers:
            payload = Payload(buffers[0], delivery.release, is_shared=delivery.is_shared)
            if isinstance(message, Weights) and not self.takes(peer, message, payload):
                payload.drop()
                return
            self.do(self.machine.received(now_ns, peer, message, payload, payload.nbytes))
            return
        data = bytes(buffers[0]) if buffers else None
        delivery.release()
        actions = self.machine.received(now_ns, peer, message, data, 0)
        if isinstance(message, Hello) and not _is_refusal(actions, peer):
            self._admission.joined(peer, message)
        self.do(actions)

    def _is_malformed(self, peer: str, error: RemoteProtocolError) -> None:
        """Count a message that cannot be decoded; expel its sender if there were several."""
        self._malformed_counts[peer] += 1
        count = self._malformed_counts[peer]
        if count < MALFORMED_MESSAGES_MAX:
            self._log_refused(peer, f"a message cannot be read: {error}")
        else:
            self._end_flood(peer, f"{count} messages cannot be read: {error}")

    def _is_allowed(self, peer: str, message: Message) -> bool:
        """True if the key of a connection allows a message; else log it, and refuse a Hello."""
        fault = self._admission.fault(peer, message)
        if not fault:
            may_be_first = isinstance(message, Hello) or message.role is Role.READER
            is_early = not may_be_first and not self._admission.has_claimed(peer)
            if is_early and peer not in self._reported_early:
                self._reported_early.add(peer)
                name = type(message).__name__
                self._log_refused(peer, f"it sent {name} before it joined; it must join first")
            return True
        self._log_refused(peer, fault)
        if isinstance(message, Hello):
            text = f"{fault}; use the key and the rank that this worker was given"
            self.send((peer,), refusal_of(message, text), None)
        return False

    def _log_refused(self, peer: str, text: str, level: str = "WARNING") -> None:
        """Log a refusal, unless there were too many."""
        if self._may_log():
            key = self._admission.name_of(peer)
            self.recorder.event("peer.refused", level=level, peer=peer, key=key, text=text)

    def _may_log(self) -> bool:
        """True if one more line about a peer's mistake may be logged."""
        is_allowed, left_out = self._refusals.allow(SYSTEM_CLOCK.now_ns())
        if left_out:
            self.recorder.event("peers.refused", level="WARNING", left_out_count=left_out)
        return is_allowed

    def _reap(self) -> None:
        for _ in range(len(self._sending)):
            handle, payload = self._sending.popleft()
            if handle.done:
                payload.drop()
            else:
                self._sending.append((handle, payload))

    def _report_if_stuck(self, now_ns: int) -> None:
        if now_ns < self._report_ns or now_ns - self._progress_ns < 10 * 10**9:
            return
        self._report_ns = now_ns + 15 * 10**9
        self.recorder.event(
            "waits", level="WARNING", what=self.machine.waits_for(),
            quiet_s=(now_ns - self._progress_ns) / 1e9,
        )  # fmt: skip


def _is_refusal(actions: Sequence[Any], peer: str) -> bool:
    """True if a core refused a Hello of this peer."""
    return any(
        isinstance(each, Send) and isinstance(each.message, Refuse) and peer in each.peers
        for each in actions
    )


def refusal_of(m: Message, text: str) -> Refuse:
    """The Refuse for a message that its sender's key does not allow."""
    return Refuse(
        job=m.job, epoch=m.epoch, step=m.step, attempt=m.attempt, role=Role.SWITCH, rank=0,
        incarnation=0, generation=m.generation, text=text[:TEXT_CHARS_MAX],
    )  # fmt: skip
