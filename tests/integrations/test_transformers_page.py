"""What docs/huggingface.md shows, run as it stands: two workers, a switch and a node by `luwu run`.

An HTML comment before a block says how, as in tests/processes/test_readme.py:

    <!-- test: diff -->           before and after are two scripts; both are run and compared
    <!-- test: part of FILE -->   the lines stand in that file, one after the other

Blocks of `sh` are commands; `train.py` is the script of the diff.
"""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from luwu.testing.cluster import Cluster
from tests.integrations.hugging_face import alone, finetune, needs_hf, through_a_node
from tests.processes.jobs import text_file

pytestmark = needs_hf
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")
BLOCKS = re.findall(
    r"(?:^<!-- test: (.*?) -->\n)?^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)
"""(what the comment says, language, text)"""
COMMANDS = [
    shlex.split(line) for _, kind, text in BLOCKS if kind == "sh" for line in text.splitlines()
]
FINETUNE = [words for words in COMMANDS if "docs/examples/huggingface/finetune.py" in words]
FLOAT32 = 1e-4


def run(directory: Path, words: list[str], *more: str) -> Cluster:
    """A `luwu run` of the page, to its end, with nothing left behind (I8)."""
    (flags, script, rest) = (words[2:4], words[4], words[5:])
    assert words[:2] == ["luwu", "run"]
    assert flags == ["--workers", "2"]
    path = ROOT / script if (ROOT / script).exists() else directory / script
    environ = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with Cluster.run(
        directory, str(path), *rest, *more, flags=[*flags, "--transport", "ipc"], environ=environ
    ) as cluster:
        assert cluster.wait(100) == 0, cluster.output
        assert cluster.wait_until_clean() == []
    return cluster


def test_transformers_page_has_no_block_of_another_kind() -> None:
    """Goal: no block escapes these tests."""
    assert PAGE.count("\n```") == 2 * len(BLOCKS)
    assert {(how.split(" ")[0], kind) for how, kind, _ in BLOCKS} == {
        ("", "sh"), ("diff", "diff"), ("part", "python"),
    }  # fmt: skip
    assert len(FINETUNE) == len(COMMANDS) - 1
    for how, kind, text in BLOCKS:
        if kind == "python":
            assert text in (ROOT / how.removeprefix("part of ")).read_text(encoding="utf-8"), text


@pytest.mark.slow
@pytest.mark.feature("an unmodified transformers model")
def test_transformers_in_real_processes(tmp_path: Path) -> None:
    """I4, I8. Goal: the page's first command gives the losses of one process."""
    options = finetune.parse_options(FINETUNE[0][5:])
    expected, _ = alone(tmp_path, options)
    result = tmp_path / "result.json"
    run(tmp_path, FINETUNE[0], "--data", str(text_file(tmp_path)), "--result", str(result))
    results = [json.loads(result.with_suffix(f".rank{r}.json").read_text()) for r in (0, 1)]
    losses = [sum(each) / 2 for each in zip(*(r["loss"] for r in results), strict=True)]
    assert len(losses) == 30
    assert losses == pytest.approx(expected, abs=FLOAT32)


@pytest.mark.parametrize("words", FINETUNE, ids=" ".join)
def test_transformers_commands(words: list[str], tmp_path: Path) -> None:
    """Goal: each command's options train. Method: two steps, with workers in threads."""
    options = finetune.parse_options([*words[5:], "--steps", "2"])
    losses, _, _ = through_a_node(tmp_path, options)
    assert len(losses) == 2


@pytest.mark.feature("Trainer")
def test_transformers_trainer_with_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I4. Goal: Trainer over two workers gives the losses, norms and schedule of Trainer alone on
    the same global batches, with clipping and accumulation, and evaluates the same."""
    (text,) = [text for how, _, text in BLOCKS if how == "diff"]
    histories: list[list[dict[str, Any]]] = []
    for mark in "-+":
        chosen = [line[1:] for line in text.splitlines() if line[:1] in ("", " ", mark)]
        directory = tmp_path / ("after" if mark == "+" else "before")
        directory.mkdir()
        script = directory / "train.py"
        script.write_text("\n".join(chosen) + "\n")
        if mark == "-":
            monkeypatch.chdir(directory)
            runpy.run_path(str(script), run_name="__main__")
        else:
            (command,) = [words for words in COMMANDS if words not in FINETUNE]
            run(directory, command)
        histories.append(json.loads((directory / "history.json").read_text()))
    expected, found = histories
    for name, count in (("loss", 30), ("grad_norm", 30), ("learning_rate", 30), ("eval_loss", 1)):
        values = [entry[name] for entry in expected if name in entry]
        assert len(values) == count
        found_values = [entry[name] for entry in found if name in entry]
        assert found_values == pytest.approx(values, abs=FLOAT32), name
        assert name != "grad_norm" or min(values) < 1.0 < max(values), "some steps are clipped"
