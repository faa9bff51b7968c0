"""Every public name has a docstring with an example, and every example prints what it shows."""

from __future__ import annotations

import doctest
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import luwu
from luwu.launch import local
from luwu.launch.local_cluster import LocalCluster
from luwu.training.script import run
from tests.docstrings import doctest_of, public_objects
from tests.unit.training_harness import one_thread  # noqa: F401 - for every test here

OBJECTS = public_objects()


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory of its own, and a job for examples that call luwu.init(); both jobs end."""
    monkeypatch.chdir(tmp_path)
    with LocalCluster(
        world_size=1, state=None, memory_budget_bytes=1 << 26, summary=tmp_path / "node.json"
    ) as cluster:
        run.offer(cluster.nic(0))
        try:
            yield
        finally:
            run.offer(None)
            try:
                run.finish_at_end()
            finally:
                run._here.session = None  # of an example that trains nothing, and has not begun
                local.close()


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_example_prints_what_it_shows(name: str) -> None:
    """Goal: the example of every public name runs as it stands, given torch and luwu, and prints
    what it shows. Method: doctest, many in one process."""
    example = doctest_of(name, OBJECTS[name], {"torch": torch, "luwu": luwu})
    assert example.examples, f"{name} has no example"
    said = io.StringIO()
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.write)
    assert not failed, said.getvalue()


def test_all_names_are_listed() -> None:
    """Goal: documentation tools and editors, which read `__all__` as text, see every name."""
    assert luwu.__all__ == sorted([*luwu._HOME, "optim"])
    text = Path(luwu.__file__).read_text()
    assert all(f'"{name}",' in text for name in luwu.__all__)
