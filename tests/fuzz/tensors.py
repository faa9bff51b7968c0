"""Fuzzed exports through `luwu import`: an error of ours and no trace, or the whole state.

A case changes one file of an export: the safetensors of the weights or of the optimizer, or
`luwu.json`. What is taken all the same must be what was exported, bit for bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import LuwuError
from luwu.base.seeds import derive
from luwu.checkpoint.document import FILE
from luwu.layout import Layout, Parameter, Unit
from luwu.tensor_files.header import LENGTH_BYTES
from tests.fuzz.headers import HANG_NS
from tests.helpers.exports import bring, export, train
from tests.helpers.local_job import KIB, Job

FILES: Final = ("model.safetensors", "model.safetensors", "optimizer.safetensors", FILE)
"""One of these is changed; the first is what most files from elsewhere are."""
MESSAGE_CHARS_MAX: Final = 2000
"""Of a refusal: what a file says goes to a terminal and a log, so it may not be any length."""
_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 10**30, 0.5, 1e308, "F32", "BF16", "F4", "",
    "\ud800", [], [[]], {}, [0], [1, -1], [2**62, 2**62], [0, 2**63], ["a"], {"a": 1},
)  # fmt: skip
_TEXTS: Final = (b"[" * 5000, b'{"a":' * 2000, b"1e999", b"NaN", b"-0", b"\xff\xfe", b'"', b"//")


class Exported:
    """A small export, and the bytes of its files."""

    def __init__(self, directory: Path) -> None:
        layout = Layout(
            parameters=(
                Parameter(name="a.weight", shape=(16, 8), trainable=True, group=0),
                Parameter(name="b.frozen", shape=(7,), trainable=False, group=0),
                Parameter(name="b.scalar", shape=(), trainable=True, group=1),
            ),
            units=(Unit(name="a", parameters=(0,)), Unit(name="b", parameters=(1, 2))),
            chunk_bytes=16 * KIB,
        )
        state, self.path = directory / "state", directory / "out"
        self.target = directory / "new"
        self.digest = train(Job(layout=layout, steps=2), state, directory)
        export(state, self.path)
        self.files = {name: (self.path / name).read_bytes() for name in set(FILES)}
        self.around = set(directory.iterdir())
        self.inside = set(self.path.iterdir())

    def put(self, name: str, data: bytes) -> None:
        """One file changed, the others as they were exported."""
        (self.path / name).write_bytes(data)

    def restore(self, name: str) -> None:
        """Back to what was exported."""
        (self.path / name).write_bytes(self.files[name])


def fuzz_tensors(
    seed: int, first: int, count: int, directory: Path, *, hang_ns: int = HANG_NS,
    look: Callable[[int], None] = lambda index: None,
) -> Iterator[str]:  # fmt: skip
    """What is wrong with cases `first` to `first + count`, each with its index."""
    exported = Exported(directory)
    for index in range(first, first + count):
        look(index)
        name, data = case(exported.files, seed, index)
        exported.put(name, data)
        start_ns = SYSTEM_CLOCK.now_ns()
        said, is_refused = _wrong(exported)
        took_ns = SYSTEM_CLOCK.now_ns() - start_ns
        exported.restore(name)
        if said is None and is_refused and took_ns > hang_ns:
            said = f"was refused after {took_ns / 1e9:.1f} s"
        if said is not None:
            yield f"tensors {index}: {name}: {said}"


def _wrong(exported: Exported) -> tuple[str | None, bool]:
    """What is wrong with an import, and whether it was refused."""
    said, is_refused = None, False
    try:
        imported = bring(exported.path, exported.target)
        if imported.weights_digest != exported.digest:
            said = f"was imported with digest {imported.weights_digest}"
        shutil.rmtree(exported.target)
    except LuwuError as error:
        is_refused = True
        if len(str(error)) > MESSAGE_CHARS_MAX:
            said = f"was refused with {len(str(error))} characters: {error!s:.200}"
    except BaseException as exc:
        said = f"{type(exc).__name__}: {exc!s:.300}"
    for folder, expected in (
        (exported.target.parent, exported.around), (exported.path, exported.inside)
    ):  # fmt: skip
        left = set(folder.iterdir()) - expected
        if left:
            said = f"{said or ''} left {', '.join(sorted(path.name for path in left))}"
            for path in left:
                shutil.rmtree(path, ignore_errors=True)
    return said, is_refused


def case(files: dict[str, bytes], seed: int, index: int) -> tuple[str, bytes]:
    """The file that is changed, and its new bytes: a pure function of (seed, index)."""
    random = Random(derive(seed, "fuzz", "tensors") + index)
    name = random.choice(FILES)
    data = files[name]
    if random.random() < 0.6:
        data = _other_document(random, name, data)
    else:
        for _ in range(random.choice((1, 1, 2, 4))):
            data = other_bytes(random, data)
    return name, data


def _other_document(random: Random, name: str, data: bytes) -> bytes:
    """The JSON says something else, and is as long as the file claims, mostly."""
    if name == FILE:
        return _dump(changed(random, json.loads(data)))
    size = int.from_bytes(data[:LENGTH_BYTES], "little")
    text, rest = data[LENGTH_BYTES : LENGTH_BYTES + size], data[LENGTH_BYTES + size :]
    if random.random() < 0.2:
        at = random.randrange(len(text))
        text = text[:at] + random.choice(_TEXTS) + text[at:]
    else:
        text = _dump(changed(random, json.loads(text)))
    length = len(text)
    if random.random() < 0.15:
        length = random.choice((0, 1, length - 1, length + 1, 2**24, 2**24 + 1, 2**63, 2**64 - 1))
    return length.to_bytes(LENGTH_BYTES, "little") + text + rest


def changed(random: Random, document: Any, values: Sequence[Any] = _VALUES) -> Any:
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
            holder[key] = random.choice(values)
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
    return json.dumps(document, separators=(",", ":")).encode()


def other_bytes(random: Random, data: bytes) -> bytes:
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
