"""python -m tests.house: every count and amount beside its bound; 1 if one is above it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.house import circles, cores, labels, names, sizes, texts
from tests.house.amounts import amounts
from tests.house.source import ROOT


class Count(NamedTuple):
    """One thing that is counted, and how many of it there may be."""

    what: str
    find: Callable[[Path], list[str]]
    bound: int


COUNTS = (
    Count("classes of cores that inherit", cores.classes_that_inherit, 0),
    Count("modules in import circles", circles.modules_in_circles, 0),
    Count("labels undefined or defined twice", labels.problems, 0),
    Count("files over 700 lines", sizes.long_files, 0),
    Count("functions over 60 lines", sizes.long_functions, 0),
    Count("signatures over 10 parameters without a reason", sizes.wide_signatures, 0),
    Count("modules that hide the standard library's", names.modules_that_hide_others, 0),
    Count("packages over 6 modules without a map", texts.packages_without_map, 0),
    Count("names in the architecture that do not exist", texts.names_that_do_not_exist, 0),
)
"""The bounds are what holds today, and only ever go down."""


def report(root: Path = ROOT, counts: tuple[Count, ...] = COUNTS) -> tuple[str, bool]:
    """The text, and whether every count is within its bound."""
    lines, sound = [], True
    for count in counts:
        found = count.find(root)
        above = len(found) > count.bound
        sound = sound and not above
        bound = f" (at most {count.bound})" if count.bound or above else ""
        lines.append(f"{len(found):4}  {count.what}{bound}{'  <- above' if above else ''}")
        lines += [f"          {each}" for each in found]
    return "\n".join(lines), sound


def main() -> int:
    argparse.ArgumentParser(prog="python -m tests.house", description=__doc__).parse_args()
    text, sound = report()
    print(text)
    problems = []
    for amount in amounts(ROOT):
        print(f"{amount.found:6}  {amount.what} (at most {amount.bound})")
        problems += [amount.problem] if amount.problem else []
    print("\n".join(problems))
    return 0 if sound and not problems else 1


if __name__ == "__main__":
    sys.exit(main())
