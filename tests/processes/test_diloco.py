"""luwu.DiLoCo in real processes: a worker that is lost costs what it had not sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from luwu.testing.cluster import Cluster

SCRIPT = """
import pathlib
import time

import torch

import luwu

luwu.init()
torch.manual_seed(1)
model = torch.nn.Linear(128, 128)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # has no state: it is made again alike
outer = luwu.DiLoCo(model, every=4)
for step in range(4 * outer.round, 20):
    if step == 10:
        pathlib.Path(f"here-{luwu.rank()}").touch()
        while not pathlib.Path("gate").exists():
            time.sleep(0.01)
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(100 * step + luwu.rank()))
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    outer.step()
luwu.finish()
"""


@pytest.mark.timeout(300)
@pytest.mark.feature("DiLoCo")
@pytest.mark.parametrize("lost", ["worker", "switch", pytest.param("node", marks=pytest.mark.slow)])
def test_a_lost_process_costs_what_was_not_sent(lost: str, tmp_path: Path) -> None:
    """I1, I2, I3, I8. Goal: the digest of a quiet run, whoever is killed in the middle of a round;
    a worker begins its round again. Method: SIGKILL while all wait at a gate."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "gate").touch()
    flags = (
        "--workers", "2", "--chunk", "16KiB", "--durability", "process", "--restarts", "2",
        "--on-worker-loss", "wait", "--worker-restarts", "1",
    )  # fmt: skip
    here, digests = [tmp_path / "here-0", tmp_path / "here-1"], []
    for name in ("quiet", "lost"):
        more = ("--state", f"{name}.state")
        with Cluster.run(tmp_path, "script.py", flags=(*flags, *more), name=name) as cluster:
            if name == "lost":
                cluster.until(lambda: all(file.exists() for file in here), "the gate", limit_s=120)
                rank = 1 if lost == "worker" else 0
                pid = cluster.kill(lost, rank)
                cluster.wait_for(lost, rank, but=pid)
                (tmp_path / "gate").touch()
            assert cluster.wait(120) == 0, cluster.told
            found = cluster.results()["node.json"]
        assert found["steps"] == 5
        digests.append(found["weights_digest"])
        for file in (tmp_path / "gate", *here):
            file.unlink()
    assert digests[0] == digests[1]
