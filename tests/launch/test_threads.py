"""Compute threads: every arm's workers have the same cores."""

from __future__ import annotations

import os

import pytest

from luwu.base.errors import ConfigError
from luwu.launch.supervisor import threads_alone, threads_per_worker


@pytest.mark.parametrize(
    ("processors", "workers", "each", "alone"),
    [(2, 2, 1, 2), (8, 2, 4, 8), (8, 3, 2, 6), (2, 4, 1, 2), (1, 2, 1, 1), (4, 1, 4, 4)],
)
def test_one_process_has_the_cores_of_all_workers(
    monkeypatch: pytest.MonkeyPatch, processors: int, workers: int, each: int, alone: int
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    assert (threads_per_worker(workers), threads_alone(workers)) == (each, alone)


def test_a_number_from_the_environment_is_taken_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (threads_per_worker(2), threads_alone(2)) == (3, 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="is not a number"):
        threads_alone(2)
