"""The plan of faults, what is expected of a run, and what is read of its progress: no process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError
from luwu.chaos.job import cast_of, config_of, rules_of
from luwu.chaos.outlook import Rules, outlooks
from luwu.chaos.plan import Cast, Fault, Moment, Wish, draw
from luwu.chaos.plan_file import read_plan, resolve
from luwu.chaos.work import processes
from luwu.commands.flags import parse, resolve_parsed
from luwu.commands.main import main
from luwu.commands.outcome import write_resolved
from luwu.commands.run import VERB as RUN
from luwu.launch.processes.run_directory import ProcessEntry, RunDirectory
from luwu.launch.progress import Progress

CAST = Cast(
    workers=("worker-0", "worker-1", "worker-2"),
    switches=("switch-top", "switch-left"),
    nodes=("node", "node-1"),
)
RULES = Rules(
    workers=3, workers_min=1, restarts=2, worker_restarts=1, on_worker_loss="stop",
    keeps_state=True, grace_ns=10 * 10**9,
)  # fmt: skip
SECOND = 10**9


def kill(process: str) -> Fault:
    return Fault(kind="kill", process=process, moment=Moment(delay_ns=0))


# ---------------------------------------------------------------------- the plan


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_is_a_function_of_its_seed(seed: int) -> None:
    """Goal: the same faults again, each in a window of its own, of those that were asked for."""
    wish = Wish(
        kill=("node", "worker"), stall=("switch-left",), count=40, every_ns=30 * SECOND,
        stall_ns=SECOND, seed=seed,
    )  # fmt: skip
    faults = draw(wish, CAST)
    assert faults == draw(wish, CAST)
    assert faults != draw(replace(wish, seed=seed + 1), CAST)
    for index, fault in enumerate(faults):
        assert index * 30 * SECOND <= fault.moment.delay_ns < (index + 1) * 30 * SECOND
        allowed = {"kill": {*CAST.workers, *CAST.nodes}, "stall": {"switch-left"}}[fault.kind]
        assert fault.process in allowed
        assert fault.stall_ns == (SECOND if fault.kind == "stall" else 0)
    assert {fault.machine for fault in faults} == {"node", "worker", "switch"}
    assert {fault.process for fault in faults} >= {"worker-0", "worker-1", "worker-2", "node-1"}


def test_a_plan_in_steps() -> None:
    """Goal: each fault is within its window of steps, and up to 100 ms into one."""
    faults = draw(Wish(kill=("switch",), count=50, every_steps=8), CAST)
    for index, fault in enumerate(faults):
        assert fault.moment.step is not None
        assert index * 8 <= fault.moment.step < (index + 1) * 8
        assert 0 <= fault.moment.delay_ns < 10**8


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        (Wish(every_ns=1), "no fault is asked for"),
        (Wish(kill=("node",)), "either --every TIME or --every-steps"),
        (Wish(kill=("node",), every_ns=1, every_steps=1), "either --every TIME"),
        (Wish(kill=("wroker",), every_ns=1), "no process 'wroker' in this job; did you mean wor"),
        (Wish(kill=("worker-3",), every_ns=1), "worker-0, worker-1, worker-2, switch-top"),
        (Wish(kill=("node",), stall=("swicth-top",), every_ns=1), "did you mean switch-top"),
    ],
)
def test_wishes_that_mean_nothing_are_refused(wish: Wish, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        draw(wish, CAST)


def test_a_switch_that_is_not_there_is_refused() -> None:
    cast = cast_of(RunConfig(no_switch=True))
    with pytest.raises(ConfigError, match="no process 'switch' in this job"):
        draw(Wish(kill=("switch",), every_ns=1), cast)


# ---------------------------------------------------------------------- a file


def plan_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "plan.toml"
    file.write_text(text)
    return file


def test_a_file_to_draw_from(tmp_path: Path) -> None:
    text = 'seed = 7\nkill = ["node"]\nstall = "worker"\ncount = 3\nevery = "2s"\nfor = "50ms"\n'
    found = read_plan(plan_file(tmp_path, text + "[links]\nloss = 0.01\n"))
    assert found.wish == Wish(
        kill=("node",), stall=("worker",), count=3, every_ns=2 * SECOND, stall_ns=SECOND // 20,
        seed=7,
    )  # fmt: skip
    assert found.links == {"loss": "0.01"}
    wish = read_plan(plan_file(tmp_path, text), seed=9).wish
    assert wish is not None
    assert wish.seed == 9


def test_a_file_of_faults(tmp_path: Path) -> None:
    text = """
[[fault]]
kill = "switch-top"
after_steps = 12
after = "40ms"
[[fault]]
stall = "worker-1"
after = "90s"
for = "5s"
"""
    found = read_plan(plan_file(tmp_path, text))
    assert resolve(found.faults, CAST) == (
        Fault(kind="kill", process="switch-top", moment=Moment(step=12, delay_ns=40_000_000)),
        Fault(
            kind="stall", process="worker-1", moment=Moment(delay_ns=90 * SECOND),
            stall_ns=5 * SECOND,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kil = 'node'", "unknown key 'kil'; did you mean kill"),
        ("kill = 3", r"kill is 3; write \["),
        ("count = 0", "count is 0, not a whole number of at least 1"),
        ("every = 30", "every: '30' has no unit"),
        ("every = '0s'", "give a time above 0"),
        ("[[fault]]\nkill = 'node'", "give the time"),
        ("[[fault]]\nafter = '1s'", "either kill or stall"),
        ("[[fault]]\nkill='node'\nstall='node'\nafter = '1s'", "either kill or stall"),
        ("[[fault]]\nkill='node'\nafter='1s'\nfor='2s'", "a kill has no duration"),
        ("count = 2\n[[fault]]\nkill='node'\nafter='1s'", "count is for random faults"),
        ("[links]\nlos = 0.1", "unknown key 'los'; did you mean loss"),
        ("fault = 3", r"write \[\[fault\]\]"),
        ("a = [", "is not TOML"),
    ],
)
def test_files_that_mean_nothing_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_plan(plan_file(tmp_path, text))


def test_a_written_fault_names_one_process() -> None:
    with pytest.raises(ConfigError, match="may be any of worker-0, worker-1, worker-2; name one"):
        resolve((kill("worker"),), CAST)
    alone = cast_of(RunConfig(workers=1))
    assert resolve((kill("worker"), kill("switch")), alone) == (kill("worker-0"), kill("switch"))


# ---------------------------------------------------------------------- what should come of it


def test_restarts_are_counted_over_switch_and_node() -> None:
    """Goal: what the supervisor would do, told beforehand."""
    found = outlooks([kill("node"), kill("switch"), kill("node")], RULES, expect=None)
    assert [each.ends for each in found] == [None, None, "--restarts is 2"]


@pytest.mark.feature("a plan that the run cannot survive")
def test_what_ends_a_run_may_only_come_last() -> None:
    """I6. Goal: a plan whose rest could never happen is refused with what to change."""
    with pytest.raises(ConfigError, match=r"fault 2 .* would end the run: --worker-restarts"):
        outlooks([kill("worker-0"), kill("worker-1"), kill("node")], RULES, expect=None)
    found = outlooks([kill("worker-0")] * 3, RULES, expect="on")
    assert [each.ends for each in found] == [None] * 3


def test_other_reasons_for_an_end() -> None:
    in_ram = replace(RULES, keeps_state=False)
    assert "give --state" in str(outlooks([kill("node")], in_ram, expect=None)[0].ends)
    assert outlooks([kill("switch")], in_ram, expect=None)[0].ends is None
    stall = replace(kill("worker-0"), kind="stall", stall_ns=10 * SECOND)
    assert "--grace is 10 s" in str(outlooks([stall], RULES, expect=None)[0].ends)
    assert outlooks([stall], RULES, expect="end")[0].ends == "--expect end is set"
    drop = replace(RULES, on_worker_loss="drop", worker_restarts=0)
    found = outlooks([kill("worker-0"), kill("worker-1"), kill("worker-2")], drop, expect=None)
    assert [each.ends for each in found] == [None, None, "--workers-min is 1"]
    wait = replace(RULES, on_worker_loss="wait")
    assert outlooks([kill("worker-0")] * 2, wait, expect=None)[1].ends == "--worker-restarts is 1"


def test_rules_are_those_of_the_run(tmp_path: Path) -> None:
    """Goal: a running job is asked by its own record."""
    tokens = ["--workers", "3", "--restarts", "7", "--worker-restarts", "2", "--grace", "5s",
              "--durability", "none", "x.py"]  # fmt: skip
    run = RunDirectory.create(tmp_path / "run")
    resolved = resolve_parsed(RUN, parse(RUN, tokens), {})
    write_resolved(run, resolved, "run")
    assert config_of(run) == resolved.config
    assert rules_of(config_of(run)) == Rules(
        workers=3, workers_min=1, restarts=7, worker_restarts=2, on_worker_loss="stop",
        keeps_state=False, grace_ns=5 * SECOND,
    )  # fmt: skip


# ---------------------------------------------------------------------- progress


def told(*events: tuple[str, int | None]) -> str:
    lines = []
    for at, (name, number) in enumerate(events):
        key = "version" if name == "node.opened" else "step"
        lines.append(json.dumps({"name": name, "role": "node", "at_ns": at, key: number}) + "\n")
    return "".join(lines)


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((("node.step", 3), ("node.opened", 4), ("node.step", 4)), None),
        ((("node.step", 3), ("node.opened", 5), ("node.step", 5)), None),
        ((("node.opened", None), ("node.step", 0), ("node.opened", 1)), None),
        ((("node.step", 3), ("node.opened", 3)), "restarted with 3 steps"),
        ((("node.step", 3), ("node.step", 3)), "step 3 was decided after step 3: again"),
        ((("node.step", 3), ("node.step", 5)), "after step 3: with steps left out"),
    ],
)
def test_steps_go_on_by_one(
    tmp_path: Path, events: tuple[tuple[str, int | None], ...], said: str | None
) -> None:
    """I1, I2. Goal: a step lost, repeated or left out is seen; a restart alone is nothing."""
    run = RunDirectory.create(tmp_path / "run")
    run.events("node").write_text(told(*events))
    progress = Progress(run)
    progress.look()
    assert [text for text in progress.violations if said is None or said not in text] == []
    assert len(progress.violations) == int(said is not None)


def test_what_is_written_later_and_lines_cut_short(tmp_path: Path) -> None:
    """Goal: each step is told once, at its time, though a kill left half a line."""
    run = RunDirectory.create(tmp_path / "run")
    progress = Progress(run)
    assert progress.look() == []
    with run.events("node").open("a") as file:
        file.write(told(("node.opened", 0), ("node.step", 0)) + '{"name":"read","st')
        file.flush()
        assert [each.step for each in progress.look()] == [0]
        file.write('{"name":"clock"}\n' + told(("node.opened", 1), ("node.step", 1)))
        file.flush()
        assert [(each.step, each.at_ns) for each in progress.look()] == [(1, 1)]
    assert (progress.steps_count, progress.violations) == (2, [])


def test_a_process_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    """I7. Goal: a number in processes.json that is another process's by now is no target."""
    import os

    run = RunDirectory.create(tmp_path / "run")
    run.write_processes([ProcessEntry(role="node", rank=0, pid=os.getpid(), started="now")])
    assert processes(run, "node") == []


# ---------------------------------------------------------------------- the command


def test_the_plan_of_a_seed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["chaos", "--kill", "node", "--stall", "worker-1", "--count", "3", "--every", "30s",
              "--seed", "7", "--plan-only", "run", "--workers", "2", "-m", "a"]  # fmt: skip
    assert main(tokens) == 0
    first = capsys.readouterr().out
    assert main(tokens) == 0
    assert capsys.readouterr().out == first
    lines = first.splitlines()
    assert [line[:12] for line in lines] == [f"fault {number} of 3" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("--kill node compare", "'compare' is not run"),
        ("--kill node --run-dir x run -m a", "give it after run"),
        ("--kill node --run-dir /no/such", "no run in /no/such"),
        ("--kill node run --join x -m a", "chaos needs the processes on this host"),
        ("--plan /no/such run -m a", "cannot read /no/such"),
        ("--plan x --kill node run -m a", "the file says it all; leave --kill out"),
        ("--kill worker run -m a", "fault 1 .* would end the run"),
        ("--kill node run --restarts 3 -m a", "fault 4 .* would end the run: --restarts is 3"),
        ("--kill node --expect no run -m a", "'no' is not one of on, end"),
        ("--stall node --for 0 run -m a", "give a time above 0"),
    ],
)
def test_commands_that_mean_nothing_are_refused(
    tokens: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert main(["chaos", *tokens.split()]) == 2
    assert re.search(said, capsys.readouterr().err)
