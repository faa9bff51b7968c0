"""The origin of an import: an export as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from luwu.base.closing import Closing
from luwu.base.errors import ConfigError, PageCorruptError
from luwu.base.foreign import read_file
from luwu.base.limits import KEEP_PIECES_MAX
from luwu.checkpoint.document import ExportDocument, attached_name, read_document
from luwu.checkpoint.export_state import MODEL, OPTIMIZER
from luwu.tensor_files.directory import F32Array, TensorDirectory, check_tensors, has_tensors
from luwu.wire.stored import STEP, WEIGHT, state_tensors


def exact_document(source: Path) -> ExportDocument:
    """The document of an export. Raises ConfigError if it holds less than a state."""
    document = read_document(source)
    if document.is_exact:
        return document
    lacks = (
        "without the optimizer's state (--no-optimizer)"
        if not document.has_optimizer
        else f"with weights in {document.dtype:.40}"
    )
    raise ConfigError(
        f"{source} was exported {lacks}, so training cannot continue from it. To start again from "
        f"its weights, at step 0: luwu.load_pretrained(model, {str(source)!r}) in the script"
    )


class OriginFiles(Closing):
    """The files of an export, checked against its document; their values, slice by slice."""

    def __init__(self, source: Path, document: ExportDocument) -> None:
        """Raises: ConfigError, StateError."""
        self.document, self._source = document, source
        parameters = document.description.layout.parameters
        self._names = {(WEIGHT, index): each.name for index, each in enumerate(parameters)}
        """(field, parameter) -> its tensor; what has none starts as zeros."""
        for index, count in enumerate(document.updates):
            for name, field in state_tensors(document.description, index, count):
                self._names[field, index] = name
        self._hashes: dict[str, Any] = {}
        """Hashes of tensors that are partly read."""
        self._weights = TensorDirectory(source, MODEL)
        self._state: TensorDirectory | None = None
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def read(self, field_name: str, parameter: int, start: int, into: F32Array) -> None:
        """Fill `into` from element `start` of a parameter, if there is such a tensor.

        A tensor is read from its start to its end, so that it can be verified.
        """
        name = self._names.get((field_name, parameter))
        if name is None:
            return
        files = self._weights if field_name == WEIGHT else self._state
        assert files is not None
        files.read_float32(name, start, into)
        self._hash(name, into, start + into.size == files.tensors[name].elems)

    def check_digests(self) -> None:
        """Every tensor that was begun was read to its end."""
        assert not self._hashes, f"not read as a whole: {list(self._hashes)}"

    def attached(self) -> dict[int, bytes]:
        """Rank -> its attachment to the step, verified. Raises PageCorruptError."""
        found = {}
        most = KEEP_PIECES_MAX * self.document.description.layout.chunk_bytes
        for rank, digest in self.document.attached.items():
            path = self._source / attached_name(rank)
            try:
                data = read_file(path, most)
            except OSError as exc:
                raise PageCorruptError(
                    f"{path} cannot be read: {exc}. Get the export again."
                ) from exc
            if xxhash.xxh3_128_hexdigest(data) != digest:
                raise PageCorruptError(
                    f"{path} changed after it was written: its checksum is not that of luwu.json. "
                    "Get the export again."
                )
            found[int(rank)] = data
        return found

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
        found, expected = digest.hexdigest(), self.document.digests.get(name)
        if found != expected:
            raise PageCorruptError(
                f"{self._source}: tensor {name:.160} has the checksum {found}, the export records "
                f"{expected!s:.40}: it changed after it was written. Get the export again."
            )

    def _check(self) -> None:
        parameters = self.document.description.layout.parameters
        check_tensors(
            self._weights.tensors,
            {parameter.name: parameter.shape for parameter in parameters},
            place=str(self._source),
            dtypes=("F32",),
            owner="this export",
        )
        wanted = {
            name: () if each == STEP else parameters[index].shape
            for (each, index), name in self._names.items()
            if each != WEIGHT
        }
        if not wanted and not has_tensors(self._source, OPTIMIZER):
            return
        self._state = TensorDirectory(self._source, OPTIMIZER)
        check_tensors(
            self._state.tensors, wanted, place=f"{self._source} (the optimizer's files)",
            dtypes=("F32",), owner="this export",
        )  # fmt: skip
