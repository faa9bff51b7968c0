"""A switch's whole life in a file: every message it received and sent, with times; and replayed.

    --record FILE          the switch writes down each event of its core, and what the core answered
    luwu trace --replay    a new core is given the same again, and must answer the same again

A record keeps headers, times and the bytes of control messages; of gradients and weights it keeps
the length alone. So it is small, and a core, which never looks into a payload, cannot tell. A file
is a stream of msgpack arrays; a switch that was started again goes on in the same file.

    [start, schema, job, incarnation, rank, children, limits, retry, parents]
    [event, now_ns, peer, header, payload, sent]

    start      a core was made; bitmaps are hexadecimal texts; parents: their number, only where
               it is not 1
    received   a message of `peer`; payload: its length, the bytes of a control message, or nil
    summed     the sum is there that `header`, msgpack of [step, part, chunk, attempt], names
    up         the connection to the parent is back; of several, to those whose numbers are the
               bytes of `header`
    down       the connection of `peer`, a child, has ended
    tick       time to repeat; only ticks that led to something are kept
    sent       what the core sent then: [[peer, ...], header], ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

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


class RecordedSwitchCore:
    """A `SwitchCore` whose events are written down; all else is asked of the core itself."""

    def __init__(self, core: SwitchCore, file: IO[bytes], made: Mapping[str, Any]) -> None:
        """`made`: what the core was made of."""
        self.core, self._file = core, file
        bitmaps = [f"{child:x}" for child in made["children"]]
        limits, retry = made["limits"] or SwitchLimits(), made["retry"] or RetryPolicy()
        start = [made["job"], made["incarnation"], made["rank"], bitmaps, asdict(limits)]
        parents = [made["parents_count"]] if made["parents_count"] > 1 else []
        self._file.write(msgpack.packb([START, SCHEMA, *start, asdict(retry), *parents]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def received(
        self, now_ns: int, peer: str, message: Message, payload: Any = None,
        payload_bytes: int = 0,
    ) -> list[Action]:  # fmt: skip
        """See `SwitchCore`, and so of the others."""
        kept = payload if payload is None or isinstance(payload, bytes) else payload_bytes
        actions = self.core.received(now_ns, peer, message, payload, payload_bytes)
        return self._noted(RECEIVED, now_ns, peer, encode(message), kept, actions)

    def summed(self, now_ns: int, done: Sum, payload: Payload, payload_bytes: int) -> list[Action]:
        actions = self.core.summed(now_ns, done, payload, payload_bytes)
        name = msgpack.packb([*done.key, done.attempt])
        return self._noted(SUMMED, now_ns, "", name, payload_bytes, actions)

    def reconnected(self, now_ns: int, parents: Sequence[int] = (0,)) -> list[Action]:
        numbers = b"" if self.core.parents.is_one else bytes(parents)
        return self._noted(UP, now_ns, "", numbers, None, self.core.reconnected(now_ns, parents))

    def lost(self, now_ns: int, peer: str) -> list[Action]:
        return self._noted(DOWN, now_ns, peer, b"", None, self.core.lost(now_ns, peer))

    def tick(self, now_ns: int) -> list[Action]:
        actions = self.core.tick(now_ns)
        return self._noted(TICK, now_ns, "", b"", None, actions) if actions else actions

    def _noted(
        self, event: str, now_ns: int, peer: str, header: bytes, payload: bytes | int | None,
        actions: list[Action],
    ) -> list[Action]:  # fmt: skip
        self._file.write(msgpack.packb([event, now_ns, peer, header, payload, _sent(actions)]))
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
    *, job: int, incarnation: int, children: Sequence[int], rank: int = 0,
    limits: SwitchLimits | None = None, retry: RetryPolicy | None = None, parents_count: int = 1,
    file: IO[bytes] | None,
) -> SwitchCore:  # fmt: skip
    """A core, recorded where there is a file."""
    made: dict[str, Any] = {
        "job": job, "incarnation": incarnation, "children": children, "rank": rank,
        "limits": limits, "retry": retry, "parents_count": parents_count,
    }  # fmt: skip
    core = SwitchCore(**made)
    return core if file is None else cast(SwitchCore, RecordedSwitchCore(core, file, made))


def _sent(actions: Sequence[Action]) -> list[Any]:
    sends = (action for action in actions if isinstance(action, Send))
    return [[list(send.peers), encode(send.message)] for send in sends]


# ---------------------------------------------------------------------- replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What a record held, and whether a core of today answers the same."""

    starts_count: int
    events_count: int
    messages_in_count: int
    messages_out_count: int
    seconds: float
    """From the first event to the last."""
    difference: str | None
    """The first event at which the core sent something else, for people."""
    is_cut: bool
    """The last entry is not whole: the switch was killed while it wrote."""


def replay(path: Path) -> Replay:
    """Give a new core the events of a recorded one. Raises ConfigError if it is no record."""
    reader = _Reader(path)
    starts = events = received = sent = 0
    first_ns = last_ns = 0
    difference: str | None = None
    player: _Player | None = None
    for number, entry in enumerate(reader.entries(), start=1):
        if entry[0] == START:
            player, starts = _Player(_core_of(entry, path)), starts + 1
            continue
        if player is None:
            raise ConfigError(f"{path} does not begin with a start; it is no record of a switch")
        event, now_ns, peer, header, payload, answered = entry
        first_ns, last_ns = first_ns or now_ns, now_ns
        events, received = events + 1, received + (event == RECEIVED)
        sent += sum(len(peers) for peers, _ in answered)
        now_answered = player.play(event, now_ns, peer, header, payload)
        if difference is None and now_answered != answered:
            difference = f"entry {number}: {_differing(event, header, answered, now_answered)}"
    if player is None:
        raise ConfigError(f"{path} holds no whole entry; it is no record of a switch")
    return Replay(
        starts_count=starts, events_count=events, messages_in_count=received,
        messages_out_count=sent, seconds=(last_ns - first_ns) / 1e9, difference=difference,
        is_cut=reader.is_cut,
    )  # fmt: skip


class _Player:
    """A core, and the sums that it waits for."""

    def __init__(self, core: SwitchCore) -> None:
        self._core = core
        self._sums: dict[tuple[int, ...], Sum] = {}

    def play(self, event: str, now_ns: int, peer: str, header: bytes, payload: Any) -> list[Any]:
        """What the core sends at an event."""
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
            numbers = tuple(header) or (0,)
            if max(numbers) >= len(self._core.parents.names):
                raise ConfigError(f"the record names parent {max(numbers)}, and the start has none")
            actions = self._core.reconnected(now_ns, numbers)
        elif event == DOWN:
            actions = self._core.lost(now_ns, peer)
        else:
            actions = self._core.tick(now_ns)
        self._sums |= {(*a.key, a.attempt): a for a in actions if isinstance(a, Sum)}
        return _sent(actions)


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
        return len(entry) in (8, 9)
    if len(entry) != 6 or entry[0] not in _EVENTS:
        return False
    _, now_ns, peer, header, payload, sent = entry
    types_fit = type(now_ns) is int and isinstance(peer, str) and isinstance(header, bytes)
    return types_fit and isinstance(payload, int | bytes | None) and isinstance(sent, list)


def _core_of(entry: list[Any], path: Path) -> SwitchCore:
    _, schema, job, incarnation, rank, children, limits, retry, *parents = entry
    if schema != SCHEMA:
        raise ConfigError(f"{path} has schema {schema!r:.20}, expected {SCHEMA}; use that version")
    try:
        slots = None if limits["slots"] is None else PoolRange(**limits["slots"])
        return SwitchCore(
            job=job, incarnation=incarnation, rank=rank,
            children=[int(child, 16) for child in children],
            limits=SwitchLimits(**{**limits, "slots": slots}),
            retry=RetryPolicy(**retry),
            parents_count=parents[0] if parents else 1,
        )  # fmt: skip
    except (LookupError, TypeError, ValueError) as exc:
        raise ConfigError(f"{path}: a start cannot be read: {exc}") from exc


def _differing(event: str, header: bytes, sent: list[Any], now_sent: list[Any]) -> str:
    what = type(decode_any(header)).__name__ if event == RECEIVED else event
    before, now = (", ".join(_names(each)) or "nothing" for each in (sent, now_sent))
    return f"at {what} the switch sent {before}, this core sends {now}"


def decode_any(header: bytes) -> Message | None:
    """The message of a header, with a payload or without; None if there is none."""
    for payload_count in (0, 1):
        try:
            return decode(header, payload_count)
        except RemoteProtocolError:
            continue
    return None


def _names(sent: list[Any]) -> list[str]:
    return [f"{type(decode_any(header)).__name__} to {peers}" for peers, header in sent]
