"""`luwu chaos`: kill and stall processes of a run on purpose, and see how it takes it.

The run goes on already, or is started with its faults; then switch and node may be started again as
often as the plan kills them, unless --restarts says otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from luwu.base.clock import SYSTEM_CLOCK, sleep
from luwu.base.colours import bold, red
from luwu.base.config import RunConfig
from luwu.base.errors import ConfigError, DeadlineError, Interrupted
from luwu.base.json_file import read_json
from luwu.base.parsers import one_of, seconds, whole
from luwu.base.quantities import parse_ns
from luwu.chaos.job import cast_of, config_of, rules_of
from luwu.chaos.outlook import Outlook, outlooks
from luwu.chaos.plan import Fault, Wish, draw, plan_lines
from luwu.chaos.plan_file import PlanFile, read_plan, resolve
from luwu.chaos.work import POLL_S, Chaos, Verdict
from luwu.commands import run as run_verb
from luwu.commands.flags import Flag, Parsed, Verb, parse, resolve_parsed
from luwu.launch.processes.run_directory import RunDirectory
from luwu.launch.processes.stopping import stop_requests
from luwu.monitor.watch import processes_of, state_now

VERB: Final = Verb(
    name="chaos",
    usage="luwu chaos [flags]\nluwu chaos [flags] run [flags of luwu run] SCRIPT ...",
    text="Kill and stall processes of a run, and check that the run survives it. The run is "
    "already active, or this command starts it. Links cannot be changed while they are in use: for "
    "lost messages pass --loss to luwu run.",
    examples=(
        "luwu chaos --kill node,worker --count 3 --every 10s",
        "luwu chaos --kill switch --every-steps 50 run --workers 2 train.py",
    ),
    flags=(
        Flag(name="kill", shape="A,B", text="processes to kill: node, switch, worker, worker-1"),
        Flag(name="stall", shape="A,B", text="processes to stall, then resume"),
        Flag(name="for", shape="TIME", text="duration of a stall (default: 2s)"),
        Flag(name="count", shape="N", text="number of faults (default: 5)"),
        Flag(name="every", shape="TIME", text="time per fault (default: 30s)"),
        Flag(name="every_steps", shape="N", text="steps per fault, instead of a time"),
        Flag(name="seed", shape="N", text="seed of the plan (default: 0)"),
        Flag(name="plan", shape="FILE", text="plan in TOML, instead of the flags above"),
        Flag(name="plan_only", text="print the plan and exit"),
        Flag(name="expect", shape="on|end", text="expect the run to continue after the last fault, "
             "or to end (default: as its configuration implies)"),
        Flag(name="limit", shape="TIME", text="time for the run to continue or end (default: 60s)"),
        Flag(name="run_dir", shape="DIR", text="directory of the run (default: luwu-runs/latest)"),
        Flag(name="json", text="print the verdict as JSON, and all else to standard error"),
    ),
    has_keys=False,
    rest="script",
)  # fmt: skip
WISHES: Final = ("kill", "stall", "for", "count", "every", "every_steps")
EVERY_NS: Final = 30_000_000_000
LIMIT_S: Final = 60.0
START_S: Final = 120.0
GONE_CODE: Final = 1
"""Exit code of a run that has no process left and never recorded its end."""
GONE_NS: Final = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Job:
    """The job to disturb, as far as its directory describes it."""

    config: RunConfig
    says_restarts: bool
    """True if the user set how often switch and node are restarted."""
    tokens: tuple[str, ...]
    """The command line of `luwu run`, where this command starts it."""
    run: RunDirectory | None
    """Its directory, if it runs already."""


@dataclass(frozen=True, slots=True)
class _Voice:
    """Prints lines for people and the verdict; with --json only the verdict on standard output."""

    as_json: bool

    def say(self, text: str) -> None:
        """Print a line for people."""
        stream = sys.stderr if self.as_json else sys.stdout
        shown = red(text, stream) if text.startswith("VIOLATION") else text
        print(shown, file=stream, flush=True)

    def tell(self, verdict: Verdict) -> int:
        """Print the verdict; the exit code."""
        paint = bold if verdict.is_good else red
        shown = paint(str(verdict), sys.stdout)
        print(json.dumps(verdict.document(), indent=1) if self.as_json else shown, flush=True)
        return 0 if verdict.is_good else 1


def run(parsed: Parsed) -> int:
    """Run the verb; the exit code."""
    voice = _Voice(parsed.has("json"))
    if voice.as_json and parsed.has("plan_only"):
        raise ConfigError("--json prints the verdict, and --plan-only has none; leave one out")
    job = _job(parsed)
    file = _plan_file(parsed)
    faults = _faults(file, job)
    job = _with_restarts(job, faults)
    expect = None
    if "expect" in parsed.flags:
        expect = one_of("on", "end")(parsed.flags["expect"], "--expect")
    limit_s = seconds(parsed.flags["limit"], "--limit") if "limit" in parsed.flags else LIMIT_S
    for line in plan_lines(faults):
        voice.say(line)
    for name, value in file.links.items():
        voice.say(f"links: --{name} {value}, from the beginning")
    expected = outlooks(faults, rules_of(job.config), expect=expect)
    if parsed.has("plan_only"):
        return 0
    if job.tokens:
        return _around(job, file, faults, expected, limit_s, voice)
    assert job.run is not None
    _check_running(job.run, file)
    return _attached(job.run, faults, expected, limit_s, voice)


def _attached(
    run: RunDirectory, faults: Sequence[Fault], expected: Sequence[Outlook], limit_s: float,
    voice: _Voice,
) -> int:  # fmt: skip
    with stop_requests() as should_stop:
        chaos = Chaos(
            run, faults, expected, limit_s=limit_s, exit_code=_Outcome(run), say=voice.say,
            should_stop=should_stop,
        )  # fmt: skip
        return voice.tell(chaos.work())


def _around(
    job: Job, file: PlanFile, faults: Sequence[Fault], expected: Sequence[Outlook], limit_s: float,
    voice: _Voice,
) -> int:  # fmt: skip
    """Start the run, disturb it, and let it come to its end."""
    if job.config.run_dir is None:
        directory = RunDirectory.create(None)
    else:
        directory = RunDirectory(job.config.run_dir)
        if directory.file("resolved.json").exists():
            RunDirectory.create(job.config.run_dir)  # says of which run it is
    flags = [f"--run-dir={directory.path}", *(f"--{key}={file.links[key]}" for key in file.links)]
    with stop_requests() as should_stop:
        process = subprocess.Popen(
            [sys.executable, "-m", "luwu.testing.leash", "run", *flags, *job.tokens],
            stdin=subprocess.PIPE,  # the run ends with us, however we end
            stdout=sys.stderr if voice.as_json else None,
            start_new_session=True,
        )
        try:
            chaos = Chaos(
                directory, faults, expected, limit_s=limit_s, exit_code=process.poll, say=voice.say,
                should_stop=should_stop,
            )  # fmt: skip
            _wait_for_start(directory, process.poll, should_stop)
            directory.begin()
            verdict = chaos.work()
            ends = bool(expected) and expected[-1].ends is not None
            if not verdict.taken and process.poll():
                return process.returncode  # it has said why
            if not verdict.violations:
                _wait_for_end(process.poll, should_stop)
                if process.returncode and not (ends and verdict.is_good):
                    verdict.violations.append(f"the run ended with exit code {process.returncode}")
                    voice.say(f"VIOLATION: {verdict.violations[-1]}")
            return voice.tell(verdict)
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


# ---------------------------------------------------------------------- what is asked for


def _plan_file(parsed: Parsed) -> PlanFile:
    """The plan of a file or of the flags."""
    given = parsed.flags
    seed = whole(0)(given["seed"], "--seed") if "seed" in given else None
    if "plan" in given:
        both = [f"--{name.replace('_', '-')}" for name in WISHES if name in given]
        if both:
            raise ConfigError(f"--plan: the file says it all; leave {' and '.join(both)} out")
        return read_plan(Path(given["plan"]).expanduser(), seed=seed)
    every_steps = None
    if "every_steps" in given:
        every_steps = whole(1)(given["every_steps"], "--every-steps")
    every_ns = _time(given, "every")
    if every_ns is None and every_steps is None:
        every_ns = EVERY_NS
    wish = Wish(
        kill=_names(given.get("kill", "")),
        stall=_names(given.get("stall", "")),
        count=whole(1)(given["count"], "--count") if "count" in given else Wish().count,
        every_ns=every_ns,
        every_steps=every_steps,
        stall_ns=_time(given, "for") or Wish().stall_ns,
        seed=seed or 0,
    )
    return PlanFile(wish=wish)


def _faults(file: PlanFile, job: Job) -> tuple[Fault, ...]:
    cast = cast_of(job.config)
    return resolve(file.faults, cast) if file.wish is None else draw(file.wish, cast)


def _job(parsed: Parsed) -> Job:
    """The job: its configuration, and where it is or how it is started. Raises ConfigError."""
    directory = parsed.flags.get("run_dir")
    if parsed.rest:
        if directory is not None:
            raise ConfigError("--run-dir: the run that is started has its own; give it after run")
        verb, *tokens = parsed.rest
        if verb != "run":
            raise ConfigError(f"{verb!r} is not run; usage: {VERB.usage_text}", code="E201")
        resolved = resolve_parsed(run_verb.VERB, parse(run_verb.VERB, tokens))
        if resolved.config.join is not None or resolved.config.engine != "local":
            raise ConfigError(
                "chaos needs the processes on this host; leave --join and --engine out, or start "
                "luwu chaos --run-dir DIR on the host where they are"
            )
        return Job(resolved.config, not resolved.is_default("restarts"), tuple(tokens), None)
    found = RunDirectory.find(None if directory is None else Path(directory))
    return Job(config_of(found), True, (), found)


def _with_restarts(job: Job, faults: Sequence[Fault]) -> Job:
    """As many restarts as the plan needs, for a run that we start and nobody said how many."""
    kills = sum(each.kind == "kill" and each.machine != "worker" for each in faults)
    if job.says_restarts or kills <= job.config.restarts:
        return job
    config = replace(job.config, restarts=kills)
    return replace(job, config=config, tokens=(f"--restarts={kills}", *job.tokens))


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _time(given: dict[str, str], name: str) -> int | None:
    if name not in given:
        return None
    nanoseconds = parse_ns(given[name], name=f"--{name}")
    if nanoseconds == 0:
        raise ConfigError(f"--{name} is {given[name]!r}; give a time above 0, such as 2s")
    return nanoseconds


# ---------------------------------------------------------------------- the run


def _check_running(run: RunDirectory, file: PlanFile) -> None:
    if file.links:
        raise ConfigError(
            f"links: {', '.join(file.links)} cannot be changed during a run; start it with "
            "luwu chaos --plan FILE run ..."
        )
    state, _ = state_now(run)
    if state != "running":
        raise ConfigError(f"{run.path} is not running: {state}; see luwu report", code="E202")


class _Outcome:
    """The end of a run that another command started; None while it goes on."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._alive_ns = SYSTEM_CLOCK.now_ns()

    def __call__(self) -> int | None:
        said = read_json(self._run.file("outcome.json"))
        if said is not None:
            return int(said["exit_code"])
        now_ns = SYSTEM_CLOCK.now_ns()
        if any(each["is_alive"] for each in processes_of(self._run)):
            self._alive_ns = now_ns
        return GONE_CODE if now_ns - self._alive_ns > GONE_NS else None


def _wait_for_start(
    run: RunDirectory, exit_code: Callable[[], int | None], should_stop: Callable[[], bool]
) -> None:
    """Return when the node writes its events, or the run is over."""
    waited_s = 0.0
    while exit_code() is None and not run.events("node").exists():
        if should_stop():
            raise Interrupted("interrupted before the run had begun")
        if waited_s > START_S:
            raise DeadlineError(f"no node began in {run.path} within {START_S:.0f} s")
        sleep(POLL_S)
        waited_s += POLL_S


def _wait_for_end(exit_code: Callable[[], int | None], should_stop: Callable[[], bool]) -> None:
    while exit_code() is None:
        if should_stop():
            raise Interrupted("interrupted; the run is being stopped")
        sleep(POLL_S)
