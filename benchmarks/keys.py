"""What do keys cost?

Metrics:  stream   bytes per second of messages of 1 MiB from one process to another over loopback,
                   acknowledged one by one, eight under way
          round    seconds of a message of 64 bytes there and back
          connect  seconds from dialling to the first connection that may be used
Arms:     keys (CURVE), and the same without; taken in turns, so a claim is a ratio of one run
Ceiling:  without keys is the ceiling of with keys; copy_bytes_per_s of the machine stands beside it
Left out: training, whose steps hide some of it; several connections (--stripes), which share it
          among I/O threads. On a disk or a network slower than the stream it costs less.

What is sent is checked at the other end: fast and wrong is not fast.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.keys import Identity, make_directory, write_allowed, write_secret
from luwu.transport import Delivery, PeerUp, Transport, ZeroMqTransport
from luwu.transport.curve import curve_library, new_key_pair, open_security

MESSAGE_BYTES: Final = 1024 * 1024
SMALL_BYTES: Final = 64
UNDER_WAY: Final = 8
LIMIT_NS: Final = 60 * 10**9
SEED_BYTE: Final = 0xA5
MEANINGS: Final = {
    "stream_slowdown_ratio": "bytes per second without keys / with keys; at most 2.5 is the goal",
    "round_slowdown_ratio": "seconds of a small round trip with keys / without",
    "connect_slowdown_ratio": "seconds to connect with keys / without",
}
ANSWERING: Final = (
    "import sys; from pathlib import Path; from benchmarks.keys import answer; "
    "answer(Path(sys.argv[1]) if sys.argv[1] else None)"
)


def main() -> int:
    """Run the benchmark; the exit code."""
    arguments = harness.flags("keys", __doc__ or "").parse_args()
    smoke = arguments.smoke
    repeats = arguments.repeats or (1 if smoke else 9)
    stream_count, round_count = (8, 4) if smoke else (400, 500)
    copy_bytes_per_s = harness.copy_bytes_per_s(nbytes=MESSAGE_BYTES if smoke else 256 * 2**20)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="luwu-bench-keys-") as name:
        keys = make_keys(Path(name) / "keys")
        arms = {"keys": Peer(keys), "open": Peer(None)}
        try:
            measures: dict[str, tuple[Callable[[Peer], float], int | None]] = {
                "stream": (lambda peer: peer.stream_s(stream_count), stream_count * MESSAGE_BYTES),
                "round": (lambda peer: peer.round_s(round_count), None),
                "connect": (lambda peer: peer.connect_s(), None),
            }
            for case, (measure, nbytes) in measures.items():
                found = harness.interleave(
                    {arm: partial(measure, peer) for arm, peer in arms.items()}, repeats
                )
                for arm, seconds in found.items():
                    rows.append(harness.row(case, arm, seconds, nbytes=nbytes))
        finally:
            for peer in arms.values():
                peer.close()
    medians = {(row["case"], row["arm"]): row["seconds_median"] for row in rows}
    claims = {
        f"{case}_slowdown_ratio": medians[case, "keys"] / medians[case, "open"]
        for case in ("stream", "round", "connect")
    }
    for row in rows:
        rate = "" if row["bytes_per_s"] is None else f"{row['bytes_per_s'] / 1e9:.2f} GB/s"
        say(f"{row['case']:<8} {row['arm']:<5} {row['seconds_median'] * 1e6:12.1f} us  {rate}")
    say(str(claims))
    result = harness.document(
        "keys", rows, claims, claims_meaning=MEANINGS, smoke=smoke,
        curve_library=curve_library(), copy_bytes_per_s=copy_bytes_per_s,
    )  # fmt: skip
    harness.write(arguments.json, result)
    return 0


class Peer:
    """Another process that answers, and our connection to it."""

    def __init__(self, keys: Path | None) -> None:
        self._keys = keys
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANSWERING, "" if keys is None else str(keys)],
            stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self._endpoint = self._process.stdout.readline().strip()
        assert self._endpoint, "the other process did not listen"
        self._transport = self._connected()
        self._payload = memoryview(bytes([SEED_BYTE]) * MESSAGE_BYTES)

    def stream_s(self, count: int) -> float:
        """Seconds of so many messages of 1 MiB, each acknowledged."""
        self._exchange(4, self._payload)
        return harness.timed(lambda: self._exchange(count, self._payload))

    def round_s(self, count: int) -> float:
        """Seconds of one small message there and back."""
        small = self._payload[:SMALL_BYTES]

        def back_and_forth() -> None:
            for _ in range(count):
                self._exchange(1, small)

        return harness.timed(back_and_forth) / count

    def connect_s(self) -> float:
        """Seconds until a connection can be used."""
        made: list[Transport] = []
        seconds = harness.timed(lambda: made.append(self._connected()))
        made[0].close()
        return seconds

    def close(self) -> None:
        """End both sides."""
        self._transport.close()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def _connected(self) -> Transport:
        transport = ZeroMqTransport(security=open_security(self._keys, "worker-0"))
        transport.dial("parent", self._endpoint)
        until_ns = SYSTEM_CLOCK.now_ns() + LIMIT_NS
        while not isinstance(transport.receive(100_000_000), PeerUp):
            assert SYSTEM_CLOCK.now_ns() < until_ns, "no connection"
        return transport

    def _exchange(self, count: int, payload: memoryview) -> None:
        """Send so many messages, a few ahead of their answers."""
        sent = answered = 0
        while answered < count:
            while sent < count and sent - answered < UNDER_WAY:
                self._transport.send("parent", b"h", [payload])
                sent += 1
            heard = self._transport.receive(LIMIT_NS)
            if isinstance(heard, Delivery):
                assert heard.header == payload.nbytes.to_bytes(8, "big"), heard.header
                answered += 1


def answer(keys: Path | None) -> None:
    """The other process: say where we listen, and how much of each message arrived whole."""
    security = open_security(keys, "switch", "worker")
    with ZeroMqTransport(security=security) as transport:
        print(transport.listen("tcp://127.0.0.1:0"), flush=True)
        while True:
            heard = transport.receive(None)
            if isinstance(heard, Delivery):
                data = heard.buffers[0]
                assert data[0] == data[-1] == SEED_BYTE
                transport.send(heard.peer, data.nbytes.to_bytes(8, "big"))
                heard.release()


def make_keys(directory: Path) -> Path:
    """Keys of a switch and a worker."""
    make_directory(directory)
    allowed = {}
    for name, role in (("switch", "switch"), ("worker-0", "worker")):
        public, secret = new_key_pair()
        write_secret(directory, name, secret)
        allowed[public] = Identity(name, role)
    write_allowed(directory, allowed)
    return directory


if __name__ == "__main__":
    raise SystemExit(main())
