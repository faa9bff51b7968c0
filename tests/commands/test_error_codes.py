"""Every error has a code, every code is explained, and a code comes through to who must read it."""

from __future__ import annotations

import ast
import functools
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from luwu.base.errors import ConfigError, LuwuError, StateError, entries
from luwu.commands.main import main
from luwu.commands.status import status_text
from luwu.launch.entry import write_error
from luwu.launch.processes.failures import role_failure, worker_failure
from luwu.launch.processes.run_directory import RunDirectory
from luwu.monitor.watch import Watch
from switch_emu.roles import failed
from tests.house.source import ROOT, modules, no_syntax_tree_is_left  # noqa: F401 - for all
from tests.pages import errors_page


@functools.cache
def classes() -> dict[str, type[LuwuError]]:
    """Every class of an error of ours, by name."""
    found = {"LuwuError": LuwuError}
    definitions = [
        (module.name, node)
        for module in modules(ROOT).values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    ]

    def is_new(node: ast.ClassDef) -> bool:
        bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
        return node.name not in found and not bases.isdisjoint(found)

    while new := [(module, node.name) for module, node in definitions if is_new(node)]:
        for module, name in new:
            found[name] = getattr(importlib.import_module(module), name)
    return found


def codes_at_raises() -> Iterator[tuple[str, str, str]]:
    """(place, class, code) of each error that is made with a code."""
    for module in modules(ROOT).values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg != "code" or not isinstance(value, ast.Constant):
                    continue
                if isinstance(value.value, str) and value.value:
                    yield f"{module.place}:{node.lineno}", node.func.id, value.value


def test_every_class_has_a_code_of_its_own() -> None:
    """Goal: two classes are never mistaken for one another."""
    found = classes()
    assert len(found) > 15
    codes = [vars(each).get("code") for each in found.values()]
    assert None not in codes
    assert len(set(codes)) == len(codes)


@pytest.mark.feature("a code for each error")
def test_the_table_has_what_is_raised_and_nothing_else() -> None:
    """Goal: no code without an explanation, and no explanation that nobody is sent to."""
    raised = {each.code for each in classes().values()}
    raised |= {code for _, _, code in codes_at_raises()}
    raised.add("E105")  # in `role_failure`, after an `or`
    raised.add("E510")  # in `Joint.refused`, by what the refusal says
    assert raised == set(entries())


def test_a_code_begins_with_the_exit_code() -> None:
    """Goal: a code's first digit is the exit code, whatever class carries it."""
    found = classes()
    wrong = [
        (place, name, code)
        for place, name, code in codes_at_raises()
        if name in found and int(code[1]) != found[name].exit_code
    ]
    assert wrong == []
    for name, each in found.items():
        code = each.code
        assert each.exit_code in (int(code[1]), 130 if code == "E130" else -1), name


def test_entries_tell_all_three_things() -> None:
    for code, each in entries().items():
        assert len(code) == 4
        assert code[1:].isdecimal()
        assert each.title[0].islower(), code
        assert each.meaning.endswith("."), code
        assert each.causes, code
        assert each.next, code
    assert list(entries()) == sorted(entries())


def test_explain_tells_one_and_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "e203"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("E203  the state belongs to another job\n")
    assert "what to do next\n  - continue it with --resume" in told
    assert max(map(len, told.splitlines())) <= 100
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(entries())
    assert main(["explain", "--json", "E501"]) == 0
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "E501"


@pytest.mark.parametrize(
    ("code", "said"), [("E20", "did you mean E2"), ("E999", "E9"), ("nonsense", "lists all")]
)
def test_a_mistyped_code_is_refused(
    code: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """I6. Goal: a suggestion where one is near, else where to look."""
    assert main(["explain", code]) == 2
    assert said in capsys.readouterr().err


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert page == errors_page(), "python -m tests.pages"


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (["comapre"], "E201"),
        (["compare", "--wrokers", "2"], "E201"),
        (["status", "/no/such/run"], "E202"),
    ],
)
def test_a_failed_command_ends_with_its_code(
    tokens: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the message first, then one line with the code, its title and luwu explain."""
    assert main(tokens) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert last == f"{code}: {entries()[code].title}; more: luwu explain {code}"


def test_a_code_of_a_role_comes_through(tmp_path: Path) -> None:
    """Goal: what the node refused is explained to who started it, not only its exit code."""
    run = RunDirectory.create(tmp_path / "run")
    for error in (ConfigError("another job", code="E203"), StateError("flush", code="E505")):
        failed("node", error, run.error("node"))
        document = json.loads(run.error("node").read_text())
        told = role_failure(run, "node", error.exit_code, document)
        assert (type(told), told.code) == (type(error), error.code)
    failed("node", ValueError("a mistake"), run.error("node"))
    document = json.loads(run.error("node").read_text())
    assert role_failure(run, "node", 1, document).code == "E105"
    assert role_failure(run, "switch", -9, {}).code == "E105"


def test_a_code_of_a_worker_comes_through(tmp_path: Path) -> None:
    """Goal: an error of ours keeps its code, a user's is E400, and a silent end is E401."""
    run = RunDirectory.create(tmp_path / "run")
    assert worker_failure(run, "", 1).code == "E401"
    for error, exit_code, code in (
        (ConfigError("refused", code="E207"), 2, "E207"),
        (KeyError("x"), 1, "E400"),
        (SystemExit(3), 3, "E300"),
    ):
        write_error(run, "worker-0", 0, error, exit_code=exit_code)
        assert worker_failure(run, "", exit_code).code == code


def test_a_run_keeps_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: whoever finds the run directory later is sent to the same explanation."""
    script = tmp_path / "script.py"
    script.write_text("")
    tokens = ["run", "--run-dir", str(tmp_path / "run"), "--memory-budget", "1KiB", str(script)]
    assert main(tokens) == 2
    assert "E205" in capsys.readouterr().err.splitlines()[-1]
    found = RunDirectory.find(tmp_path / "run")
    assert json.loads(found.file("outcome.json").read_text())["code"] == "E205"
    assert "(luwu explain E205)" in " ".join(status_text(Watch(found).document()).split())
