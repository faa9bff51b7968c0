"""What a person sees of the start of a job, in a pipe and in a terminal."""

from __future__ import annotations

import re

import pytest

from tests.processes.commands import Terminal, write_light

LINES_MAX = 3
TRAINS = "50%"
PRINTS = """
import os, sys
if os.environ["RANK"] == "0":
    print("\\r 50%", end="", file=sys.stderr, flush=True)
    print('{"loss": 1}')
"""


def before(text: str, end: str) -> list[str]:
    """The lines before the first that has `end`."""
    found, _, _ = text.partition(end)
    assert found != text, text
    return [line for line in found.splitlines() if line.strip()]


@pytest.mark.feature("a start in at most three lines")
@pytest.mark.feature("progress bars of worker 0")
@pytest.mark.feature("--resume reports where it begins")
def test_luwu_run_starts_in_three_lines(shell: Terminal) -> None:
    """Goal: standard output is the script's alone. A summary comes before its first output, the
    rest in the run's log, and in the terminal with -v; no line twice. --resume says what it found:
    nothing, and then a state in which nothing is left to do."""
    write_light(shell.directory / "light.py", first=PRINTS)
    for flags in ([], ["-v"]):
        done = shell.succeed(
            "run", *flags, "--resume", "--workers", "1", "--memory-budget", "64MiB", "light.py"
        )
        run = (shell.directory / "luwu-runs" / "latest").resolve()
        ours = before(done.err, TRAINS)
        summary = (
            "luwu: 1 worker, switch, node; state luwu-state (survives power loss); memory "
            f"64.00 MiB; log luwu-runs/{run.name}"
        )
        logged = (run / "logs" / "launcher.log").read_text()
        assert done.out == '{"loss": 1}\n'
        assert "security: local only, same user" in logged
        assert "durability step: every decided step survives power loss" in logged
        assert all(line in logged for line in ours)
        assert len(set(ours)) == len(ours)
        assert summary in ours
        if flags:
            assert "security: local only, same user" in ours
            assert "resuming at step 1; the place in the data is not restored" in done.err
            assert "state holds step 1: nothing to do" in done.err
        else:
            assert len(ours) <= LINES_MAX
            assert "no state in luwu-state: starting at step 0" in ours


@pytest.mark.feature("--resume reports where it begins")
@pytest.mark.feature("trees of switches")
def test_a_state_of_other_sums_is_named(shell: Terminal) -> None:
    """I3. Goal: who resumes with other switches reads that the last bits change, once; who changes
    nothing reads nothing."""
    tree = '[top]\nparent = "node"\nworkers = "2"\n[a]\nparent = "top"\nworkers = "0-1"\n'
    (shell.directory / "tree.toml").write_text(tree)
    said = (
        "the last step of the state was summed over ranks 0-1 first, those of this run over all "
        "ranks at once: the last bits of weights depend on that"
    )
    flags = ("--workers", "3", "--state", "state", "--resume")
    for steps, more in enumerate((("--tree", "tree.toml"), (), ()), 1):
        write_light(shell.directory / "light.py", steps=steps)
        done = shell.succeed("run", *flags, *more, "light.py")
        assert (said in done.err) == (steps == 2), done.err
    serving = shell.start("up", *flags, "--tree", "tree.toml")
    serving.wait_for("was summed over all ranks at once, those of this run over ranks 0-1 first")
    serving.wait_for("^join ")
    assert serving.interrupt() == 0


@pytest.mark.feature("a start in at most three lines")
def test_luwu_up_starts_in_three_lines(shell: Terminal) -> None:
    """Goal: what serves, and how to join it; `luwu run --join` says whom it joined in one line."""
    write_light(shell.directory / "light.py", first=PRINTS)
    serving = shell.start("up", "--workers", "1", "--transport", "tcp", "--run-dir", "up")
    serving.wait_for("^or      luwu run --join '.*' SCRIPT$")
    working = shell.succeed("run", "--join", "up", "light.py")
    assert serving.wait(20) == 0, serving.err
    ours = before(serving.err, "the job is finished")
    assert len(ours) <= LINES_MAX
    assert ours[0].startswith("luwu: job for 1 worker, switch, node; state luwu-state (survives")
    joining = before(working.err, TRAINS)
    assert len(joining) == 1
    assert re.match(r"luwu: 1 worker of job \d+ at tcp://127\.0\.0\.1:\d+; log ", joining[0])


WAITS = """
import os
while os.environ["RANK"] == "0" and not os.path.exists("go"):
    pass
"""


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_a_script_that_never_joins(shell: Terminal) -> None:
    """Goal: said while the second worker still runs; the end follows at once, with code 2."""
    script = shell.directory / "plain.py"
    script.write_text(WAITS)
    command = shell.start("run", "--workers", "2", "--state", "state", "plain.py")
    command.wait_for("the script of worker 1 has ended, and no worker has joined the job")
    (shell.directory / "go").touch()
    assert command.wait() == 2
    assert "luwu run: the script of worker 0, 1 has ended" in command.err
    assert "luwu.init()" in command.err.splitlines()[-1]
