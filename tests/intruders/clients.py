"""Clients without the right to be there, a kind each: what they have, what they try, what may
happen to them.

A client returns what went wrong: somebody let it in, or answered it as one answers a member. That
its attempt is in the log of whom it tried is checked by `campaign.py`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from luwu.base.clock import SYSTEM_CLOCK, new_incarnation
from luwu.base.keys import OwnKey, read_secret
from luwu.base.limits import PROTOCOL_VERSION
from luwu.transport.curve import Security, public_of
from luwu.transport.interface import Delivery, PeerFailed
from luwu.transport.zeromq import ZeroMqTransport
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.messages import Role
from tests.helpers.tap import Tap
from tests.helpers.transports import tcp_endpoint
from tests.jobs.test_floods import SWITCH, connected

NAMES: Final = {
    "node": "node", "switch": "switch", "worker-0": "worker", "worker-1": "worker",
    "spare": "worker", "reader": "reader",
}  # fmt: skip
"""Keys of a job that is attacked: names and roles."""
LIMIT_NS: Final = 15 * 10**9
_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


@dataclass(frozen=True)
class Target:
    """A job that runs, and what an intruder may know of it."""

    job: int
    workers: int
    switch: str
    """Endpoint, with its public key: everybody may know it."""
    node: str
    keys: Path
    """Secrets of the names that an intruder may have stolen."""
    revoked: OwnKey
    description: bytes
    """The job's, which every member knows."""
    description_hash: str

    def key(self, name: str) -> OwnKey:
        """A stolen key."""
        return read_secret(self.keys, name)

    def said(self, kind: type[wire.Message], **fields: Any) -> Any:
        """A message as a worker of this job could have said it."""
        common = {
            "job": self.job, "epoch": 0, "step": 0, "attempt": 0, "role": Role.WORKER, "rank": 0,
            "incarnation": new_incarnation(), "generation": 1,
        }  # fmt: skip
        return kind(**(common | fields))

    def hello(self, rank: int, **fields: Any) -> wire.Hello:
        """A worker's Hello, with the right description."""
        spoken_for = fields.get("contributors", 1 << rank)
        own = {
            "rank": rank, "contributors": spoken_for, "present": spoken_for, "roll": 0,
            "protocol": PROTOCOL_VERSION, "world_size": self.workers,
            "description_hash": self.description_hash,
        }  # fmt: skip
        greeting: wire.Hello = self.said(wire.Hello, **(own | fields))
        return greeting


Client = Callable[[Target, Random], str]


# ---------------------------------------------------------------------- who may not even connect


def no_key(target: Target, random: Random) -> str:
    """Speaks ZeroMQ in clear, as if nothing had keys."""
    return _knock(target, target.switch, {})


def password(target: Target, random: Random) -> str:
    """Tries a name and a password, in clear."""
    name = random.choice(["worker-0", "node", "admin", "x"])
    return _knock(target, target.switch, {
        "plain_username": name.encode(), "plain_password": random.randbytes(8).hex().encode(),
    })  # fmt: skip


def wrong_server_key(target: Target, random: Random) -> str:
    """Has a good key, and takes another than the switch's for the switch's."""
    other, _ = zmq.curve_keypair()
    return _knock(target, target.switch, _curve(target.key("spare"), z85.decode(other)))


def unknown_key(target: Target, random: Random) -> str:
    """Made a key for itself."""
    public, secret = zmq.curve_keypair()
    options = {"curve_publickey": public, "curve_secretkey": secret}
    server = {"curve_serverkey": z85.encode(tcp_endpoint(target.switch).key)}
    return _knock(target, target.switch, {**options, **server})


def revoked_key(target: Target, random: Random) -> str:
    """Has a key that was good, and was taken back while the job ran."""
    return _knock(target, target.switch, _curve(target.revoked, tcp_endpoint(target.switch).key))


def worker_at_the_node(target: Target, random: Random) -> str:
    """Has a worker's key and goes past the switch, to the only copy of the model."""
    name = random.choice(["spare", "worker-0", "reader"])
    return _knock(target, target.node, _curve(target.key(name), tcp_endpoint(target.node).key))


def recorded_bytes(target: Target, random: Random) -> str:
    """Says again, byte for byte, what somebody with a good key said a moment ago."""
    endpoint = tcp_endpoint(target.switch)
    with Tap(endpoint) as tap, _member(replace(target, switch=tap.endpoint), "reader") as transport:
        transport.send(SWITCH, encode(target.said(wire.Open, role=Role.READER, reader=1)))
        fault = _awaited(transport, (wire.Opened, wire.Gone))
        if fault:
            return fault
        said = bytes(tap.seen)
    with socket.create_connection((endpoint.host, endpoint.port), timeout=LIMIT_NS / 1e9) as again:
        again.sendall(said)
        heard = bytearray()
        try:
            while data := again.recv(65536):
                heard += data
        except ConnectionResetError:
            pass
    return "" if b"READY" not in heard else "the handshake was completed"


# ---------------------------------------------------------------------- who may, and lies


def other_rank(target: Target, random: Random) -> str:
    """Has the key of a worker that has no rank here, and claims the rank of a living one."""
    rank = random.randrange(target.workers)
    incarnation = new_incarnation() + random.randrange(10**12)
    hello = target.hello(rank, incarnation=incarnation)
    return _lie(target, "spare", [(hello, target.description)], (wire.Refuse,))


def forged_messages(target: Target, random: Random) -> str:
    """Says things in the name of a living rank without having joined."""
    rank = random.randrange(target.workers)
    own = {"rank": rank, "attempt": random.randrange(3), "generation": random.randrange(1, 4)}
    bits = 1 << rank
    kinds: list[tuple[wire.Message, bytes | None]] = [
        (target.said(wire.Cancel, text="give it up", lost=bits, **own), None),
        (target.said(wire.Present, contributors=bits, roll=random.randrange(9), **own), None),
        (target.said(wire.Leave, contributors=bits, **own), None),
        (target.said(wire.Push, index=0, part=0, contributors=bits, absent=0, weight=1.0,
                     last=True, raw=False, dtype="float32", **own), bytes(4096)),
        (target.said(wire.Load, index=0, part=0, **own), bytes(4096)),
        (target.said(wire.Commit, contributors=bits, parts=1, skip=True,
                     **own), b"{}"),
        (target.said(wire.Pull, index=0, part=0, **own), None),
    ]  # fmt: skip
    return _lie(target, "spare", [random.choice(kinds)], (wire.Rejoin,))


def stale_start(target: Target, random: Random) -> str:
    """A zombie: an earlier start of a worker, with its right key and its old Hello."""
    rank = random.randrange(target.workers)
    hello = target.hello(rank, incarnation=random.randrange(1, 10**6))
    return _lie(target, f"worker-{rank}", [(hello, target.description)], (wire.Refuse,))


def reader_that_joins(target: Target, random: Random) -> str:
    """Has a reader's key, and wants to train."""
    hello = target.hello(random.randrange(target.workers))
    return _lie(target, "reader", [(hello, target.description)], (wire.Refuse,))


def worker_as_switch(target: Target, random: Random) -> str:
    """Has a worker's key, and says that it is a switch, or the node."""
    role = random.choice([Role.SWITCH, Role.NODE])
    everybody = (1 << target.workers) - 1
    hello = target.hello(0, role=role, contributors=everybody)
    return _lie(target, "spare", [(hello, target.description)], (wire.Refuse,))


CLIENTS: Final[dict[str, Client]] = {
    each.__name__: each
    for each in (
        no_key, password, wrong_server_key, unknown_key, revoked_key, worker_at_the_node,
        recorded_bytes, other_rank, forged_messages, stale_start, reader_that_joins,
        worker_as_switch,
    )
}  # fmt: skip
AT_THE_NODE: Final = {"worker_at_the_node"}
"""They try the node; the others the switch."""


# ---------------------------------------------------------------------- how they try


def _curve(own: OwnKey, server: bytes | None) -> dict[str, object]:
    assert server is not None
    return {
        "curve_serverkey": z85.encode(server),
        "curve_secretkey": z85.encode(own.secret.reveal()),
        "curve_publickey": z85.encode(public_of(own.secret)),
    }


def _knock(target: Target, where: str, options: dict[str, object]) -> str:
    """Connect by hand, speak as members do, and wait to be thrown out; what went wrong."""
    with zmq.Context() as context:
        dealer = context.socket(zmq.DEALER)
        monitor = dealer.get_monitor_socket()
        try:
            dealer.linger = 0
            for name, value in options.items():
                setattr(dealer, name, value)
            dealer.connect(tcp_endpoint(where).address)
            dealer.send(b"")
            dealer.send_multipart([encode(target.hello(0)), target.description])
            return _thrown_out(dealer, monitor)
        finally:
            dealer.disable_monitor()
            monitor.close()
            dealer.close()


def _thrown_out(dealer: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> str:
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    until_ns = SYSTEM_CLOCK.now_ns() + LIMIT_NS
    is_connected = False
    while SYSTEM_CLOCK.now_ns() < until_ns:
        for ready, _ in poller.poll(200):
            if ready is dealer:
                return f"it was answered: {dealer.recv_multipart()!r:.80}"
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return "the handshake succeeded"
            is_connected = is_connected or event == zmq.EVENT_CONNECTED
            if is_connected and (event & _FAILED or event == zmq.EVENT_DISCONNECTED):
                return ""
    return "nobody threw it out" if is_connected else "it could not even try: nobody listens"


def _member(target: Target, name: str) -> AbstractContextManager[ZeroMqTransport]:
    """Connected with a key that is allowed to."""
    return connected(target.switch, Security(own=target.key(name)))


def _lie(
    target: Target, name: str, said: list[tuple[wire.Message, bytes | None]],
    answers: tuple[type[wire.Message], ...],
) -> str:  # fmt: skip
    """Say what is not true with a key that may connect; what went wrong."""
    with _member(target, name) as transport:
        for message, payload in said:
            transport.send(SWITCH, encode(message), () if payload is None else (payload,))
        return _awaited(transport, answers)


def _awaited(transport: ZeroMqTransport, answers: tuple[type[wire.Message], ...]) -> str:
    """The first answer must be one of these; what went wrong."""
    until_ns = SYSTEM_CLOCK.now_ns() + LIMIT_NS
    while SYSTEM_CLOCK.now_ns() < until_ns:
        heard = transport.receive(200_000_000)
        if isinstance(heard, Delivery):
            answer = decode(heard.header, len(heard.buffers))
            return "" if isinstance(answer, answers) else f"it was told {answer!r:.100}"
        if isinstance(heard, PeerFailed) and heard.final:
            return f"it was cut off: {heard.error}"
    return f"it was told nothing, expected {' or '.join(each.__name__ for each in answers)}"
