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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from luwu.base.errors import ConfigError, DamagedFileError, LuwuError
from luwu.base.foreign import MALFORMED, counted, natural, parse_json, plain_text, read_file, typed
from luwu.base.limits import WORLD_SIZE_MAX
from luwu.base.quantities import decimal
from luwu.wire.description import DIMENSIONS_MAX, Description, parse_description
from luwu.wire.hyper import decode_hyper
from luwu.wire.stored import torch_hyper
from switch_emu.store import DecidedStep
from switch_emu.store.manifest import step_of, step_values
from switch_emu.store.records import RECORD_KEY

FILE: Final = "luwu.json"
FORMAT: Final = "luwu-export"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDocument:
    """The content of luwu.json."""

    description: Description
    record: DecidedStep
    attempt: int
    updates: tuple[int | None, ...]
    """Count of updates per parameter; None if it is frozen."""
    weights_digest: str = ""
    dtype: str = "float32"
    has_optimizer: bool
    digests: dict[str, str] = field(default_factory=dict)
    attached: dict[str, str] = field(default_factory=dict)

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
        extra = record.portable_extra
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
            "record": step_values(replace(record, extra=extra)),
            "attempt": self.attempt,
            "updates": list(self.updates),
            "digests": self.digests,
            "attached": self.attached,
        }
        return json.dumps(document, indent=1) + "\n"


def read_document(directory: Path) -> ExportDocument:
    """The document of an export, whose files are not smaller than what it describes.

    Raises: ConfigError if there is none; DamagedFileError.
    """
    path = directory / FILE
    try:
        text = read_file(path)
    except OSError as exc:
        raise ConfigError(
            f"{directory} was not written by luwu export ({FILE}: {exc.strerror}). Weights from "
            "elsewhere are loaded in a script: luwu.load_pretrained"
        ) from exc
    try:
        values = parse_json(text)
        found = (values["format"], values["version"])
    except MALFORMED as exc:
        raise DamagedFileError(f"{path} is damaged: {exc!s:.400}. Get the export again.") from exc
    if found != (FORMAT, VERSION):
        raise ConfigError(
            f"{path} is {found[0]!r:.40} version {found[1]!r:.20}, this program reads {FORMAT!r} "
            f"version {VERSION}; use the program that wrote it"
        )
    try:
        _check_size(values["description"], directory)
        return _parse(values)
    except (LuwuError, *MALFORMED) as exc:
        raise DamagedFileError(f"{path} is damaged: {exc!s:.400}. Get the export again.") from exc


def _check_size(description: dict[str, Any], directory: Path) -> None:
    """Before anything is made of its size: parameters are not more than the files beside it hold.

    Raises ValueError, and what a document of another form makes of this.
    """
    held = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    shapes = [typed(row[1], list) for row in description["parameters"]]
    if max(map(len, shapes), default=0) > DIMENSIONS_MAX:
        raise ValueError(f"a parameter has more than {DIMENSIONS_MAX} dimensions")
    elems = sum(math.prod(map(natural, shape)) for shape in shapes)
    if elems > held:
        raise ValueError(
            f"it describes {elems!s:.40} elements, and the files beside it have {held} bytes"
        )


def _parse(values: dict[str, Any]) -> ExportDocument:
    description = parse_description(json.dumps(values["description"]).encode())
    record = step_of({**typed(values["record"], dict), "version": values["step"]})
    if RECORD_KEY in record.extra:
        raise ValueError(f"extra has {RECORD_KEY!r}, which only a state has")
    if record.hyper:
        decode_hyper(record.hyper)
    parameters = description.layout.parameters
    rows = typed(values["updates"], list)
    if len(rows) > len(parameters):
        raise ValueError(f"a list has {len(rows)} rows, at most {len(parameters)} are expected")
    updates = tuple(None if each is None else counted(each) for each in rows)
    trained = [each is not None for each in updates]
    if trained != [parameter.trainable for parameter in parameters]:
        raise ValueError("updates are not those of the trained parameters")
    attempt = counted(values["attempt"])
    if attempt < record.attempt:
        raise ValueError(f"attempt {attempt} is below that of the last step, {record.attempt}")
    return ExportDocument(
        description=description,
        record=record,
        attempt=attempt,
        updates=updates,
        weights_digest=plain_text(values["weights_digest"]),
        dtype=plain_text(values["dtype"]),
        has_optimizer=typed(values["has_optimizer"], bool),
        digests=_texts(values["digests"]),
        attached=_attached(values["attached"]),
    )


def _texts(value: Any) -> dict[str, str]:
    return {plain_text(name): plain_text(text) for name, text in typed(value, dict).items()}


def _attached(value: Any) -> dict[str, str]:
    found = _texts(value)
    for rank in found:
        if (number := decimal(rank)) is None or number >= WORLD_SIZE_MAX or str(number) != rank:
            raise ValueError(f"{rank!r:.40} is not a rank")
    return found


def attached_name(rank: int | str) -> str:
    """The file of what a rank keeps beside the step."""
    return f"attached-{rank}.msgpack"
