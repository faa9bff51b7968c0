"""docs/schema/api-VERSION.txt: all that users may rely on, as the program has it, a name an entry.

    python -m tests.api    write the file of this version; name what is not in the changelog yet

Names and signatures are those that docs/api.md shows; commands, flags, keys, codes of errors,
fields of JSON documents, metrics and versions of formats are taken from the program. The file of a
version that was released stays: what differs from the last of them must be in docs/changelog.md, in
the section of this version, as `name`. A name that went or came names all below it.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from luwu.base import errors
from luwu.base.config import ENVIRONMENT_ONLY, KEYS, value_text
from luwu.base.limits import PROTOCOL_VERSION
from luwu.checkpoint import document
from luwu.commands.form import GENERAL
from luwu.monitor.prometheus import HELP, JOB_HELP
from switch_emu.store.config import FORMAT_VERSION
from tests.helpers.command_line import forms
from tests.helpers.docstrings import API_PAGE
from tests.helpers.schemas import SCHEMAS, parts, schemas

ROOT: Final = Path(__file__).resolve().parents[1]
CHANGELOG: Final = ROOT / "docs" / "changelog.md"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_ERRORS: Final = [each for each in vars(errors).values() if hasattr(each, "exit_code")]
WHOLE: Final = ("went", "is new")
_SHOWN: Final = re.compile(r"^::: ([\w.]+)(?:\n    options: \{(.*)\})?$", re.MULTILINE)


# ---------------------------------------------------------------------- what there is


def _signature(function: Any) -> str:
    """Without the quotes of annotations, and without `self`."""
    text = re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", str(inspect.signature(function)))
    return re.sub(r"^\(self\b(: \w+)?(, )?", "(", text)


def _is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "luwu"


def _members(cls: type, shown_elsewhere: set[Any]) -> Iterator[tuple[str, str]]:
    """What classes of ours give a class, but for those which the page shows themselves."""
    for each in reversed(cls.__mro__):
        if not _is_ours(each) or (each is not cls and each in shown_elsewhere):
            continue
        for name, kind in inspect.get_annotations(each).items():
            yield name, f": {getattr(kind, '__forward_arg__', kind)}"
        for name, value in vars(each).items():
            function = getattr(value, "__func__", value)
            if isinstance(value, property):
                yield name, ": " + _signature(value.fget).rpartition(" -> ")[2]
            elif inspect.isfunction(function):
                is_put = hasattr(function, "hooked") and each.__name__ not in function.__qualname__
                if (
                    not is_put
                ):  # torch puts `step` of a base, wrapped, into the class of an optimizer
                    yield name, _signature(function)


def _python() -> Iterator[tuple[str, str]]:
    page = _SHOWN.findall(API_PAGE.read_text(encoding="utf-8"))
    things = {name: pkgutil.resolve_name(name) for name, _ in page}
    for name, options in page:
        thing, members = things[name], dict[str, str]()
        has_signature = inspect.isfunction(thing) or _is_ours(getattr(thing, "__init__", None))
        has_signature &= "show_signature: false" not in options
        yield name, _signature(thing) if has_signature else ""
        if isinstance(thing, type):
            members = dict(_members(thing, set(things.values())))
        told = (inspect.getdoc(thing) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        attributes = re.findall(r"^    (\w+): ", told, re.MULTILINE)
        if chosen := re.search(r"members: (?:\[(.*?)\]|false)", options):
            members = {each: members.get(each, "") for each in (chosen[1] or "").split(", ")}
        for member, text in {**dict.fromkeys(attributes, ""), **members}.items():
            if member and not member.startswith("_"):
                yield f"{name}.{member}", text


def _commands() -> Iterator[tuple[str, str]]:
    for words, form in forms():
        ctx = click.Context(form, info_name=words)
        yield f"luwu {words}", " ".join(form.collect_usage_pieces(ctx)[1:])
        for each in form.params:
            if isinstance(each, click.Option) and each not in GENERAL:
                default = f" = {each.default}" if isinstance(each.default, int | str) else ""
                text = "" if each.is_flag else each.make_metavar(ctx) + default
                yield f"luwu {words} {each.opts[-1]}", text


def _fields(schema: Any) -> Iterator[str]:
    for path, part in parts(schema):
        for key, each in part.get("properties", {}).items():
            kind = re.sub(r"[^a-z,]", "", str(each.get("type", "")))
            yield f"{path}.{key}:{kind}".removeprefix("$.")


def api() -> dict[str, str]:
    """Every name, and in one line what is known of it."""
    found = dict([*_python(), *_commands()])
    for key in KEYS.values():
        found[key.name] = f"{key.shape} = {value_text(key.name, key.default)}"
    exits = {each.code: f"; exit code {each.exit_code}" for each in _ERRORS}
    found |= {
        each.code: each.title + exits.get(each.code, "") for each in errors.entries().values()
    }
    for name, schema in schemas().items():
        number = schema.get("properties", {}).get("schema", {}).get("const", "")
        found[f"{name}.json"] = " ".join([str(number), *_fields(schema)])
    found |= dict.fromkeys(ENVIRONMENT_ONLY, "") | dict.fromkeys((*JOB_HELP, *HELP), "metric")
    found |= {f"{PROJECT['name']}[{extra}]": "" for extra in PROJECT["optional-dependencies"]}
    found |= dict(re.findall(r"(torch)(\S+)", " ".join(PROJECT["dependencies"])))
    found |= {"python": PROJECT["requires-python"], document.FORMAT: str(document.VERSION)}
    found |= {"protocol": str(PROTOCOL_VERSION), "luwu-store": str(FORMAT_VERSION)}
    return {name: " ".join(text.split()) for name, text in found.items()}


# ---------------------------------------------------------------------- files, and the changelog


def as_text(found: Mapping[str, str]) -> str:
    """The text of a file."""
    wrap = textwrap.TextWrapper(
        100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
    return "".join(f"{wrap.fill(f'{name}  {text}'.rstrip())}\n" for name, text in found.items())


def read(path: Path) -> dict[str, str]:
    """What a file has."""
    lines = path.read_text(encoding="utf-8").replace("\n    ", " ").splitlines()
    return {name: text for name, _, text in (line.partition("  ") for line in lines)}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What is different of each name that is not the same, in words."""
    found = {name: WHOLE[0] for name in before if name not in after}
    for name, text in after.items():
        if name not in before:
            found[name] = WHOLE[1]
        elif text != before[name]:
            words = difflib.ndiff(before[name].split(), text.split())
            found[name] = " ".join(each for each in words if each[0] in "+-")
    return found


def problems(folder: Path, version: str, changelog: str, found: Mapping[str, str]) -> list[str]:
    """What of an API is not in the file of its version, and what of it the changelog lacks."""
    files = {path.stem.removeprefix("api-"): read(path) for path in folder.glob("api-*.txt")}
    section = re.search(
        rf"^## {re.escape(version)}(?: .*?)?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    wrong = [] if section else [f"docs/changelog.md has no section {version}"]
    for name, how in changes(files.get(version, {}), found).items():
        wrong.append(f"{name} {how}: run python -m tests.api")
    if released := [each for each in files if _order(each) < _order(version)]:
        differ = changes(files[max(released, key=_order)], found)
        named = set(re.findall(r"`([^`]+)`", " ".join(section[1].split()))) if section else set()
        above = tuple(f"{name}{dot}" for name in named if differ.get(name) in WHOLE for dot in ". ")
        for name, how in differ.items():
            if name not in named and not name.startswith(above):
                wrong.append(f"{name} {how}: name `{name}` in docs/changelog.md, section {version}")
    return wrong


def _order(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


def main() -> int:
    """Write the file of this version; 1 if the changelog lacks something."""
    version, found = PROJECT["version"], api()
    (SCHEMAS / f"api-{version}.txt").write_text(as_text(found), encoding="utf-8")
    wrong = problems(SCHEMAS, version, CHANGELOG.read_text(encoding="utf-8"), found)
    print("\n".join(wrong), end="\n" * bool(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
