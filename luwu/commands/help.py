"""The texts of `luwu --help` and `luwu COMMAND --help`, at most 80 columns wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Final

from luwu.base.config import KEYS
from luwu.commands.flags import Flag, Verb, flags_of
from luwu.commands.table import GROUPS

WIDTH: Final = 80
LEFT: Final = 24
"""Columns of flags; the text of a longer one begins on the next line."""

EMULATION: Final = "Emulated links, disks and switches"
FAULTS: Final = "Faults of emulated links"
KEY_GROUPS: Final = {
    "Training": (
        "workers", "arms", "steps", "data", "layers", "width", "context", "batch", "dtype",
        "state_dtype", "master_dtype", "max_grad_norm", "seed", "reshard_after_forward",
    ),
    "State and records": (
        "state", "resume", "durability", "run_dir", "trace", "tensorboard", "json",
    ),
    "Memory": (
        "memory_budget", "switch_memory_budget", "chunk", "extent", "optimizer_nodes",
        "replicas",
    ),
    "Network": ("transport", "aggregate", "no_switch", "tree"),
    "Several hosts": (
        "join", "ranks", "worker_hosts", "rendezvous", "engine", "bind", "advertise", "job", "keys",
        "key_name", "insecure",
    ),
    "Lost processes": (
        "restarts", "worker_restarts", "on_worker_loss", "drop_after", "workers_min",
        "workers_max", "drop_node_after", "fill_rate", "on_lost_steps", "connect_timeout", "grace",
    ),
    EMULATION: (
        "link", "disk_rate", "compute_ms", "dilation", "fidelity", "slots",
    ),
    FAULTS: ("loss", "duplicate", "reorder"),
}  # fmt: skip
"""All keys, by use."""
RARE: Final = (EMULATION, FAULTS)
"""Groups that only `--help-all` shows."""


def overview() -> str:
    """The text of `luwu --help`."""
    lines = [
        "usage: luwu COMMAND ...",
        "",
        "Train PyTorch models with the optimizer outside the workers: a switch sums the",
        "gradients, an optimizer node keeps weights and optimizer state.",
    ]
    for title, commands in GROUPS.items():
        lines += ["", title, *_command_rows(commands.items())]
    lines += [
        "",
        "luwu COMMAND --help describes a command. luwu config lists all keys, which can",
        "be set by flags, by a TOML file and by the environment. luwu --version.",
    ]
    return "\n".join(lines)


def help_text(verb: Verb, *, with_all: bool = False) -> str:
    """The text of `luwu COMMAND --help`; `with_all`: of `--help-all`."""
    usages = verb.usage.splitlines()
    lines = []
    for index, usage in enumerate(usages):
        lines += _wrapped(usage, first="       " if index else "usage: ", rest=" " * 11)
    for paragraph in verb.text.split("\n\n"):
        lines += ["", *_wrapped(paragraph)]
    if verb.examples:
        lines += ["", "Examples", *(f"  {each}" for each in verb.examples)]
    if verb.commands:
        texts = {name: each.text.partition(".")[0] for name, each in verb.commands.items()}
        lines += ["", "Commands", *_command_rows(texts.items())]
        lines += ["", f"luwu {verb.name} COMMAND --help describes a command."]
    elif len(verb.keys) > 1:
        lines += _grouped(verb, with_all=with_all)
    else:
        flags = [*map(key_flag, verb.keys), *flags_of(verb)]
        for title in dict.fromkeys(flag.title for flag in flags):
            rows = _rows(flag for flag in flags if flag.title == title)
            lines += ["", title or "Flags", *rows]
    return "\n".join(lines)


def key_flag(name: str) -> Flag:
    """A key as a flag."""
    key = KEYS[name]
    is_plain = key.is_boolean and key.default is False
    return Flag(name=name, text=key.text + _default_text(name), shape="" if is_plain else key.shape)


def _grouped(verb: Verb, *, with_all: bool) -> Iterator[str]:
    """Own flags, keys by use, and the flags that every command has."""
    if verb.flags:
        yield from ["", f"Flags of {verb.name}", *_rows(verb.flags)]
    keys = set(verb.keys)
    hidden = []
    for title, names in KEY_GROUPS.items():
        ours = [name for name in names if name in keys]
        if not ours:
            continue
        if title in RARE and not with_all:
            hidden.append(title.lower())
            continue
        yield from ["", title, *_rows(map(key_flag, ours))]
    general = [flag for flag in flags_of(verb) if flag not in verb.flags]
    yield from ["", "General", *_rows(general)]
    if hidden:
        yield ""
        yield from _wrapped(f"--help-all also shows the flags for {' and '.join(hidden)}.")
    yield ""
    yield from _wrapped(
        "Every other flag is a key, except those of the command itself: it can also be set in the "
        "TOML file of --config, or as LUWU_<KEY> in the environment."
    )


def _command_rows(commands: Iterable[tuple[str, str]]) -> list[str]:
    return [line for name, text in commands for line in _row(name, text, left=10)]


def _rows(flags: Iterable[Flag]) -> list[str]:
    rows = [(f"{each.flag} {each.shape}".rstrip(), each.text) for each in flags]
    return [line for name, text in rows for line in _row(name, text, left=LEFT)]


def _row(name: str, text: str, *, left: int) -> list[str]:
    indent = " " * (left + 4)
    if len(name) <= left:
        return _wrapped(text, first=f"  {name:<{left}}  ", rest=indent)
    return [f"  {name}", *_wrapped(text, first=indent, rest=indent)]


def _wrapped(text: str, *, first: str = "", rest: str = "") -> list[str]:
    return wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _default_text(name: str) -> str:
    default = KEYS[name].default
    if default is None or default is False:
        return ""
    shown = ",".join(default) if isinstance(default, tuple) else default
    if isinstance(default, float):
        shown = f"{default:g}{'s' if KEYS[name].shape == 'TIME' else ''}"
    return f" (default: {shown})"
