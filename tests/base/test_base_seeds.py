"""Seeds derived by name."""

from __future__ import annotations

from itertools import product

from luwu.base.seeds import derive


def test_golden() -> None:
    """I3. Goal: a run with a seed is the same run in every later version."""
    assert derive(0) == 2033344993903900207
    assert derive(7, "batch", 3) == 6303547512065079870
    assert derive(-1, "dropout", 2**70) == 6565240720195967399


def test_names_are_unrelated_streams() -> None:
    """Goal: seed, each name, their order and their number all count."""
    names_used: list[str | int] = ["batch", "dropout", 0, 1, 12]
    paths = [
        (seed, names)
        for seed in (0, 1, 12)
        for length in range(4)
        for names in product(names_used, repeat=length)
    ]
    assert len({derive(seed, *names) for seed, names in paths}) == len(paths)
