"""Questions of flags and names: less to write for `luwu predict`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from luwu.commands.form import KeyFlag
from luwu.commands.main import main
from luwu.commands.predict import step
from luwu.predict.ask.keys import (
    SYSTEMS,
    keys,
    keys_of,
    read_keys,
    system_of,
    table_of,
    with_assumed,
)
from luwu.predict.hardware.catalogue import Catalogue
from luwu.predict.hardware.software import software
from tests import tutorial
from tests.helpers.schemas import check

ONE_LINE = [
    "predict", "step", "--model", "llama3-70b", "--devices", "64xh100-80", "--network", "roce-100g",
    "--system", "luwu",
]  # fmt: skip
FILE = """
system = "zero3"
model = "GPT-13B"
device = "A100-40"
network = "roce-100g"
software = "composer-2023"
devices = 8
sequence = 2048
batch = 32
"""


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# ---------------------------------------------------------------------- flags


@pytest.mark.feature("questions of one line")
def test_one_line_is_the_file_with_the_same_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: flags and a file with all that the answer lists as assumed have the same answer."""
    found = printed(capsys, *ONE_LINE, "--nics-per-host", "1", "--node.disks", "24")
    check("predict-step", found)
    assumed = found.pop("assumed")
    assert assumed["software"] == "torchtitan-2024"
    assert assumed["batch"] == 128
    assert "disks" not in assumed["node"]
    node = assumed.pop("node")
    lines = [f"{key} = {json.dumps(value)}" for key, value in assumed.items()]
    lines += ['system = "luwu"', 'model = "Llama3-70B"', 'device = "H100-80"', "devices = 64",
              'network = "roce-100g"', "nics_per_host = 1", "[node]", "disks = 24"]  # fmt: skip
    lines += [f"{key} = {json.dumps(value)}" for key, value in node.items()]
    Path("q.toml").write_text("\n".join(lines))
    of_file = printed(capsys, "predict", "step", "q.toml")
    assert of_file.pop("assumed") == {}
    assert of_file == found


def test_what_is_assumed_is_printed_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONE_LINE, "--batch", "64"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("assumed           software torchtitan-2024, sequence 8192, micro_b")
    assert "node.disks 12, node.nodes 1, node.network roce-100g" in first
    assert " batch" not in first
    assert second.startswith("Llama3-70B (70.6 B) by luwu on 64 x H100-80, roce-100g")


def test_flags_replace_keys_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: of step and of sweep."""
    Path("q.toml").write_text(FILE)
    found = printed(capsys, "predict", "step", "q.toml", "--batch", "64")
    assert found["asked"]["batch"] == 64
    swept = printed(capsys, "predict", "sweep", "q.toml", "--devices", "16", "--over",
                    "nics_per_host=1,8")  # fmt: skip
    check("predict-sweep", swept)
    assert swept["points"][0]["number"] > swept["points"][1]["number"]


def test_flags_are_the_keys_of_the_table() -> None:
    """Goal: every key of every system is a flag, once; a table reads back what flags say."""
    names = [flag.key for flag in step.params if isinstance(flag, KeyFlag)]
    assert sorted(names) == sorted({key.place for key in keys()})
    for system in SYSTEMS:
        assert {"system", "model", "network"} <= set(keys_of(system))


def test_values_of_flags_are_those_of_a_file(catalogue: Catalogue) -> None:
    flags = {
        "system": "3D", "model": "GPT-175b", "devices": "512xh100-80", "network": "IB-NDR",
        "software": "Nemo-2024", "batch": "1024", "sequence": "2048", "sequence_parallel": "",
        "tokens": "1T",
    }  # fmt: skip
    table = table_of(flags, catalogue)
    assert read_keys(table, "3d", catalogue) == {
        "system": "3d", "model": catalogue.model("GPT-175B"), "batch": 1024, "sequence": 2048,
        "device": catalogue.device("H100-80"), "devices": 512,
        "network": catalogue.network("ib-ndr"), "software": software("nemo-2024"),
        "sequence_parallel": True, "tokens": 1e12,
    }  # fmt: skip
    for name, own in (("FSDP", "zero3"), ("switchml", "atp")):
        assert table_of({"system": name}, catalogue) == {"system": own}
        assert system_of({"system": name.lower()}) == own
    whole, assumed = with_assumed({"system": "inference", "model": "Llama3-8B"})
    assert assumed == {}
    assert whole == {"system": "inference", "model": "Llama3-8B"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*ONE_LINE[:-1], "lwu"], "system: 'lwu' is not one of .*did you mean luwu"),
        (["predict", "step", "--model", "lama3-70b", *ONE_LINE[4:]],
         "model: no model 'lama3-70b' is known; did you mean Llama3-70B"),
        ([*ONE_LINE, "--device", "h100-80"], "devices: '64xh100-80' names a device too"),
        (["predict", "step", "--devices", "64xh10-80", *ONE_LINE[6:], "--model", "llama3-8b"],
         "device: no device 'h10-80' .*mean H100-80"),
        ([*ONE_LINE, "--batch", "many"], "batch: 'many' is not a whole number above zero"),
        ([*ONE_LINE, "--kv-precision", "fp8"], "kv_precision is unknown here"),
        ([*ONE_LINE, "--nod.disks", "2"], "has no flag --nod.disks; did you mean --node.disks"),
        (["predict", "step"], "takes a file, or a question in flags"),
        (["predict", "step", "--system", "zero-infinity", *ONE_LINE[2:-2]],
         r"\[host\] is missing"),
        (["predict", "step", *ONE_LINE[2:-2]], "system is missing; one of luwu.* or ask luwu plan"),
    ],
)  # fmt: skip
def test_bad_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:  # fmt: skip
    assert main(words) == 2
    assert re.search(said, capsys.readouterr().err)


# ---------------------------------------------------------------------- names


@pytest.mark.feature("a list of models, devices, networks and software, with sources")
def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str], catalogue: Catalogue) -> None:
    """Goal: every entry is there, with a number that the catalogue has and its source."""
    assert main(["predict", "catalogue"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for kind in ("model", "device", "network", "processor", "disk"):
        first = lines.index(f"{kind}:") + 1
        own = lines[first : first + len(catalogue.names(kind))]
        assert sorted(line.split()[0] for line in own) == catalogue.names(kind)
        assert all("; " in line for line in own)
    assert any(line.startswith("  zero3 ") for line in lines)
    assert main(["predict", "catalogue", "network"]) == 0
    shown = capsys.readouterr().out
    assert "  roce-100g   rate 12.5 GB/s, efficiency 0.92, latency_s 6 us" in shown
    assert "; line rate (read)" in shown
    assert "H100-80" not in shown
    assert main(["predict", "catalogue", "netwrok"]) == 2
    assert "did you mean network" in capsys.readouterr().err


def test_the_tutorial_shows_what_its_commands_print(tmp_path: Path) -> None:
    """Goal: outputs are those of today. Otherwise: python -m tests.tutorial, and read
    whether what it says of them still holds."""
    text = tutorial.PAGE.read_text(encoding="utf-8")
    assert tutorial.made(text, tmp_path) == text
