"""Processor time per message, measured with a switch on this machine.

A real `SwitchShell` with its core and transport stands between two children and a parent that only
encode, send, receive and decode; a burst of extents goes through it as in a step: gradients, sums,
receipts, pulls, weights. Each is one extent: more of them change bytes alone. All of it runs in one
thread. Counted is what that thread took of a processor in the switch's turns, and half of what the
threads of libzmq took: by message that comes in or goes out, that is an *end* of a message. Other
work on the machine hardly changes it.

Left out are switches between processes and caches that they take from one another: a floor.
Measured beside it: work that is handed to a thread, which wakes a transport when it is done, as
pages of the node are.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from luwu.base import loopback
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.errors import LuwuError
from luwu.base.events import Recorder
from luwu.base.limits import PROTOCOL_VERSION
from luwu.layout import Layout, Parameter, Unit
from luwu.measure.timing import Samples, cpu_seconds
from luwu.protocol.actions import PARENT
from luwu.transport.interface import Delivery, PeerUp, Transport
from luwu.transport.opening import open_transport
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.description import Description, description_hash
from luwu.wire.kinds import Role, Verb

CHILDREN: Final = 2
BURST: Final = 4
"""Chunks that are under way at once. An end took 73 us with one, 50 with four and 30 with 64, for
who is woken finds more at once; in a run with chunks of 16 KiB it was 46 to 53."""
PAYLOAD_BYTES: Final = 4096
EXTENTS: Final = 4096
"""Each comes once; 4,096 last for some seconds."""
ENDS: Final = 4 * CHILDREN + 4
"""Messages per extent at the switch: push, pull and their answers, per child and to the parent."""
ARENA_BYTES: Final = 1 << 20
QUIET_NS: Final = 5_000_000_000
"""Silence after which something is broken."""
PEERS_NS: Final = 1_000_000
"""The time that children and parent look for messages that are on their way."""
HANDED: Final = 64
HAND_OVERS: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFloors:
    """Seconds of one processor."""

    end_s: float
    """A message at one of its ends."""
    handed_s: float
    """Work handed to a thread, and its end heard of."""


def message_floors(transport: str, samples: Samples) -> MessageFloors | None:
    """See the module; None where no links can be had, or the ends do not find each other."""
    try:
        with _Rehearsal(transport) as rehearsal:
            end_s = rehearsal.measure(samples.seconds)
            handed_s = _handed_seconds(rehearsal.transport)
    except (LuwuError, OSError):
        return None
    return MessageFloors(end_s=end_s, handed_s=handed_s)


class _Rehearsal(Closing):
    """A switch, and around it two children and a parent."""

    def __init__(self, transport: str) -> None:
        from switch_emu.switch.core import SwitchCore
        from switch_emu.switch.shell import SwitchShell

        self._opened: list[Transport] = []
        endpoint = loopback.endpoint() if transport == "tcp" else f"{transport}://auto"
        try:
            self._parent, self.transport = self._open(endpoint), self._open(endpoint)
            self._children = [self._open(endpoint) for _ in range(CHILDREN)]
            self.transport.dial(PARENT, self._parent.listen(endpoint))
            here = self.transport.listen(endpoint)
            for child in self._children:
                child.dial(PARENT, here)
        except BaseException:
            self.close()
            raise
        core = SwitchCore(job=1, incarnation=1, children=[1 << n for n in range(CHILDREN)])
        recorder = Recorder(role="switch", printed=None)
        self._shell = SwitchShell(self.transport, core, recorder)
        self._gradients = [child.reserve(PAYLOAD_BYTES) for child in self._children]
        self._weights = memoryview(bytearray(PAYLOAD_BYTES))
        self._extent = self._left = self._joined_count = 0
        self._heard_count = self._sent_count = 0
        self._peers_s = 0.0
        self._described = _job().to_bytes()

    def close(self) -> None:
        for transport in self._opened:
            transport.close()

    def measure(self, seconds: float) -> float:
        """Seconds of an end of a message at the switch."""
        self._run(lambda: self._joined_count == CHILDREN)
        found: list[float] = []
        start_ns = SYSTEM_CLOCK.now_ns()
        while len(found) < 3 or (
            self._extent + BURST <= EXTENTS and SYSTEM_CLOCK.now_ns() - start_ns < seconds * 1e9
        ):
            self._peers_s, own_s, all_s = 0.0, cpu_seconds("thread"), cpu_seconds()
            self._push()
            self._run(lambda: self._left == 0)
            own_s, all_s = cpu_seconds("thread") - own_s, cpu_seconds() - all_s
            found.append(own_s - self._peers_s + (all_s - own_s) / 2)
        return median(found[1:]) / (BURST * ENDS)

    def _open(self, endpoint: str) -> Transport:
        self._opened.append(open_transport(endpoint, arena_bytes=ARENA_BYTES))
        return self._opened[-1]

    def _run(self, is_done: Callable[[], bool]) -> None:
        """The shell's own loop asks at each turn whether to stop: then the others have theirs."""
        quiet_ns = SYSTEM_CLOCK.now_ns() + QUIET_NS

        def turn() -> bool:
            nonlocal quiet_ns
            before_s, start_ns = cpu_seconds("thread"), SYSTEM_CLOCK.now_ns()
            now_ns = start_ns
            heard, said = self._heard_count, self._sent_count
            while not is_done() and self._sent_count == said and now_ns - start_ns < PEERS_NS:
                self._turn()
                now_ns = SYSTEM_CLOCK.now_ns()
            if self._sent_count == said:
                self.transport.wake()  # nothing is on its way to the switch
            if self._heard_count > heard:
                quiet_ns = now_ns + QUIET_NS
            elif now_ns > quiet_ns:
                raise LuwuError("a rehearsal of messages came to a halt; nothing was measured")
            self._peers_s += cpu_seconds("thread") - before_s
            return is_done()

        self._shell.run(turn)

    def _turn(self) -> None:
        """Answers of children and parent to the messages that arrived."""
        for rank, side in enumerate((*self._children, self._parent)):
            while (item := side.receive(0)) is not None:
                self._heard_count += 1
                if isinstance(item, PeerUp) and rank < CHILDREN:
                    self._send_hello(rank)
                elif isinstance(item, Delivery):
                    message = decode(item.header, len(item.buffers))
                    item.release()
                    if rank < CHILDREN:
                        self._child_received(rank, message)
                    else:
                        self._parent_received(item.peer, message)

    def _push(self) -> None:
        """Both children push the next extents."""
        before_s = cpu_seconds("thread")
        self._left = BURST * CHILDREN
        for _ in range(BURST):
            for rank, child in enumerate(self._children):
                push = wire.Push(
                    **_common(Role.WORKER, rank), part=0, index=self._extent,
                    contributors=1 << rank, absent=0, weight=1.0, last=True, raw=False,
                    dtype="float32",
                )  # fmt: skip
                self._send(child, PARENT, push, self._gradients[rank])
            self._extent += 1
        self._peers_s += cpu_seconds("thread") - before_s

    def _send(
        self, side: Transport, peer: str, message: wire.Message, payload: memoryview | None = None
    ) -> None:
        self._sent_count += 1
        side.send(peer, encode(message), () if payload is None else (payload,))

    def _send_hello(self, rank: int) -> None:
        hello = wire.Hello(
            **_common(Role.WORKER, rank) | {"attempt": 0, "generation": 0},  # just started
            protocol=PROTOCOL_VERSION, world_size=CHILDREN,
            contributors=1 << rank, present=1 << rank, roll=0,
            description_hash=description_hash(self._described),
        )  # fmt: skip
        self._send(self._children[rank], PARENT, hello, memoryview(self._described))

    def _child_received(self, rank: int, message: wire.Message) -> None:
        if isinstance(message, wire.Welcome):
            self._joined_count += 1
        elif isinstance(message, wire.Received):
            pull = wire.Pull(**_common(Role.WORKER, rank), part=0, index=message.index)
            self._send(self._children[rank], PARENT, pull)
        elif isinstance(message, wire.Weights):
            self._left -= 1

    def _parent_received(self, peer: str, message: wire.Message) -> None:
        ours = _common(Role.NODE, 0)
        if isinstance(message, wire.Hello):
            welcome = wire.Welcome(
                **ours, loaded=True, push_window_bytes=1 << 40, contributors=message.contributors
            )
            self._send(self._parent, peer, welcome)
        elif isinstance(message, wire.Push):
            receipt = wire.Received(
                **ours, part=0, index=message.index, verb=Verb.PUSH,
                contributors=message.contributors,
            )  # fmt: skip
            self._send(self._parent, peer, receipt)
        elif isinstance(message, wire.Pull):
            weights = wire.Weights(
                **ours, part=0, index=message.index, dtype="float32", in_place=False
            )
            self._send(self._parent, peer, weights, self._weights)


def _job() -> Description:
    """A job of so many extents: a switch looks at each push whether it is one of the job's."""
    shape = (PAYLOAD_BYTES // 4,)
    return Description(
        layout=Layout(
            parameters=tuple(Parameter(name=f"p{n}", shape=shape) for n in range(EXTENTS)),
            units=tuple(Unit(name=f"u{n}", parameters=(n,)) for n in range(EXTENTS)),
            chunk_bytes=16 * 1024,
        ),
        optimizer="sgd",
    )


def _common(role: Role, rank: int) -> dict[str, Any]:
    return {"job": 1, "epoch": 0, "step": 0, "attempt": 1, "role": role, "rank": rank,
            "incarnation": 1, "generation": 1}  # fmt: skip


def _handed_seconds(transport: Transport) -> float:
    """Work for a thread, and its end heard of by who waits for messages too."""
    tasks: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def serve() -> None:
        while tasks.get():
            transport.wake()

    def hand_over() -> float:
        before = cpu_seconds()
        for _ in range(HANDED):
            tasks.put(True)
            transport.receive(QUIET_NS)
        return (cpu_seconds() - before) / HANDED

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        return median(hand_over() for _ in range(HAND_OVERS))
    finally:
        tasks.put(False)
        thread.join()
