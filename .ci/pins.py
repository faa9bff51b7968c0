"""The pins of constraints.txt that suit the torch of .venv; `setup.py` runs this inside of it.

The pins are made for one torch. Another may refuse one of them (torch 2.11 and 2.12 want
`setuptools<82`): such a pin is left out, so that pip picks what that torch takes. Each is named on
standard error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.utils import canonicalize_name


def suited(constraints: str, version: str, requires: Iterable[str]) -> tuple[str, list[str]]:
    """The constraints for a torch of that version and with these requirements; what was left out.

    Requirements of extras are nobody's; those of other platforms are judged by their markers here.
    """
    wanted: dict[str, list[Requirement]] = {}
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            wanted.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    kept, left_out = [], []
    for line in constraints.splitlines():
        name, _, pin = line.partition("==")
        refusing = [
            each
            for each in wanted.get(canonicalize_name(name), [])
            if pin and not each.specifier.contains(pin, prereleases=True)
        ]
        if refusing:
            left_out.append(f"{line} (torch {version} wants {refusing[0]})")
        else:
            kept.append(line)
    text = "\n".join(kept) + "\n"
    return re.sub(r"^torch==.*$", f"torch=={version}", text, flags=re.MULTILINE), left_out


def main() -> None:
    """Reads the constraints named, prints those that suit."""
    torch = metadata.distribution("torch")
    text, left_out = suited(Path(sys.argv[1]).read_text(), torch.version, torch.requires or [])
    for each in left_out:
        print(f"setup: without the pin {each}", file=sys.stderr)
    print(text, end="")


if __name__ == "__main__":
    main()
