"""How long does `luwu predict` take to answer, and `luwu plan` to search?

Cases:    `closed form`    a step of LuWu with 175 B parameters
          `cores`          steps of the same question, as LuWu's cores decide them
          `plan`           all configurations of a job, 10,000 at least, by closed forms
Arms:     `process` is the command, from its start to its end; `call` the same command within this
          process, whose modules are imported.
Metric:   seconds an answer; of a plan also configurations a second
Floor:    of a process, an interpreter that does nothing. Of a call, the arithmetic alone: a closed
          form, the steps, and as many closed forms of the plan's fastest
          configuration as configurations fit.
Goal:     1 s, 10 s and 30 s of the process, the slowest of all repeats, on 2 cores
Checked:  every repeat gives the same document, byte for byte, and process and call give the same
          one; the cores' step is the closed form's within 3 %; a plan tries as many
          configurations as it should, and the fastest, asked alone, has the step that it says.
Left out: the accuracy of what is predicted: `benchmarks.calibration`.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from benchmarks.harness import Row, say
from luwu.base.errors import LuwuError
from luwu.commands.main import main as luwu
from luwu.predict.ask.question import Question, make_question, read_table
from luwu.predict.driven.driven import play_driven_steps
from luwu.predict.hardware.catalogue import Catalogue, load
from luwu.predict.plan import plan
from luwu.predict.systems.in_network import OptimizerNodes

SOURCE: Final = Path(__file__).resolve().parents[1]
GOALS_S: Final = {"closed form": 1.0, "cores": 10.0, "plan": 30.0}
CONFIGURATIONS_MIN: Final = 10_000
REPEATS: Final = 5
LIMIT_S: Final = 120.0
PLAYED_OFF_MAX: Final = 0.03
QUESTION: Final = """
system = "luwu"
model = "{model}"
device = "A100-40"
network = "roce-100g"
software = "deepspeed-2023"
devices = 8
sequence = 2048
batch = 64
micro_batch = 8
recompute = "full"

[node]
processor = "Xeon-5320"
processors = 2
memory_bytes = "512 GiB"
disk = "P5510-3.84T"
disks = 12
"""
PLAN: Final = """
systems = ["3d", "zero3", "ddp", "atp"]
model = "{model}"
device = "GB200"
network = "ib-ndr"
software = "nemo-2024"
devices = {devices}
sequence = 2048
batch = {batch}
"""
OWN: Final = """
[model.deep]
like = "GPT-175B"
layers = 180
"""
"""A depth with many divisors, so that there is much to search."""

MEANINGS: Final = {
    "closed_form_s": "the slowest process of luwu predict step",
    "cores_s": "the slowest process of luwu predict step --cores",
    "plan_s": "the slowest process of luwu plan",
    "configurations": "that the plan tried",
    "met": "whether all are within their goals, and the plan has 10,000 configurations",
}


@dataclass(frozen=True)
class Sizes:
    """What is asked."""

    model: str
    plan_model: str
    devices: int
    repeats: int
    configurations_min: int


REAL: Final = Sizes("GPT-175B", "deep", 5760, REPEATS, CONFIGURATIONS_MIN)
SMOKE: Final = Sizes("GPT-1.3B", "GPT-13B", 8, 2, 100)


@dataclass(frozen=True)
class Case:
    """A question: the command that answers it, and the arithmetic that this takes."""

    name: str
    words: tuple[str, ...]
    floor: Callable[[], object]


class SameEachTime:
    """Every answer of a case is the first one."""

    def __init__(self, case: str) -> None:
        self._case, self.document = case, ""

    def add(self, arm: str, document: str) -> None:
        """Raises LuwuError for another answer than the one before."""
        if not document or (self.document and document != self.document):
            raise LuwuError(f"{self._case}: {arm} gave another answer than the one before")
        self.document = document


def main() -> int:
    """Run the program; the exit code."""
    parser = harness.flags("predict", __doc__ or "")
    arguments = parser.parse_args()
    sizes = SMOKE if arguments.smoke else REAL
    rows, tried = [], 0
    with tempfile.TemporaryDirectory(prefix="luwu-predict-") as name:
        for case in _cases(Path(name), sizes):
            found, document = _measure(case, arguments.repeats or sizes.repeats)
            if case.name == "plan":
                tried = json.loads(document)["tried"]
                for row in found[:2]:
                    row["configurations_per_s"] = tried / row["seconds_median"]
            rows += found
    claims = _claims(rows, tried)
    _show(rows, claims)
    harness.write(
        arguments.json, harness.document("predict", rows, claims, claims_meaning=MEANINGS)
    )
    return 0


def _cases(directory: Path, sizes: Sizes) -> list[Case]:
    own, question, search = (directory / f"{name}.toml" for name in ("own", "question", "plan"))
    own.write_text(OWN)
    question.write_text(QUESTION.format(model=sizes.model))
    search.write_text(
        PLAN.format(model=sizes.plan_model, devices=sizes.devices, batch=64 * sizes.devices)
    )
    catalogue = load(own)
    asked = make_question(read_table(question), catalogue)
    assert isinstance(asked.part, OptimizerNodes)
    job, nodes, words = asked.job, asked.part, ("predict", "step", str(question), "--json")
    _check_played(asked, play_driven_steps(job, nodes))
    return [
        Case("closed form", words, asked.answer),
        Case("cores", (*words, "--cores"), lambda: play_driven_steps(job, nodes)),
        _plan_case(search, own, catalogue, sizes),
    ]


def _check_played(asked: Question, step_s: float) -> None:
    closed = asked.answer()
    off = step_s / closed.seconds - 1
    if abs(off) > PLAYED_OFF_MAX:
        raise LuwuError(f"the cores' step is {off:+.1%} off the closed form's")


def _plan_case(file: Path, own: Path, catalogue: Catalogue, sizes: Sizes) -> Case:
    found = plan(read_table(file), catalogue)
    if found.tried < sizes.configurations_min:
        raise LuwuError(f"plan: {found.tried} configurations, not {sizes.configurations_min}")
    best, fit = found.best[0], found.tried - found.too_large
    alone_s = best.question.answer().seconds
    if alone_s != best.step.seconds:
        raise LuwuError(f"plan: the fastest takes {best.step.seconds} s, asked alone {alone_s} s")
    words = ("plan", str(file), "--json", "--catalogue", str(own))
    return Case("plan", words, lambda: [best.question.answer() for _ in range(fit)])


def _measure(case: Case, repeats: int) -> tuple[list[Row], str]:
    """A row for each arm; and the answer."""
    same = SameEachTime(case.name)

    def arm(name: str, do: Callable[[], str]) -> Callable[[], float]:
        def run() -> float:
            said: list[str] = []
            seconds = harness.timed(lambda: said.append(do()))
            same.add(name, said[0])
            return seconds

        return run

    arms = {
        "process": arm("process", lambda: _run(["-m", "luwu", *case.words])),
        "call": arm("call", lambda: _call(case.words)),
        "floor of a process": lambda: harness.timed(lambda: _run(["-c", "pass"])),
        "floor of a call": lambda: harness.timed(case.floor),
    }  # fmt: skip
    found = harness.interleave(arms, repeats)
    floors = {"process": "floor of a process", "call": "floor of a call"}
    rows = [
        harness.row(
            case.name, name, seconds, seconds_max=max(seconds),
            goal_seconds=GOALS_S[case.name] if name == "process" else None,
            floor_seconds=harness.median(found[floors[name]]) if name in floors else None,
        )
        for name, seconds in found.items()
    ]  # fmt: skip
    return rows, same.document


def _call(words: Sequence[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = luwu(words)
    if code:
        raise LuwuError(f"luwu {' '.join(words)} ended with {code}")
    return said.getvalue()


def _run(words: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=SOURCE, timeout=LIMIT_S,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise LuwuError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def _claims(rows: Sequence[Row], tried: int) -> dict[str, Any]:
    slowest = {row["case"]: row["seconds_max"] for row in rows if row["arm"] == "process"}
    return {
        **{f"{case.replace(' ', '_')}_s": seconds for case, seconds in slowest.items()},
        "configurations": tried,
        "met": tried >= CONFIGURATIONS_MIN
        and all(seconds <= GOALS_S[case] for case, seconds in slowest.items()),
    }


def _show(rows: Sequence[Row], claims: dict[str, Any]) -> None:
    harness.print_table(
        ("case", "arm", "median", "spread", "slowest", "goal", "floor"),
        [
            (
                row["case"], row["arm"], f"{row['seconds_median']:.4f} s",
                f"{row['seconds_spread']:.2f}", f"{row['seconds_max']:.4f} s",
                "-" if row["goal_seconds"] is None else f"{row['goal_seconds']:g} s",
                "-" if row["floor_seconds"] is None else f"{row['floor_seconds']:.4f} s",
            )
            for row in rows
        ],
    )  # fmt: skip
    say(f"{claims['configurations']:,} configurations; goals met: {claims['met']}")


if __name__ == "__main__":
    raise SystemExit(main())
