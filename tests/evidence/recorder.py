"""Writes down what cores are given and what they answer, wherever they run.

Inside `recording` every core of `adapter.CORES` that is made is recorded, in the simulator, in
suites and in the threads of real processes. The classes themselves are made to listen, so nothing
that builds a core needs to know. What happens inside an event of a recorded core, such as a call of
a core within a core, belongs to that event.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.evidence import adapter
from tests.evidence.record import Head, Life, Recorded
from tests.evidence.values import Coder, digest_of


class _Tap:
    """What is known of one core while it is recorded."""

    def __init__(self, core: Any, life: Life, coder: Coder) -> None:
        self.core, self.life, self.coder = core, life, coder
        self._state: list[Any] | None = None

    def note(self, event: str, given: list[Any], answered: Any) -> None:
        """An event is over."""
        state = adapter.state(self.core)
        is_new, self._state = state != self._state, state
        self.life.events.append([event, given, answered, state if is_new else None])


class Recorder:
    """Collects histories; `begin` starts the next."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._history = Recorded("")
        self._taps: dict[int, _Tap] = {}
        self._lock = threading.Lock()
        self._inside = threading.local()

    def begin(self, name: str) -> Recorded:
        """The history to which all cores belong that are made from now on."""
        self._history, self._taps = Recorded(name), {}
        return self._history

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Listen to all cores."""
        methods: set[tuple[type[Any], str]] = set()
        for kind, core_class in adapter.CORES.items():
            events = self.head.events.setdefault(kind, {})
            for event in (adapter.CONSTRUCTOR, *adapter.EVENTS[kind]):
                method = adapter.method_of(kind, event)
                methods.add((core_class, method))
                signature = inspect.signature(getattr(core_class, method))
                events.setdefault(event, list(signature.parameters)[1:])
        with contextlib.ExitStack() as undo:
            for core_class, method in methods:
                former = core_class.__dict__.get(method)
                setattr(core_class, method, self._tapped(getattr(core_class, method)))
                undo.callback(_restore, core_class, method, former)
            yield

    def _tapped(self, do: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(do)

        @functools.wraps(do)
        def tapped(core: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "core", None) is not None:
                return do(core, *args, **kwargs)
            self._inside.core = core
            try:
                bound = signature.bind(core, *args, **kwargs)
                bound.apply_defaults()
                listen = self._made if do.__name__ == adapter.CONSTRUCTOR else self._called
                return listen(core, do, bound.arguments, lambda: do(core, *args, **kwargs))
            finally:
                self._inside.core = None

        return tapped

    def _made(
        self, core: Any, method: Callable[..., Any], given: dict[str, Any], do: Callable[[], Any]
    ) -> None:
        kind = adapter.kind_of(core, given)
        coder = Coder(self.head.types, digest_of)
        life = Life(kind, self._encoded(coder, kind, adapter.CONSTRUCTOR, given))
        do()
        with self._lock:
            self._taps[id(core)] = _Tap(core, life, coder)
            self._history.lives.append(life)

    def _called(
        self, core: Any, method: Callable[..., Any], given: dict[str, Any], do: Callable[[], Any]
    ) -> Any:
        tap = self._taps.get(id(core))
        if tap is None:
            return do()
        kind = tap.life.kind
        event = adapter.event_of(kind, method.__name__)
        values = self._encoded(tap.coder, kind, event, given)
        try:
            actions = do()
        except Exception as exc:
            tap.note(event, values, {"raised": type(exc).__name__})
            raise
        tap.note(event, values, tap.coder.answered(actions or ()))
        return actions

    def _encoded(self, coder: Coder, kind: str, event: str, given: dict[str, Any]) -> list[Any]:
        """What an event was given, by the names and in the order of the records."""
        names = self.head.events[kind][event]
        return [coder.encode(given[adapter.parameter_of(kind, event, name)]) for name in names]


def _restore(core_class: type[Any], event: str, former: Any) -> None:
    if former is None:
        delattr(core_class, event)
    else:
        setattr(core_class, event, former)
