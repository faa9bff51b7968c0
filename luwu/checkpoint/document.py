"""luwu.json: what the safetensors files of an export do not contain, and what makes it exact.

    format, version     what this is
    step                decided steps: the number of the next one
    weights_digest      of the float32 masters (I3)
    dtype               of the weights in the files
    has_optimizer       whether the optimizer's files are there
    description         the job: layout, optimizer, order of work, what its ranks agreed on
    optimizer           name and hyper-parameters of the last step, for people and for torch
    record              the record of the last step, as the store keeps it
    attempt             the job's attempt, which never goes back
    updates             how often each parameter was updated; null if it is frozen
    digests             xxh3-128 of every tensor
    attached            rank -> xxh3-128 of attached-RANK.msgpack: what it keeps beside the step

It may come from anywhere: what is read is checked, field by field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from luwu.base.errors import ConfigError, DamagedFileError, LuwuError
from luwu.base.limits import WORLD_SIZE_MAX
from luwu.tensor_files.header import load_unique
from luwu.wire.description import Description, natural, parse_description, typed
from luwu.wire.hyper import decode_hyper
from luwu.wire.state_names import torch_hyper
from switch_emu.store import Contributor, DecidedStep
from switch_emu.store.attachments import RECORD_KEY

FILE: Final = "luwu.json"
FORMAT: Final = "luwu-export"
VERSION: Final = 1
_BYTES_MAX: Final = 64 * 1024 * 1024

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDocument:
    """The content of luwu.json."""

    description: Description
    record: DecidedStep
    attempt: int
    updates: tuple[int | None, ...]
    weights_digest: str
    dtype: str
    has_optimizer: bool
    digests: dict[str, str]
    attached: dict[str, str]

    @property
    def step(self) -> int:
        """Decided steps."""
        return self.record.version

    @property
    def is_exact(self) -> bool:
        """True if the state can be rebuilt bit for bit."""
        return self.dtype == "float32" and self.has_optimizer

    def to_json(self) -> str:
        """The text of the file."""
        record = self.record
        groups, clip = [], None
        if record.hyper:
            hyper = decode_hyper(record.hyper)
            groups = [torch_hyper(group) for group in hyper.groups]
            clip = hyper.max_grad_norm
        document = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "weights_digest": self.weights_digest,
            "dtype": self.dtype,
            "has_optimizer": self.has_optimizer,
            "optimizer": {
                "name": self.description.optimizer,
                "param_groups": groups,
                "max_grad_norm": clip,
            },
            "description": json.loads(self.description.to_bytes()),
            "record": {
                "attempt": record.attempt,
                "epoch": record.epoch,
                "job": record.job,
                "generation": record.generation,
                "contributors": [list(each) for each in record.contributors],
                "hyper": record.hyper.hex(),
                "applied": record.applied,
                "grad_norm": None if record.grad_norm is None else float(record.grad_norm).hex(),
                "extra": {k: text for k, text in record.extra.items() if k != RECORD_KEY},
            },
            "attempt": self.attempt,
            "updates": list(self.updates),
            "digests": self.digests,
            "attached": self.attached,
        }
        return json.dumps(document, indent=1) + "\n"


def read_document(directory: Path, *, is_whole: bool = True) -> ExportDocument:
    """The document of an export. Raises: ConfigError if there is none; DamagedFileError.

    `is_whole`: its files must be there too, and not be smaller than what is described.
    """
    path = directory / FILE
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise DamagedFileError(
                f"{path} is larger than {_BYTES_MAX} bytes: it is not what we wrote"
            )
        text = path.read_bytes()
    except OSError as exc:
        raise ConfigError(
            f"{directory} was not written by luwu export ({FILE}: {exc.strerror}). For weights "
            "from elsewhere name a state or an export with the same model: --like"
        ) from exc
    try:
        values = load_unique(text)
        found = (values["format"], values["version"])
    except (KeyError, TypeError, ValueError) as exc:
        raise DamagedFileError(f"{path} is damaged: {exc!s:.400}. Get the export again.") from exc
    if found != (FORMAT, VERSION):
        raise ConfigError(
            f"{path} is {found[0]!r:.40} version {found[1]!r:.20}, this program reads {FORMAT!r} "
            f"version {VERSION}; use the program that wrote it"
        )
    try:
        if is_whole:
            _check_size(values["description"], directory)
        return _parse(values)
    except (LuwuError, LookupError, TypeError, ValueError) as exc:
        raise DamagedFileError(f"{path} is damaged: {exc!s:.400}. Get the export again.") from exc


def _check_size(description: dict[str, Any], directory: Path) -> None:
    """Before anything is made of its size: parameters are not more than the files beside it hold.

    Raises ValueError, and what a document of another form makes of this.
    """
    held = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    elems = sum(math.prod(map(natural, row[1])) for row in description["parameters"])
    if elems > held:
        raise ValueError(
            f"it describes {elems} elements, and the files of the export are {held} bytes in all"
        )


def _parse(values: dict[str, Any]) -> ExportDocument:
    description = parse_description(json.dumps(values["description"]).encode())
    item = typed(values["record"], dict)
    norm = item["grad_norm"]
    record = DecidedStep(
        version=natural(values["step"]),
        attempt=natural(item["attempt"]),
        epoch=natural(item["epoch"]),
        job=natural(item["job"]),
        generation=natural(item["generation"]),
        contributors=_list(item["contributors"], _contributor, WORLD_SIZE_MAX),
        hyper=bytes.fromhex(_text(item["hyper"])),
        applied=typed(item["applied"], bool),
        norms=() if norm is None else (float.fromhex(_text(norm)),),
        extra=_texts(item["extra"]),
    )
    if record.hyper:
        decode_hyper(record.hyper)
    parameters = description.layout.parameters
    updates = _list(
        values["updates"], lambda each: None if each is None else natural(each), len(parameters)
    )
    trained = [each is not None for each in updates]
    if trained != [parameter.trainable for parameter in parameters]:
        raise ValueError("updates are not those of the trained parameters")
    attempt = natural(values["attempt"])
    if attempt < record.attempt:
        raise ValueError(f"attempt {attempt} is below that of the last step, {record.attempt}")
    return ExportDocument(
        description=description,
        record=record,
        attempt=attempt,
        updates=updates,
        weights_digest=_text(values["weights_digest"]),
        dtype=_text(values["dtype"]),
        has_optimizer=typed(values["has_optimizer"], bool),
        digests=_texts(values["digests"]),
        attached=_attached(values["attached"]),
    )


def _contributor(row: Any) -> Contributor:
    rank, incarnation, cursor = typed(row, list)
    return Contributor(natural(rank), natural(incarnation), natural(cursor))


def _list(value: Any, read: Callable[[Any], ValueT], most: int) -> tuple[ValueT, ...]:
    rows: list[Any] = typed(value, list)
    if len(rows) > most:
        raise ValueError(f"a list has {len(rows)} rows, at most {most} are expected")
    return tuple(read(row) for row in rows)


def _texts(value: Any) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in typed(value, dict).items()}


def _attached(value: Any) -> dict[str, str]:
    found = _texts(value)
    for rank in found:
        if not rank.isdecimal() or int(rank) >= WORLD_SIZE_MAX:
            raise ValueError(f"{rank!r:.40} is not a rank")
    return found


def attached_name(rank: int | str) -> str:
    """The file of what a rank keeps beside the step."""
    return f"attached-{rank}.msgpack"


def _text(value: Any) -> str:
    text: str = typed(value, str)
    return text
