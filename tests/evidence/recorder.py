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
        with contextlib.ExitStack() as undo:
            for kind, core_class in adapter.CORES.items():
                for event in (adapter.CONSTRUCTOR, *adapter.EVENTS[kind]):
                    method = adapter.method_of(kind, event)
                    former = core_class.__dict__.get(method)
                    setattr(core_class, method, self._tapped(kind, core_class, event))
                    undo.callback(_restore, core_class, method, former)
            yield

    def _tapped(self, kind: str, core_class: type[Any], event: str) -> Callable[..., Any]:
        do = getattr(core_class, adapter.method_of(kind, event))
        signature = inspect.signature(do)
        is_start = event == adapter.CONSTRUCTOR
        parameters = list(signature.parameters)[1:]
        recorded = self.head.events.setdefault(kind, {}).setdefault(event, parameters)
        known = [adapter.parameter_of(kind, event, name) for name in recorded]

        @functools.wraps(do)
        def tapped(core: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "core", None) is not None:
                return do(core, *args, **kwargs)
            self._inside.core = core
            try:
                bound = signature.bind(core, *args, **kwargs)
                bound.apply_defaults()
                given = bound.arguments
                if is_start:
                    return self._made(kind, core, known, given, lambda: do(core, *args, **kwargs))
                return self._called(core, event, known, given, lambda: do(core, *args, **kwargs))
            finally:
                self._inside.core = None

        return tapped

    def _made(
        self, kind: str, core: Any, names: list[str], given: dict[str, Any],
        do: Callable[[], Any],
    ) -> None:  # fmt: skip
        coder = Coder(self.head.types, digest_of)
        life = Life(kind, [coder.encode(given[name]) for name in names])
        do()
        with self._lock:
            self._taps[id(core)] = _Tap(core, life, coder)
            self._history.lives.append(life)

    def _called(
        self, core: Any, event: str, names: list[str], given: dict[str, Any],
        do: Callable[[], Any],
    ) -> Any:  # fmt: skip
        tap = self._taps.get(id(core))
        if tap is None:
            return do()
        values = [tap.coder.encode(given[name]) for name in names]
        try:
            actions = do()
        except Exception as exc:
            tap.note(event, values, {"raised": type(exc).__name__})
            raise
        tap.note(event, values, tap.coder.answered(actions or ()))
        return actions


def _restore(core_class: type[Any], event: str, former: Any) -> None:
    if former is None:
        delattr(core_class, event)
    else:
        setattr(core_class, event, former)
