"""`luwu completion bash|zsh|fish`: a completion script, made from the forms of all commands.

The script knows commands, flags, and the values of flags that have a list of them; where a file or
directory is wanted, and after the flags, the shell completes file names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Flag, Parsed, Verb, flags_of
from luwu.commands.help import key_flag
from luwu.commands.table import VERBS, forms

VERB: Final = Verb(
    name="completion",
    usage="luwu completion bash|zsh|fish",
    text="Print a script that completes the commands and flags of luwu in a shell.",
    examples=(
        'eval "$(luwu completion bash)"    # or in ~/.bashrc',
        "luwu completion fish > ~/.config/fish/completions/luwu.fish",
    ),
    has_keys=False,
    rest="one",
)


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    shell = parsed.rest[0] if parsed.rest else ""
    if shell not in _SCRIPTS:
        raise ConfigError(
            f"{shell!r} is not one of {', '.join(_SCRIPTS)}{suggestion(shell, _SCRIPTS)}; usage: "
            f"{VERB.usage}"
        )
    print(_SCRIPTS[shell](list(forms())))
    return 0


def flags_and_keys(verb: Verb) -> list[Flag]:
    """All flags of a command, those that are keys first."""
    return [*map(key_flag, verb.keys), *flags_of(verb)]


def choices(flag: Flag) -> list[str]:
    """The words that its value may be, as far as they are known."""
    return [word for word in flag.shape.split("|") if word.islower()]


def wants_file(flag: Flag) -> bool:
    """True if its value is a file or directory."""
    return bool({"FILE", "DIR"} & {*flag.shape.split("|")})


# ---------------------------------------------------------------------- bash


def bash_script(verbs: list[Verb]) -> str:
    """For bash 3.2 and later; without COMPREPLY bash completes file names."""
    lines = [
        "_luwu() {",
        "  local command=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]}",
        "  local previous=${COMP_WORDS[COMP_CWORD-1]} words=",
        "  COMPREPLY=()",
        '  [[ $current == "=" ]] && current=',
        '  [[ $previous == "=" ]] && previous=${COMP_WORDS[COMP_CWORD-2]}',
        "  if ((COMP_CWORD == 1)); then",
        f'    words="{" ".join(VERBS)}"',
    ]
    for verb in verbs:
        if verb.commands:
            lines += [
                f'  elif [[ $command == "{verb.name}" ]] && ((COMP_CWORD == 2)); then',
                f'    words="{" ".join(verb.commands)}"',
            ]
    parents = "|".join(f'"{verb.name}"' for verb in verbs if verb.commands)
    lines += [
        "  else",
        '    case "$command" in',
        f'    {parents}) command="$command ${{COMP_WORDS[2]}}" ;;',
        "    esac",
        '    case "$command $previous" in',
    ]
    for verb in verbs:
        for flag in flags_and_keys(verb):
            if choices(flag):
                words = " ".join(choices(flag))
                lines.append(f'    "{verb.name} {flag.flag}") words="{words}" ;;')
    lines += ["    *)", '      case "$command$current" in']
    for verb in verbs:
        words = " ".join(flag.flag for flag in flags_and_keys(verb))
        lines.append(f'      "{verb.name}-"*) words="{words}" ;;')
    lines += [
        "      esac ;;",
        "    esac",
        "  fi",
        '  [[ -n $words ]] && COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "  return 0",
        "}",
        "complete -o default -F _luwu luwu",
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------------- zsh


def zsh_script(verbs: list[Verb]) -> str:
    """For a file `_luwu` on fpath, or to be evaluated after compinit."""
    lines = ["#compdef luwu", "_luwu() {"]
    lines += _zsh_commands("CURRENT -eq 2", VERBS)
    for verb in verbs:
        if verb.commands:
            texts = {name: _short(each.text) for name, each in verb.commands.items()}
            lines += _zsh_commands(f"CURRENT -eq 3 && $words[2] == {verb.name}", texts)
    parents = "|".join(verb.name for verb in verbs if verb.commands)
    lines += [
        "  local command=$words[2]",
        "  shift words; ((CURRENT--))",
        "  case $command in",
        f'  ({parents}) command="$command $words[2]"; shift words; ((CURRENT--)) ;;',
        "  esac",
        '  case "$command" in',
    ]
    for verb in verbs:
        if not verb.commands:
            flags = " ".join(map(_zsh_flag, flags_and_keys(verb)))
            lines.append(f"  ({_single(verb.name)}) _arguments {flags} '*:file:_files' ;;")
    lines += [
        "  esac",
        "}",
        'if [[ $funcstack[1] == _luwu ]]; then _luwu "$@"; else compdef _luwu luwu; fi',
    ]
    return "\n".join(lines)


def _zsh_commands(condition: str, texts: dict[str, str]) -> list[str]:
    rows = " ".join(_single(f"{name}:{text}") for name, text in texts.items())
    return [
        f"  if [[ {condition} ]]; then",
        f"    local -a commands=({rows})",
        "    _describe command commands",
        "    return",
        "  fi",
    ]


def _zsh_flag(flag: Flag) -> str:
    text = _short(flag.text)
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    row = f"{'*' if flag.repeats else ''}{flag.flag}[{text}]"
    if not flag.shape:
        return _single(row)
    values = " "
    if choices(flag):
        values = f"({' '.join(choices(flag))})"
    elif wants_file(flag):
        values = "_files"
    return _single(f"{row}:{flag.shape.replace(':', '-')}:{values}")


# ---------------------------------------------------------------------- fish

_FISH_HEAD: Final = """\
function __luwu_at  # whether the words before the cursor begin with these
    set -l words (commandline -opc)[2..]
    set -l last (count $argv)
    test (count $words) -ge $last; and test "$words[1..$last]" = "$argv"
end
function __luwu_are  # whether they are these
    set -l words (commandline -opc)[2..]
    test "$words" = "$argv"
end"""


def fish_script(verbs: list[Verb]) -> str:
    """For ~/.config/fish/completions/luwu.fish."""
    lines = [_FISH_HEAD]
    lines += [_fish("__luwu_are", f"-f -a {name}", text) for name, text in VERBS.items()]
    for verb in verbs:
        for name, each in verb.commands.items():
            lines.append(_fish(f"__luwu_are {verb.name}", f"-f -a {name}", _short(each.text)))
        if verb.commands:
            continue
        for flag in flags_and_keys(verb):
            value = f" {_fish_value(flag)}" if flag.shape else ""
            name = f"-l {flag.flag.removeprefix('--')}"
            lines.append(_fish(f"__luwu_at {verb.name}", name + value, _short(flag.text)))
    return "\n".join(lines)


def _fish(condition: str, form: str, text: str) -> str:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"complete -c luwu -n '{condition}' {form} -d '{quoted}'"


def _fish_value(flag: Flag) -> str:
    if choices(flag):
        return f"-x -a '{' '.join(choices(flag))}'"
    return "-r -F" if wants_file(flag) else "-x"


# ---------------------------------------------------------------------- texts


def _short(text: str) -> str:
    """The first clause of a text."""
    return text.partition(". ")[0].partition(";")[0].partition(" (default")[0].rstrip(".")


def _single(text: str) -> str:
    """In single quotes, for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


_SCRIPTS: Final[dict[str, Callable[[list[Verb]], str]]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
