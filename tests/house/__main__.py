"""python -m tests.house: every count, which must be 0, and every amount beside its bound."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.house import labels, sizes, structure, texts
from tests.house.amounts import amounts
from tests.house.source import ROOT


class Count(NamedTuple):
    """One thing that is counted, of which there may be none."""

    what: str
    find: Callable[[Path], list[str]]


COUNTS = (
    Count("classes of cores that inherit", structure.classes_that_inherit),
    Count("modules in import circles", structure.modules_in_circles),
    Count("labels undefined or defined twice", labels.problems),
    Count("files over 700 lines", sizes.long_files),
    Count("functions over 60 lines", sizes.long_functions),
    Count("signatures over 10 parameters without a reason", sizes.wide_signatures),
    Count("modules that hide the standard library's", structure.modules_that_hide_others),
    Count("packages over 6 modules without a map", texts.packages_without_map),
    Count("names in the architecture that do not exist", texts.names_that_do_not_exist),
)


def main() -> int:
    argparse.ArgumentParser(prog="python -m tests.house", description=__doc__).parse_args()
    problems = []
    for count in COUNTS:
        found = count.find(ROOT)
        print(f"{len(found):6}  {count.what}")
        problems += found
    for amount in amounts(ROOT):
        print(f"{amount.found:6}  {amount.what} (at most {amount.bound})")
        problems += [amount.problem] if amount.problem else []
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
