"""Public names: the list of them, and docstrings whose examples print what they show."""

from __future__ import annotations

import contextlib
import doctest
import inspect
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import luwu
from luwu import testing
from luwu.launch import local_cluster
from luwu.launch.local_cluster import LocalCluster
from luwu.training.script import run
from tests.helpers.docstrings import doctest_of, public_objects
from tests.helpers.training_harness import one_thread  # noqa: F401 - for every test here

pytestmark = pytest.mark.timeout(30)
OBJECTS = public_objects()


@pytest.fixture(autouse=True)
def end_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A directory of its own for each example; the job that it began ends after it."""
    monkeypatch.chdir(tmp_path)
    yield
    run.finish_at_end()
    if run.is_running():
        luwu.finish()
    local_cluster.close()


@contextlib.contextmanager
def offered_job(example: doctest.DocTest, directory: Path) -> Iterator[None]:
    """The job that an example with `luwu.init()` joins, in place of that of `luwu run`."""
    if not any("luwu.init(" in each.source for each in example.examples):
        yield
        return
    with LocalCluster(
        world_size=1, state=None, memory_budget_bytes=1 << 26, summary=directory / "node.json"
    ) as cluster:
        run.offer(cluster.nic(0))
        try:
            yield
            luwu.finish()
        finally:
            run.offer(None)


@pytest.mark.parametrize("name", OBJECTS)
def test_docstring_example(name: str, tmp_path: Path) -> None:
    """Goal: the example of every public name runs as it stands, given torch and luwu, and prints
    what it shows. Method: doctest, many in one process."""
    example = doctest_of(name, OBJECTS[name], {"torch": torch, "luwu": luwu})
    assert example.examples, f"{name} has no example"
    said = io.StringIO()
    with offered_job(example, tmp_path):
        failed, _ = doctest.DocTestRunner().run(example, out=said.write)
    assert not failed, said.getvalue()


def test_list_of_public_names_is_that_of_their_homes() -> None:
    """Goal: `__all__`, which tools read without importing, has every lazy name and no other."""
    text = Path(luwu.__file__).read_text()
    assert all(f'"{name}",\n' in text for name in luwu.__all__), "not a literal list"
    assert luwu.__all__ == sorted(luwu.__all__)
    assert set(luwu.__all__) == {*luwu._HOME, "optim"}
    assert testing.__all__ == list(testing._HOME)


@pytest.mark.parametrize("name", [each for each in OBJECTS if each != "luwu.optim"])
def test_docstring_describes_every_parameter(name: str) -> None:
    """Goal: the section Args of a function, or of a class that scripts construct, has all of its
    parameters, and no other."""
    thing = OBJECTS[name]
    text = inspect.getdoc(thing) or ""
    section = re.search(r"^Args:\n((?:    .*\n)+)", text, re.MULTILINE)
    described = re.findall(r"^    \*{0,2}(\w+): ", section[1], re.MULTILINE) if section else []
    if inspect.isclass(thing) and not described:
        return  # LuWu constructs it
    parameters = inspect.signature(thing).parameters
    assert described == [each for each in parameters if each != "self"]
