"""The form of a command: click's, with flags that are keys of the configuration.

A command is a function below `@command(NAME, EXAMPLE, ...)`; its docstring is its help. With
`keys`, these are flags of it too, and it is given the configuration as `resolved`.

`--memory-budget 2GiB`, `--memory-budget=2GiB` and `--memory_budget 2GiB` are the same; so are
`--x`, `--x true` and `--x=true`, and so are `--no-x` and `--x false`. Names are never abbreviated,
but for -h (--help) and -v (--verbose). Everything after the script of `luwu run` is the script's.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import click

from luwu.base.config import KEYS, Key, resolve, value_text
from luwu.base.errors import ConfigError, LuwuError, suggestion
from luwu.base.parsers import Parser, boolean, path
from luwu.commands.table import module_of

WIDTH: Final = 80
SETTINGS: Final[dict[str, Any]] = {
    "allow_extra_args": True,  # they are refused in our words
    "terminal_width": WIDTH,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
SCRIPT: Final = "script"
"""The argument that begins with a script, or with -m MODULE, and is all that follows."""
_OF_TORCHRUN: Final = {
    "--nproc-per-node": "--workers",
    "--max-restarts": "--worker-restarts",
    "--rdzv-endpoint": "--join",
    "--log-dir": "--run-dir",
}
"""Flags of torchrun, and those here that say the same."""


class Value(click.ParamType):
    """A value that one of our parsers reads; as it is without one."""

    name = "value"

    def __init__(self, shape: str, parse: Parser | None = None) -> None:
        """`shape` is its name in the help, such as FILE, or all words that it may be."""
        self._shape, self._parse = shape, parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Its shape."""
        return self._shape

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What the parser makes of a text. Raises ConfigError."""
        assert param is not None
        if self._parse is None or not isinstance(value, str):  # a default is what it means
            return value
        return self._parse(value, param.opts[-1])


class KeyFlag(click.Option):
    """A flag that is a key: a command is given the texts of all of these together."""

    def __init__(self, key: str, shape: str, text: str, group: str, *, is_flag: bool) -> None:
        """`group` is the heading under which help lists it."""
        name = key.replace("_", "-")
        spelling = f"--{name}/--no-{name}" if is_flag else f"--{name}"
        kind = None if is_flag else Value(shape)
        super().__init__(
            [spelling, key.replace(".", "__")], help=text, is_flag=is_flag, type=kind, default=None
        )
        self.key, self.group = key, group

    @classmethod
    def of(cls, key: Key) -> KeyFlag:
        """A key of the configuration as a flag."""
        text = key.text
        if key.default is not None and key.default is not False:
            text += f" (default: {value_text(key.name, key.default)})"
        return cls(key.name, key.shape, text, key.group, is_flag=key.is_boolean)


def keys_of(*verbs: str) -> list[str]:
    """The keys of commands."""
    return [key.name for key in KEYS.values() if {*verbs} & {*key.verbs}]


def _show_help(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(ctx.get_help())
        ctx.exit()


CONFIG: Final = click.Option(
    ["--config"], type=Value("FILE", path), help="TOML file of keys (default: LUWU_CONFIG)"
)
DEBUG: Final = click.Option(["--debug"], is_flag=True, help="show the traceback of an error")
HELP: Final = click.Option(
    ["-h", "--help"], is_flag=True, is_eager=True, expose_value=False, callback=_show_help,
    help="show this help",
)  # fmt: skip
GENERAL: Final = (CONFIG, DEBUG, HELP)
"""Flags that all commands have, the first only with keys."""
JSON: Final = click.option("--json", "as_json", is_flag=True, help="print JSON")
VERBOSE: Final = click.option(
    "-v", "--verbose", is_flag=True, help="show everything that goes to the run's log"
)


class Form(click.Command):
    """What a command and a command of commands have in common: their help, their refusals."""

    examples: Sequence[str] = ()

    def get_short_help_str(self, limit: int = 0) -> str:
        """Its first sentence, whole."""
        return super().get_short_help_str(1000)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a command line apart. Raises ConfigError."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise ConfigError(_unknown(ctx, error.option_name), code="E201") from error
        except click.UsageError as error:
            said = error.format_message().rstrip(".")
            raise ConfigError(f"{said[0].lower()}{said[1:]}; {usage(ctx)}") from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write flags under their headings: its own, keys by use, those that all commands have."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                title = "General" if param in GENERAL else getattr(param, "group", "Flags")
                groups.setdefault(title, []).append(record)
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl(rows)
        if CONFIG in self.params:
            formatter.write_paragraph()
            formatter.write_text(
                "Flags under other headings than Flags and General are keys: they can also be set "
                "in the TOML file of --config, or as LUWU_<KEY> in the environment."
            )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, line by line."""
        with formatter.section("Examples"):
            formatter.write("".join(f"  {each}\n" for each in self.examples))


class Command(Form):
    """A command, with keys as flags if it has any."""

    def __init__(
        self, name: str, *, params: list[click.Parameter], examples: Sequence[str],
        keys: Iterable[str] = (), **settings: Any,
    ) -> None:  # fmt: skip
        own = {spelling for each in params for spelling in each.opts}
        of_keys = [KeyFlag.of(KEYS[key]) for key in keys if KEYS[key].flag not in own]
        general = GENERAL if of_keys else GENERAL[1:]
        super().__init__(
            name, params=[*params, *of_keys, *general], context_settings=SETTINGS,
            add_help_option=False, options_metavar="[flags]", **settings,
        )  # fmt: skip
        self.examples, self._has_keys = examples, bool(of_keys)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take a command line apart. Raises ConfigError."""
        rest = super().parse_args(ctx, self._in_its_form(args))
        if rest:
            raise ConfigError(f"{rest[0]!r} is too much; {usage(ctx)}")
        return rest

    def _in_its_form(self, args: Sequence[str]) -> list[str]:
        """What click does not take: `--x false`, and -m as the beginning of a script.

        Raises ConfigError if a value is missing, or there is one too many.
        """
        options = {
            name: each
            for each in self.params
            if isinstance(each, click.Option)
            for name in (*each.opts, *each.secondary_opts)
        }
        has_script = SCRIPT in {each.name for each in self.params}
        waiting, taken = list(args), list[str]()
        while waiting:
            token = waiting.pop(0)
            if has_script and (token == "-m" or not token.startswith("-")):
                return [*taken, "--", token, *waiting]
            written, equals, value = token.partition("=")
            name = written.replace("_", "-")
            option = options.get(name)
            taken.append(token)
            if option is None:
                continue
            if not option.is_flag:
                if not equals and not (waiting and not waiting[0].startswith("--")):
                    raise ConfigError(f"{token} needs a value after it")
                taken += [] if equals else [waiting.pop(0)]
            elif isinstance(option, KeyFlag) and name in option.opts:
                if not equals and waiting[:1] in (["true"], ["false"]):
                    equals, value = "=", waiting.pop(0)
                is_on = not equals or boolean(value, name)
                taken[-1] = (option.opts if is_on else option.secondary_opts)[0]
            elif equals:
                raise ConfigError(f"{written} takes no value, got {value!r}")
        return taken

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises what it raises, and ConfigError."""
        is_debug = ctx.params.pop("debug")
        try:
            self.prepare(ctx)
            return super().invoke(ctx)
        except LuwuError:
            if is_debug:
                traceback.print_exc()
            raise

    def prepare(self, ctx: click.Context) -> None:
        """Put what becomes of the keys among its arguments. Raises ConfigError."""
        flags = [each for each in self.params if isinstance(each, KeyFlag)]
        values = {each: ctx.params.pop(each.name) for each in flags}
        self.take(ctx, {
            each.key: str(value).lower() if each.is_flag else value
            for each, value in values.items()
            if value is not None
        })  # fmt: skip

    def take(self, ctx: click.Context, texts: Mapping[str, str]) -> None:
        """Pass the texts of keys on to the command. Raises ConfigError."""
        if self._has_keys:
            ctx.params["resolved"] = resolve(flags=texts, file=ctx.params.pop("config"))


def command(
    name: str, *examples: str, of: click.Group | None = None, **settings: Any
) -> Callable[[Callable[..., int]], click.Command]:  # fmt: skip
    """Make a command of a function, `of` a group or of `luwu` itself; `settings`: of `Command`."""
    make = click.command if of is None else of.command
    return make(name, cls=Command, examples=examples, **settings)


def print_json(document: object) -> None:
    """Print what --json is for."""
    print(json.dumps(document, indent=1))


def show(document: object, text: str, *, as_json: bool) -> int:
    """Print a document, or its text for people; the exit code."""
    if as_json:
        print_json(document)
    else:
        print(text)
    return 0


class Commands(Form, click.Group):
    """A command that consists of others: the word after it chooses one."""

    def __init__(self, name: str, *, text: str, examples: Sequence[str]) -> None:
        """`text` is its help."""
        super().__init__(
            name, help=text, params=[HELP], add_help_option=False,
            context_settings={**SETTINGS, "ignore_unknown_options": True}, options_metavar="",
            no_args_is_help=False,
        )  # fmt: skip
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the first words apart; without one, its help is wanted. Raises ConfigError."""
        return super().parse_args(ctx, args or ["--help"])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write its commands too."""
        self.format_commands(ctx, formatter)
        super().format_options(ctx, formatter)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name. Raises ConfigError."""
        found = super().get_command(ctx, cmd_name)
        if found is None:
            raise ConfigError(
                f"{cmd_name!r} is not one of {', '.join(self.commands)}"
                f"{suggestion(cmd_name, self.commands)}; {ctx.command_path} --help",
                code="E201",
            )
        return found


class _Luwu(click.Group):
    """All commands; their modules are imported when they are needed."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """That of a module."""
        found: click.Command = module_of(cmd_name).run
        return found


LUWU: Final = _Luwu("luwu")


def run(tokens: Sequence[str]) -> int:
    """Run a command line that begins with a verb; the exit code. Raises what it raises."""
    try:
        with LUWU.make_context("luwu", [*tokens]) as ctx:
            code: int = LUWU.invoke(ctx)
            return code
    except click.exceptions.Exit as end:
        return end.exit_code


def usage(ctx: click.Context) -> str:
    """The form of a command in one line, for messages."""
    return " ".join(ctx.get_usage().replace("Usage:", "usage:").split())


def _unknown(ctx: click.Context, written: str) -> str:
    """The message of a flag that a command does not have."""
    command = ctx.command
    known = [name for param in command.params for name in param.opts if name.startswith("--")]
    said = f"{ctx.command_path} has no flag {written}"
    if _OF_TORCHRUN.get(written) in known:
        return f"{said}; here it is {_OF_TORCHRUN[written]}"
    parent = ctx.parent.command if ctx.parent is not None else None
    siblings = parent.commands if isinstance(parent, click.Group) else {}
    elsewhere = [
        f"luwu {parent.name} {name}"
        for name, each in siblings.items()
        if parent is not None and written in {opt for param in each.params for opt in param.opts}
    ]
    key = KEYS.get(written.removeprefix("--").replace("-", "_"))
    if key is not None and not elsewhere:
        elsewhere = [f"luwu {each}" for each in key.verbs]
    if elsewhere:
        return f"{said}; it belongs to {', '.join(elsewhere)}"
    return said + suggestion(written, known)
