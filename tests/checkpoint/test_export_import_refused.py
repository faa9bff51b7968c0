"""luwu export and import: what is refused, and that nothing is left of what was begun."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from luwu.base.directories import check_space, making_directory
from luwu.base.errors import ConfigError, Interrupted, PageCorruptError, StateError, StoreFullError
from luwu.checkpoint.document import ExportDocument, read_document
from luwu.checkpoint.export_state import ExportOptions, export_state
from luwu.checkpoint.import_state import import_state
from luwu.checkpoint.source import RestingState
from luwu.commands.main import main
from luwu.layout import Layout, Parameter, Unit
from luwu.tensor_files.directory import TensorDirectory
from luwu.wire.description import Description
from switch_emu.store import DecidedStep
from tests.helpers.exports import BUDGET, OptimizerJob, bring, export, flip, train, write_state
from tests.helpers.local_job import MIB, Worker, cluster_for

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a `state` after two steps, and its export `out`."""
    directory = tmp_path_factory.mktemp("made")
    train(OptimizerJob(steps=2), directory / "state", directory)
    export(directory / "state", directory / "out")
    return directory


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of the export, to be damaged."""
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


def refused(out: Path, said: str) -> str:
    """The sentence with which an import is refused, before a state appears."""
    with pytest.raises((ConfigError, StateError)) as caught:
        bring(out, out.parent / "new")
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000  # what a file says goes to a terminal
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    return str(caught.value)


# ---------------------------------------------------------------------------- hostile files


def with_header(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes: it was cut short"),
    "length only": (struct.pack("<Q", 40), "is to have 40 bytes"),
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "is to have 9223372036854775808 bytes"),
    "header beyond our limit": (struct.pack("<Q", 2**24 + 1) + bytes(2**24 + 1), "most 16777216"),
    "no JSON": (with_header(b"PK\x03\x04...."), "header is damaged"),
    "no UTF-8": (with_header(b'{"\xff": 1}'), "header is damaged"),
    "a list": (with_header([]), "not a JSON object"),
    "deep": (with_header(b"[" * 100_000), "nested more than"),
    "truncated": (with_header({"p": entry()}, bytes(7)), "take 8 bytes, 7 follow"),
    "trailing": (with_header({"p": entry()}, bytes(9)), "take 8 bytes, 9 follow"),
    "out of range": (with_header({"p": entry(offsets=(8, 16))}, bytes(16)), "leaves a hole"),
    "overlapping": (
        with_header({"p": entry(), "q": entry(offsets=(4, 12))}, bytes(12)), "overlaps another",
    ),
    "hole": (with_header({"p": entry(), "q": entry(offsets=(9, 17))}, bytes(17)), "leaves a hole"),
    "twice": (
        with_header(b'{"p":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
                    b'"p":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)),
        "'p' is listed twice",
    ),
    "backwards": (with_header({"p": entry(offsets=(8, 0))}, bytes(8)), "data_offsets [8, 0]"),
    "negative": (with_header({"p": entry(offsets=(-8, 0))}, bytes(8)), "data_offsets [-8, 0]"),
    "three offsets": (with_header({"p": entry(offsets=(0, 4, 8))}, bytes(8)), "data_offsets"),
    "offsets of text": (with_header({"p": entry(offsets="08")}, bytes(8)), "data_offsets"),
    "offsets of floats": (with_header({"p": entry(offsets=(0.0, 8.0))}, bytes(8)), "data_offsets"),
    "offset true": (with_header({"p": entry(shape=(), offsets=(False, 4))}, bytes(4)), "offsets"),
    "endless number": (with_header(b'{"p": ' + b"9" * 5000 + b"}"), "header is damaged"),
    "negative shape": (with_header({"p": entry(shape=(-1, -2))}, bytes(8)), "the shape [-1, -2]"),
    "shape overflows": (
        with_header({"p": entry(shape=[2**62] * 4)}, bytes(8)), "has 8 bytes",
    ),
    "many dimensions": (with_header({"p": entry(shape=[1] * 65)}, bytes(4)), "the shape"),
    "shape lies": (with_header({"p": entry(shape=(3,))}, bytes(8)), "has 8 bytes"),
    "unknown dtype": (with_header({"p": entry(dtype="Q4")}, bytes(8)), "unknown dtype 'Q4'"),
    "dtype no text": (with_header({"p": entry(dtype=["F32"])}, bytes(8)), "unknown dtype"),
    "more keys": (with_header({"p": entry() | {"x": 1}}, bytes(8)), "not exactly"),
    "entry no object": (with_header({"p": [1]}, bytes(8)), "not exactly"),
    "metadata no texts": (with_header({"__metadata__": {"a": 1}}), "not a map of texts"),
    "half a character": (
        with_header(b'{"\\ud800":' + json.dumps(entry()).encode() + b"}", bytes(8)), "is damaged",
    ),
}  # fmt: skip


@pytest.mark.feature("import of changed or hostile files")
@pytest.mark.parametrize("case", sorted(HOSTILE))
@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_export_import_refuses_a_hostile_file(case: str, file: str, out: Path) -> None:
    """Goal: a file that lies is refused as damaged, in one sentence, before a state appears."""
    data, said = HOSTILE[case]
    (out / f"{file}.safetensors").write_bytes(data)
    assert f"{file}.safetensors" in refused(out, said)


INDEXES: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"{", "damaged or no index"),
    "no map": (b'{"weight_map": [1]}', "no weight_map"),
    "a list": (b"[]", "no weight_map"),
    "parent": (b'{"weight_map": {"p0": "../../x.safetensors"}}', "not the name of a"),
    "absolute": (b'{"weight_map": {"p0": "/etc/x.safetensors"}}', "not the name of a"),
    "backslash": (b'{"weight_map": {"p0": "..\\\\x.safetensors"}}', "not the name of a"),
    "nul": (b'{"weight_map": {"p0": "x\\u0000.safetensors"}}', "not the name of a"),
    "hidden": (b'{"weight_map": {"p0": ".safetensors"}}', "not the name of a"),
    "another kind": (b'{"weight_map": {"p0": "passwd"}}', "not the name of a"),
    "no name": (b'{"weight_map": {"p0": 3}}', "not the name of a"),
    "twice": (b'{"weight_map": {"p0": "a.safetensors", "p0": "a.safetensors"}}', "twice"),
    "lies": (b'{"weight_map": {"p0": "real.safetensors"}}', "only in the file: p1, p2, p3"),
    "claims": (
        b'{"weight_map": {"p0": "real.safetensors", "no": "real.safetensors"}}',
        "only in the index: no",
    ),
}  # fmt: skip


@pytest.mark.feature("import of changed or hostile files")
@pytest.mark.parametrize("case", sorted(INDEXES))
def test_export_import_refuses_a_hostile_index(case: str, out: Path) -> None:
    """Goal: an index names files beside it and what is in them, or it is refused."""
    text, said = INDEXES[case]
    (out / "model.safetensors").rename(out / "real.safetensors")
    (out / "model.safetensors.index.json").write_bytes(text)
    refused(out, said)


def test_export_import_refuses_what_is_no_ordinary_set_of_files(out: Path) -> None:
    """Goal: both forms at once, a missing shard, a pipe in place of a file: a word on each."""
    index = out / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"p0": "gone.safetensors"}}')
    with pytest.raises(ConfigError, match=r"both model\.safetensors and model\.safetensors\.index"):
        TensorDirectory(out)
    (out / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"names gone\.safetensors, which is missing"):
        TensorDirectory(out)
    index.unlink()
    os.mkfifo(out / "model.safetensors")
    with pytest.raises(ConfigError, match="not an ordinary file"):
        TensorDirectory(out)


def test_export_import_finds_a_file_that_shrinks_while_it_is_read(out: Path) -> None:
    """Goal: a file cut short behind its header's back raises, and gives no made-up values."""
    with TensorDirectory(out) as files:
        os.truncate(out / "model.safetensors", 4096)
        with pytest.raises(StateError, match="changed while it was read"):
            files.read_float32("p5", 0, np.empty(130 * 64, np.float32))


DOCUMENTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another version": (lambda d: d.update(version=2), "reads 'luwu-export' version 1"),
    "no format": (lambda d: d.pop("format"), "damaged"),
    "no description": (lambda d: d.pop("description"), "damaged"),
    "negative step": (lambda d: d.update(step=-1), "damaged: -1"),
    "huge step": (lambda d: d.update(step=2**63), "damaged"),
    "step true": (lambda d: d.update(step=True), "damaged: True is not int"),
    "attempt goes back": (lambda d: d.update(attempt=0), "below that of the last step"),
    "counts of others": (lambda d: d["updates"].pop(), "not those of the trained"),
    "more counts": (lambda d: d["updates"].append(3), "a list has 8 rows, at most 7"),
    "frozen was trained": (lambda d: d["updates"].__setitem__(2, 5), "not those of the trained"),
    "count no number": (lambda d: d["updates"].__setitem__(0, "2"), "damaged: '2' is not int"),
    "hyper no hex": (lambda d: d["record"].update(hyper="xyz"), "damaged"),
    "hyper no hyper": (lambda d: d["record"].update(hyper="c1"), "cannot be read"),
    "a crowd": (lambda d: d["record"].update(contributors=[[0, 0, 0]] * 1025), "at most 1024"),
    "no digests": (lambda d: d.update(digests={}), "the export records None"),
    "a digest lies": (lambda d: d["digests"].update(p3="0" * 32), "the export records 0000"),
    "weights digest lies": (lambda d: d.update(weights_digest="0"), "the export records 0;"),
    "a digest of any length": (
        lambda d: d["digests"].update(p3="0" * 5000), "the export records 0000"),
    "a dtype of any length": (
        lambda d: d["description"]["parameters"][0].__setitem__(2, "f" * 5000), "dtype ffff"),
    "weights digest of any length": (
        lambda d: d.update(weights_digest="0" * 5000), "the export records 0000"),
    "unknown optimizer": (
        lambda d: d["description"].update(optimizer="magic"), "not known to this node"),
    "other shapes": (
        lambda d: d["description"]["parameters"][0].__setitem__(1, [64, 97]), "p0 [96, 64]"),
}  # fmt: skip


@pytest.mark.feature("import of changed or hostile files")
@pytest.mark.parametrize("case", sorted(DOCUMENTS))
def test_export_import_refuses_a_hostile_document(case: str, out: Path) -> None:
    """Goal: luwu.json is checked, field by field and against the files; no state appears."""
    change, said = DOCUMENTS[case]
    document = json.loads((out / "luwu.json").read_text())
    change(document)
    (out / "luwu.json").write_text(json.dumps(document))
    refused(out, said)


@pytest.mark.feature("import of changed or hostile files")
@pytest.mark.parametrize("file", ["model", "optimizer"])
def test_export_import_finds_one_changed_bit(file: str, out: Path) -> None:
    """Goal: exit code 5, and the tensor is named; values that are there are never half taken."""
    flip(out / f"{file}.safetensors", -3)
    with pytest.raises(PageCorruptError, match=r"tensor (state\.)?p6.* checksum"):
        bring(out, out.parent / "new")
    assert main(["import", str(out), "--state", str(out.parent / "new")]) == 5
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.feature("import of another model")
def test_export_import_lists_all_that_is_wrong(out: Path) -> None:
    """Goal: missing, left over, misshapen tensors, wrong dtypes in one message, a few of each."""
    tensors = load_file(out / "model.safetensors")
    del tensors["p0"]
    tensors |= {f"extra{i}": torch.zeros(2) for i in range(7)}
    tensors["p1"] = torch.zeros(34)
    tensors["p4"] = tensors["p4"].double()
    save_file(tensors, out / "model.safetensors")
    text = refused(out, "1 missing: p0")
    assert "7 not in this export: extra0, extra1, extra2, extra3 and 3 more" in text
    assert "1 of another shape: p1 [34], expected [33]" in text
    assert "1 not F32: p4 F64" in text


# ---------------------------------------------------------------------------- what may not be


@pytest.mark.feature("export of a directory in use")
@pytest.mark.parametrize("verb", ["export", "snapshot"])
def test_export_import_is_refused_while_a_node_runs(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the sentence names the process, and the command that works."""
    job = OptimizerJob(steps=1)
    with cluster_for(job, tmp_path, state=tmp_path / "state") as cluster:
        cluster.run(Worker(job))
        assert main([verb, str(tmp_path / "state"), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert f"is open in process {os.getpid()} on " in said
    assert f"name its run directory: luwu {verb} RUN_DIR OUT" in said
    assert not (tmp_path / "out").exists()


def test_export_import_of_a_state_without_weights_is_refused(tmp_path: Path) -> None:
    """Goal: a job that ended before its first weights came has nothing to export."""
    from switch_emu.node.pages import store_config
    from switch_emu.store import FilePageStore

    FilePageStore.create(tmp_path / "state", store_config(OptimizerJob().description)).close()
    with pytest.raises(ConfigError, match="has no weights yet"):
        export(tmp_path / "state", tmp_path / "out")


def test_export_import_of_a_value_beyond_float16_is_refused(made: Path, tmp_path: Path) -> None:
    """Goal: nothing is clamped or becomes infinite in silence."""
    tensors = load_file(made / "out" / "model.safetensors")
    tensors["p3"][7, 5] = 1e6
    tensors["p5"][0, 0] = torch.inf  # was so before: it stays
    description = read_document(made / "out").description
    weights = {name: each.numpy() for name, each in tensors.items()}
    write_state(tmp_path / "state", description, weights)
    with pytest.raises(ConfigError, match=r"p3 has 1e\+06, which is beyond float16"):
        export(tmp_path / "state", tmp_path / "out", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    export(tmp_path / "state", tmp_path / "out", dtype="bfloat16")


def test_export_import_finds_pages_updated_unequally(made: Path, tmp_path: Path) -> None:
    """Goal: a parameter whose pages disagree on their count is refused by name."""

    class Unequal(RestingState):
        def read_field(self, chunk: int, field: str, into: memoryview) -> None:
            super().read_field(chunk, field, into)
            if (chunk, field) == (1, "updates"):
                into[0] += 1

    with Unequal(made / "state") as source, pytest.raises(StateError, match="parameter p0 were"):
        export_state(source, tmp_path / "out", ExportOptions(memory_budget_bytes=BUDGET))


@pytest.mark.feature("export and import: too little space")
def test_export_import_asks_for_space_first(tmp_path: Path) -> None:
    """Goal: a state that the disk cannot hold is refused before anything is written.
    Method: a file with a hole of a TiB."""
    elems = 2**38
    parameter = Parameter(name="p", shape=(elems,))
    layout = Layout(
        parameters=(parameter,), units=(Unit(name="u", parameters=(0,)),), chunk_bytes=64 * MIB
    )
    document = ExportDocument(
        description=Description(layout=layout, optimizer="sgd", state_fields=()),
        record=DecidedStep(version=0, attempt=0), attempt=0, updates=(0,), has_optimizer=True,
    )  # fmt: skip
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "luwu.json").write_text(document.to_json())
    with open(tmp_path / "out" / "model.safetensors", "wb") as file:
        header = with_header({"p": entry(shape=[elems], offsets=[0, 4 * elems])})
        file.write(header)
        file.truncate(len(header) + 4 * elems)
    budget = 1024 * MIB
    with pytest.raises(StoreFullError, match=r"2\.00 TiB are needed, .* are free"):
        import_state(tmp_path / "out", tmp_path / "state", memory_budget_bytes=budget)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(StoreFullError, match="Free some space or name another disk"):
        check_space(tmp_path / "not" / "yet" / "there", 2**60)


def test_export_import_more_than_the_files_hold(out: Path) -> None:
    """Goal: a document that describes more than its files hold is refused before anything of that
    size is made: pages of 10**12 elements once took seconds and hundreds of MiB."""
    document = json.loads((out / "luwu.json").read_text())
    document["description"]["parameters"][0][1] = [10**6, 10**6]
    (out / "luwu.json").write_text(json.dumps(document))
    assert re.search(r"describes 1000000\d+ elements", refused(out, "elements, and the files"))


# ---------------------------------------------------------------------------- interrupted


@pytest.mark.feature("export: complete or not at all")
def test_export_import_that_is_stopped_leaves_nothing(made: Path, tmp_path: Path) -> None:
    """Goal: wherever somebody stops it, there is no directory, not even a hidden one."""

    def stops_at(number: int) -> Callable[[], bool]:
        asked = itertools.count(1)
        return lambda: next(asked) == number

    for number in (1, 8, 14):
        with RestingState(made / "state") as source, pytest.raises(Interrupted):
            export_state(source, tmp_path / "out", ExportOptions(), should_stop=stops_at(number))
        assert list(tmp_path.iterdir()) == []
    for number in (1, 5, 9):
        with pytest.raises(Interrupted):
            bring(made / "out", tmp_path / "new", should_stop=stops_at(number))
        assert list(tmp_path.iterdir()) == []


@pytest.mark.feature("export: complete or not at all")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_export_import_stopped_by_a_signal_leaves_nothing(
    number: signal.Signals, made: Path, tmp_path: Path
) -> None:
    """Goal: a signal in the middle of an export ends it with code 130 and without a trace.
    Method: a source that sends the signal to its own process at its third read."""
    program = f"""
import os, sys
from luwu.checkpoint import source
from luwu.commands.main import main

class Signalling(source.RestingState):
    reads = 0
    def read_field(self, chunk, field, into):
        super().read_field(chunk, field, into)
        Signalling.reads += field == "weight"
        if Signalling.reads == 3:
            os.kill(os.getpid(), {int(number)})

source.RestingState = Signalling
sys.exit(main(["export", {str(made / "state")!r}, "out"]))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
    )  # fmt: skip
    assert result.returncode == 130, result.stderr
    assert "stopped before it was complete; nothing was left behind" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.feature("export: complete or not at all")
@pytest.mark.parametrize("verb", ["export", "import"])
def test_export_import_that_is_killed_is_not_taken_for_whole(
    verb: str, made: Path, tmp_path: Path
) -> None:
    """Goal: after SIGKILL just before the end nothing stands at the name; the next one removes
    what is left and succeeds. Method: a failpoint before the rename."""
    line = {
        "export": ["export", str(made / "state"), str(tmp_path / "it")],
        "import": ["import", str(made / "out"), "--state", str(tmp_path / "it")],
    }[verb]
    result = subprocess.run(
        [sys.executable, "-m", "luwu", *line], cwd=ROOT, check=False, capture_output=True,
        env={**os.environ, "LUWU_FAILPOINTS": "making.before_rename=kill"},
    )  # fmt: skip
    assert result.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".it.making"]
    assert main(line) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_export_import_one_maker_at_a_time(made: Path, tmp_path: Path) -> None:
    """Goal: a second export to the same place waits for nobody and disturbs nobody; what appears
    there meanwhile is not overwritten."""
    with making_directory(tmp_path / "out") as new:
        with pytest.raises(ConfigError, match="belongs to another process"):
            export(made / "state", tmp_path / "out")
        new.mkdir()
    assert (tmp_path / "out").is_dir()
    with (
        pytest.raises(ConfigError, match="exists; name a directory that does not"),
        making_directory(tmp_path / "other") as new,
    ):
        new.mkdir()
        (tmp_path / "other").mkdir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_export_import_where_no_directory_can_be_is_refused(made: Path, tmp_path: Path) -> None:
    """Goal: a sentence and exit code 2 for a place below a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        export(made / "state", tmp_path / "file" / "out")
    with pytest.raises(ConfigError, match="cannot be made"):
        bring(made / "out", tmp_path / "file" / "new")


def test_export_import_documents_are_those_that_were_written(made: Path) -> None:
    """Goal: what is read of luwu.json, written again, is the same text."""
    document = read_document(made / "out")
    assert document.to_json() == (made / "out" / "luwu.json").read_text()
    assert replace(document, dtype="bfloat16").is_exact is False
