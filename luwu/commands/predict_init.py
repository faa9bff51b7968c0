"""`luwu predict init`: a commented question file to begin with, one of those in the package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from luwu.base.errors import ConfigError
from luwu.base.suggestion import suggestion
from luwu.commands.flags import Parsed, Verb
from luwu.predict.hardware.catalogue import Catalogue

INIT: Final = Verb(
    name="predict init",
    usage="luwu predict init [NAME]",
    text="Write the question file NAME.toml, with a comment for each key, to be changed into your "
    "own; an existing file is left as it is. Without NAME, list the names.",
    examples=("luwu predict init", "luwu predict init luwu-64xh100"),
    has_keys=False,
    rest="one",
)


def presets() -> dict[str, str]:
    """The texts of the files by name; the first line of each says what it asks."""
    folder = resources.files("luwu.predict") / "data" / "presets"
    return {
        each.name.removesuffix(".toml"): each.read_text(encoding="utf-8")
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
    }


def run_init(parsed: Parsed, rest: Sequence[str], catalogue: Catalogue) -> str:
    """The output of the command. Raises ConfigError."""
    known = presets()
    if not rest:
        width = max(map(len, known))
        return "\n".join(
            f"{name:<{width}}  {text.splitlines()[0].removeprefix('# ')}"
            for name, text in known.items()
        )
    (name,) = rest
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
    return f"wrote {path}; luwu {command} {path} answers it"
