import threading

import pytest

import luwu
from luwu.testing import WorkerFailed, assert_same_weights_as_single


def one_step(rank, lr=0.1):
    import torch  # in the worker only: the test process stays light

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=lr)
    model(torch.full((2, 4), 1.0 + rank)).square().sum().backward()
    return optimizer.step().grad_norm


def trained(rank):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.AdamW(model.parameters(), lr=0.1)
    for batch in torch.randn(3, 6, 4):  # the same in every worker
        mine = batch[rank :: luwu.world_size()]
        model(mine).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return luwu.get_model_state_dict(model)


def broken(rank):
    if rank == 1:
        raise ValueError("bad batch")
    threading.Event().wait()  # it is stopped, for the other has failed


def test_all_ranks_agree(luwu_run):
    norms = luwu_run(one_step, workers=2)
    assert len(set(norms)) == 1


def test_same_answer_in_another_way(luwu_run, luwu_inproc):
    norms = luwu_inproc(one_step, workers=1)
    assert luwu_run(one_step, workers=1, flags=["--no-switch", "--chunk", "64KiB"]) == norms


@pytest.mark.luwu(workers=3)
def test_workers_train_what_one_process_trains(luwu_run):
    assert_same_weights_as_single(luwu_run, trained)


def test_failure_of_a_worker(luwu_run):
    with pytest.raises(WorkerFailed, match="ValueError: bad batch"):
        luwu_run(broken, workers=2)


def test_in_threads(luwu_inproc):
    assert luwu_inproc(lambda rank: rank, workers=3) == [0, 1, 2]
