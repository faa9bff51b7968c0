"""What records cover: events, messages, actions, and the lines of the cores that they run."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from luwu.wire.messages import MESSAGE_TYPES
from tests.evidence import adapter
from tests.evidence.record import Life
from tests.evidence.values import message_of

ROOT = Path(__file__).parents[2]
_PRODUCT = (f"{ROOT}/luwu/", f"{ROOT}/switch_emu/")

Feature = tuple[Any, ...]


def features_of(lives: Iterable[Life]) -> Counter[Feature]:
    """Of some cores: (kind, "event" | "in" | "out" | "action", name), and how often each."""
    found: Counter[Feature] = Counter()
    for life in lives:
        for event, given, answered, _ in life.events:
            found[life.kind, "event", event] += 1
            found.update((life.kind, "in", name) for name in _messages(given))
            if isinstance(answered, dict):
                found[life.kind, "raised", answered["raised"]] += 1
                continue
            found.update((life.kind, "action", name) for each in answered for name in each)
            found.update((life.kind, "out", name) for name in _messages(answered))
    return found


def _messages(value: Any) -> Iterable[str]:
    if isinstance(value, list):
        for each in value:
            yield from _messages(each)
    elif isinstance(value, dict):
        [(name, inner)] = value.items()
        if name == "m":
            yield type(message_of(inner)).__name__
        elif name == "Send":
            yield from _messages(inner)


def text(found: Counter[Feature]) -> str:
    """For people: one line for each kind of process and what it was given or answered."""
    lines = []
    for kind, what in sorted({feature[:2] for feature in found}):
        names = sorted((f[2], n) for f, n in found.items() if f[:2] == (kind, what))
        lines.append(f"{kind}, {what}: " + ", ".join(f"{name} {n}" for name, n in names))
    carried = {feature[2] for feature in found if feature[1] in ("in", "out")}
    missing = [each.__name__ for each in MESSAGE_TYPES if each.__name__ not in carried]
    lines.append(f"messages that no core was given or answered: {', '.join(missing) or 'none'}")
    done = {feature[2] for feature in found if feature[1] == "action"}
    actions = {name for name in adapter.TYPE_OF_NAME if name in _ACTIONS}
    lines.append(f"actions that no core answered: {', '.join(sorted(actions - done)) or 'none'}")
    return "\n".join(lines)


_VALUES = {
    "RetryPolicy", "PoolRange", "VersionFacts", "Contribution", "Gradient", "SwitchLimits",
    "NodeLimits", "NodePlace", "PreparedVersion", "StoreFacts",
}  # fmt: skip
_ACTIONS = set(adapter.TYPE_OF_NAME) - _VALUES

# ---------------------------------------------------------------------- lines


class Tracer:
    """Which lines of the product follow upon which others while it listens."""

    def __init__(self) -> None:
        self.arcs: set[tuple[str, int, int]] = set()
        self._wanted: dict[CodeType, str | None] = {}

    def run(self, do: Callable[[], Any]) -> Any:
        """Do something, listening."""
        sys.settrace(self._call)
        try:
            return do()
        finally:
            sys.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in self._wanted:
            is_ours = code.co_filename.startswith(_PRODUCT)
            self._wanted[code] = code.co_filename[len(str(ROOT)) + 1 :] if is_ours else None
        name = self._wanted[code]
        if name is None:
            return None
        arcs, last = self.arcs, -code.co_firstlineno

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if event == "line":
                arcs.add((name, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line


def lines_text(arcs: Iterable[tuple[str, int, int]]) -> str:
    """For people: lines of functions that were not run, of every file of which some were."""
    run: dict[str, set[int]] = {}
    for name, _, line in arcs:
        run.setdefault(name, set()).add(line)
    lines, count, missed_count = [], 0, 0
    for name, seen in sorted(run.items()):
        every = _lines_of(_code_of(ROOT / name))
        missed = sorted(every - seen)
        count, missed_count = count + len(every), missed_count + len(missed)
        shown = ", ".join(map(str, missed[:12])) + (" ..." if len(missed) > 12 else "")
        lines.append(
            f"{name}: {len(every) - len(missed)} of {len(every)} lines; not {shown or '-'}"
        )
    lines.append(f"{count - missed_count} of {count} lines in {len(run)} files were run")
    return "\n".join(lines)


def _code_of(path: Path) -> CodeType:
    code = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    assert code is not None
    return code


def _lines_of(code: CodeType, *, in_function: bool = False) -> set[int]:
    found = set()
    if in_function:
        found = {line for _, _, line in code.co_lines() if line and line != code.co_firstlineno}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found |= _lines_of(inner, in_function=bool(inner.co_flags & 2) or in_function)
    return found
