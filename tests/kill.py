"""Kill a process of a run at seeded moments, and see how the run takes it.

    python -m tests.kill --role node --count 5
    python -m tests.kill --role worker --count 3 --seed 7
    python -m tests.kill --role last --count 7

switch, node   one run, killed COUNT times: it must go on by itself, each time, and end with the
               digest of plain torch in one process
switch-NAME    the same for `top`, `left` or `right` of a small tree of switches
worker         the same for the workers in turn, each started again alone (--on-worker-loss wait)
lost-node      COUNT runs with two copies of each page on two or three optimizer nodes: one of them
               is killed and its directory deleted, and half of them come back with nothing; the run
               must go on without it, and end with that digest, and luwu refill must make the state
               whole. Also said: how much longer than was allowed no step was decided
last           COUNT runs, one kill each, within 200 ms of the last step: of node, switch and
               worker in turn, without a switch, and with two copies of each page on two nodes;
               the run must end with 0, soon, and with that digest. Also said: which took over 5 s
worker-stop    COUNT runs, one kill each, where a lost worker ends the run: it must end within
               seconds with exit code 4 and say which worker was lost to which signal

And either way nothing may be left: no process, no socket, no file but those of the run directory.
A moment is a step and some milliseconds after it. One kill in four comes while the process that
was killed before is still starting. One line a kill, then what was seen; the last line is
`N trials, V violations`, and the exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.errors import LuwuError
from luwu.checkpoint.refill import refill
from luwu.launch.nodes import node_role
from luwu.testing.cluster import Cluster
from switch_emu.store.striped import left_out_nodes
from switch_emu.store.verify import verify_state
from tests.processes.jobs import ON_THE_CPU, Outside, light_digest

ROLES = (
    "node", "switch", "worker", "worker-stop", "lost-node", "last", "switch-top", "switch-left",
    "switch-right",
)  # fmt: skip
WORKERS = 2
TREE = """
[top]
parent = "node"
[left]
parent = "top"
workers = "0-1"
[right]
parent = "top"
workers = "2"
"""
"""Of `switch-top`, `switch-left` and `switch-right`."""
TREE_WORKERS = 3
STEPS_BETWEEN = 8
"""Steps in which each kill's moment is drawn."""
COMPUTE_MS = 90.0
"""A step takes some 100 ms, so a moment is a place within a step."""
DROP_S = 1.0
"""A node that is missing for so long is left out."""
STOP_S_MAX = 10.0
"""A worker's death ends the run within this."""
LAST_MS = 200.0
"""What a job has left to do after its last step's last message takes about as long."""
LAST_S, LAST_S_MAX = 5.0, 20.0
"""A run ends so soon after a death in that time; and on a machine that is busy with others."""
ONE_NODE, TWO_NODES = (), ("--optimizer-nodes", "2", "--replicas", "2", "--chunk", "16KiB")
LAST = (
    ("node", ONE_NODE), ("switch", ONE_NODE), ("worker", ONE_NODE), ("node", ("--no-switch",)),
    ("node", TWO_NODES), ("switch", TWO_NODES), ("worker", TWO_NODES), ("node-1", TWO_NODES),
)  # fmt: skip
"""Who is killed as the job ends, and the flags of the run."""


class TakenBadly(Exception):
    """The run did not take a kill as it should."""


@dataclass(frozen=True)
class Moment:
    """When to kill."""

    step: int | None
    """After this step's line of progress; None: as soon as the process is alive again."""
    delay_ms: float

    def __str__(self) -> str:
        start = "its new start" if self.step is None else f"step {self.step}"
        return f"{self.delay_ms:.0f} ms after {start}"


class Kills:
    """Says what was killed, and counts it."""

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0

    def say(self, text: str) -> None:
        """One more is killed."""
        self.done += 1
        print(f"kill {self.done} of {self.count}: {text}", flush=True)


def draw_moments(seed: int, count: int) -> list[Moment]:
    """A pure function of the seed."""
    random = Random(seed)
    moments: list[Moment] = []
    for index in range(count):
        step: int | None = index * STEPS_BETWEEN + random.randrange(1, STEPS_BETWEEN)
        is_early = random.random() < 0.25 and index > 0
        limit_ms = 1500 if is_early else 100
        moments.append(Moment(None if is_early else step, random.uniform(0, limit_ms)))
    return moments


def start(
    directory: Path, name: str, *, steps: int, restarts: int, outside: Outside,
    transport: str = "auto", tree: Path | None = None, more_flags: Sequence[str] = (),
    workers: int = WORKERS, compute_ms: float = COMPUTE_MS, script: Sequence[str] = (),
    environ: Mapping[str, str] = {},
) -> Cluster:  # fmt: skip
    """A run of `tests/light_job.py` that takes its time, or of another script."""
    light = ("-m", "tests.light_job", "--steps", str(steps), "--compute-ms", str(compute_ms))
    flags = [
        *more_flags, "--workers", str(workers if tree is None else TREE_WORKERS),
        "--restarts", str(restarts), "--durability", "process",
        "--state", str(directory / f"{name}.state"), "--transport", transport,
    ]  # fmt: skip
    if tree is not None:
        flags += ["--tree", str(tree)]
    environ = {**outside.environ, **ON_THE_CPU, **environ}
    return Cluster.run(directory, *(script or light), flags=flags, name=name, environ=environ)


def wait_for_step(cluster: Cluster, step: int, *, limit_s: float = 120) -> None:
    """Return when a step, or a later one, is on record in the log of worker 0."""
    log = cluster.run_directory.log("worker-0")

    def reached() -> bool | None:
        text = log.read_text(errors="replace") if log.exists() else ""
        steps = [int(found) for found in re.findall(r" step=(\d+) ", text)]
        return max(steps, default=-1) >= step or None

    cluster.until(reached, f"step {step}", limit_s=limit_s)


def check_clean(cluster: Cluster, outside: Outside) -> None:
    """I8. Raises TakenBadly."""
    left = cluster.wait_until_clean() + outside.leftovers()
    left += [f"{entry.role} in processes.json" for entry in cluster.processes()]
    if left:
        raise TakenBadly(f"left behind: {', '.join(left)}")


def check_digest(found: str, plain: str) -> None:
    """I3. Raises TakenBadly."""
    if found != plain:
        raise TakenBadly(f"digest {found[:12]}, but {plain[:12]} of plain torch")


def finish(cluster: Cluster, outside: Outside) -> str:
    """Let a run end well; its digest. Raises TakenBadly."""
    code = cluster.wait()
    if code != 0:
        raise TakenBadly(f"the run ended with exit code {code}:\n{cluster.output}")
    check_clean(cluster, outside)
    digest = cluster.results()["node.json"]["weights_digest"]
    assert isinstance(digest, str)
    return digest


def kill_role(directory: Path, kills: Kills, asked: argparse.Namespace) -> str:
    """Kill a role in one run, time after time; its verdict. Raises TakenBadly."""
    role, count = asked.role, kills.count
    steps = (count + 1) * STEPS_BETWEEN
    tree = None
    are_workers = role == "worker"
    flags = ["--on-worker-loss", "wait", "--worker-restarts", str(count)] if are_workers else []
    if role.startswith("switch-"):
        tree = directory / "tree.toml"
        tree.write_text(TREE)
    plain = light_digest(steps, WORKERS if tree is None else TREE_WORKERS)
    outside = Outside(directory / "killed.tmp")
    with start(
        directory, "killed", steps=steps, restarts=count, outside=outside,
        transport=asked.transport, tree=tree, more_flags=flags,
    ) as cluster:  # fmt: skip
        cluster.wait_for(role)
        for number, moment in enumerate(draw_moments(asked.seed, count), start=1):
            rank = number % WORKERS if are_workers else 0
            if moment.step is not None:
                wait_for_step(cluster, moment.step)
            sleep(moment.delay_ms / 1e3)
            killed_ns = SYSTEM_CLOCK.now_ns()
            pid = cluster.kill(role, rank)
            new = cluster.wait_for(role, rank, but=pid)
            waited_ms = (SYSTEM_CLOCK.now_ns() - killed_ns) / 1e6
            kills.say(f"{role}, pid {pid}, {moment}; pid {new} follows {waited_ms:.0f} ms later")
        killed = finish(cluster, outside)
    check_digest(killed, plain)
    return f"the run went on each time and ended with digest {killed[:12]}, as plain torch does"


@dataclass(frozen=True)
class Loss:
    """A node that is lost with its directory, and how often it comes back on an empty one."""

    nodes: int
    number: int
    returns: int
    """Of two, the first is lost again while it is being filled."""
    moment: Moment
    again_ms: float

    def __str__(self) -> str:
        back = ("it stays away", "it came back", "it was lost again while it was filled")
        return f"node {self.number} of {self.nodes}, {self.moment}; {back[self.returns]}"


def draw_loss(random: Random) -> Loss:
    """Of a node of two or three."""
    nodes = random.choice((2, 3))
    (moment,) = draw_moments(random.randrange(2**32), 1)
    return Loss(nodes, random.randrange(nodes), random.randrange(3), moment, random.uniform(0, 200))


def lose_nodes(directory: Path, kills: Kills, asked: argparse.Namespace) -> str:
    """Lose a node with its directory in each of some runs; the verdict. Raises TakenBadly."""
    random, pauses_s, filled_count = Random(asked.seed), [], 0
    steps = 5 * STEPS_BETWEEN
    plain = light_digest(steps, WORKERS)
    for run in range(kills.count):
        loss, state = draw_loss(random), directory / f"{run}.state"
        found, pause_s = _lose(directory, str(run), loss, steps)
        pauses_s.append(pause_s)
        check_digest(found, plain)
        left_out = left_out_nodes(state)
        filled_count += not left_out
        if left_out and refill(state).nodes != (loss.number,):
            raise TakenBadly(f"{loss}; it was not refilled")
        checked = verify_state(state, loss.nodes, full=True)
        if checked.damages or checked.disagreement:
            raise TakenBadly(f"{loss}; {state} is not whole: {checked}")
        whole = "left out at the end" if left_out else "filled before the end"
        kills.say(f"{loss}; {whole}; no step for {pause_s:.1f} s beyond what was allowed")
        shutil.rmtree(state)
    pauses_s.sort()
    late_s = pauses_s[min(len(pauses_s) - 1, int(0.95 * len(pauses_s)))]
    return (
        f"each run went on and ended with digest {plain[:12]}; {filled_count} nodes were filled "
        "before the end, the others with luwu refill; the pause was "
        f"{statistics.median(pauses_s):.1f} s in the median, {late_s:.1f} s at the 95th percentile"
    )


def _lose(directory: Path, name: str, loss: Loss, steps: int) -> tuple[str, float]:
    """The digest of a run in which a node is lost, and how long no step was decided then."""
    outside, role = Outside(directory / f"{name}.tmp"), node_role(loss.number)
    flags = (
        "--optimizer-nodes", str(loss.nodes), "--replicas", "2", "--chunk", "16KiB",
        "--memory-budget", "64MiB", "--drop-node-after", f"{DROP_S}s",
    )  # fmt: skip
    with start(
        directory, name, steps=steps, restarts=loss.returns, outside=outside, more_flags=flags
    ) as cluster:
        assert loss.moment.step is not None
        wait_for_step(cluster, loss.moment.step)
        sleep(loss.moment.delay_ms / 1e3)
        killed_ns = SYSTEM_CLOCK.now_ns()
        for count in range(max(1, loss.returns)):
            if count:
                cluster.wait_for_text("switch.filling", log="switch")
                sleep(loss.again_ms / 1e3)
            shutil.rmtree(directory / f"{name}.state" / f"node-{loss.number}")
            cluster.kill(role)
        found = finish(cluster, outside)
        other = cluster.run_directory.events(node_role((loss.number + 1) % loss.nodes))
    return found, _pause_s(other, killed_ns) - (0 if loss.returns else DROP_S)


def _pause_s(events: Path, killed_ns: int) -> float:
    """From the last step that a node decided before a time to the first one after it."""
    records = (json.loads(line) for line in events.read_text().splitlines())
    steps_ns = [each["at_ns"] for each in records if each["name"] == "node.step"]
    after_ns = min(at_ns for at_ns in steps_ns if at_ns > killed_ns)
    return (after_ns - max(at_ns for at_ns in steps_ns if at_ns <= killed_ns)) / 1e9


def kill_last(directory: Path, kills: Kills, asked: argparse.Namespace) -> str:
    """Kill a process in each of some runs as it ends; the verdict. Raises TakenBadly."""
    random, steps, longest_s, late_count = Random(asked.seed), 4, 0.0, 0
    plain = light_digest(steps, WORKERS)
    for number in range(kills.count):
        role, more = LAST[(asked.seed + number) % len(LAST)]
        is_worker = role == "worker"  # its last 200 ms begin earlier
        rank = random.randrange(WORKERS) if is_worker else 0
        delay_ms = random.uniform(0, LAST_MS / 2 if is_worker else LAST_MS)
        outside = Outside(directory / f"{number}.tmp")
        flags = (*more, "--memory-budget", "64MiB", "--on-worker-loss", "wait")
        with start(
            directory, str(number), steps=steps, restarts=3, outside=outside,
            transport=asked.transport, more_flags=flags, compute_ms=20.0,
        ) as cluster:  # fmt: skip
            cluster.wait_for(role, rank)
            wait_for_step(cluster, steps - 1 - is_worker)
            sleep(delay_ms / 1e3)
            entry, killed_ns = cluster.find(role, rank), SYSTEM_CLOCK.now_ns()
            if entry is not None:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(entry.pid, signal.SIGKILL)
            try:
                found = finish(cluster, outside)
            except TakenBadly as error:
                raise TakenBadly(f"{role} {rank}, {delay_ms:.0f} ms, {more}: {error}") from error
            waited_s = (SYSTEM_CLOCK.now_ns() - killed_ns) / 1e9
        longest_s, late_count = max(longest_s, waited_s), late_count + (waited_s > LAST_S)
        who = "had ended already" if entry is None else f"pid {entry.pid}"
        kills.say(
            f"{role} {rank} ({who}), {delay_ms:.0f} ms after step {steps - 1 - is_worker}, "
            f"{' '.join(more)}; the run ended {waited_s:.1f} s later"
        )
        check_digest(found, plain)
        if waited_s > LAST_S_MAX:
            raise TakenBadly(f"{role} {rank}: the run took {waited_s:.1f} s to end")
    return (
        f"each run ended with digest {plain[:12]}, at most {longest_s:.1f} s later, "
        f"{late_count} of them more than {LAST_S:.0f} s"
    )


def kill_workers(directory: Path, kills: Kills, asked: argparse.Namespace) -> str:
    """Kill a worker in each of some runs; the verdict. Raises TakenBadly."""
    random = Random(asked.seed)
    for number in range(kills.count):
        outside = Outside(directory / f"{number}.tmp")
        rank, moment = random.randrange(WORKERS), draw_moments(random.randrange(2**32), 1)[0]
        with start(directory, str(number), steps=10**6, restarts=0, outside=outside) as cluster:
            assert moment.step is not None
            wait_for_step(cluster, moment.step)
            sleep(moment.delay_ms / 1e3)
            killed_ns = SYSTEM_CLOCK.now_ns()
            pid = cluster.kill("worker", rank)
            code = cluster.wait()
            waited_s = (SYSTEM_CLOCK.now_ns() - killed_ns) / 1e9
            check_clean(cluster, outside)
            said = cluster.output
        kills.say(
            f"worker {rank}, pid {pid}, {moment}; the run ended {waited_s:.1f} s later with exit "
            f"code {code}"
        )
        expected = f"worker {rank} (pid {pid}) was lost: signal {signal.SIGKILL.name}"
        if code != 4 or waited_s > STOP_S_MAX or expected not in said:
            raise TakenBadly(
                f"expected exit code 4 within {STOP_S_MAX:.0f} s, {expected!r}:\n{said}"
            )
    return "each run ended in time, named the worker and the signal, and left nothing"


WAYS = {"worker-stop": kill_workers, "lost-node": lose_nodes, "last": kill_last}
"""Of other roles it is `kill_role`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill as asked; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill", allow_abbrev=False)
    parser.add_argument("--role", required=True, choices=ROLES)
    parser.add_argument("--count", type=int, default=5, help="kills (5)")
    parser.add_argument("--seed", type=int, default=0, help="draws the moments (0)")
    parser.add_argument("--transport", default="auto", help="of the run (auto: shared memory)")
    asked = parser.parse_args(arguments)
    kills, violations = Kills(asked.count), 0
    with tempfile.TemporaryDirectory(prefix="luwu-kill-") as name:
        try:
            said = WAYS.get(asked.role, kill_role)(Path(name), kills, asked)
            print(f"{asked.role} killed {kills.done} times; {said}")
        except (TakenBadly, LuwuError) as error:
            violations = 1
            print(f"FAILED (--seed {asked.seed}): {error}")
    print(f"{kills.done} trials, {violations} violations")
    return violations


if __name__ == "__main__":
    sys.exit(main())
