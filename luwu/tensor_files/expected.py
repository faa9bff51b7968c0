"""A check of the tensors found against those wanted: all that is wrong, in one message."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from luwu.base.errors import ConfigError
from luwu.tensor_files.header import Tensor

SHOWN_MAX = 4


def check_tensors(
    found: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]], *, place: str,
    dtypes: Collection[str], owner: str,
) -> None:  # fmt: skip
    """`wanted`: name -> shape. Raises ConfigError that lists the first few of each kind.

    `owner` is what wants them, for people: "the state".
    """
    both = [name for name in wanted if name in found]
    kinds = {
        "missing": [name for name in wanted if name not in found],
        f"not in {owner}": [name for name in found if name not in wanted],
        "of another shape": [
            f"{name} {list(found[name].shape)}, expected {list(wanted[name])}"
            for name in both
            if found[name].shape != wanted[name]
        ],
        f"neither of {', '.join(dtypes)}" if len(dtypes) > 1 else f"not {', '.join(dtypes)}": [
            f"{name} {found[name].dtype}" for name in both if found[name].dtype not in dtypes
        ],
    }
    lines = [f"{len(names)} {kind}: {shown(names)}" for kind, names in kinds.items() if names]
    if lines:
        raise ConfigError(
            f"{place} has other tensors than {owner}, so nothing was taken\n  " + "\n  ".join(lines)
        )


def shown(names: Collection[str]) -> str:
    """The first few of many names, for people."""
    first = [f"{name:.160}" for name in list(names)[:SHOWN_MAX]]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
