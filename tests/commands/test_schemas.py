"""What commands print with --json is what the published schemas say (docs/json.md).

Documents that need processes are checked where these run: tests/processes,
tests/report/test_monitor, test_report and tests/predict/questions/test_predict_planner.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from luwu.commands.main import main
from tests.helpers.command_line import forms
from tests.helpers.exports import Job, train
from tests.helpers.schemas import SCHEMAS, check, parts, schemas
from tests.node.test_nodes import make_state

PAGES = SCHEMAS.parent
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*")

Print = Callable[..., Any]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Print:
    """Runs a command with --json; its document."""

    def run(*command: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*command, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return run


# ---------------------------------------------------------------------- the schemas themselves


def test_every_command_with_json_has_a_schema_and_every_schema_a_command() -> None:
    """Goal: neither is forgotten: the title of a schema is its command, and what it says of it."""
    with_json = {
        f"luwu {words}"
        for words, form in forms()
        if "--json" in {name for param in form.params for name in param.opts}
    }
    titles = {re.split(r",| --", each["title"])[0] for each in schemas().values()}
    assert titles == with_json


def test_the_page_lists_every_schema() -> None:
    page = (PAGES / "json.md").read_text()
    assert set(re.findall(r"\(schema/([\w-]+)\.json\)", page)) == set(schemas())


@pytest.mark.parametrize("name", schemas())
def test_a_schema_is_one_and_describes_its_fields(name: str) -> None:
    """Goal: each is a valid schema; every field has a description; no key is prose."""
    schema = schemas()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$id"] == f"{name}.json"
    for path, part in parts(schema):
        for key, field in part.get("properties", {}).items():
            assert field.get("description"), f"{path}.{key}"
            assert IDENTIFIER.fullmatch(key), f"{path}.{key}"
        if "properties" in part:
            assert part["additionalProperties"] is False, path


def test_a_document_that_is_another_is_refused(printed: Print) -> None:
    """Goal: the check can fail: a key too many, one too few, and a text in place of a number."""
    found = printed("explain", "E203")
    check("explain", found)
    short = {"schema": 1}
    for wrong in ({**found, "more": 1}, short, {**found, "schema": "1"}):
        with pytest.raises(AssertionError, match=r"docs/schema/explain\.json"):
            check("explain", wrong)


# ---------------------------------------------------------------------- documents


def test_small_commands(printed: Print, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check("config", printed("config", "--steps", "3"))
    check("explain", printed("explain"))
    assert main(["keys", "init", "--keys", "keys"]) == 0
    check("keys-list", printed("keys", "list", "--keys", "keys"))
    assert main(["keys", "init", "--keys", "other", "--json"]) == 2


def test_states(printed: Print, tmp_path: Path) -> None:
    """Method: of a whole state, and of one with a damaged page."""
    state = tmp_path / "state"
    make_state(state, 1)
    check("verify", printed("verify", str(state)))
    check("verify", printed("verify", str(state), "--full"))
    check("snapshot", printed("snapshot", str(state), str(tmp_path / "copy")))
    for file in state.iterdir():
        if file.is_file() and file.stat().st_size > 0:
            with file.open("r+b") as opened:
                opened.write(b"\xff" * 64)
    damaged = printed("verify", str(state), "--full", code=5)
    assert damaged["damages"]
    check("verify", damaged)


def test_export_and_import(printed: Print, tmp_path: Path) -> None:
    state, out, new = (str(tmp_path / name) for name in ("state", "out", "new"))
    train(Job(), tmp_path / "state", tmp_path)
    check("export", printed("export", state, out))
    check("import", printed("import", out, "--state", new))


def test_estimate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = ("-m", "workers.train", "--arm", "luwu", "--layers", "1", "--width", "32")
    flags = ("--memory-budget", "1MiB", "--no-switch", "--json")
    assert main(["estimate", *flags, *script]) == 0
    found = json.loads(capsys.readouterr().out)
    check("estimate", found)
    assert list(tmp_path.iterdir()) == []  # it plans, and leaves nothing
    # A state in RAM takes no disk, and where updates are slower than gradients, sums wait there.
    found["estimate"]["disk_space_bytes"] = {"spilled_sums": 4096}
    check("estimate", found)


# ---------------------------------------------------------------------- predict


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Questions of docs/predict.md."""
    folder, found = tmp_path_factory.mktemp("asked"), list[Path]()
    blocks = re.findall(r"```toml\n(.*?)```", (PAGES / "predict.md").read_text(), re.DOTALL)
    for number, text in enumerate(blocks):
        if text.startswith("system ="):
            found.append(folder / f"step{number}.toml")
            found[-1].write_text(text)
    return found


def test_predict_step(printed: Print, asked: list[Path], tmp_path: Path) -> None:
    """Goal: of training and of inference, with a network, with costs, with arrivals."""
    rent = ("--cost.device-rental", "3 USD/h")
    kinds = set()
    for file in asked:
        rents = () if "[node]" in file.read_text() else rent
        found = printed("predict", "step", str(file), *rents)
        check("predict-step", found)
        kinds |= {"step_s" if "step_s" in found else "token_s", *found} & KINDS
        if "per_second" not in file.read_text() and found["system"] == "inference":
            more = tmp_path / "more.toml"
            more.write_text(file.read_text() + "\n[arrivals]\nper_second = 2.0\nrequests = 20\n")
            if "[" not in file.read_text():
                check("predict-step", printed("predict", "step", str(more), *rent))
    assert kinds == KINDS


KINDS = {"step_s", "token_s", "topology", "cost"}


def test_predict_of_several(printed: Print, asked: list[Path]) -> None:
    """Goal: a sweep, one of whose points cannot be."""
    first = str(asked[0])
    over = ("--over", "micro_batch=1,3")
    swept = printed("predict", "sweep", first, *over)
    assert {point["answer"] is None for point in swept["points"]} == {True, False}
    check("predict-sweep", swept)
