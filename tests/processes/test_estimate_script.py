"""`luwu estimate SCRIPT`: the job of a script, before it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from luwu.base.quantities import exact_size
from luwu.commands.main import main
from tests.helpers.schemas import check
from tests.processes.commands import Terminal
from tests.processes.test_worker_hosts import LUWU, URL

BUDGET = ("--workers", "2", "--memory-budget", "4MiB", "--transport", "ipc")
TIED = """
import sys
import torch
from torch import nn
import luwu

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.head = nn.Linear(width, 512, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x * self.scale)

luwu.init()
model = Model(int(sys.argv[1])).to(luwu.device())
nn.init.normal_(model.embed.weight, std=0.02)
for block in model.blocks:
    luwu.fully_shard(block)
luwu.fully_shard(model)
optimizer = luwu.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.zeros(2, 8, dtype=torch.int64)
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 2):
    model(ids).square().mean().backward()
    optimizer.step()
luwu.finish()
"""


@pytest.mark.feature("an estimate of any script, before it runs")
def test_a_script_is_estimated_as_it_runs(
    shell: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: a model of its own, with several units and tied weights, takes the disk space and the
    bytes on links that were estimated; `luwu run` says the same before its first step: a line, and
    the rest in its log."""
    script = tmp_path / "tied.py"
    script.write_text(TIED)
    width, blocks = 64, 2
    assert main(["estimate", *BUDGET, str(script), str(width)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["estimate", *BUDGET, "--json", str(script), str(width)]) == 0
    found = json.loads(capsys.readouterr().out)
    check("estimate", found)
    planned = found["estimate"]
    assert planned["parameters"] == 512 * width + blocks * (8 * width**2 + 5 * width)

    done = shell.succeed("run", *BUDGET, "--run-dir", "run", str(script), str(width))
    err = done.err.splitlines()
    node = json.loads((tmp_path / "run" / "results" / "node.json").read_text())
    log = (tmp_path / "run" / "logs" / "launcher.log").read_text()
    assert lines[0].startswith("plan    memory worker 2 x ")
    assert err[1] == lines[0]
    assert [line for line in lines if f" {line}\n" not in log] == []
    assert node["chunk_bytes"] == found["chunk_bytes"]
    assert abs(sum(planned["disk_space_bytes"].values()) - node["disk_space_bytes"]) < 1 << 18
    links = {use["role"]: use for use in planned["network"]}
    assert node["network_bytes"]["into_node"] == 2 * links["node"]["into_bytes"]


@pytest.mark.feature("an estimate of any script, before it runs")
def test_what_a_small_switch_of_a_host_costs_is_estimated(
    shell: Terminal, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: with --hosts, the weights that its switch has no room for pass the link of a host twice
    a step; with the budget named, none do; with more, workers use them where they lie. Method:
    steps of one job whose hosts have a switch without a cache, and a roomy one; what came over
    their links. At the end, up to all weights come for a step that is not made."""
    (tmp_path / "tied.py").write_text(TIED)
    steps = 4
    script = (str(tmp_path / "tied.py"), "64", str(steps))
    hosts = ("--workers", "2", "--hosts", "2")

    def estimate(switch_bytes: int) -> tuple[int, dict[str, int]]:
        flags = ("--memory-budget", "4MiB", "--switch-memory-budget", exact_size(switch_bytes))
        assert main(["estimate", *hosts, *flags, "--json", *script]) == 0
        found = json.loads(capsys.readouterr().out)
        check("estimate", found)
        links = {use["role"]: use for use in found["estimate"]["network"]}
        return links["link of a host"]["into_bytes"], found["estimate"]["host"]

    small = 160 << 20
    twice_bytes, host = estimate(small)
    once_bytes, roomy = estimate(host["enough_memory_bytes"])
    assert roomy["weights_twice_bytes"] == 0
    assert twice_bytes == once_bytes + host["weights_twice_bytes"]
    assert estimate(host["enough_memory_bytes"] - 1024)[1]["weights_twice_bytes"] > 0

    up = ("--memory-budget", "4MiB", "--bind", "tcp://127.0.0.1:0", "--state", "state")
    serving = shell.start_program(LUWU, ("up", "--run-dir", "up", *hosts, *up), {})
    url = serving.wait_for(URL)[1]
    commands = [serving]
    for rank, budget in enumerate((small, 2 * small)):
        flags = ("--ranks", str(rank), "--switch-memory-budget", exact_size(budget))
        run = ("run", "--join", url, "--run-dir", f"host-{rank}", *flags, *script)
        commands.append(shell.start_program(LUWU, run, {}))
    for command in reversed(commands):
        assert command.wait() == 0, command.err
    for rank, nbytes in enumerate((twice_bytes, once_bytes)):
        file = tmp_path / f"host-{rank}" / "results" / f"switch-host-{rank}.json"
        carried = json.loads(file.read_text())["network_bytes"]
        assert steps * nbytes <= carried["from_parent"] <= steps * nbytes + once_bytes
        assert carried["to_children"] <= steps * nbytes + once_bytes, "none is sent again"


def test_a_model_that_fits_no_machine_is_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: parameters take no memory, not even all together. Method: 100 GB of them."""
    script = tmp_path / "large.py"
    script.write_text(
        "import torch, luwu\nluwu.init()\n"
        "layers = (torch.nn.Linear(65536, 65536, bias=False) for _ in range(6))\n"
        "model = torch.nn.Sequential(*layers).half().float()\n"
        "for layer in model:\n    luwu.fully_shard(layer)\n"
        "luwu.fully_shard(model)\n"
        "optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)\n"
        "raise SystemExit('the script goes on')\n"
    )
    flags = ["--durability", "none", "--memory-budget", "4GiB"]
    assert main(["estimate", *flags, str(script)]) == 2
    said = capsys.readouterr().err
    assert "the state takes 9" in said
    assert "the script goes on" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import luwu\nluwu.init()\n", "ended before its first forward"),
        ("raise RuntimeError('no data')\n", "failed before its first forward (exit code 1)"),
    ],
)
def test_a_script_without_a_forward_is_refused(
    text: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(text)
    assert main(["estimate", str(script)]) == 2
    assert f"{script} {said}" in capfd.readouterr().err
