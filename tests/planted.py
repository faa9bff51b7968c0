"""Can the suite fail? `python -m tests.planted`: twenty known bugs, each of which it must find.

Oracle O7. A *planted bug* is a small change of the program, exact old text to exact new text, such
as people really make: a flush left out, a checksum not looked at, a repetition taken in twice. Each
is made in a copy of the tree; then the part of the suite that is there for it runs in that copy and
must fail. The same parts must pass in a copy without any change, or failing would mean nothing.

    python -m tests.planted              all of them
    python -m tests.planted --only 5     the bug with that number

The bugs, then `N trials, V violations`: a violation is a bug that nobody found, or a part of the
suite that fails without one. Exit code 0 or 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("luwu", "switch_emu", "workers", "tests", "pyproject.toml")
LIMIT_S = 900

IMAGES = ("-m", "tests.crash_images", "--count", "2500", "--processes", "1")
HISTORIES = (
    "-m", "tests.simulate", "--seeds", "240", "--processes", "1", "--no-shrink", "--stop-at-first",
)  # fmt: skip
SLOTS = (*HISTORIES[:3], "120", *HISTORIES[4:], "--slots", "2")


def tests(*names: str) -> tuple[str, ...]:
    """A part of the suite, by the names of tests."""
    return ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names)


SEVERAL_NODES = tests(
    "tests/switch/test_lead.py", "tests/switch/test_switch_core.py", "tests/node/test_node_core.py",
    "tests/simulate/test_replicas.py", "tests/simulate/test_clusters.py",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Bug:
    """A change of one file, and what must fail then."""

    what: str
    """The program with the bug, in words."""
    file: str
    edits: Mapping[str, str]
    """Exact old text, which stands there once, and new text."""
    found_by: tuple[str, ...]
    """Arguments of the interpreter."""

    def planted(self, text: str) -> str:
        """The file with the bug in it. Raises ConfigError unless each old text is there once."""
        for old, new in self.edits.items():
            if (count := text.count(old)) != 1:
                raise ConfigError(
                    f"planted bug ({self.what}): {old!r} stands {count} times in {self.file}, "
                    "expected once; the program was changed, so change tests/planted.py as well"
                )
            text = text.replace(old, new)
        ast.parse(text, self.file)  # what cannot be read fails for another reason
        return text

    def plant(self, tree: Path) -> None:
        """Change the copy. Raises ConfigError, SyntaxError."""
        path = tree / self.file
        path.write_text(self.planted(path.read_text()))


FLUSH_DATA = """        for side in sorted(self._dirty):
            self._sides[side].flush()
        self._dirty.clear()
"""
FLUSH_TWICE = """def _flush_twice(fd: int) -> None:
    try:
        os.fdatasync(fd)
    except OSError:
        os.fdatasync(fd)


"""

BUGS = (
    Bug(
        "a flush of the store does nothing",
        "switch_emu/store/direct_io.py",
        {"os.fdatasync(self._fd)\n": "pass\n"},
        IMAGES,
    ),
    Bug(
        "pages are flushed only after the superblock says that they are prepared",
        "switch_emu/store/file.py",
        {
            FLUSH_DATA: "",
            "        self._steps.note_prepared(step, table)\n\n    def _logged": FLUSH_DATA
            + "        self._steps.note_prepared(step, table)\n\n    def _logged",
        },
        IMAGES,
    ),
    Bug(
        "a flush that failed is made again; the second succeeds, with the data gone",
        "switch_emu/store/direct_io.py",
        {
            "os.fdatasync(self._fd)\n": "_flush_twice(self._fd)\n",
            "class IoCounter:\n": FLUSH_TWICE + "class IoCounter:\n",
        },
        tests("tests/store/test_store_crash.py", "-k", "failed_flush"),
    ),
    Bug(
        "a contribution that comes again is added again",
        "switch_emu/switch/core/slots.py",
        {
            (
                "        if not merge(self.contributors, contribution.contributors):\n"
                "            return False\n"
            ): "        merge(self.contributors, contribution.contributors)\n"
        },
        HISTORIES,
    ),
    Bug(
        "a rank that was started again goes on with what its former start had pushed",
        "luwu/protocol/children.py",
        {"former.incarnation < hello.incarnation\n": "False\n"},
        HISTORIES,
    ),
    Bug(
        "contributions are added as they came, not by rank",
        "luwu/protocol/contribution.py",
        {"key=lambda c: c.contributors & -c.contributors": "key=lambda c: 0"},
        HISTORIES,
    ),
    Bug(
        "a slot is given to the next chunk before the parent has its sum",
        "switch_emu/switch/core/fixed_slots.py",
        {"(self.is_summed and self.slot is None and not self.behind)\n": "self.is_summed\n"},
        SLOTS,
    ),
    Bug(
        "what is read from a page is not compared with its checksum",
        "switch_emu/store/file.py",
        {"if found != expected:\n            field =": "if not found:\n            field ="},
        HISTORIES,
    ),
    Bug(
        "workers are told that a step is decided when its decision is being written",
        "switch_emu/node/core/state.py",
        {
            (
                "        self._outbox.actions.append("
                "Decide(self.prepared.version, self.prepared.attempt))\n"
            ): (
                "        self._outbox.actions.append("
                "Decide(self.prepared.version, self.prepared.attempt))\n"
                "        if self.prepared.version > 0:\n"
                "            self._announce_decided(self.prepared)\n"
            )
        },
        HISTORIES,
    ),
    Bug(
        "the second copy of the superblock, and of the counters, is not written",
        "switch_emu/store/ring.py",
        {"        for copy in range(2):\n": "        for copy in range(1):\n"},
        IMAGES,
    ),
    Bug(
        "the directory in which a store was made is not flushed after the rename",
        "switch_emu/store/directory.py",
        {"        flush_directory(path.parent)\n": ""},
        tests("tests/store/test_store_crash.py", "-k", "maker_flushes_in_the_right_order"),
    ),
    Bug(
        "a step is decided before all ranks' cursors lie beside it: what a rank attaches is where "
        "the cursor of its data is kept",
        "switch_emu/node/core/node.py",
        {"(not keeps or step.has_kept)": "(True or step.has_kept)"},
        HISTORIES,
    ),
    Bug(
        "a version is decided when all optimizer nodes but one have prepared it",
        "switch_emu/switch/core/ballot.py",
        {"len(self._digests) == self.members": "1 + len(self._digests) >= self.members"},
        SEVERAL_NODES,
    ),
    Bug(
        "the norm counts a page as often as it is stored",
        "switch_emu/switch/core/ballot.py",
        {
            (
                "            node = self._owners(stripe)[0]\n"
                "            found.append(self._squares[node][self._place(node, stripe)])\n"
            ): (
                "            for node in self._owners(stripe):\n"
                "                found.append(self._squares[node][self._place(node, stripe)])\n"
            )
        },
        SEVERAL_NODES,
    ),
    Bug(
        "a step is decided though two copies of a page differ",
        "switch_emu/switch/core/ballot.py",
        {"        return self.difference_of(self._digests)\n": "        return None\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a new switch leads whichever optimizer nodes it hears first",
        "switch_emu/switch/core/standings.py",
        {"not all(are_enough(there, base) for base in self._bases):\n": "not there:\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a switch goes on with less than half of the optimizer nodes",
        "switch_emu/switch/core/lead.py",
        {"version is None or not self._are_enough(rest):\n": "version is None:\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a node that was left out and comes back is taken for one that only lost its connection",
        "switch_emu/switch/core/lead.py",
        {"not (self.at.now.everyone | self.at.latest.everyone) & bit:\n": "False:\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a node that is being filled counts though pages are missing",
        "switch_emu/switch/core/filling.py",
        {"self.node is None or len(self._pages) < len(self.node.chunks):": "self.node is None:"},
        SEVERAL_NODES,
    ),
    Bug(
        "a page that is to come from another node is updated before it is there",
        "switch_emu/node/core/whole_pages.py",
        {"        return not self.number or all(\n": "        return True or all(\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a step is prepared by a node that is being filled while a page is still to come",
        "switch_emu/node/core/whole_pages.py",
        {"return not self.number or (has_all and not self._under_way)\n": "return True\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "a store that is being filled writes down versions that lack pages",
        "switch_emu/store/file.py",
        {"        if not self._steps.is_filled:": "        if False:"},
        tests("tests/store/test_store_crash.py", "tests/simulate/test_replicas.py"),
    ),
    Bug(
        "a store is emptied to be filled while pages of it are read",
        "switch_emu/node/core/node.py",
        {" or self.serving.is_reading\n": "\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "updates of the attempt before are begun as the store is being emptied",
        "switch_emu/node/core/node.py",
        {"self.joint.begin_filling()\n            return\n": "self.joint.begin_filling()\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "what a node that is being filled had prepared in one attempt counts in the next",
        "switch_emu/switch/core/filling.py",
        {"                self._prepared_version = -1": "                pass"},
        SEVERAL_NODES,
    ),
    Bug(
        "a node decides a version that was made again, as it was prepared before",
        "switch_emu/node/core/state.py",
        {"(prepared.version, prepared.attempt) == (version, attempt)": "True"},
        SEVERAL_NODES,
    ),
    Bug(
        "an optimizer node that has answered a later switch follows an older one",
        "switch_emu/node/core/deciding.py",
        {"if hello.incarnation < self._recorded.promised:\n": "if False:\n"},
        SEVERAL_NODES,
    ),
    Bug(
        "of a lost node's pages the last one is not copied",
        "luwu/checkpoint/copying.py",
        {"range(first, config.page_count, ": "range(first, config.page_count - 1, "},
        tests("tests/checkpoint/test_refill.py"),
    ),
)


@dataclass(frozen=True)
class Run:
    """How a part of the suite came out in a copy."""

    returncode: int
    seconds: float
    tail: str

    @property
    def said(self) -> str:
        """The last line but those of no news."""
        lines = [line.strip() for line in self.tail.splitlines() if "Error" in line]
        return (lines or self.tail.strip().splitlines() or [""])[-1][:100]


def copy_tree(target: Path) -> Path:
    """The parts of the project that the suite needs."""
    skipped = shutil.ignore_patterns("__pycache__", "luwu-runs", "luwu-state", ".pytest_cache")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=skipped)
        else:
            shutil.copy2(ROOT / name, target / name)
    return target


def run_in(tree: Path, arguments: Sequence[str]) -> Run:
    """A part of the suite in a copy of the tree, and nothing of the project from elsewhere."""
    start_ns = SYSTEM_CLOCK.now_ns()
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    seconds = (SYSTEM_CLOCK.now_ns() - start_ns) / 1e9
    return Run(result.returncode, seconds, (result.stdout + result.stderr)[-4000:])


def try_bug(bug: Bug | None, arguments: Sequence[str]) -> Run:
    """Plant a bug, or none, in a copy of the tree, and run a part of the suite there."""
    with tempfile.TemporaryDirectory(prefix="luwu-planted-") as place:
        tree = copy_tree(Path(place))
        if bug is not None:
            bug.plant(tree)
        return run_in(tree, arguments)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("--only", type=int, default=None, help="the number of one bug, from 1")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: one a CPU")
    options = parser.parse_args()
    if options.only is not None and not 1 <= options.only <= len(BUGS):
        parser.error(f"--only {options.only}: the bugs are numbered from 1 to {len(BUGS)}")
    bugs = BUGS if options.only is None else (BUGS[options.only - 1],)
    parts = list(dict.fromkeys(bug.found_by for bug in bugs))
    with ThreadPoolExecutor(options.processes) as pool:
        clean = pool.map(lambda part: try_bug(None, part), parts)
        runs = pool.map(lambda bug: try_bug(bug, bug.found_by), bugs)
        violations_count = 0
        for part, run in zip(parts, clean, strict=True):
            if run.returncode != 0:
                violations_count += 1
                print(f"python {' '.join(part)} fails without any bug:\n{run.tail}", flush=True)
        for bug, run in zip(bugs, runs, strict=True):
            is_found = run.returncode == 1
            violations_count += not is_found
            verdict = "found" if is_found else f"NOT FOUND ({run.returncode})"
            print(f"{verdict} in {run.seconds:.1f} s: {bug.what}\n    {run.said}", flush=True)
    print(f"{len(bugs)} trials, {violations_count} violations")
    return 1 if violations_count else 0


if __name__ == "__main__":
    sys.exit(main())
