"""Requests that wait for their answer, and when each is to be repeated.

Every request of the protocol is repeated until it is answered (`wire/messages.py`), with a pause
that doubles up to a cap. Pure: the caller says what time it is.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from luwu.base.errors import ConfigError
from luwu.base.limits import INT64_MAX

RequestT = TypeVar("RequestT")


def earliest(*times_ns: int | None) -> int | None:
    """The first of some times; None is never."""
    return min((at_ns for at_ns in times_ns if at_ns is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The times after which a sender repeats a request."""

    first_ns: int = 10_000_000_000
    """Pause before the first repetition. On links that lose nothing while they are up, as ZeroMQ's,
    repetition is a last resort: a connection that comes back makes everything due at once."""

    most_ns: int = 60_000_000_000
    """The pause doubles up to this."""

    ns_per_byte: float = 0.0
    """Time that each byte under way before an answer adds to the first pause: emulated links
    have a rate."""

    def document(self) -> dict[str, Any]:
        """As JSON takes it; `from_document` reads it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: object, where: str) -> RetryPolicy:
        """The policy in a `document`; errors name it by `where`. Raises ConfigError."""
        if not isinstance(document, Mapping) or document.keys() != {*cls.__slots__}:
            raise ConfigError(f"{where} is {document!r:.80}, not {', '.join(cls.__slots__)}")
        first_ns, most_ns = document["first_ns"], document["most_ns"]
        for name, value, least in (("first_ns", first_ns, 1), ("most_ns", most_ns, first_ns)):
            if type(value) is not int or not least <= value <= INT64_MAX:
                raise ConfigError(
                    f"{where}.{name} is {value!r:.40}, not a whole number {least} to {INT64_MAX}"
                )
        ns_per_byte = document["ns_per_byte"]
        if type(ns_per_byte) is not float or not 0 <= ns_per_byte < math.inf:
            raise ConfigError(f"{where}.ns_per_byte is {ns_per_byte!r:.40}, not a number from 0")
        return cls(first_ns=first_ns, most_ns=most_ns, ns_per_byte=ns_per_byte)


@dataclass(slots=True)
class _Entry(Generic[RequestT]):
    request: RequestT
    due_ns: int
    pause_ns: int
    order: int = 0
    """Number of its place in the queue; older places of the same key are ghosts."""


class Outstanding(Generic[RequestT]):
    """A keyed set of requests with the time of their next repetition."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._entries: dict[Hashable, _Entry[RequestT]] = {}
        self._due: list[tuple[int, int, Hashable]] = []
        self._order = 0  # ties in time are broken by age, so runs replay exactly

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def add(self, key: Hashable, request: RequestT, now_ns: int, nbytes: int = 0) -> None:
        """Remember a request just sent; an older one under this key is replaced.

        `nbytes`: what is under way before its answer can be here.
        """
        pause_ns = self._policy.first_ns + int(nbytes * self._policy.ns_per_byte)
        entry = _Entry(request, now_ns + pause_ns, pause_ns)
        self._entries[key] = entry
        self._plan(key, entry)

    def pop(self, key: Hashable) -> RequestT | None:
        """Forget a request because its answer came; None if it was not there (any more)."""
        entry = self._entries.pop(key, None)
        return None if entry is None else entry.request

    def clear(self, keep: Callable[[Hashable], bool] = lambda key: False) -> list[RequestT]:
        """Forget all but the keys to keep; what was forgotten, oldest first."""
        forgotten = [key for key in self._entries if not keep(key)]
        return [self._entries.pop(key).request for key in forgotten]

    def hurry(self, now_ns: int) -> None:
        """Everything is due now: a lost connection is back."""
        for key, entry in self._entries.items():
            entry.due_ns, entry.pause_ns = now_ns, self._policy.first_ns
            self._plan(key, entry)

    def due(self, now_ns: int) -> list[RequestT]:
        """The requests to send again now; each is planned again with a doubled pause."""
        requests: list[RequestT] = []
        while self._due and self._due[0][0] <= now_ns:
            _, order, key = heapq.heappop(self._due)
            entry = self._entries.get(key)
            if entry is None or entry.order != order:
                continue  # answered, or planned anew, since
            requests.append(entry.request)
            entry.pause_ns = max(entry.pause_ns, min(entry.pause_ns * 2, self._policy.most_ns))
            entry.due_ns = now_ns + entry.pause_ns
            self._plan(key, entry)
        return requests

    def next_due_ns(self) -> int | None:
        """The time to call `due` next; None while nothing waits."""
        while self._due:
            due_ns, order, key = self._due[0]
            entry = self._entries.get(key)
            if entry is not None and entry.order == order:
                return due_ns
            heapq.heappop(self._due)
        return None

    def _plan(self, key: Hashable, entry: _Entry[RequestT]) -> None:
        self._order += 1
        entry.order = self._order
        heapq.heappush(self._due, (entry.due_ns, self._order, key))
        if len(self._due) > 2 * len(self._entries) + 64:  # mostly ghosts of what was answered
            live = ((e.due_ns, e.order, key) for key, e in self._entries.items())
            self._due = sorted(live)
