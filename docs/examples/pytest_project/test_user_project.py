import threading

import pytest

import luwu
from luwu.testing import factories

luwu_plain = factories.luwu_proc(no_switch=True, chunk="64KiB")


def one_step(rank, lr=0.1):
    import torch  # in the worker only: the test process stays light

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=lr)
    model(torch.full((2, 4), 1.0 + rank)).square().sum().backward()
    return optimizer.step().grad_norm


def broken(rank):
    if rank == 1:
        raise ValueError("bad batch")
    threading.Event().wait()  # it is stopped, for the other has failed


def test_all_ranks_agree(luwu_run):
    norms = luwu_run(one_step, workers=2)
    assert len(set(norms)) == 1


def test_same_answer_on_another_service(luwu_run, luwu_plain, luwu_inproc):
    norms = luwu_inproc(one_step, workers=1)
    assert luwu_run(one_step, workers=1, service=luwu_plain) == norms


def test_failure_of_a_worker(luwu_run):
    with pytest.raises(luwu.LuwuError, match="ValueError: bad batch"):
        luwu_run(broken, workers=2)


def test_in_threads(luwu_inproc):
    assert luwu_inproc(lambda rank: rank, workers=3) == [0, 1, 2]
