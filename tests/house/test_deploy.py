"""docs/deploy: every `luwu` command in it is one that our command line takes.

The files are read as their engines read them: YAML by a parser, the Slurm script by bash, with
stand-ins for Slurm's own programs that start what they are given.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from luwu.base.config import RunConfig
from luwu.base.tree import parse_ranks
from luwu.join.connection import parse_url
from tests.helpers import command_line

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"


def parsed(command: Sequence[str]) -> tuple[RunConfig, dict[str, Any]]:
    """A `luwu` command as the command line takes it. Raises ConfigError."""
    assert command[0] == "luwu"
    taken = command_line.parsed(*command[1:])
    return taken["resolved"].config, taken


def check_job(commands: Sequence[Sequence[str]]) -> None:
    """Node, switch and the rest of one job fit together."""
    found = {}
    ranks: list[int] = []
    for command in commands:
        config, taken = parsed(command)
        role = taken.get("role") or command[1]
        if command[1] == "run":
            assert taken["script"], f"{command} runs no script"
            assert config.ranks is not None
            ranks += parse_ranks(config.ranks, "ranks")
        found[role] = config
    node, switch, run = found["node"], found["switch"], found["run"]
    assert node.insecure
    assert switch.insecure
    assert node.chunk is not None
    assert node.resume
    for joining, parent in ((switch, node), (run, switch)):
        assert joining.join is not None
        assert parent.bind is not None
        url = parse_url(joining.join)
        assert (url.job, url.world_size, url.hosts) == (node.job, node.workers, node.hosts)
        assert url.chunk_bytes == node.chunk
        assert url.endpoint == f"tcp://{parent.advertise}:{parent.bind.rpartition(':')[2]}"
    assert ranks == list(range(node.workers))


def test_compose() -> None:
    """Goal: the commands are ours, and each rank has a host."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    check_job([shlex.split(service["command"]) for service in services.values()])


def test_jobset() -> None:
    """Goal: the commands are ours, each rank has a pod, and others dial names of pods."""
    documents = list(yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text()))
    jobset = documents[-1]
    assert (jobset["kind"], jobset["metadata"]["name"]) == ("JobSet", "luwu")
    jobs = {each["name"]: each["template"]["spec"] for each in jobset["spec"]["replicatedJobs"]}
    commands = [
        [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["command"]]
        for job in jobs.values()
        for container in job["template"]["spec"]["containers"]
        for index in range(job.get("completions", 1))
    ]
    check_job(commands)
    for host in re.findall(r"luwu-(\w+)-0-0\.luwu", str(commands)):
        assert host in jobs


def test_slurm(tmp_path: Path) -> None:
    """Goal: bash makes of the script commands that are ours. Method: `srun` starts what follows its
    options, `luwu` writes its arguments down."""
    stand_ins = {
        "scontrol": 'echo "h1\nh2\nh3"',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done\nSLURM_PROCID=1 exec "$@"',
        "luwu": f'printf "%s\\0" luwu "$@" > {tmp_path}/said-$1',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "h[1-3]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "WORKERS_PER_HOST": "4",
    }
    script = ["bash", str(DEPLOY / "slurm.sbatch"), "train.py", "--lr", "0.1 0.2"]
    done = subprocess.run(script, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = {
        verb: (tmp_path / f"said-{verb}").read_text().split("\0")[:-1] for verb in ("up", "run")
    }
    up, _ = parsed(said["up"])
    assert (up.workers, up.hosts, up.bind) == (8, 2, "tcp://h1:0")
    assert up.insecure
    assert up.resume
    run, taken = parsed(said["run"])
    assert [*taken["script"]] == ["train.py", "--lr", "0.1 0.2"]
    assert run.join == f"{up.run_dir}/connect.json"
    assert run.ranks == "4-7"
    assert run.run_dir == Path(f"{up.run_dir}/workers-1")


@pytest.mark.parametrize("page", sorted(DEPLOY.glob("*.md")), ids=lambda page: page.name)
def test_pages(page: Path) -> None:
    """Goal: the commands in the blocks of the pages are ours."""
    text = page.read_text()
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line) for line in lines if line.startswith("luwu ")]
    for command in commands:
        config, _ = parsed(command)
        if config.join is not None and "://" in config.join:
            parse_url(config.join)
    assert commands or page.name != "README.md"


def test_images() -> None:
    """Goal: an image has the tag of our version, the same in all files, since `latest` of two hosts
    may differ; and its layers hold what is installed, not keys or states that lie about."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    image = f"luwu:{project['version']}"
    jobset = (DEPLOY / "jobset.yaml").read_text()
    assert set(re.findall(r"image: (\S+)", jobset)) == {image}
    compose = (DEPLOY / "compose.yaml").read_text()
    assert re.findall(r"image: (\S+)", compose) == [image]
    assert not re.search(r"compose .*(exit-code-from|abort-on)", compose)
    assert f"docker build -t {image} " in (DEPLOY / "Dockerfile").read_text()
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "**", "nothing goes in unless it is named"
    named = {rule[1:] for rule in rules if rule.startswith("!")}
    assert named == {"luwu", "switch_emu", "workers", "pyproject.toml", "constraints.txt",
                     "README.md", "LICENSE"}  # fmt: skip
    assert all((ROOT / name).exists() for name in named)
