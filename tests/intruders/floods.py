"""Flood a job that trains with every message of the protocol, and count what switch and node do.

    python -m tests.intruders.floods --count 90000 [--seed 0]

Switch, node and workers are real, with real sockets and keys, in threads of this process. Who
floods (`FLOODS`): a stranger without keys, a reader's key, a worker's key that has no rank, and a
member, which sends each of its own messages many times and all others in its own name. Every type
in the codec's table is sent. Nobody may notice: the weights are those of plain training, between
two looks at the timers a bounded number of messages is handled, and the log grows by few lines.
The last line is `N trials, V violations`; exit code 0 or 1.

Left out: what changes a run by its value or its right form, which `docs/security.md` names. So a
stranger without keys says no Hello, and a member sends only repetitions of what it decides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.keys import read_secret
from luwu.base.limits import TURN_BYTES_MAX, TURN_MESSAGES_MAX, UNJOINED_MESSAGES_MAX
from luwu.launch.local_cluster import LocalCluster
from luwu.nic.shell import Nic
from luwu.transport.curve import Security, open_security
from luwu.transport.interface import (
    Buffer,
    CreditExceeded,
    Delivery,
    PeerGone,
    SendHandle,
    Transport,
)
from luwu.transport.opening import open_transport
from luwu.transport.zeromq import ZeroMqTransport
from luwu.wire import messages as wire
from luwu.wire.codec import decode, encode
from luwu.wire.messages import Role
from tests.fuzz.mutate import payload_counts, random_message
from tests.helpers.key_directories import make_keys
from tests.helpers.local_job import LARGE, Job, Worker, check
from tests.intruders.clients import NAMES
from tests.jobs.test_floods import connected, queue, send

LINES_MAX: Final = 100
"""By which the log of a process may grow."""
DECIDES: Final = (
    wire.Hello, wire.Load, wire.Begin, wire.Push, wire.Propose, wire.Pull,
    wire.Commit, wire.Keep, wire.Cancel, wire.Leave, wire.Present,
)  # fmt: skip
"""What a member decides with: it repeats these, and makes none up."""
_ENDPOINT: Final = "tcp://127.0.0.1:0"
_LAST_READER: Final = 2**61


class Repeating:
    """Makes a member's transport send everything several times, and other messages beside it."""

    def __init__(self, transport: Transport, repeats: int, seed: int) -> None:
        self._send, transport.send = transport.send, self.send  # type: ignore[method-assign]
        self._repeats, self._random = repeats, Random(seed)
        self._others = [kind for kind in wire.MESSAGE_TYPES if kind not in DECIDES]
        self.sent: set[type[wire.Message]] = set()

    def send(self, peer: str, header: bytes, buffers: Sequence[Buffer] = ()) -> SendHandle:
        """In place of the transport's."""
        handle = self._send(peer, header, buffers)
        copies = [bytes(buffer) for buffer in buffers]
        said = decode(header, len(buffers))
        for number in range(self._repeats):
            other = self._others[(number + len(self.sent)) % len(self._others)]
            try:
                self._send(peer, header, copies)
                self._send(peer, *self._beside(said, other))
            except (CreditExceeded, PeerGone):
                return handle
            self.sent |= {type(said), other}
        return handle

    def _beside(self, said: wire.Message, kind: type[wire.Message]) -> tuple[bytes, list[bytes]]:
        stamp = {name: getattr(said, name) for name in wire.Message.__slots__}
        stamp["role"] = Role.READER if issubclass(kind, wire.ReaderRequest) else said.role
        return made(self._random, kind, **stamp)


def made(
    random: Random, kind: type[wire.Message], *, payload_bytes: int = 64, **fixed: Any
) -> tuple[bytes, list[bytes]]:
    """A valid message of a type, and the frames behind its header."""
    names = kind.__dataclass_fields__
    for name, value in (("contributors", 1 << fixed["rank"]), ("lost", 0), ("index", 0)):
        if name in names:
            fixed.setdefault(name, value)
    count = random.choice(payload_counts(kind))
    return encode(random_message(random, kind, **fixed)), [bytes(payload_bytes)] * count


@dataclass
class Flood:
    """Sends messages of all types over one connection."""

    endpoint: str
    job: int
    key: Security | None
    role: Role
    count: int
    seed: int
    left_out: tuple[type[wire.Message], ...] = ()
    payload_bytes: int = 64
    sent: int = 0
    failure: str = ""
    kinds: set[type[wire.Message]] = field(default_factory=set)

    def run(self) -> None:
        """Send them all; `failure` says what kept us from it."""
        random = Random(self.seed)
        kinds = [kind for kind in wire.MESSAGE_TYPES if kind not in self.left_out]
        with connected(self.endpoint, self.key) as transport:
            while self.sent < self.count:
                kind = kinds[self.sent % len(kinds)]
                if not send(transport, *self._next(random, kind)):
                    self.failure = "its connection was lost"
                    return
                self.kinds.add(kind)
                self.sent += 1
            if self.count < UNJOINED_MESSAGES_MAX:
                self._await_end(transport)

    def _await_end(self, transport: ZeroMqTransport) -> None:
        """All were handled when a last one is answered."""
        shut = wire.Shut(
            job=self.job, epoch=0, step=0, attempt=0, role=Role.READER, rank=0, incarnation=1,
            generation=0, reader=_LAST_READER,
        )  # fmt: skip
        queue(transport, encode(shut))
        last: list[Any] = []
        until_ns = SYSTEM_CLOCK.now_ns() + 20 * 10**9
        while (left_ns := until_ns - SYSTEM_CLOCK.now_ns()) > 0:
            heard = transport.receive(left_ns)
            if isinstance(heard, Delivery):
                answer = decode(heard.header, len(heard.buffers))
                if isinstance(answer, wire.Gone) and answer.reader == _LAST_READER:
                    return
                last = [*last[-4:], answer]
            elif heard is not None:  # None may come early, when something that was sent is done
                last = [*last[-4:], heard]
        self.failure = f"its last message was not answered, but: {last}"

    def _next(self, random: Random, kind: type[wire.Message]) -> tuple[bytes, list[bytes]]:
        rank = random.randrange(2)
        role = self.role if random.random() < 0.8 else random.choice(list(Role))
        if issubclass(kind, wire.ReaderRequest) and random.random() < 0.8:
            role = Role.READER
        return made(
            random, kind, job=self.job, epoch=0, step=random.randrange(4), role=role, rank=rank,
            attempt=random.randrange(3), generation=random.randrange(1, 3),
            incarnation=random.choice((1, 2**62)), payload_bytes=self.payload_bytes,
        )  # fmt: skip


class FloodedCluster(LocalCluster):
    """A cluster over tcp, with keys unless `keys` is None; the member of rank 1 may flood it."""

    def __init__(self, keys: Path | None, *, repeats: int, seed: int, **values: Any) -> None:
        self._keys, self._repeats, self._seed = keys, repeats, seed
        self._has_switch = values["has_switch"]
        self._rank = threading.local()
        self.member: Repeating | None = None
        self.lines: dict[str, int] = {}
        super().__init__(transport="tcp", **values)
        shells: list[tuple[str, Any]] = [("node", self.node), *self.switches.items()]
        for name, shell in shells:
            self._count_lines(name, shell.recorder)

    def nic(self, rank: int) -> Nic:
        self._rank.number = rank
        return super().nic(rank)

    def security(self, name: str, *accepts: str) -> Security | None:
        """Of the process called `name`."""
        return None if self._keys is None else open_security(self._keys, name, *accepts)

    def _transport(self, arena_bytes: int, link: Any = None, role: str = "", link_seed: int = 0
    ) -> Transport:  # fmt: skip
        accepts: tuple[str, ...] = ()
        if role:
            accepts = ("switch",) if role == "node" and self._has_switch else ("worker", "reader")
        rank = 0 if role else self._rank.number
        security = self.security(role or f"worker-{rank}", *accepts)
        transport: Transport = open_transport(_ENDPOINT, security=security)
        if rank == 1 and self._repeats:
            self.member = Repeating(transport, self._repeats, self._seed)
        self._transports.append(transport)
        return transport

    def _count_lines(self, name: str, recorder: Any) -> None:
        write = recorder.event
        self.lines[name] = 0

        def event(what: str, /, *, level: str = "INFO", **fields: Any) -> None:
            self.lines[name] += level != "DEBUG"
            write(what, level=level, **fields)

        recorder.event = event


class Meeting(Worker):
    """A worker; rank 0 begins its last step when the flood is over."""

    def __init__(self, job: Job, flood: threading.Thread | None) -> None:
        super().__init__(job)
        self._flood = flood

    def _step(self, nic: Nic, step: int, may_cancel: bool) -> Any:
        if step == self.job.steps - 1 and nic.rank == 0 and self._flood is not None:
            self._flood.join()
        return super()._step(nic, step, may_cancel)


WHO: Final = ("stranger", "reader", "worker", "member")


def flooded(directory: Path, who: str, *, has_switch: bool, count: int, seed: int = 0) -> str:
    """Train while `who` floods; one line of what was counted. Raises AssertionError."""
    job = Job()
    keys = None if who == "stranger" else make_keys(directory / "keys", NAMES)
    repeats = max(1, count // 200) if who == "member" else 0
    with FloodedCluster(
        keys, repeats=repeats, seed=seed, world_size=job.world_size, state=None,
        memory_budget_bytes=LARGE, chunk_bytes=job.layout.chunk_bytes, has_switch=has_switch,
        summary=directory / "summary.json",
    ) as cluster:  # fmt: skip
        flood = thread = None
        if who != "member":
            key = {"stranger": "", "reader": "reader", "worker": "spare"}[who]
            flood = Flood(
                endpoint=cluster.endpoints[next(reversed(cluster.endpoints))], job=cluster.job,
                key=None if keys is None else Security(own=read_secret(keys, key)),
                role=Role.READER if who == "reader" else Role.WORKER, count=count, seed=seed,
                left_out=(wire.Hello,) if who == "stranger" else (),
            )  # fmt: skip
            thread = threading.Thread(target=flood.run)
            thread.start()
        begin_ns = SYSTEM_CLOCK.now_ns()
        results = cluster.run(Meeting(job, thread))
        seconds = (SYSTEM_CLOCK.now_ns() - begin_ns) / 1e9
        check(cluster, job, results)
        shell: Any = cluster.switch if has_switch else cluster.node
        received = sum(each.messages_received for each in shell.link_counts().values())
    if flood is not None:
        assert not flood.failure, flood.failure
        assert received >= count or count >= UNJOINED_MESSAGES_MAX, received
        assert flood.kinds == set(wire.MESSAGE_TYPES) - set(flood.left_out)
    else:
        assert cluster.member is not None
        missing = set(wire.MESSAGE_TYPES) - set(DECIDES) - cluster.member.sent
        assert not missing, f"never sent: {missing}"
    assert 0 < shell.turn_messages_max <= TURN_MESSAGES_MAX, shell.turn_messages_max
    assert shell.turn_bytes_max <= TURN_BYTES_MAX
    assert max(cluster.lines.values()) <= LINES_MAX, cluster.lines
    return (
        f"{received} messages, {seconds:.1f} s, at most {shell.turn_messages_max} and "
        f"{shell.turn_bytes_max} bytes between two ticks, {max(cluster.lines.values())} lines"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Flood from every side; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.intruders.floods", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=90_000, help="messages of a flood (90000)")
    parser.add_argument("--seed", type=int, default=0, help="draws their fields (0)")
    asked = parser.parse_args(arguments)
    violations = 0
    for who in WHO:
        for has_switch in (True, False):
            place = "switch" if has_switch else "node"
            with tempfile.TemporaryDirectory(prefix="luwu-floods-") as name:
                try:
                    line = flooded(
                        Path(name), who, has_switch=has_switch, count=asked.count, seed=asked.seed
                    )
                except Exception as error:
                    violations += 1
                    line = f"VIOLATION (--seed {asked.seed}): {error!r}"
            print(f"{who} at the {place}: {line}", flush=True)
    print(f"{2 * len(WHO)} trials, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
