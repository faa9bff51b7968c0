"""Files from elsewhere: what each reader may cost, and how it is refused.

A bound in bytes is counted by the kernel (`rchar` of this process), one in steps by the
interpreter, which reports each line that it executes, and each call of a function in C.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from luwu.base.errors import ConfigError, LuwuError
from luwu.base.foreign import (
    counted,
    lines_of,
    open_file,
    parse_json,
    parse_toml,
    read_file,
    read_toml,
)
from luwu.base.json_file import read_json
from luwu.base.keys import ALLOWED, read_allowed
from luwu.base.limits import (
    COUNT_MAX,
    DEPTH_MAX,
    FILE_BYTES_MAX,
    INT64_MAX,
    TOML_BYTES_MAX,
    VALUES_MAX,
)
from luwu.base.tree import parse_tree
from luwu.checkpoint.document import read_document
from luwu.commands.main import main
from luwu.tensor_files.header import parse_header
from luwu.wire.description import parse_description
from switch_emu.store.config import decode_config
from tests.fuzz.files import READERS, TERABYTE, make_files
from tests.helpers.exports import bring

BY_FILE = {reader.file: reader for reader in READERS}
READ_BYTES_MAX = 4 * FILE_BYTES_MAX
"""Of a command, which also reads modules and the other files of a directory."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good file for each reader."""
    directory = tmp_path_factory.mktemp("files")
    make_files(directory)
    return directory


def read_bytes_of_process() -> int:
    """Bytes that this process has read so far."""
    rows = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(rows[0].removeprefix("rchar: "))


def steps_of(call: Callable[[], object]) -> int:
    """Lines executed and functions called until `call` returns or raises an error of its own."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "c_call"

    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    except (LuwuError, ValueError):
        pass
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    return count


@pytest.mark.feature("a FIFO, a device, a terabyte or deep nesting in place of any file")
@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "terabyte"])
@pytest.mark.parametrize("name", sorted(BY_FILE))
def test_no_reader_waits_or_reads_without_end(name: str, kind: str, files: Path) -> None:
    """Goal: in the place of each file that is read, a FIFO, an endless device, a directory or a
    terabyte costs no wait and few bytes, and no reader leaves with another error than ours."""
    path = files / name
    kept = path.with_name(f"{path.name}.kept")
    path.rename(kept)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(kept.read_bytes())
        path.chmod(kept.stat().st_mode & 0o777)
        os.truncate(path, TERABYTE)
    before = read_bytes_of_process()
    try:
        BY_FILE[name].call(files)
    except LuwuError:
        pass
    finally:
        assert read_bytes_of_process() - before < READ_BYTES_MAX
        path.rmdir() if kind == "directory" else path.unlink()
        kept.rename(path)


def header(count: int) -> bytes:
    """Names of a safetensors file, of which the last stands there twice."""
    entry = '{"dtype":"F32","shape":[],"data_offsets":[0,0]}'
    names = [*map(str, range(count)), str(count - 1)]
    return ("{" + ",".join(f'"{name}":{entry}' for name in names) + "}").encode()


def config(count: int) -> bytes:
    """CONFIG of a store with so many kinds of pages, and as many runs of pages."""
    kinds = [{"name": f"k{i}", "fields": [["weight", "float32", 64]]} for i in range(count)]
    values = {
        "store_uuid": "0" * 32, "optimizer": "sgd", "chunk_bytes": 16384, "layout_hash": "",
        "description": "", "kinds": kinds, "pages": [[1, i, 64] for i in range(count)],
    }  # fmt: skip
    body = json.dumps(values).encode()
    return f"luwu-store 1 {xxhash.xxh3_128_hexdigest(body)}\n".encode() + body


STEPS: dict[str, Callable[[int], Callable[[], object]]] = {
    "names twice": lambda n: lambda: parse_json(header(n)),
    "a header": lambda n: lambda: parse_header(header(n), 0, place="file"),
    "lists": lambda n: lambda: parse_json(b"[" + b"[]," * n + b"[]]"),
    "depth": lambda n: lambda: parse_json(b"[" * n),
    "digits": lambda n: lambda: parse_json(b"9" * n),
    "dimensions": lambda n: (
        lambda: parse_description(
            json.dumps({"parameters": [["p", [2**62] * n, "f", "f", True, 0]]}).encode()
        )
    ),
    "a name of parts": lambda n: lambda: parse_toml(b"a." * n + b"a = 1"),
    "a table of parts": lambda n: lambda: parse_toml(b"[" + b"a." * n + b"a]\n" + b"b=1\n" * n),
    "parts in quotes": lambda n: lambda: parse_toml(b'"a" . ' * n + b"a = 1"),
    "quotes": lambda n: lambda: parse_toml(b'a = "' + b'\\"' * n),
    "switches below one another": lambda n: (
        lambda: parse_tree(
            {f"a{i}": {"parent": f"a{i - 1}" if i else "node", "workers": [i]} for i in range(n)},
            workers=n,
            where="tree",
        )
    ),
    "pages": lambda n: lambda: decode_config(config(n), place="CONFIG"),
    "quotes of three": lambda n: lambda: parse_toml(b'a = """' + b'\\"""' * n + b"\\"),
}


@pytest.mark.parametrize("name", sorted(STEPS))
def test_steps_grow_with_the_size(name: str) -> None:
    """Goal: four times the bytes cost at most five times the steps; of a square it were 16."""
    make = STEPS[name]
    few, many = steps_of(make(200)), steps_of(make(800))
    assert many <= 5 * few + 200


def test_the_list_of_keys_is_read_in_steps_of_its_size(files: Path) -> None:
    def keys(count: int) -> Callable[[], object]:
        rows = [{"name": f"n{i}", "role": "worker", "key": f"{i:064x}"} for i in range(count)]
        (files / "keys" / ALLOWED).write_text(json.dumps({"schema": 1, "keys": rows}))
        return lambda: read_allowed(files / "keys")

    kept = (files / "keys" / ALLOWED).read_bytes()
    few, many = steps_of(keys(200)), steps_of(keys(800))
    (files / "keys" / ALLOWED).write_bytes(kept)
    assert many <= 5 * few


def test_sizes_that_took_days(files: Path, tmp_path: Path) -> None:
    """Goal: an import of a parameter of 400,000 dimensions, and a header of 0.6 MB whose names are
    counted in a square, are refused within this test."""
    source = shutil.copytree(files / "export", tmp_path / "export")
    document = json.loads((source / "luwu.json").read_text())
    document["description"]["parameters"][0][1] = [2**62] * 400_000
    (source / "luwu.json").write_text(json.dumps(document))
    with pytest.raises(LuwuError, match="more than 64 dimensions"):
        bring(source, tmp_path / "new")
    with pytest.raises(LuwuError, match="'29999' is listed twice"):
        parse_header(header(30_000), 0, place="model.safetensors")


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    """Goal: sizes, values and depths are refused one beyond their limits, with the number."""
    path = tmp_path / "file"
    path.write_bytes(b"")
    os.truncate(path, FILE_BYTES_MAX + 1)
    with pytest.raises(OSError, match=f"{FILE_BYTES_MAX + 1} bytes, at most {FILE_BYTES_MAX}"):
        read_file(path)
    with pytest.raises(OSError, match="with holes"):
        list(lines_of(path))
    os.truncate(path, TOML_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match=f"at most {TOML_BYTES_MAX} are read"):
        read_toml(path, "plan")
    with pytest.raises(ValueError, match=f"more than {VALUES_MAX} values"):
        parse_json(b"[" + b"0," * (VALUES_MAX + 1) + b"0]")
    deepest = b"[" * (DEPTH_MAX - 1) + b"1" + b"]" * (DEPTH_MAX - 1)
    assert parse_json(deepest) is not None
    with pytest.raises(ValueError, match=f"more than {DEPTH_MAX} deep"):
        parse_json(b"[" + deepest + b"]")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 2000 + "]" * 2000, "nested more than 64 deep"), ("9" * 5000, "more than 64 bits"),
        (str(2**64), "more than 64 bits"), ('{"a": 1, "a": 2}', "'a' is listed twice"),
        ('["\\ud800"]', "half a character"), ("\ufeff{}", "BOM"), ("", "Expecting value"),
    ],
)  # fmt: skip
def test_json_is_refused_in_words(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as caught:
        read_json(tmp_path / "file.json")
    assert "\n" not in str(caught.value)
    assert "file.json" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("workers = " + "[" * 1000, "nested more than 64 deep"),
        ("workers = " + "9" * 5000, "more than 64 bits"),
        ("workers = 0x" + "f" * 5000, "more than 64 bits"),
        ("a." * 100 + "a = 1", "more than 64 parts"),
        ("no-switch = true\nno_switch = true", "no_switch is listed twice, with - and with _"),
        ("workers = '\u0663'", "is not a whole number"),
        ("workers = '" + "9" * 5000 + "'", "is not a whole number"),
        ("link = 'loss=\u0660.5'", "is not a share"), ("workers = 1\nworkers = 2", "is not TOML"),
    ],
)  # fmt: skip
def test_a_configuration_is_refused_in_words(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    assert main(["config", "--config", str(tmp_path / "c.toml")]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.feature("import of changed or hostile files")
@pytest.mark.parametrize("number", [COUNT_MAX + 1, INT64_MAX - 1, INT64_MAX])
@pytest.mark.parametrize("key", ["attempt", "step", "record epoch", "record attempt"])
def test_counts_near_their_end_are_not_imported(
    key: str, number: int, files: Path, tmp_path: Path
) -> None:
    """Goal: a job that counted on from these would never begin; the import says so instead."""
    source = shutil.copytree(files / "export", tmp_path / "export")
    document = json.loads((source / "luwu.json").read_text())
    *inner, name = key.split()
    (document["record"] if inner else document)[name] = number
    document["attempt"] = max(document["attempt"], document["record"]["attempt"])
    (source / "luwu.json").write_text(json.dumps(document))
    with pytest.raises(LuwuError, match=f"integer from 0 to {COUNT_MAX}"):
        read_document(source)
    assert counted(COUNT_MAX) == COUNT_MAX


def test_only_ordinary_files_are_opened(tmp_path: Path) -> None:
    """Goal: a descriptor that is handed out waits as usual, and none is left of what is refused."""
    (tmp_path / "a").write_bytes(b"abc")
    descriptor = open_file(tmp_path / "a")
    assert os.get_blocking(descriptor)
    os.close(descriptor)
    before = len(os.listdir("/proc/self/fd"))
    for place in (Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="not an ordinary file"):
            open_file(place)
    assert len(os.listdir("/proc/self/fd")) == before
