"""The command line: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

import luwu
from luwu.base.config import KEYS, RunConfig
from luwu.base.errors import ConfigError
from luwu.commands import compare
from luwu.commands.form import WIDTH, Form
from luwu.commands.main import main
from luwu.commands.table import VERBS
from luwu.compare.arm import show_progress
from luwu.launch.processes.console import Console
from luwu.launch.sizes import NO_COMPILER, decide_sizes
from tests.helpers.command_line import forms, parsed, texts


def keys(tokens: str) -> dict[str, str]:
    return texts("compare", *tokens.split())


@pytest.mark.parametrize(
    ("digests", "aggregate", "code"),
    [("ab", "float32", 1), ("aa", "float32", 0), ("a", "float32", 0), ("ab", "shared-exponent", 0)],
)
def test_arms_of_luwu_must_end_with_the_same_bits(digests: str, aggregate: str, code: int) -> None:
    """I4. Goal: a comparison fails where the place of the state changed a bit, and says so."""
    arms = [
        {"name": name, "weights_digest": digest}
        for name, digest in zip(("luwu", "luwu_ram"), digests, strict=False)
    ]
    said = io.StringIO()
    found = {"arms": [*arms, {"name": "fsdp", "weights_digest": "other"}]}
    assert compare.check_weights(found, aggregate, Console(said)) == code
    assert ("DIFFERENT weights" in said.getvalue()) == bool(code)


@pytest.mark.parametrize(
    "tokens", ["--memory-budget 1GiB", "--memory_budget 1GiB", "--memory-budget=1GiB"]
)
def test_a_flag_has_three_spellings(tokens: str) -> None:
    assert keys(tokens) == {"memory_budget": "1GiB"}


@pytest.mark.parametrize(
    ("tokens", "value"),
    [
        ("--reshard-after-forward", "true"),
        ("--reshard-after-forward true", "true"),
        ("--reshard-after-forward=true", "true"),
        ("--reshard-after-forward false", "false"),
        ("--no-reshard-after-forward", "false"),
        ("--reshard-after-forward --steps 3", "true"),
    ],
)
def test_a_boolean_may_be_said_in_every_obvious_way(tokens: str, value: str) -> None:
    assert keys(tokens)["reshard_after_forward"] == value


def test_the_flag_no_switch_is_itself() -> None:
    assert keys("--no-switch") == {"no_switch": "true"}
    assert keys("--no-no-switch") == {"no_switch": "false"}


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ("--wrokers 2", "no flag --wrokers; did you mean --workers"),
        ("--memory-bugdet 1GiB", "did you mean --memory-budget"),
        ("--optimizer-node 2", "no flag --optimizer-node; did you mean --optimizer-nodes"),
        ("--accumulate 2", "no flag --accumulate"),
        ("--bind x", "belongs to luwu up"),
        ("--steps", "needs a value"),
        ("--steps --seed 3", "needs a value"),
        ("--open=3", "takes no value"),
        ("--work 2", "no flag --work"),
        ("stray", "'stray' is too much"),
    ],
)
def test_what_is_not_built_or_misspelt_is_refused(tokens: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        keys(tokens)


def test_all_after_the_script_is_the_scripts() -> None:
    """Goal: nothing of it is read, taken away or changed, whatever it looks like."""
    for given, script in [
        ("--resume", "train.py --steps 3 --nonsense --help --no-resume --x=1 -m"),
        ("--workers 3", "-m a.b --workers 9 -- -v"),
        ("--no-resume", "true train.py"),
        ("-v --state -m --resume=false", "train.py -- --resume false"),
    ]:
        taken = parsed("run", *given.split(), *script.split())
        assert " ".join(taken["script"]) == script
        assert taken["resolved"].given == texts("run", *given.split(), "other.py")


FORMS = dict(forms())


@pytest.mark.feature("help in 80 columns")
@pytest.mark.parametrize("words", ["", *FORMS])
def test_help_fits_80_columns(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the help of every command names it, and no line is wrapped by the terminal."""
    assert main([*words.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: luwu {words}")
    assert shown.err == ""
    assert [line for line in shown.out.splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize(("words", "form"), FORMS.items(), ids=FORMS)
def test_help_shows_examples_that_can_be_typed(
    words: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: one or two examples of each command, which its parser takes."""
    monkeypatch.chdir(tmp_path)
    for name in ("luwu.toml", "ours.toml"):
        (tmp_path / name).touch()
    assert len(form.examples) in (1, 2)
    for example in form.examples:
        command = re.search(r"luwu ([^)>#\"]+)", example)
        assert command is not None
        assert command[1].startswith(words)
        if "--help" not in command[1]:
            parsed(*command[1].split())


@pytest.mark.parametrize("name", ["run", "compare", "up"])
def test_help_groups_keys_by_use(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: every key is in its group."""
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for key in KEYS.values():
        if name in key.verbs:
            row = rf"^{key.group}:\n(  .*\n)*  {key.flag}\b"
            assert re.search(row, shown, re.MULTILINE), key


@pytest.mark.parametrize("name", ["predict", "keys"])
def test_a_command_of_commands_alone_prints_its_help(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: without a word it lists its commands; `luwu help` does the same."""
    shown = []
    for words in ([name], [name, "--help"], ["help", name]):
        assert main(words) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith(f"Usage: luwu {name} COMMAND")
    assert shown == [shown[0]] * 3


def test_every_key_belongs_to_a_command() -> None:
    assert all(set(key.verbs) <= set(VERBS) and key.verbs for key in KEYS.values())


def test_explain_is_not_named_where_it_can_only_repeat(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the message alone for E200."""
    assert main(["compare", "--steps", "x"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "tokens",
    [
        ["compare", "--steps", "x"],
        ["run"],
        ["up", "--role", "worker"],
        ["up", "--role", "switch"],
        ["report", "/no/such/run"],
        ["trace", "/no/such/run"],
        ["trace", "--step", "x", "."],
        ["trace", "--out", "/no/such/directory/trace.json", "."],
        ["config", "hide"],
    ],
)
def test_bad_input_ends_with_code_2_and_one_message(
    tokens: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tokens) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("luwu")
    assert "Traceback" not in shown.err


@pytest.mark.feature("--debug: the whole traceback of an error")
def test_debug_shows_what_made_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: an error keeps its cause; --debug shows it, and without --debug there is one message.
    Method: a join line that cannot be parsed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    run_it = ["--join", "tcp://127.0.0.1:1?no-value", "train.py"]
    assert main(["run", "--debug", *run_it]) == 2
    shown = capsys.readouterr().err
    assert "ValueError: bad query field" in shown
    assert "direct cause" in shown
    assert main(["run", *run_it]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_config_shows_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUWU_STEPS", "7")
    assert main(["config"]) == 0
    assert "# environment LUWU_STEPS" in capsys.readouterr().out
    assert main(["config", "--json", "--chunk", "1MiB"]) == 0
    found = json.loads(capsys.readouterr().out)["keys"]
    assert found["chunk"] == {"value": "1MiB", "origin": "flag --chunk"}


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["config"], ["status", "--help"]]
)
def test_help_loads_no_torch(arguments: list[str], tmp_path: Path) -> None:
    program = (
        "import sys; from luwu.commands.main import main; code = main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules, 'torch was loaded'; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------------- what a newcomer does


@pytest.mark.feature("flags of torchrun")
@pytest.mark.parametrize(
    ("flag", "ours"), [("nproc-per-node", "workers"), ("nproc_per_node", "workers"),
                       ("max-restarts", "worker-restarts")],
)  # fmt: skip
def test_a_flag_of_torchrun_is_answered_with_ours(flag: str, ours: str) -> None:
    """Goal: what means the same, and not what is spelt alike."""
    with pytest.raises(ConfigError, match=f"no flag --[a-z-]+; here it is --{ours}$"):
        parsed("run", f"--{flag}", "2", "train.py")


@pytest.mark.feature("a memory budget larger than the memory")
def test_a_budget_beyond_the_memory_is_refused_in_its_own_words() -> None:
    """Goal: the flag, both sizes in units, and no word of arenas."""
    with pytest.raises(
        ConfigError, match=r"memory_budget: 500\.00 TiB asked .* is \d.*iB; give less"
    ):
        decide_sizes(RunConfig(memory_budget=500 * 2**40), None)


def test_a_machine_without_a_compiler_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: `luwu run`, `compare` and `up` say before anything starts that kernels are slow."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert NO_COMPILER in decide_sizes(RunConfig(), None).warnings


@pytest.mark.feature("a script without luwu.init(), or started without luwu run")
def test_a_script_by_itself_is_told_how_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Goal: what to do first, then what is missing."""
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match=r"^start this script with `luwu run .*RANK is not set"):
        luwu.init()


@pytest.mark.feature("the loss on the console")
def test_the_loss_that_is_shown_is_that_of_rank_0() -> None:
    """Goal: nobody takes one rank's loss for the mean."""
    printed = io.StringIO()
    line = "12:00:00 train.step step=3 loss=2.5 tps=10"
    show_progress(Console(printed), "luwu", line)
    assert "rank0_loss=2.5" in printed.getvalue()


@pytest.mark.feature("torch's own get_optimizer_state_dict")
def test_torchs_own_optimizer_state_names_ours() -> None:
    """Goal: the call that works, from inside torch's function."""
    luwu.init_local(memory_budget="64MiB")
    try:
        model = torch.nn.Linear(4, 2)
        luwu.fully_shard(model)
        optimizer = luwu.optim.AdamW(model.parameters())
        with pytest.raises(luwu.LuwuError, match=r"luwu\.get_optimizer_state_dict\(model, opt"):
            get_optimizer_state_dict(model, optimizer)
    finally:
        luwu.finish()
