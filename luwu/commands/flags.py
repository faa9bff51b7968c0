"""The command line of a command: flags that are keys, a few of its own, then the rest.

`--memory-budget 2GiB`, `--memory-budget=2GiB` and `--memory_budget 2GiB` are the same; so are
`--x`, `--x true` and `--x=true`, and so are `--no-x` and `--x false`. Names are never abbreviated,
but for -h (--help) and -v (--verbose). Everything after the script of `luwu run` belongs to the
script. A command may consist of others, as `luwu predict` does: the word after it chooses one.
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
    """A flag of one command that is no key."""

    name: str
    text: str
    shape: str = ""
    """The name of its value in the help; without one it takes none."""
    repeats: bool = False
    """True if it may be given several times; elsewhere the last one counts."""
    title: str = ""
    """The heading under which help lists it; the command's own flags have none."""

    @property
    def flag(self) -> str:
        """Its spelling on the command line."""
        return "--" + self.name.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """The form of a command line."""

    name: str
    usage: str
    """One line for each form."""
    text: str
    """What the command does; blank lines separate paragraphs."""
    examples: tuple[str, ...] = ()
    commands: Mapping[str, Verb] = field(default_factory=dict)
    """The forms of the commands that it consists of, by their last word."""
    flags: tuple[Flag, ...] = ()
    has_keys: bool = True
    """True if the keys of `RunConfig` for this command are flags of it."""
    has_all_keys: bool = False
    """True if those of all commands are."""
    keys_of: str = ""
    """The command whose keys are flags of this one too."""
    rest: str = "none"
    """The words beside the flags: `none`, `one`, `two`, `many`, or `script` with all that
    follows."""
    presets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The keys that are flags of this command."""
        if not self.has_keys:
            return []
        owners = {self.name.split()[0], self.keys_of}
        return [name for name in KEYS if self.has_all_keys or owners & {*KEYS[name].verbs}]

    @property
    def usage_text(self) -> str:
        """Its forms in one line, for messages."""
        return " or ".join(self.usage.splitlines())


_OF_TORCHRUN = {
    "nproc_per_node": "workers",
    "nnodes": "worker_hosts",
    "max_restarts": "worker_restarts",
    "rdzv_endpoint": "rendezvous",
    "log_dir": "run_dir",
}
"""Flags of torchrun, and those here that say the same."""
JSON_FLAG = Flag(name="json", text="print JSON")
CATALOGUE_FLAG = Flag(
    name="catalogue", shape="FILE", text="TOML file with your own hardware and models"
)
VERBOSE_FLAG = Flag(name="verbose", text="show everything that goes to the run's log; also -v")
CONFIG_FLAG = Flag(name="config", shape="FILE", text="TOML file of keys (default: LUWU_CONFIG)")
DEBUG_FLAG = Flag(name="debug", text="show the traceback of an error")
HELP_FLAG = Flag(name="help", text="show this help; also -h")
HELP_ALL_FLAG = Flag(name="help_all", text="show all flags, including rarely used ones")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A command line taken apart."""

    verb: Verb
    keys: dict[str, str]
    flags: dict[str, str]
    rest: list[str]
    repeated: dict[str, list[str]] = field(default_factory=dict)
    """All values of flags that may be given several times, in their order."""

    def has(self, name: str) -> bool:
        """True if a flag without a value was given."""
        return name in self.flags


def parse(
    verb: Verb, tokens: Sequence[str], siblings: Mapping[str, Verb] | None = None
) -> Parsed:  # fmt: skip
    """Take a command line apart. Raises ConfigError.

    `siblings`: the commands that a flag may belong to instead, for messages.
    """
    if verb.commands:
        return _parse_command(verb, tokens)
    parsed = Parsed(verb, {}, {}, [])
    own = {flag.name: flag for flag in flags_of(verb)}
    keys = set(verb.keys)
    waiting = list(tokens)
    while waiting:
        token = waiting.pop(0)
        if token in ("-h", "--help", "--help-all"):
            parsed.flags["help_all" if token == "--help-all" else "help"] = ""
            return parsed
        if token == "-v" and VERBOSE_FLAG.name in own:
            token = "--verbose"
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
            known = [*own, *keys]
            raise ConfigError(_unknown(verb, written, name, known, siblings or {}), code="E201")
    _check_rest(verb, parsed.rest)
    return parsed


def _parse_command(verb: Verb, tokens: Sequence[str]) -> Parsed:
    """The same where the first word chooses one of several commands."""
    name, *rest = tokens or ("--help",)
    if name in ("-h", "--help", "--help-all"):
        return Parsed(verb, {}, {"help": ""}, [])
    if name not in verb.commands:
        raise ConfigError(
            f"{name!r} is not one of {', '.join(verb.commands)}{suggestion(name, verb.commands)}; "
            f"luwu {verb.name} --help",
            code="E201",
        )
    return parse(verb.commands[name], rest, verb.commands)


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
    """The flags of a command that are no keys."""
    config = (CONFIG_FLAG, HELP_ALL_FLAG) if verb.has_keys else ()
    return (*verb.flags, DEBUG_FLAG, HELP_FLAG, *config)


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


def _unknown(
    verb: Verb, written: str, name: str, known: Sequence[str], siblings: Mapping[str, Verb]
) -> str:  # fmt: skip
    ours = _OF_TORCHRUN.get(name)
    if ours is not None and ours in known:
        return f"luwu {verb.name} has no flag --{written}; here it is --{ours.replace('_', '-')}"
    elsewhere = [
        f"luwu {each.name}" for each in siblings.values() if name in {f.name for f in each.flags}
    ]
    if name in KEYS and not elsewhere:
        elsewhere = [f"luwu {each}" for each in KEYS[name].verbs]
    if elsewhere:
        return f"luwu {verb.name} has no flag --{written}; it belongs to {', '.join(elsewhere)}"
    close = suggestion(name, known).replace("_", "-").replace("mean ", "mean --")
    return f"luwu {verb.name} has no flag --{written}{close}"


def _check_rest(verb: Verb, rest: Sequence[str]) -> None:
    most = {"none": 0, "one": 1, "two": 2}.get(verb.rest)
    if most is not None and len(rest) > most:
        raise ConfigError(f"luwu {verb.name}: {rest[most]!r} is too much; usage: {verb.usage_text}")
