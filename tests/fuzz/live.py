"""Fuzzed messages to a real switch and a real node, over real sockets, while a job trains on.

A stranger has connections to both and says what it likes: every type of message, with this job's
number too, whole and mutated, with frames of any number and size behind it; one in twenty comes by
a new socket that knows nothing of our transports. Who said three messages that cannot be read is
heard no more, so the stranger comes back by new connections all the time. Each step of the job
begins when its share of the messages is out, so that the flood meets all of it; the last one when
all are, for nobody answers after it. In between the stranger says a Hello of another job, by a
connection for that alone, and the Refuse must come within a second: nothing hangs.

Only a Hello with the job's own number is left out: without keys that is a member who speaks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack
import zmq

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.closing import Closing
from luwu.base.errors import DeadlineError, RemoteProtocolError
from luwu.base.limits import CONTROL_HEADER_BYTES_MAX
from luwu.base.seeds import derive
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from luwu.transport.interface import BUFFERS_COUNT_MAX, Delivery, PeerUp, Transport
from luwu.transport.opening import open_transport
from luwu.wire.codec import decode, encode
from luwu.wire.messages import MESSAGE_TYPES, Hello, Refuse, Role
from tests.fuzz.mutate import Cases, payload_counts, random_message
from tests.helpers.local_job import Job, Worker, check, cluster_for
from tests.helpers.waiting import is_soon

ROUND_MESSAGES: Final = 2000
STEPS: Final = 20
ASK_AGAIN_NS: Final = 250_000_000
BATCH: Final = 50
"""Messages between two questions."""
FEW: Final = 10
"""Messages by one connection."""
HANG_S: Final = 1.0
STEP_S_MAX: Final = 60.0
_SIZES: Final = (0, 1, 8, 64, 1000, 16 * 1024, 16 * 1024 + 1)


class Messages:
    """What the stranger says; a pure function of (seed, index) and the job's number."""

    def __init__(self, seed: int, job: int) -> None:
        self._seed = derive(seed, "fuzz", "live")
        self._cases = Cases(seed)
        self._job = job

    def case(self, index: int) -> tuple[bytes, list[bytes]]:
        """A header and the frames behind it."""
        random = Random(self._seed + index)
        message_type = random.choice(MESSAGE_TYPES)
        fixed: dict[str, Any] = {
            "job": random.choice((self._job, self._job, self._job, 1)),
            "epoch": random.randrange(3), "step": random.randrange(STEPS + 3),
            "attempt": random.choice((0, 0, 0, 1, 2**40)), "role": random.choice(list(Role)),
            "rank": random.randrange(4), "generation": random.randrange(3),
        }  # fmt: skip
        if message_type.IS_DATA:
            fixed |= {"index": random.randrange(11), "part": random.randrange(3)}
        header = encode(random_message(random, message_type, **fixed))
        count = random.choice(payload_counts(message_type))
        if random.random() < 0.5:
            header, count = self._cases.mutated(random, header, msgpack.unpackb(header), count)
        if self._is_member(header):
            header = encode(random_message(random, Hello, **{**fixed, "job": 1}))
        return header, [random.randbytes(random.choice(_SIZES)) for _ in range(count)]

    def _is_member(self, header: bytes) -> bool:
        with suppress(RemoteProtocolError):
            message = decode(header, 1)
            return isinstance(message, Hello) and message.job == self._job
        return False

    def question(self, random: Random) -> bytes:
        """A Hello that must be refused."""
        return encode(random_message(random, Hello, job=1, protocol=2**31))


class Stranger(Closing):
    """Connections to the switch and the node of a cluster."""

    def __init__(self, cluster: LocalCluster, seed: int, is_over: Callable[[], bool]) -> None:
        """`is_over`: nobody answers any more."""
        self.messages = Messages(seed, cluster.job)
        self.slowest_s = 0.0
        """Longest wait for an answer."""
        self._is_over = is_over
        self._endpoints = dict(cluster.endpoints)
        self._asking: dict[str, Transport] = {}
        self._saying: dict[str, Transport] = {}
        self._former: list[Transport] = []
        self._asking = self._connected()
        self._context = zmq.Context()

    def say(self, index: int) -> None:
        """One message to one of them."""
        header, buffers = self.messages.case(index)
        if index % FEW == 0 or not self._saying:
            self._former += self._saying.values()
            self._saying = self._connected()
        name = list(self._endpoints)[index % len(self._endpoints)]
        is_plain = 0 < len(header) <= CONTROL_HEADER_BYTES_MAX
        if index % 20 and is_plain and len(buffers) <= BUFFERS_COUNT_MAX:
            self._saying[name].send(name, header, tuple(buffers))
            return
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 1000
        socket.connect(self._endpoints[name])
        socket.send_multipart([b"", header, *buffers][index % 3 != 0 :])
        socket.close()

    def ask(self, random: Random, limit_s: float) -> None:
        """Each must refuse a member of another job soon. Raises DeadlineError."""
        for name, transport in self._asking.items():
            while transport.receive(0) is not None:
                pass  # what was answered to earlier messages
            start_ns = SYSTEM_CLOCK.now_ns()
            question = self.messages.question(random)
            self._wait_for(transport, name, Refuse, limit_s, question)
            self.slowest_s = max(self.slowest_s, (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9)
        while self._former:  # what they said has had its time
            self._former.pop().close()

    def _connected(self) -> dict[str, Transport]:
        """A new connection to each. Raises DeadlineError, and then none of them is left open."""
        found: dict[str, Transport] = {}
        with ExitStack() as opened:
            for name, endpoint in self._endpoints.items():
                found[name] = opened.enter_context(open_transport(endpoint))
                found[name].dial(name, endpoint)
                self._wait_for(found[name], name, PeerUp, 30)
            opened.pop_all()
        return found

    def _wait_for(
        self, transport: Transport, name: str, kind: type[Any], limit_s: float,
        question: bytes | None = None,
    ) -> None:  # fmt: skip
        """Ask again now and then, as members do: an answer may be dropped, where so many wait."""
        end_ns = SYSTEM_CLOCK.now_ns() + int(limit_s * 1e9)
        ask_ns = SYSTEM_CLOCK.now_ns()
        heard: list[str] = []
        while SYSTEM_CLOCK.now_ns() < end_ns and not self._is_over():
            if question is not None and SYSTEM_CLOCK.now_ns() >= ask_ns:
                transport.send(name, question, (b"{}",))
                ask_ns += ASK_AGAIN_NS
            item = transport.receive(10_000_000)
            if isinstance(item, kind):
                return
            if isinstance(item, Delivery):
                message = decode(item.header, len(item.buffers))
                item.release()
                if isinstance(message, kind):
                    return
                item = message
            if item is not None:
                heard.append(type(item).__name__)
        raise DeadlineError(
            f"the {name} said no {kind.__name__} within {limit_s:g} s, but {heard or 'nothing'}"
        )

    def close(self) -> None:
        """Let go of all connections."""
        for transport in (*self._asking.values(), *self._saying.values(), *self._former):
            transport.close()
        self._context.destroy(linger=1000)


class Paced(Worker):
    """A worker whose step begins when its share of the messages is out."""

    steps_allowed = 0

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> Any:
        if not is_soon(lambda: self.steps_allowed > step, STEP_S_MAX):
            raise DeadlineError(f"step {step} was not begun within {STEP_S_MAX:.0f} s")
        return super()._step(nic, step, may_cancel)


def fuzz_live(
    seed: int, first: int, count: int, directory: Path, *, hang_s: float = HANG_S,
    look: Callable[[int], None] = lambda index: None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with messages `first` to `first + count`, and the round it was found in."""
    for start in range(first, first + count, ROUND_MESSAGES):
        look(start)
        stop = min(first + count, start + ROUND_MESSAGES)
        random = Random(derive(seed, "fuzz", "round") + start)
        transport = random.choice(("tcp", "ipc"))
        has_switch = random.random() < 0.8
        try:
            slowest_s = _round(seed, start, stop, directory, random, transport, has_switch, hang_s)
        except BaseException as error:
            yield f"live {start} to {stop}, {transport}: {error!r:.600}"
        else:
            if slowest_s > hang_s:
                yield f"live {start} to {stop}: an answer took {slowest_s:.1f} s"


def _round(
    seed: int, start: int, stop: int, directory: Path, random: Random, transport: str,
    has_switch: bool, hang_s: float,
) -> float:  # fmt: skip
    """One job through one part of the flood; the longest wait for an answer."""
    job = Job(steps=STEPS)
    worker, over = Paced(job), threading.Event()
    with (
        cluster_for(job, directory, transport=transport, has_switch=has_switch) as cluster,
        ThreadPoolExecutor(1, thread_name_prefix="stranger") as pool,
    ):

        def flood() -> float:
            try:
                with Stranger(cluster, seed, over.is_set) as stranger:
                    for index in range(start, stop):
                        share = (index - start) * (STEPS - 1) // (stop - start)
                        worker.steps_allowed = share + 1
                        stranger.say(index)
                        if index % BATCH == BATCH - 1:
                            stranger.ask(random, 20 * hang_s)
                    return stranger.slowest_s
            finally:
                worker.steps_allowed = STEPS

        flooding = pool.submit(flood)
        try:
            results = cluster.run(worker)
        except BaseException:
            over.set()
            raise
        slowest_s = flooding.result()
        cluster.wait_until_served()
        check(cluster, job, results)
        return slowest_s
