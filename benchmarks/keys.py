"""What do keys cost, and how fast is an encrypted link at best?

Metrics:  stream   bytes per second of messages from one process to another over loopback,
                   acknowledged one by one, 8 MiB under way; by the size of a message
          round    seconds of a message of 64 bytes there and back
          connect  seconds from dialling to the first connection that may be used
Arms:     keys (CURVE), and `open`, the same without; taken in turns, so a claim is a ratio of one
          run
Ceiling:  without keys is the ceiling of with keys. `cipher` is what the same library encrypts on
          one core, and nothing else: a byte is encrypted here and decrypted there, so a machine of
          C cores streams at most C / 2 times as much from itself to itself
Left out: training, whose steps hide some of it. On a disk or a network slower than the stream it
          costs less.

What is sent is checked at the other end: fast and wrong is not fast.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.keys import Identity, make_directory, write_allowed, write_secret
from luwu.transport.curve import new_key_pair, open_security
from luwu.transport.interface import Delivery, PeerUp, Transport
from luwu.transport.zeromq import ZeroMqTransport

KIB: Final = 1024
MESSAGE_BYTES: Final = 1024 * KIB
MESSAGES_BYTES: Final = (64 * KIB, MESSAGE_BYTES, 4 * MESSAGE_BYTES)
SMALL_BYTES: Final = 64
UNDER_WAY_BYTES: Final = 8 * MESSAGE_BYTES
STREAM_BYTES: Final = 400 * MESSAGE_BYTES
LIMIT_NS: Final = 60 * 10**9
SEED_BYTE: Final = 0xA5
MEANINGS: Final = {
    "stream_slowdown_ratio": "bytes per second of messages of 1 MiB, without keys / with keys",
    "stream_best_slowdown_ratio": "the same, each by its best size",
    "stream_of_cipher_ratio": "bytes per second with keys at best / of the cipher on one core",
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
    stream_bytes, round_count = (8 * MESSAGE_BYTES, 4) if smoke else (STREAM_BYTES, 500)
    copy_bytes_per_s = harness.copy_bytes_per_s(nbytes=MESSAGE_BYTES if smoke else 256 * 2**20)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="luwu-bench-keys-") as name:
        keys = make_keys(Path(name) / "keys")
        peers = {"keys": Peer(keys), "open": Peer(None)}
        try:
            for nbytes in MESSAGES_BYTES:
                arms = {
                    arm: partial(peer.stream_s, stream_bytes // nbytes, nbytes)
                    for arm, peer in peers.items()
                }
                rows += measured(f"stream {nbytes // KIB}KiB", arms, repeats, stream_bytes)
            rounds = {arm: partial(peer.round_s, round_count) for arm, peer in peers.items()}
            rows += measured("round", rounds, repeats)
            connects = {arm: peer.connect_s for arm, peer in peers.items()}
            rows += measured("connect", connects, repeats)
        finally:
            for peer in peers.values():
                peer.close()
    if (library := sodium()) is not None:
        arms = {"cipher": partial(cipher_s, library, stream_bytes)}
        rows += measured("cipher", arms, repeats, stream_bytes)
    found = claims(rows)
    say(str(found))
    result = harness.document(
        "keys", rows, found, claims_meaning=MEANINGS, smoke=smoke,
        curve_library="libsodium" if library else "libzmq's own (tweetnacl)",
        copy_bytes_per_s=copy_bytes_per_s,
    )  # fmt: skip
    harness.write(arguments.json, result)
    return 0


def measured(
    case: str, arms: Mapping[str, Callable[[], float]], repeats: int, nbytes: int | None = None
) -> list[Row]:
    """A row for each arm, which is printed."""
    rows = []
    for arm, seconds in harness.interleave(dict(arms), repeats).items():
        row = harness.row(case, arm, seconds, nbytes=nbytes)
        rate = "" if nbytes is None else f"{row['bytes_per_s'] / 1e9:.2f} GB/s"
        spread = f"{row['seconds_spread']:.0%}"
        say(f"{case:<14} {arm:<9} {row['seconds_median'] * 1e6:12.1f} us {spread:>5}  {rate}")
        rows.append(row)
    return rows


def claims(rows: list[Row]) -> dict[str, float]:
    """The ratios that `MEANINGS` explains, as far as their arms were measured."""
    medians = {(row["case"], row["arm"]): row["seconds_median"] for row in rows}

    def best(arm: str) -> float:
        streams = medians.items()
        return min(s for (c, a), s in streams if c.startswith("stream") and a == arm)

    found = {
        f"{name}_slowdown_ratio": medians[case, "keys"] / medians[case, "open"]
        for name, case in (
            ("stream", f"stream {MESSAGE_BYTES // KIB}KiB"),
            ("round", "round"),
            ("connect", "connect"),
        )
    }
    found["stream_best_slowdown_ratio"] = best("keys") / best("open")
    if ("cipher", "cipher") in medians:
        found["stream_of_cipher_ratio"] = medians["cipher", "cipher"] / best("keys")
    return found


def sodium() -> Any:
    """The library that encrypts, as this process has loaded it; None if libzmq does that itself."""
    new_key_pair()  # loads it
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    found = re.search(r"/\S*libsodium\S*", maps)
    return None if found is None else ctypes.CDLL(found[0])


def cipher_s(library: Any, nbytes: int) -> float:
    """Seconds in which one core encrypts so much as a link would, in messages of 1 MiB."""
    key, nonce = bytes(32), bytes(24)
    message, sealed = bytes(MESSAGE_BYTES), ctypes.create_string_buffer(MESSAGE_BYTES + 16)
    size = ctypes.c_ulonglong(MESSAGE_BYTES)

    def encrypt() -> None:
        for _ in range(nbytes // MESSAGE_BYTES):
            library.crypto_secretbox_easy(sealed, message, size, nonce, key)

    return harness.timed(encrypt)


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
        self._payload = memoryview(bytes([SEED_BYTE]) * max(MESSAGES_BYTES))

    def stream_s(self, count: int, nbytes: int) -> float:
        """Seconds of so many messages of this size, each acknowledged."""
        payload = self._payload[:nbytes]
        self._exchange(4, payload)
        return harness.timed(lambda: self._exchange(count, payload))

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
        under_way = UNDER_WAY_BYTES // max(payload.nbytes, 64 * KIB)
        while answered < count:
            while sent < count and sent - answered < under_way:
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
