"""Hostile files before every reader of a file: one sentence and an exit code, no trace, no wait.

A case puts something else in the place of one file and calls what reads it. That is a FIFO, an
endless device, a directory, a file of a terabyte that is one hole, or the file with other bytes or
another value in its document. Checksums are made right again, so that what is behind them is read.
What is imported all the same must be what was exported, bit for bit.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import xxhash

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from luwu.base.keys import read_allowed, read_secret
from luwu.base.limits import PROTOCOL_VERSION
from luwu.base.seeds import derive
from luwu.base.tree import read_tree
from luwu.commands.main import main
from luwu.join.connection import read_connection
from luwu.predict.hardware.catalogue import load
from luwu.predict.hardware.model import read_model_config
from switch_emu.roles import read_document
from switch_emu.store.direct_io import BLOCK_BYTES
from tests.helpers.exports import OptimizerJob, bring, export, train
from tests.helpers.key_directories import make_keys

TERABYTE: Final = 1 << 40
MESSAGE_CHARS_MAX: Final = 3100
HANG_NS: Final = 5 * 10**9
_TEXTS: Final = (
    b"[" * 100_000, b'{"a":' * 50_000, b"[" * 900 + b"]" * 900, b"9" * 5000, b"9" * 400, b"null",
    b'{"a": 1, "a": 2}', b'"\\ud800"', b"\xff\xfe", b"", b"\0" * 100, b"{}", b"[]",
    b'{"\\ud800": 1}', b"a = " + b"[" * 10_000, b"a." * 20_000 + b"a = 1", b"a = " + b"9" * 5000,
    b"a = 0x" + b"f" * 5000, b"workers = 1\nworkers = 2", b"no-switch = true\nno_switch = true",
    "workers = '\u0663'".encode(), b'a = "\\ud800"', b"[a]\n[a.b]\n[a]", b"1e999", b"NaN", b"-0",
    b'"', b"//",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 2**31, 2**62, 2**63, 10**30, 10**400, 0.5, 1e308, float("nan"), "",
    "x" * 300, "0x1p9999", "\ud800", "\u0663", "9" * 300, "\0", "/dev/zero", [], [[]], {}, [0],
    ["a"], {"a": 1}, 1, 2**63 - 1, "F32", "BF16", "F4", [1, -1], [2**62, 2**62], [0, 2**63],
)  # fmt: skip
_CONFIG: Final = b"""workers = 2
chunk = "64KiB"
link = "worker=1gbit,delay=0.2ms;node=none"
no-switch = true
memory_budget = "64MiB"
drop_after = "3s"
steps = 5
"""
_TREE: Final = b"""[top]
parent = "node"
[a]
parent = "top"
workers = "0-1"
[b]
parent = "top"
workers = [2, 3]
"""
_QUESTION: Final = b"""system = "zero3"
model = "config.json"
device = "A100-40"
network = "roce-100g"
software = "megatron-2023"
devices = 8
sequence = 2048
batch = 64
micro_batch = 8
recompute = "full"
"""
_CATALOGUE: Final = b'[network.mine]\nlike = "roce-100g"\nrate = "50 Gbit/s"\n'
_MODEL: Final = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 512, "vocab_size": 1000, "num_key_value_heads": 8,
}  # fmt: skip
_CONNECTION: Final = {
    "schema": 1, "protocol": PROTOCOL_VERSION, "job": 5, "world_size": 2, "chunk_bytes": 65536,
    "node": "tcp://127.0.0.1:1", "switch": None, "more_nodes": ["tcp://127.0.0.1:3"],
    "leaves": [{"ranks": "0-1", "endpoint": "tcp://127.0.0.1:2"}],
    "retry": {"first_ns": 1, "most_ns": 2, "ns_per_byte": 0.5},
}  # fmt: skip
_OF_RUN: Final = (
    "resolved.json", "processes.json", "memory.json", "outcome.json", "connect.json",
    "result.json", "counters/node.json", "counters/switch.json", "roles/node.json",
    "events/node.jsonl", "events/worker-0.jsonl", "events/switch.jsonl",
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A file, and what reads it."""

    file: str
    call: Callable[[Path], object]
    """Of the directory of all files; raises LuwuError, or returns."""


def _luwu(*words: str) -> Callable[[Path], object]:
    """A command, within this process; a word with @ is a path in the directory."""

    def call(directory: Path) -> object:
        tokens = [str(directory / word[1:]) if word.startswith("@") else word for word in words]
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main(tokens)
        if code not in (0, 1, 2, 3, 5):
            raise AssertionError(f"exit code {code}")
        lines = [line for line in said.getvalue().splitlines() if not re.match(r"E\d+: ", line)]
        if code and len(lines) > 6:
            raise AssertionError(f"{len(lines)} lines: {lines[:2]}")
        if sum(map(len, lines)) > MESSAGE_CHARS_MAX:
            raise AssertionError(f"a message of {sum(map(len, lines))} characters: {lines[0]:.200}")
        for left in ("new", "more"):
            shutil.rmtree(directory / left, ignore_errors=True)
        return code

    return call


def _import(directory: Path) -> None:
    """Import an export: an error of ours and no trace, or the state that was exported."""
    new, digest = directory / "new", (directory / "digest").read_text()
    before = set(directory.iterdir())
    try:
        found = bring(directory / "export", new).weights_digest
        assert found == digest, f"was imported with digest {found}"
        shutil.rmtree(new)
    finally:
        left = set(directory.iterdir()) - before
        for path in left:
            shutil.rmtree(path)
        assert not left, f"left {sorted(path.name for path in left)}"


_EXPORT: Final = ("luwu.json", "model.safetensors", "optimizer.safetensors")
IMPORTS: Final = tuple(Reader(f"export/{name}", _import) for name in _EXPORT)
"""Every second case is one of these: most files from elsewhere are."""
READERS: Final = (
    *(Reader(f"export/{n}", _luwu("import", "@export", "--state", "@new")) for n in _EXPORT),
    *(
        Reader(f"shards/{name}", _luwu("import", "@shards", "--state", "@new"))
        for name in ("model.safetensors.index.json", "model-00001-of-00006.safetensors")
    ),
    *(
        Reader(f"state/{name}", _luwu(*words))
        for name in ("CONFIG", "LOCK", "meta.dat", "side0.dat")
        for words in (
            ("verify", "--full", "@state"), ("export", "@state", "@more"),
            ("snapshot", "@state", "@more"),
        )
    ),
    *(
        Reader(f"run/{name}", _luwu(*words))
        for name in _OF_RUN
        for words in (
            ("status", "@run"), ("report", "@run"), ("trace", "--out", "@trace", "@run"),
        )
    ),
    Reader("config.toml", _luwu("config", "--config", "@config.toml")),
    Reader("tree.toml", lambda files: read_tree(files / "tree.toml", workers=4)),
    Reader("question.toml", _luwu("predict", "step", "@question.toml")),
    Reader("config.json", _luwu("predict", "step", "@question.toml")),
    Reader("config.json", lambda files: read_model_config(files / "config.json")),
    Reader("catalogue.toml", lambda files: load(files / "catalogue.toml")),
    Reader("connect.json", lambda files: read_connection(files / "connect.json")),
    Reader("role.json", lambda files: read_document(files / "role.json")),
    Reader("keys/allowed.json", lambda files: read_allowed(files / "keys")),
    Reader("keys/node.secret", lambda files: read_secret(files / "keys", "node")),
)  # fmt: skip


def make_files(directory: Path) -> None:
    """A good file for every reader."""
    (directory / "digest").write_text(train(OptimizerJob(steps=2), directory / "state", directory))
    export(directory / "state", directory / "export")
    export(directory / "state", directory / "shards", shard_bytes=8192)
    (directory / "config.toml").write_bytes(_CONFIG)
    (directory / "tree.toml").write_bytes(_TREE)
    (directory / "question.toml").write_bytes(_QUESTION)
    (directory / "catalogue.toml").write_bytes(_CATALOGUE)
    (directory / "config.json").write_text(json.dumps(_MODEL))
    (directory / "connect.json").write_text(json.dumps(_CONNECTION))
    (directory / "role.json").write_text(json.dumps({"spec": {"job": 1}, "error": "x"}))
    make_keys(directory / "keys")
    _run(directory)


def _run(directory: Path) -> None:
    """The directory of a run that has ended, with what one that is under way has besides."""
    run = directory / "run"
    command = [
        sys.executable, "-m", "luwu", "run", "--workers", "2", "--run-dir", str(run),
        "--state", str(directory / "run-state"), "-m", "tests.light_job", "--steps", "4",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (run / "connect.json").write_text(json.dumps(_CONNECTION))
    (run / "result.json").write_text(json.dumps({"schema": 1, "arms": [], "losses": {}}))


def fuzz_files(
    seed: int, first: int, count: int, directory: Path, *, hang_ns: int = HANG_NS,
    look: Callable[[int], None] = lambda index: None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with cases `first` to `first + count`, each with its index."""
    make_files(directory)
    for index in range(first, first + count):
        look(index)
        random = Random(derive(seed, "fuzz", "files") + index)
        reader = random.choice(random.choice((IMPORTS, READERS)))
        path = directory / reader.file
        data, mode = path.read_bytes(), path.stat().st_mode
        path.unlink()
        what = _put(random, path, data, mode)
        start_ns = SYSTEM_CLOCK.now_ns()
        said = None
        try:
            reader.call(directory)
        except LuwuError:
            pass  # commands shorten their messages
        except BaseException as exc:
            place = traceback.extract_tb(exc.__traceback__)[-1]
            said = f"{type(exc).__name__}: {exc!s:.300} ({place.filename}:{place.lineno})"
        took_ns = SYSTEM_CLOCK.now_ns() - start_ns
        _remove(path)
        path.write_bytes(data)
        path.chmod(mode)
        if said is None and took_ns > hang_ns:
            said = f"took {took_ns / 1e9:.1f} s"
        if said is not None:
            yield f"files {index}: {reader.file}, {what}: {said}"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _put(random: Random, path: Path, data: bytes, mode: int) -> str:
    """Something in the place of a file; its name."""
    match random.randrange(12):
        case 0:
            os.mkfifo(path)
            return "a FIFO"
        case 1:
            path.symlink_to("/dev/zero")
            return "an endless device"
        case 2:
            path.mkdir()
            return "a directory"
        case 3:
            path.write_bytes(random.choice((b"", data)))
            os.truncate(path, TERABYTE)
            what = "a terabyte"
        case 4 | 5:
            text = random.choice(_TEXTS)
            at = random.randrange(len(data) + 1)
            path.write_bytes(
                random.choice((text, data + b"\n" + text, data[:at] + text + data[at:]))
            )
            what = f"{text[:30]!r}"
        case 6:
            path.write_bytes(_other_bytes(random, data))
            what = "other bytes"
        case _:
            path.write_bytes(_other_document(random, path.name, data))
            what = "another document"
    path.chmod(mode)
    return what


def _other_document(random: Random, name: str, data: bytes) -> bytes:
    """Another value somewhere, and right checksums again."""
    if name in ("LOCK", "meta.dat"):
        return _other_ring(random, data, is_meta=name == "meta.dat")
    if name == "CONFIG":
        body = _dump(_changed(random, json.loads(data.partition(b"\n")[2])))
        return f"luwu-store 1 {xxhash.xxh3_128_hexdigest(body)}\n".encode() + body
    if name.endswith(".safetensors"):
        size = int.from_bytes(data[:8], "little")
        text = _dump(_changed(random, json.loads(data[8 : 8 + size])))
        length = len(text)
        if random.random() < 0.15:
            length = random.choice((0, 1, length - 1, length + 1, 2**24, 2**24 + 1, 2**63))
        return length.to_bytes(8, "little") + text + data[8 + size :]
    if name.endswith(".json"):
        return _dump(_changed(random, json.loads(data)))
    lines = data.splitlines() or [b""]
    at = random.randrange(len(lines))
    if name.endswith(".jsonl"):
        lines[at] = _dump(_changed(random, json.loads(lines[at])))
    else:  # TOML
        key, _, _ = lines[at].partition(b"=")
        lines[at] = key + b"= " + json.dumps(random.choice(_VALUES)).encode()
    return b"\n".join(lines) + b"\n"


def _other_ring(random: Random, data: bytes, *, is_meta: bool) -> bytes:
    """Another record in a ring; in meta.dat perhaps also in the manifest that it names."""
    changed_data = bytearray(data)
    newest = max(
        range(4), key=lambda block: struct.unpack_from("<Q", data, block * BLOCK_BYTES + 32)
    )
    head, start = newest * BLOCK_BYTES, newest * BLOCK_BYTES + 48
    (size,) = struct.unpack_from("<Q", data, head + 40)
    record = json.loads(data[start : start + size])
    if is_meta and record["decided"] and random.random() < 0.6:
        ref = record["decided"]
        region = (len(data) - 4 * BLOCK_BYTES) // 4
        at = 4 * BLOCK_BYTES + 2 * ref["place"] * region
        manifest = data[at : at + ref["size"]]
        (step_bytes,) = struct.unpack_from("<Q", manifest, 32)
        step = _dump(_changed(random, json.loads(manifest[48 : 48 + step_bytes])))
        manifest = manifest[:32] + struct.pack("<Q", len(step)) + manifest[40:48] + step + (
            manifest[48 + step_bytes :]
        )  # fmt: skip
        ref |= {"size": len(manifest), "digest": xxhash.xxh3_128_hexdigest(manifest)}
        for place in (at, at + region):
            changed_data[place : place + len(manifest)] = manifest
    else:
        record = _changed(random, record)
    payload = _dump(record)[: BLOCK_BYTES - 64]
    for block in (newest & ~1, newest | 1):
        whole = data[head : head + 24] + struct.pack("<Q", block) + data[head + 32 : head + 40]
        whole += struct.pack("<Q", len(payload)) + payload
        whole = (whole + xxhash.xxh3_128_digest(whole)).ljust(BLOCK_BYTES, b"\0")
        changed_data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = whole
    return bytes(changed_data)


def _changed(random: Random, document: Any) -> Any:
    """One place of a document is another value, gone, or there twice under other names."""
    holder, key = _place(random, document)
    match random.randrange(4):
        case 0:
            if isinstance(holder, dict):
                del holder[key]
            else:
                holder.pop(key)
        case 1:
            value = holder[key]
            if isinstance(holder, dict):
                holder[random.choice(("", "a.weight", "\ud800", "x" * 3000, "state.m"))] = value
            else:
                holder.insert(key, value)
        case 2 if type(holder[key]) is int:
            holder[key] += random.choice((-1, 1, 8, 2**32, -(2**63)))
        case _:
            holder[key] = random.choice(_VALUES)
    return document


def _place(random: Random, document: Any) -> tuple[Any, Any]:
    """A place within a document, any depth: what holds it, and under which key."""
    if not document:
        return {"": document}, ""
    keys = list(document) if isinstance(document, dict) else range(len(document))
    holder, key = document, random.choice(keys)
    while isinstance(holder[key], dict | list) and holder[key] and random.random() < 0.7:
        holder = holder[key]
        key = (
            random.choice(list(holder))
            if isinstance(holder, dict)
            else random.randrange(len(holder))
        )
    return holder, key


def _dump(document: Any) -> bytes:
    """JSON, also of integers that Python does not print by itself."""
    return json.dumps(document, separators=(",", ":")).encode()


def _other_bytes(random: Random, data: bytes) -> bytes:
    """Bytes with a bit flipped, a piece gone, or something put in."""
    at = random.randrange(len(data) + 1)
    match random.randrange(6):
        case 0 if data:
            bit = random.randrange(len(data) * 8)
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            return bytes(flipped)
        case 1:
            return data[:at]
        case 2:
            return data[:at] + data[min(len(data), at + random.randrange(1, 64)) :]
        case 3:
            return data[:at] + random.choice(_TEXTS) + data[at:]
        case 4:
            return random.choice((0, 1, 8, 2**24, 2**63)).to_bytes(8, "little") + data[8:]
        case _:
            return data[:at] + random.randbytes(random.randrange(1, 40)) + data[at + 1 :]
