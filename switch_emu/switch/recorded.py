"""A switch's whole life in a file: every message it heard and said, with times; and replayed.

    --record FILE          the switch writes down each event of its core, and what the core answered
    luwu trace --replay    a new core is told the same again, and must say the same again

A record keeps headers, times and the bytes of control messages; of gradients and weights it keeps
the length alone. So it is small, and a core, which never looks into a payload, cannot tell. A file
is a stream of msgpack arrays; a switch that was started again goes on in the same file.

    [start, schema, job, incarnation, rank, children, limits, retry]
    [event, now_ns, peer, header, payload, said]

    start      a core was made; bitmaps are hexadecimal texts
    received   a message of `peer`; payload: its length, the bytes of a control message, or nil
    summed     the sum is there that `header`, msgpack of [step, part, chunk, attempt], names
    up         the connection to the parent is back
    down       the connection of `peer`, a child, has ended
    tick       time to repeat; only ticks that led to something are kept
    said       what the core sent then: [[peer, ...], header], ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgpack

from luwu.base.errors import ConfigError, RemoteProtocolError
from luwu.base.limits import PAYLOAD_BYTES_MAX
from luwu.base.outstanding import RetryPolicy
from luwu.protocol.actions import Payload, Send
from luwu.wire.codec import decode, encode
from luwu.wire.messages import Message
from switch_emu.switch.core import SwitchCore
from switch_emu.switch.core.actions import Action, Sum, SwitchLimits
from switch_emu.switch.core.fixed_slots import PoolRange

SCHEMA: Final = 1
START, RECEIVED, SUMMED, UP, DOWN, TICK = "start", "received", "summed", "up", "down", "tick"
_EVENTS: Final = (RECEIVED, SUMMED, UP, DOWN, TICK)


class RecordedSwitchCore(SwitchCore):
    """A `SwitchCore` that writes down what it is told and what it says."""

    def __init__(
        self, *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
        limits: SwitchLimits | None = None, retry: RetryPolicy | None = None, file: IO[bytes],
    ) -> None:  # fmt: skip
        limits, retry = limits or SwitchLimits(), retry or RetryPolicy()
        super().__init__(
            job=job, incarnation=incarnation, children=children, rank=rank, limits=limits,
            retry=retry,
        )  # fmt: skip
        self._file = file
        bitmaps = [f"{child:x}" for child in children]
        made = [job, incarnation, rank, bitmaps, asdict(limits), asdict(retry)]
        self._file.write(msgpack.packb([START, SCHEMA, *made]))

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        kept = payload if payload is None or isinstance(payload, bytes) else payload_bytes
        actions = super().received(now_ns, peer, message, payload, payload_bytes)
        return self._noted(RECEIVED, now_ns, peer, encode(message), kept, actions)

    def summed(self, now_ns: int, done: Sum, payload: Payload, payload_bytes: int) -> list[Action]:
        actions = super().summed(now_ns, done, payload, payload_bytes)
        name = msgpack.packb([*done.key, done.attempt])
        return self._noted(SUMMED, now_ns, "", name, payload_bytes, actions)

    def reconnected(self, now_ns: int) -> list[Action]:
        return self._noted(UP, now_ns, "", b"", None, super().reconnected(now_ns))

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        return self._noted(DOWN, now_ns, peer, b"", None, super().lost(now_ns, peer))

    def tick(self, now_ns: int) -> list[Action]:
        actions = super().tick(now_ns)
        return self._noted(TICK, now_ns, "", b"", None, actions) if actions else actions

    def _noted(
        self, event: str, now_ns: int, peer: str, header: bytes, payload: bytes | int | None,
        actions: list[Action],
    ) -> list[Action]:  # fmt: skip
        self._file.write(msgpack.packb([event, now_ns, peer, header, payload, _said(actions)]))
        return actions


@contextmanager
def record_file(path: Path | None) -> Iterator[IO[bytes] | None]:
    """The file of a record, opened to go on in it; nothing if none is wanted."""
    if path is None:
        yield None
        return
    try:
        file = path.open("ab", buffering=1024 * 1024)
    except OSError as exc:
        raise ConfigError(f"record: cannot write {path}: {exc.strerror}; name another") from exc
    with file:
        yield file


def make_switch_core(
    *, job: int, incarnation: int, children: Sequence[int], rank: int = 0, limits: SwitchLimits,
    file: IO[bytes] | None, retry: RetryPolicy | None = None,
) -> SwitchCore:  # fmt: skip
    """A core, recorded where there is a file."""
    made: dict[str, Any] = {
        "job": job, "incarnation": incarnation, "children": children, "rank": rank,
        "limits": limits, "retry": retry,
    }  # fmt: skip
    return SwitchCore(**made) if file is None else RecordedSwitchCore(**made, file=file)


def _said(actions: Sequence[Action]) -> list[Any]:
    sends = (action for action in actions if isinstance(action, Send))
    return [[list(send.peers), encode(send.message)] for send in sends]


# ---------------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a record held, and whether a core of today says the same."""

    starts_count: int
    events_count: int
    messages_in_count: int
    messages_out_count: int
    seconds: float
    """From the first event to the last."""
    difference: str | None
    """The first event at which the core said something else, for people."""
    is_cut: bool
    """The last entry is not whole: the switch was killed while it wrote."""


def replay(path: Path) -> Replay:
    """Tell a new core what a recorded one was told. Raises ConfigError if it is no record."""
    reader = _Reader(path)
    starts = events = heard = told = 0
    first_ns = last_ns = 0
    difference: str | None = None
    player: _Player | None = None
    for number, entry in enumerate(reader.entries(), start=1):
        if entry[0] == START:
            player, starts = _Player(_core_of(entry, path)), starts + 1
            continue
        if player is None:
            raise ConfigError(f"{path} does not begin with a start; it is no record of a switch")
        event, now_ns, peer, header, payload, said = entry
        first_ns, last_ns = first_ns or now_ns, now_ns
        events, heard = events + 1, heard + (event == RECEIVED)
        told += sum(len(peers) for peers, _ in said)
        now_said = player.play(event, now_ns, peer, header, payload)
        if difference is None and now_said != said:
            difference = f"entry {number}: {_differing(event, header, said, now_said)}"
    if player is None:
        raise ConfigError(f"{path} holds no whole entry; it is no record of a switch")
    return Replay(
        starts_count=starts, events_count=events, messages_in_count=heard,
        messages_out_count=told, seconds=(last_ns - first_ns) / 1e9, difference=difference,
        is_cut=reader.is_cut,
    )  # fmt: skip


class _Player:
    """A core, and the sums that it waits for."""

    def __init__(self, core: SwitchCore) -> None:
        self._core = core
        self._sums: dict[tuple[int, ...], Sum] = {}

    def play(self, event: str, now_ns: int, peer: str, header: bytes, payload: Any) -> list[Any]:
        """What the core says to an event."""
        if event == RECEIVED:
            message = decode(header, 0 if payload is None else 1)
            is_data = isinstance(payload, int)
            token = object() if is_data else payload
            nbytes = payload if is_data else 0
            actions = self._core.received(now_ns, peer, message, token, nbytes)
        elif event == SUMMED:
            done = self._sums.pop(tuple(msgpack.unpackb(header)), None)
            if done is None:  # this core asked for no such sum
                return [["nothing was to be summed", header]]
            actions = self._core.summed(now_ns, done, object(), payload)
        elif event == UP:
            actions = self._core.reconnected(now_ns)
        elif event == DOWN:
            actions = self._core.lost(now_ns, peer)
        else:
            actions = self._core.tick(now_ns)
        self._sums |= {(*a.key, a.attempt): a for a in actions if isinstance(a, Sum)}
        return _said(actions)


class _Reader:
    """The entries of a file, checked before they are believed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_cut = False

    def entries(self) -> Iterator[Any]:
        """One after the other; a last one that is not whole is left out."""
        try:
            with self._path.open("rb") as file:
                unpacker = msgpack.Unpacker(file, strict_map_key=True, max_buffer_size=1 << 30,
                                            max_bin_len=PAYLOAD_BYTES_MAX)  # fmt: skip
                end = 0
                for number, entry in enumerate(unpacker, start=1):
                    if not _is_entry(entry):
                        raise ConfigError(f"{self._path}: entry {number} is none of a switch's")
                    end = unpacker.tell()
                    yield entry
                self.is_cut = end < self._path.stat().st_size
        except OSError as exc:
            raise ConfigError(f"cannot read {self._path}: {exc.strerror}") from exc
        except (ValueError, RemoteProtocolError) as exc:
            raise ConfigError(f"{self._path} is no record of a switch: {exc}") from exc


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, list) or not entry:
        return False
    if entry[0] == START:
        return len(entry) == 8
    if len(entry) != 6 or entry[0] not in _EVENTS:
        return False
    _, now_ns, peer, header, payload, said = entry
    types_fit = type(now_ns) is int and isinstance(peer, str) and isinstance(header, bytes)
    return types_fit and isinstance(payload, int | bytes | None) and isinstance(said, list)


def _core_of(entry: list[Any], path: Path) -> SwitchCore:
    _, schema, job, incarnation, rank, children, limits, retry = entry
    if schema != SCHEMA:
        raise ConfigError(f"{path} has schema {schema!r:.20}, expected {SCHEMA}; use that version")
    try:
        slots = None if limits["slots"] is None else PoolRange(**limits["slots"])
        return SwitchCore(
            job=job, incarnation=incarnation, rank=rank,
            children=[int(child, 16) for child in children],
            limits=SwitchLimits(**{**limits, "slots": slots}),
            retry=RetryPolicy(**retry),
        )  # fmt: skip
    except (LookupError, TypeError, ValueError) as exc:
        raise ConfigError(f"{path}: a start cannot be read: {exc}") from exc


def _differing(event: str, header: bytes, said: list[Any], now_said: list[Any]) -> str:
    what = type(decode_any(header)).__name__ if event == RECEIVED else event
    before, now = (", ".join(_names(each)) or "nothing" for each in (said, now_said))
    return f"at {what} the switch said {before}, this core says {now}"


def decode_any(header: bytes) -> Message | None:
    """The message of a header, with a payload or without; None if there is none."""
    for payload_count in (0, 1):
        try:
            return decode(header, payload_count)
        except RemoteProtocolError:
            continue
    return None


def _names(said: list[Any]) -> list[str]:
    return [f"{type(decode_any(header)).__name__} to {peers}" for peers, header in said]
