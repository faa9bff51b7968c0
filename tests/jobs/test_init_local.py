"""One process alone: `luwu.init_local` in a script, a REPL or a notebook."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import luwu


def steps(count: int, seed: int = 0) -> tuple[int, torch.Tensor]:
    """Train up to `count` steps; the first step made, and the weights."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 4)
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
    first = optimizer.next_step
    for _ in range(first, count):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return first, luwu.get_model_state_dict(model)["weight"]


@pytest.mark.feature("luwu.init_local: one process, in a REPL or a notebook")
def test_one_process_trains_and_goes_on(tmp_path: Path) -> None:
    """Goal: the numbers of plain torch; a second job in the same process goes on with the state;
    no thread is left."""
    torch.manual_seed(0)
    plain = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        plain(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    before = set(threading.enumerate())
    luwu.init_local(tmp_path / "state", memory_budget="64MiB")
    assert (luwu.rank(), luwu.world_size()) == (0, 1)
    with pytest.raises(luwu.ConfigError, match=r"call luwu\.finish\(\) first"):
        luwu.init_local()
    first, _ = steps(2)
    assert first == 0
    luwu.finish()
    luwu.init_local(tmp_path / "state", memory_budget="64MiB")
    first, weight = steps(3, seed=1)
    assert first == 2
    luwu.finish()
    torch.testing.assert_close(weight, plain.weight.detach(), rtol=0, atol=0)
    assert set(threading.enumerate()) <= before


def python(directory: Path, *arguments: str, typed: str = "") -> str:
    """What Python prints, which ends well."""
    done = subprocess.run(
        [sys.executable, *arguments], input=typed, text=True, capture_output=True, check=False,
        timeout=120, cwd=directory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


TYPED = """
import luwu, torch
luwu.init_local("state", memory_budget="64MiB")
model = torch.nn.Linear(8, 4)
luwu.fully_shard(model)
optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 8)).sum().backward()
result = optimizer.step()
"""


@pytest.mark.feature("luwu.init_local: one process, in a REPL or a notebook")
def test_a_repl_that_is_left_keeps_its_last_step(tmp_path: Path) -> None:
    """Goal: lines typed into an interpreter, which ends without luwu.finish(): the step is decided,
    the process ends, and the state is at rest."""
    python(tmp_path, "-i", "-q", typed=TYPED)
    assert "version 1," in python(tmp_path, "-m", "luwu", "verify", "state", "--full")


@pytest.mark.feature("luwu.init_local: one process, in a REPL or a notebook")
def test_the_page_of_one_process_runs_as_it_stands(tmp_path: Path) -> None:
    """Goal: the script of docs/training.md, with a breakpoint() in its loop: the debugger reads
    what is typed, and the script goes on to its end."""
    page = Path(__file__).resolve().parents[2] / "docs/training.md"
    text = page.read_text(encoding="utf-8").split("<!-- test: one process -->\n```python\n")[1]
    text = text.split("```")[0]
    stop = "    optimizer.zero_grad()\n"
    text = text.replace(stop, f"{stop}    breakpoint() if step == 3 else 0\n")
    (tmp_path / "page.py").write_text(text + "print(len(weights))\n")
    said = python(tmp_path, "page.py", typed="p 40 + step\ncontinue\n")
    assert "(Pdb) 43" in said
    assert said.endswith("2\n")
