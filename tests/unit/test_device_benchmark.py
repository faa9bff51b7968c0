"""What `benchmarks/gpu_step.py` decides without a GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gpu_step
from luwu.base.errors import LuwuError


def test_rows_that_cannot_run_are_named() -> None:
    """Goal: NCCL's rows need a GPU for each rank; LuWu's workers share one, and the row says so."""
    found, left_out = gpu_step.cases(gpu_step.SMALL, gpus=1)
    assert list(found) == [
        "compute-only N=1", "luwu N=1", "luwu N=2", "luwu N=4", "fsdp N=1", "fsdp_offload N=1",
    ]  # fmt: skip
    assert found["luwu N=4"][1].workers == 4
    assert list(left_out) == ["fsdp N=2", "fsdp N=4", "fsdp_offload N=2", "fsdp_offload N=4"]
    assert left_out["fsdp N=2"].startswith("not run: 2 GPUs needed, 1 here")
    assert gpu_step.sharing(4, 1) == "4 workers share 1 GPU"
    assert gpu_step.sharing(1, 1) == ""
    assert not gpu_step.cases(gpu_step.SMALL, gpus=4)[1]


def row(arm: str, losses: list[float]) -> dict[str, object]:
    return {"case": f"{arm} N=1", "arm": arm, "workers": 1, "loss": losses}


def test_a_wrong_answer_is_no_result() -> None:
    good, bad = [5.5, 5.0], [5.5, 5.4]
    gpu_step.check_losses([row("fsdp", good), row("luwu", good), row("compute-only", bad)])
    with pytest.raises(LuwuError, match="luwu N=1 and fsdp N=1 trained the same job"):
        gpu_step.check_losses([row("fsdp", good), row("luwu", bad)])
    with pytest.raises(LuwuError, match="not finite"):
        gpu_step.check_losses([row("luwu", [float("nan")])])


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gpu_step"])
    assert gpu_step.main() == 0
    assert "no GPU: not run" in capsys.readouterr().err
