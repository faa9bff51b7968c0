"""The known name nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for a misspelt name, or nothing; whatever its case."""
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"; did you mean {folded[close[0]]}?" if close else ""
