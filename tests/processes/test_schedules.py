"""Runs whose scheduler makes its step late, stopped or killed, and resumed."""

from __future__ import annotations

import pytest

from tests.processes.commands import Terminal

TRAIN = """
import os, signal, sys
import torch, luwu

luwu.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
luwu.fully_shard(model)
optimizer = luwu.optim.SGD(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
luwu.attach("scheduler", scheduler)
if luwu.rank() == 0:
    rate = optimizer.param_groups[0]["lr"]
    print("epoch", optimizer.next_step, "begins with rate", rate, flush=True)
model(torch.ones(2, 4)).sum().backward()
result = optimizer.step()
optimizer.zero_grad()
with torch.no_grad():
    model(torch.ones(2, 4))
if "wait" in sys.argv:
    luwu.get_model_state_dict(model)
    result.wait()
scheduler.step()
if "train" in sys.argv:
    model(torch.ones(2, 4))
if "kill" in sys.argv and luwu.rank() == 0:
    os.kill(os.getpid(), signal.SIGKILL)
luwu.finish()
"""


@pytest.fixture
def shell(shell: Terminal) -> Terminal:
    (shell.directory / "train.py").write_text(TRAIN)
    return shell


def test_a_killed_run_resumes_with_the_state_of_a_decided_step(shell: Terminal) -> None:
    """I2. Goal: a scheduler that makes its step behind an evaluation has made it in the resumed
    run; where the step was waited for before, it has if the run went on to the next training, or
    to its end, and has not if a worker was killed before.
    Method: five epochs of one step; after each the run is resumed."""

    def epoch(*words: str, resume: bool = True) -> tuple[int, str]:
        flags = ("--resume",) if resume else ()
        done = shell.run(
            "run", "--workers", "2", "--state", "luwu-state", *flags, "--worker-restarts", "0",
            "train.py", *words,
        )  # fmt: skip
        return done.process.returncode, done.out

    said = "epoch {} begins with rate {}\n"
    assert epoch(resume=False) == (0, said.format(0, 1.0))
    assert epoch("wait") == (0, said.format(1, 0.5))
    code, out = epoch("wait", "kill")
    assert (code != 0, out) == (True, said.format(2, 0.25))
    code, out = epoch("wait", "train", "kill")
    assert (code != 0, out) == (True, said.format(3, 0.25))
    assert epoch() == (0, said.format(4, 0.125))
