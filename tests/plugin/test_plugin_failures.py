"""Reports of failed tests that use the pytest plugin, its marker, and the comparison of weights."""

from __future__ import annotations

import re

import pytest

from tests.plugin.sandbox import LIMIT_S, Sandbox, section

pytestmark = pytest.mark.timeout(2 * LIMIT_S)

OUR_FRAME = re.compile(r"luwu/(base|launch|testing)/\S*\.py")


@pytest.mark.feature("failures: one traceback, of the test's own code")
def test_plugin_suite_shows_each_traceback_once(sandbox: Sandbox) -> None:
    """Goal: however a test meets the crash of its workers, the report has its traceback once,
    without a frame of the plugin; switch and node show warnings, and everything by -vv."""
    sandbox.write("""
import os
import threading
import pytest
import luwu
from luwu.testing import DeadlineError, WorkerFailed

def crash(rank):
    print(f"rank {rank} begins", flush=True)
    raise ValueError("bad batch")

def crash_one(rank):
    if rank == 1:
        crash(rank)
    threading.Event().wait()

def ends_by_force(rank):
    if rank == 1:
        os._exit(0)
    threading.Event().wait()

def returns_a_lock(rank):
    return threading.Lock()

def rank_of(rank):
    return rank

def test_all(luwu_run):
    luwu_run(crash, workers=3)

def test_caught(luwu_run):
    with pytest.raises(WorkerFailed):
        luwu_run(crash_one)
    assert False, "something else"

def test_whole_cluster_waits(luwu_cluster):
    luwu_cluster(crash).wait_for_text("never said")

def test_exit_code(luwu_cluster):
    assert luwu_cluster(crash).wait(60) == 0

def test_threads(luwu_inproc):
    luwu_inproc(crash)

def test_refused(luwu_run):
    luwu_run(lambda rank: rank)

def test_refused_result(luwu_run):
    luwu_run(returns_a_lock, workers=1)

def test_ends_by_force(luwu_run):
    luwu_run(ends_by_force)

def test_bad_flag(luwu_cluster):
    luwu_cluster(rank_of, flags=("--transport", "pigeon")).returned()

def test_warning_of_the_node(luwu_cluster):
    cluster = luwu_cluster(rank_of)
    cluster.returned()
    cluster.run_directory.log("switch").write_text("12:00:00.000 INFO switch.noise\\n")
    with cluster.run_directory.log("node").open("a") as file:
        file.write("12:00:00.000 INFO node.noise a=1\\n")
        file.write("12:00:00.000 WARNING node.slow disk=1\\nwithout a level\\n")
    assert False

def test_names():
    assert issubclass(WorkerFailed, luwu.LuwuError) and issubclass(DeadlineError, luwu.LuwuError)
""")

    output = sandbox.run("-rA", code=1)

    assert "10 failed, 1 passed in" in output
    by_force = section(output, "test_ends_by_force")
    assert "worker 1 ended well before its function returned" in by_force
    for name in ("all", "caught", "whole_cluster_waits", "exit_code"):
        shown = section(output, f"test_{name}")
        assert shown.count("Traceback (most recent call last)") == 1, shown
        assert shown.count('raise ValueError("bad batch")') == 1, shown
        assert not OUR_FRAME.search(shown), shown
        assert re.search(r"^rank \d begins$", shown, re.MULTILINE), shown
    for name in ("threads", "refused", "refused_result", "bad_flag"):
        assert not OUR_FRAME.search(section(output, f"test_{name}"))
    assert re.search(r"^E +luwu\.testing\.WorkerFailed: worker \d failed", output, re.MULTILINE)
    refused = section(output, "test_refused_result")
    assert "Traceback" not in refused
    assert "luwu.ConfigError: the result of rank 0 is <unlocked _thread.lock" in refused

    assert not re.search(r"^[0-9:.]{12} INFO ", output, re.MULTILINE)
    assert re.search(
        r"luwu node: .*node\.log -*\n12:00:00\.000 WARNING node\.slow disk=1\nwithout a level\n",
        section(output, "test_warning_of_the_node"),
    )
    whole = sandbox.run("-vv", "--full-trace", "-k", "warning or refused and not result", code=1)
    noise = section(whole, "test_warning_of_the_node")
    assert "INFO node.noise a=1\n12:00:00.000 WARNING node.slow" in noise
    assert " INFO switch.noise" in noise
    assert "luwu/testing/calls.py" in whole


@pytest.mark.feature("defaults of one test: @pytest.mark.luwu")
def test_plugin_suite_marker_gives_defaults(sandbox: Sandbox) -> None:
    """Goal: an argument goes before the closest marker, that before the command line; what the
    marker does not know is an error before anything runs."""
    sandbox.write("""
import pytest

pytestmark = pytest.mark.luwu(workers=3, timeout=50)

def rank_of(rank):
    return rank

def test_of_module(luwu_run, luwu_inproc):
    assert luwu_run(rank_of) == luwu_inproc(rank_of) == [0, 1, 2]

@pytest.mark.luwu(workers=1)
class TestClass:
    def test_of_class(self, luwu_inproc):
        assert luwu_inproc(rank_of) == [0]

    @pytest.mark.luwu(workers=4)
    def test_of_function(self, luwu_inproc):
        assert luwu_inproc(rank_of) == [0, 1, 2, 3]
        assert luwu_inproc(rank_of, workers=2) == [0, 1]
""")
    assert "3 passed in" in sandbox.run("--luwu-workers", "5", "--strict-markers")

    for given, said in (
        ("worker=4", "worker is unknown; it takes workers= and timeout="),
        ("4", "4 is unknown; it takes workers= and timeout="),
        ("workers=0", "0 is not a whole number of at least 1"),
        ("timeout='soon'", "'soon' is not a number of seconds above 0"),
    ):
        sandbox.write(f"""
import pytest

@pytest.mark.luwu({given})
def test_it():
    pass
""")
        refused = sandbox.run(code=4)
        assert f"@pytest.mark.luwu of test_it.py::test_it: {said}" in refused


@pytest.mark.feature("assert_same_weights_as_single")
def test_plugin_suite_compares_weights_with_one_process(sandbox: Sandbox) -> None:
    """Goal: weights of several workers are those of one that trains with plain torch; a gradient of
    the wrong size, ranks that differ and no weights at all fail with a sentence that names them.
    """
    sandbox.write("""
import luwu
import pytest
from luwu.testing import assert_same_weights_as_single

def trained(rank, scale=1.0):
    import torch

    model = torch.nn.Linear(4, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.zeros_(model.bias)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.linspace(-1, 1, 72).sin().reshape(3, 6, 4):
        mine = batch[rank :: luwu.world_size()]
        factor = scale if luwu.world_size() > 1 else 1.0
        (factor * (model(mine) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return luwu.get_model_state_dict(model)

def alone(rank, scale=1.0):
    import torch

    model = torch.nn.Linear(4, 2)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.linspace(-1, 1, 72).sin().reshape(3, 6, 4):
        (model(batch) - 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())

def of_rank(rank):
    import torch

    return {"w": torch.tensor([0.0, float(rank)])}

def test_same(luwu_inproc):
    assert_same_weights_as_single(luwu_inproc, trained, single=alone)

def test_wrong_size(luwu_inproc):
    assert_same_weights_as_single(luwu_inproc, trained, args=(3.0,), single=alone)

def test_tolerance(luwu_inproc):
    assert_same_weights_as_single(luwu_inproc, trained, args=(3.0,), single=alone, atol=1, rtol=0)

def test_ranks(luwu_inproc):
    assert_same_weights_as_single(luwu_inproc, of_rank)

def test_nothing(luwu_inproc):
    assert_same_weights_as_single(luwu_inproc, lambda rank: None)
""")
    output = sandbox.run("-rA", code=1)

    assert "3 failed, 2 passed in" in output
    wrong = section(output, "test_wrong_size")
    assert "AssertionError: 2 workers differ from a single process: " in wrong
    assert re.search(r"absolute difference: \S+ at index .* \(up to 1e-05 allowed\)", wrong)
    assert "The failure occurred for item ['" in wrong
    assert "rank 1 differs from rank 0: " in section(output, "test_ranks")
    assert "returned None in rank 0; return a dict of names and tensors" in output
    assert not OUR_FRAME.search(output)
