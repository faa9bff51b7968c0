"""The suite of 20 tests that `test_plugin_suite.py` runs: a user's tests with every fixture.

All pass but two, which fail on purpose: `test_killed_worker`, and `test_leaves_a_process` when it
is torn down.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading

import numpy as np
import pytest

import luwu
from luwu.testing import WorkerFailed


def rank_and_size(rank):
    return rank, int(os.environ["WORLD_SIZE"]), os.environ["RANK"]


def directory(rank):
    return os.getcwd()


def same_again(rank, *args):
    return args


def doubled(rank, tensor):
    return {"tensor": tensor * 2, "rank": rank}


def raises(rank):
    if rank == 1:
        raise KeyError("no such weight")
    threading.Event().wait()


def refuses(rank):
    raise luwu.ConfigError("a width of 0 cannot work")


def returns_a_lock(rank):
    return {"locks": [1, threading.Lock()]}


def waits_for_ever(rank):
    print(f"rank {rank} waits", flush=True)
    threading.Event().wait()


def leaves_a_process(rank):
    return subprocess.Popen(["sleep", "300"], start_new_session=True).pid


def train(rank, steps=1):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
    norms = []
    for _ in range(steps):
        model(torch.full((2, 4), 1.0 + rank)).square().sum().backward()
        norms.append(optimizer.step().grad_norm)
        optimizer.zero_grad()
    return norms


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_ranks(luwu_run, workers):
    assert luwu_run(rank_and_size, workers=workers) == [
        (rank, workers, str(rank)) for rank in range(workers)
    ]


def test_plain_values_travel(luwu_run):
    args = (None, True, 7, 0.1, math.inf, "text", b"\x00bytes", [1, (2, 3)], {"a": {1: [()]}})
    assert luwu_run(same_again, workers=1, args=args) == [args]


def test_arrays_travel(luwu_run):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = luwu_run(same_again, workers=1, args=(array, np.float64(0.1)))
    np.testing.assert_array_equal(found[0], array)
    assert found[0].dtype == np.float32
    assert found[1] == np.float64(0.1)


def test_tensors_travel(luwu_run):
    import torch

    tensor = torch.arange(4, dtype=torch.bfloat16)
    (found,) = luwu_run(doubled, workers=1, args=(tensor,))
    assert found["rank"] == 0
    assert torch.equal(found["tensor"], tensor * 2)


def test_lambda_is_refused(luwu_run):
    with pytest.raises(luwu.ConfigError, match=r"cannot import a lambda.*top level of a module"):
        luwu_run(lambda rank: rank)


def test_closure_is_refused(luwu_run):
    def inner(rank):
        return rank

    with pytest.raises(luwu.ConfigError, match=r"made while a function runs.*top level"):
        luwu_run(inner)


def test_result_is_refused(luwu_run):
    place = r"result of rank 0\['locks'\]\[1\] is <unlocked _thread.lock"
    with pytest.raises(luwu.ConfigError, match=place):
        luwu_run(returns_a_lock, workers=1)


def test_failure_has_the_traceback_of_its_worker(luwu_run):
    with pytest.raises(WorkerFailed, match="worker 1 failed with KeyError") as caught:
        luwu_run(raises, workers=2)
    assert 'raise KeyError("no such weight")' in str(caught.value)


def test_failure_keeps_its_kind(luwu_run):
    with pytest.raises(luwu.ConfigError, match="a width of 0 cannot work"):
        luwu_run(refuses, workers=1)


def test_several_at_once(luwu_run):
    calls = [luwu_run.start(rank_and_size, workers=workers) for workers in (1, 2)]
    assert [len(call.wait()) for call in reversed(calls)] == [2, 1]


def test_workers_are_where_pytest_is(luwu_run):
    assert luwu_run(directory, workers=1) == [os.getcwd()]


def test_training_and_going_on(luwu_run, luwu_session):
    luwu_run(train, workers=1, service=luwu_session)
    first = luwu_session.summary
    luwu_run(train, workers=1, service=luwu_session)
    assert (first["steps"], luwu_session.summary["steps"]) == (1, 2)
    assert first["weights_digest"] != luwu_session.summary["weights_digest"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_threads(luwu_inproc, workers):
    norms = luwu_inproc(lambda rank: train(rank, steps=2), workers=workers)
    assert norms == [norms[0]] * workers


def test_killed_in_a_whole_cluster(luwu_cluster):
    cluster = luwu_cluster(waits_for_ever, workers=2)
    cluster.wait_for_text("rank 1 waits", log="worker-1")
    pid = cluster.kill("worker", 1)
    assert cluster.wait(60) == 4
    assert f"worker 1 (pid {pid}) was lost: signal SIGKILL" in cluster.output


def test_killed_worker(luwu_run):
    call = luwu_run.start(waits_for_ever, workers=2)
    call.wait_for_text(1, "rank 1 waits")
    call.kill(1, number=signal.SIGKILL)
    call.wait()


def test_leaves_a_process(luwu_run):
    luwu_run(leaves_a_process, workers=1)
