"""The suite that `test_plugin_suite.py` runs: a user's tests with `luwu_run`.

All pass but two, which fail on purpose: `test_killed_worker`, and `test_leaves_a_process` when it
is torn down.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading


def place(rank):
    return rank, int(os.environ["WORLD_SIZE"]), os.environ["RANK"], os.getcwd()


def doubled(rank, tensor):
    return {"tensor": tensor * 2, "rank": rank}


def ends_by_a_signal(rank):
    print(f"rank {rank} begins", flush=True)
    if rank:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def leaves_a_process(rank):
    return subprocess.Popen(["sleep", "300"], start_new_session=True).pid


def test_ranks_are_where_pytest_is(luwu_run):
    expected = [(rank, 3, str(rank), os.getcwd()) for rank in range(3)]
    assert luwu_run(place, workers=3) == expected


def test_tensors_travel(luwu_run):
    import torch

    tensor = torch.arange(4, dtype=torch.bfloat16)
    (found,) = luwu_run(doubled, workers=1, args=(tensor,))
    assert found["rank"] == 0
    assert torch.equal(found["tensor"], tensor * 2)


def test_killed_worker(luwu_run):
    luwu_run(ends_by_a_signal, workers=2)


def test_leaves_a_process(luwu_run):
    luwu_run(leaves_a_process, workers=1)
