"""Runs on a machine without 127.0.0.1: with IPv6 alone, and with no loopback address at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.commands import write_light
from tests.processes.jobs import WITHOUT_TORCH

IPV6_ALONE = "ip link set lo up && ip address del 127.0.0.1/8 dev lo"
NO_LOOPBACK = f"{IPV6_ALONE} && ip address del ::1/128 dev lo"


def skip_without(commands: str) -> None:
    """Skip the test if no such machine can be made here, in a network namespace of its own."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    made = subprocess.run(
        ["unshare", "-Urn", "sh", "-c", commands], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"this system makes no such namespace: {made.stderr.decode()}")


def there(machine: str, *arguments: str) -> tuple[int, str]:
    """The exit code of Python there, and what it printed."""
    command = ["unshare", "-Urn", "sh", "-c", f'{machine} && exec "$@"', "-", sys.executable]
    ended = subprocess.run(
        [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **WITHOUT_TORCH}, text=True, check=False, timeout=120,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@pytest.mark.feature("a machine without 127.0.0.1")
@pytest.mark.parametrize(
    ("machine", "transport"), [(IPV6_ALONE, "tcp"), (NO_LOOPBACK, "auto"), (NO_LOOPBACK, "tcp")]
)
def test_a_run_without_127_0_0_1(machine: str, transport: str, tmp_path: Path) -> None:
    """Goal: what needs no port runs on any machine; tcp does by ::1, else it is one sentence.
    Method: one worker without torch, in a network namespace that lacks the address."""
    skip_without(machine)
    script = write_light(tmp_path / "light.py")
    code, said = there(
        machine, "-m", "luwu", "run", "--workers", "1", "--transport", transport, "--state",
        str(tmp_path / "state"), "--run-dir", str(tmp_path / "run"), str(script),
    )  # fmt: skip
    assert "Traceback" not in said
    if machine == IPV6_ALONE:
        assert code == 0, said
        assert "127.0.0.1" not in said
    elif transport == "tcp":
        assert code == 2, said
        assert "neither 127.0.0.1 nor ::1 to listen at" in said
        assert "--transport shm" in said
    else:
        assert code == 0, said
        assert said.count("torch.distributed can make no process group here") == 1
