"""The origin of an import: an export as a whole, or weights from any safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, PageCorruptError
from luwu.base.foreign import read_file
from luwu.base.limits import KEEP_PIECES_MAX
from luwu.checkpoint.document import ExportDocument, attached_name
from luwu.checkpoint.export_state import MODEL, OPTIMIZER
from luwu.tensor_files.directory import WIDENED, TensorDirectory, check_tensors, has_tensors
from luwu.wire.description import Description
from luwu.wire.stored import STEP, WEIGHT, state_tensors
from switch_emu.store import DecidedStep

F32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state that is to be made, but for the values of its tensors."""

    description: Description
    record: DecidedStep
    attempt: int
    updates: tuple[int | None, ...]
    """Count of updates per parameter; None if it is frozen."""
    tensor_names: Mapping[tuple[str, int], str]
    """(field, parameter) -> its tensor; what has none starts as zeros."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """xxh3-128 of tensors, where they are known."""
    weights_digest: str | None = None
    """Digest of the weights; None for weights from elsewhere."""
    attached: Mapping[int, bytes] = field(default_factory=dict)
    """Rank -> its attachment to the step."""

    @property
    def is_export(self) -> bool:
        """True if all of a state is taken, and nothing starts afresh."""
        return self.weights_digest is not None

    @classmethod
    def of_export(cls, document: ExportDocument, source: Path) -> Origin:
        """The state an export was made from. Raises ConfigError if it holds less than that."""
        if not document.is_exact:
            lacks = (
                "without the optimizer's state (--no-optimizer)"
                if not document.has_optimizer
                else f"with weights in {document.dtype:.40}"
            )
            raise ConfigError(
                f"{source} was exported {lacks}, so training cannot continue from it. To start "
                f"again from its weights, at step 0: add --like {source}"
            )
        return cls(
            description=document.description,
            record=document.record,
            attempt=document.attempt,
            updates=document.updates,
            tensor_names=_names(document.description, document.updates),
            digests=document.digests,
            weights_digest=document.weights_digest,
            attached=_attached(document, source),
        )

    @classmethod
    def of_weights(cls, description: Description) -> Origin:
        """A fresh state of this job, with weights from somewhere."""
        parameters = description.layout.parameters
        return cls(
            description=description,
            record=DecidedStep(version=0, attempt=0),
            attempt=0,
            updates=tuple(0 if parameter.trainable else None for parameter in parameters),
            tensor_names={(WEIGHT, i): parameter.name for i, parameter in enumerate(parameters)},
        )


def _attached(document: ExportDocument, source: Path) -> dict[int, bytes]:
    """Rank -> its attachment, verified. Raises PageCorruptError."""
    found = {}
    most = KEEP_PIECES_MAX * document.description.layout.chunk_bytes
    for rank, digest in document.attached.items():
        path = source / attached_name(rank)
        try:
            data = read_file(path, most)
        except OSError as exc:
            raise PageCorruptError(f"{path} cannot be read: {exc}. Get the export again.") from exc
        if xxhash.xxh3_128_hexdigest(data) != digest:
            raise PageCorruptError(
                f"{path} changed after it was written: its checksum is not that of luwu.json. Get "
                "the export again."
            )
        found[int(rank)] = data
    return found


def _names(description: Description, updates: tuple[int | None, ...]) -> dict[tuple[str, int], str]:
    names = {}
    for index, parameter in enumerate(description.layout.parameters):
        names[WEIGHT, index] = parameter.name
        for name, each in state_tensors(description, index, updates[index]):
            names[each, index] = name
    return names


class OriginFiles(Closing):
    """The files of an origin, checked against it; their values, slice by slice, in float32."""

    def __init__(self, source: Path, origin: Origin, *, owner: str) -> None:
        """`owner`: what wants the tensors, for people. Raises: ConfigError, StateError."""
        self.origin = origin
        self._source = source
        self._hashes: dict[str, Any] = {}
        """Hashes of tensors that are partly read."""
        self._weights = TensorDirectory(source, MODEL)
        self._state: TensorDirectory | None = None
        try:
            self._check(owner)
        except BaseException:
            self.close()
            raise

    def read(self, field_name: str, parameter: int, start: int, into: F32Array) -> None:
        """Fill `into` from element `start` of a parameter, if there is such a tensor.

        A tensor is read from its start to its end, so that it can be verified.
        """
        name = self.origin.tensor_names.get((field_name, parameter))
        if name is None:
            return
        files = self._weights if field_name == WEIGHT else self._state
        assert files is not None
        files.read_float32(name, start, into)
        if self.origin.is_export:
            self._hash(name, into, start + into.size == files.tensors[name].elems)

    def check_digests(self) -> None:
        """Every tensor that was begun was read to its end."""
        assert not self._hashes, f"not read as a whole: {list(self._hashes)}"

    def close(self) -> None:
        self._weights.close()
        if self._state is not None:
            self._state.close()

    def _hash(self, name: str, values: F32Array, is_last: bool) -> None:
        digest = self._hashes.setdefault(name, xxhash.xxh3_128())
        digest.update(values.view(np.uint8).data)
        if not is_last:
            return
        del self._hashes[name]
        found, expected = digest.hexdigest(), self.origin.digests.get(name)
        if found != expected:
            raise PageCorruptError(
                f"{self._source}: tensor {name:.160} has the checksum {found}, the export records "
                f"{expected!s:.40}: it changed after it was written. Get the export again."
            )

    def _check(self, owner: str) -> None:
        origin = self.origin
        parameters = origin.description.layout.parameters
        check_tensors(
            self._weights.tensors,
            {parameter.name: parameter.shape for parameter in parameters},
            place=str(self._source),
            dtypes=("F32",) if origin.is_export else WIDENED,
            owner=owner,
        )
        if not origin.is_export:
            return  # the optimizer starts afresh
        wanted = {
            name: () if each == STEP else parameters[index].shape
            for (each, index), name in origin.tensor_names.items()
            if each != WEIGHT
        }
        if not wanted and not has_tensors(self._source, OPTIMIZER):
            return
        self._state = TensorDirectory(self._source, OPTIMIZER)
        check_tensors(
            self._state.tensors, wanted, place=f"{self._source} (the optimizer's files)",
            dtypes=("F32",), owner=owner,
        )  # fmt: skip
