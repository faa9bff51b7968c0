"""The command line of a verb: flags that are keys, a few of its own, then the rest.

`--memory-budget 2GiB`, `--memory-budget=2GiB` and `--memory_budget 2GiB` are the same; so are
`--x`, `--x true` and `--x=true`, and so are `--no-x` and `--x false`. Names are never abbreviated.
Everything after the script of `luwu run` belongs to the script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from luwu.base.config import KEYS, Resolved, resolve
from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag of one verb that is no key."""

    name: str
    text: str
    shape: str = ""
    """The name of its value in the help; without one it takes none."""
    repeats: bool = False
    """True if it may be given several times; elsewhere the last one counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """The form of a verb's command line."""

    name: str
    usage: str
    text: str
    flags: tuple[Flag, ...] = ()
    has_keys: bool = True
    """True if the keys of `RunConfig` for this verb are flags of it."""
    has_all_keys: bool = False
    """True if those of all verbs are."""
    keys_of: str = ""
    """The verb whose keys are flags of this one too."""
    rest: str = "none"
    """The words beside the flags: `none`, `one`, `two`, `many`, or `script` with all that
    follows."""
    presets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The keys that are flags of this verb."""
        if not self.has_keys:
            return []
        owners = {self.name, self.keys_of}
        return [name for name in KEYS if self.has_all_keys or owners & {*KEYS[name].verbs}]


_OF_TORCHRUN = {
    "nproc_per_node": "workers",
    "nnodes": "worker_hosts",
    "max_restarts": "worker_restarts",
    "rdzv_endpoint": "rendezvous",
    "log_dir": "run_dir",
}
"""Flags of torchrun, and those here that say the same."""
CONFIG_FLAG = Flag(name="config", shape="FILE", text="TOML file of keys; or LUWU_CONFIG")
DEBUG_FLAG = Flag(name="debug", text="show the whole traceback of an error")
HELP_FLAG = Flag(name="help", text="show this help")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line taken apart."""

    keys: dict[str, str]
    flags: dict[str, str]
    rest: list[str]
    repeated: dict[str, list[str]] = field(default_factory=dict)
    """All values of flags that may be given several times, in their order."""

    def has(self, name: str) -> bool:
        """True if a flag without a value was given."""
        return name in self.flags


def parse(verb: Verb, tokens: Sequence[str]) -> Parsed:
    """Take a verb's command line apart. Raises ConfigError."""
    parsed = Parsed({}, {}, [])
    own = {flag.name: flag for flag in flags_of(verb)}
    keys = set(verb.keys)
    waiting = list(tokens)
    while waiting:
        token = waiting.pop(0)
        if token in ("-h", "--help"):
            parsed.flags["help"] = ""
            return parsed
        if verb.rest == "script" and (token == "-m" or not token.startswith("-")):
            parsed.rest.extend([token, *waiting])
            break
        if not token.startswith("--") or token == "--":
            parsed.rest.append(token)
            continue
        written, equals, value = token[2:].partition("=")
        name = written.replace("-", "_")
        if name in own:
            flag = own[name]
            if flag.shape:
                parsed.flags[name] = value if equals else _value(token, waiting)
                if flag.repeats:
                    parsed.repeated.setdefault(name, []).append(parsed.flags[name])
            elif equals:
                raise ConfigError(f"--{written} takes no value, got {value!r}")
            else:
                parsed.flags[name] = ""
        elif name in keys:
            parsed.keys[name] = _key_value(name, token, value if equals else None, waiting)
        elif name.startswith("no_") and name[3:] in keys and KEYS[name[3:]].is_boolean:
            if equals:
                raise ConfigError(f"--{written} takes no value, got {value!r}")
            parsed.keys[name[3:]] = "false"
        else:
            raise ConfigError(_unknown(verb, written, name, [*own, *keys]), code="E201")
    _check_rest(verb, parsed.rest)
    return parsed


def resolve_parsed(
    verb: Verb, parsed: Parsed, environ: Mapping[str, str] | None = None
) -> Resolved:
    """The configuration of a command line. Raises ConfigError."""
    preset_name = parsed.flags.get("preset", "")
    if preset_name and preset_name not in verb.presets:
        raise ConfigError(
            f"--preset: {preset_name!r} is not one of {', '.join(verb.presets)}"
            f"{suggestion(preset_name, verb.presets)}",
            code="E201",
        )
    return resolve(
        flags=parsed.keys,
        environ=environ,
        file=Path(parsed.flags["config"]).expanduser() if "config" in parsed.flags else None,
        preset=verb.presets.get(preset_name),
        preset_name=preset_name,
    )


def flags_of(verb: Verb) -> tuple[Flag, ...]:
    """The flags of a verb that are no keys."""
    config = (CONFIG_FLAG,) if verb.has_keys else ()
    return (*verb.flags, *config, DEBUG_FLAG, HELP_FLAG)


def help_text(verb: Verb) -> str:
    """The text of `luwu VERB --help`."""
    lines = [f"usage: {verb.usage}", "", verb.text, ""]
    rows = []
    for name in verb.keys:
        key = KEYS[name]
        shape = "" if key.is_boolean and key.default is False else f" {key.shape}"
        rows.append((key.flag + shape, key.text + _default_text(name)))
    for flag in flags_of(verb):
        rows.append((f"--{flag.name.replace('_', '-')} {flag.shape}".rstrip(), flag.text))
    width = min(34, max(len(left) for left, _ in rows))
    for left, right in rows:
        lines.append(f"  {left:<{width}}  {right}")
    if verb.has_keys:
        lines += ["", "Each flag that is a key may also stand in the file, or as LUWU_<KEY>."]
    return "\n".join(lines)


def _default_text(name: str) -> str:
    default = KEYS[name].default
    if default is None or default is False:
        return ""
    shown = ",".join(default) if isinstance(default, tuple) else default
    if isinstance(default, float):
        return f" ({shown:g}{'s' if KEYS[name].shape == 'TIME' else ''})"
    return f" ({shown})"


def _value(token: str, waiting: list[str]) -> str:
    if not waiting or waiting[0].startswith("--"):
        raise ConfigError(f"{token} needs a value after it")
    return waiting.pop(0)


def _key_value(name: str, token: str, value: str | None, waiting: list[str]) -> str:
    if value is not None:
        return value
    if not KEYS[name].is_boolean:
        return _value(token, waiting)
    if waiting and waiting[0] in ("true", "false"):
        return waiting.pop(0)
    return "true"


def _unknown(verb: Verb, written: str, name: str, known: Sequence[str]) -> str:
    ours = _OF_TORCHRUN.get(name)
    if ours is not None and ours in known:
        return (
            f"luwu {verb.name} has no flag --{written}; --{ours.replace('_', '-')} says that here"
        )
    elsewhere = KEYS[name].verbs if name in KEYS else ()
    if elsewhere:
        return f"luwu {verb.name} has no flag --{written}; it belongs to {', '.join(elsewhere)}"
    close = suggestion(name, known).replace("_", "-").replace("mean ", "mean --")
    return f"luwu {verb.name} has no flag --{written}{close}"


def _check_rest(verb: Verb, rest: Sequence[str]) -> None:
    most = {"none": 0, "one": 1, "two": 2}.get(verb.rest)
    if most is not None and len(rest) > most:
        raise ConfigError(f"luwu {verb.name}: {rest[most]!r} is too much; usage: {verb.usage}")
