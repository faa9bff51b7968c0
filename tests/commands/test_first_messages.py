"""What a newcomer types or does that is refused, or shown: the useful half of each message."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import luwu
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.compare.arm import show_progress
from luwu.launch.processes.console import Console
from luwu.launch.serving import decide_sizes
from tests.helpers.command_line import parsed


@pytest.mark.feature("flags of torchrun")
@pytest.mark.parametrize(
    ("flag", "ours"), [("nproc-per-node", "workers"), ("nproc_per_node", "workers"),
                       ("nnodes", "worker-hosts"), ("max-restarts", "worker-restarts")],
)  # fmt: skip
def test_a_flag_of_torchrun_is_answered_with_ours(flag: str, ours: str) -> None:
    """Goal: what means the same, and not what is spelt alike."""
    with pytest.raises(ConfigError, match=f"no flag --[a-z-]+; here it is --{ours}$"):
        parsed("run", f"--{flag}", "2", "train.py")


@pytest.mark.feature("a memory budget larger than the memory")
def test_a_budget_beyond_the_memory_is_refused_in_its_own_words() -> None:
    """Goal: the flag, both sizes in units, and no word of arenas."""
    with pytest.raises(
        ConfigError, match=r"memory_budget: 500\.00 TiB asked .* is \d.*iB; give less"
    ):
        decide_sizes(RunConfig(memory_budget=500 * 2**40), None)


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_a_script_by_itself_is_told_how_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: what to do first, then what is missing."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"^start this script with `luwu run .*RANK is not set"):
        luwu.init()


@pytest.mark.feature("the loss on the console")
def test_the_loss_that_is_shown_is_that_of_rank_0() -> None:
    """Goal: nobody takes one rank's loss for the mean."""
    printed = io.StringIO()
    line = "12:00:00 train.step step=3 loss=2.5 tps=10"
    show_progress(Console(printed), "luwu", RunConfig(), line)
    assert "rank0_loss=2.5" in printed.getvalue()


@pytest.mark.feature("torch's own get_optimizer_state_dict")
def test_torchs_own_optimizer_state_names_ours() -> None:
    """Goal: the call that works, from inside torch's function."""
    luwu.init_local(memory_budget="64MiB")
    try:
        model = torch.nn.Linear(4, 2)
        luwu.fully_shard(model)
        optimizer = luwu.optim.AdamW(model.parameters())
        with pytest.raises(luwu.LuwuError, match=r"luwu\.get_optimizer_state_dict\(model, opt"):
            get_optimizer_state_dict(model, optimizer)
    finally:
        luwu.finish()
