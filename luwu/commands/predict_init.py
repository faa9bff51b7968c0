"""`luwu predict init`: a commented question file to begin with, one of those in the package."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import click

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands import form


def presets() -> dict[str, str]:
    """The texts of the files by name; the first line of each says what it asks."""
    folder = resources.files("luwu.predict") / "data" / "presets"
    return {
        each.name.removesuffix(".toml"): each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
    }


@click.command(
    "init",
    cls=form.Command,
    examples=("luwu predict init", "luwu predict init luwu-64xh100"),
)
@click.argument("name", required=False)
def init(name: str | None) -> int:
    """Write the question file NAME.toml, with a comment for each key, to be changed into your own;
    an existing file is left as it is. Without NAME, list the names."""
    known = presets()
    if name is None:
        width = max(map(len, known))
        for each, text in known.items():
            print(f"{each:<{width}}  {text.splitlines()[0].removeprefix('# ')}")
        return 0
    if name not in known:
        raise ConfigError(
            f"no preset is called {name!r}{suggestion(name, known)}; they are {', '.join(known)}"
        )
    path = Path(f"{name}.toml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(known[name])
    except FileExistsError:
        raise ConfigError(f"{path} exists; move it away, or work on it") from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be written: {exc.strerror}") from exc
    command = "plan" if "\nsystems = " in known[name] else "predict step"
    print(f"wrote {path}; luwu {command} {path} answers it")
    return 0
