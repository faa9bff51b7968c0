"""State -> safetensors files, in one pass over the fields of all pages.

    weights      registration order: model.safetensors, or shards and an index
    optimizer    the same order: optimizer.safetensors, or shards and an index
    attached     what each rank keeps beside the step (luwu.attach), with the optimizer's state
    luwu.json    last; without it nothing can be taken for an export

Values are read ahead, hashed and written slice by slice; no tensor is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.digest import WeightsDigest
from luwu.base.directories import check_absent, check_space, making_directory
from luwu.base.dtypes import DTYPES, WIRE_DTYPES
from luwu.base.errors import ConfigError, StateError
from luwu.checkpoint.copying import check_running
from luwu.checkpoint.document import FILE, ExportDocument, attached_name
from luwu.checkpoint.read_ahead import ReadAhead, Want, buffers_count
from luwu.checkpoint.source import StateSource
from luwu.tensor_files.directory import F32Array
from luwu.tensor_files.header import Tensor
from luwu.tensor_files.writer import WRITE_BYTES, Shard, plan_shards, write_synced, write_tensors
from luwu.wire.stored import AVERAGE, STEP, UPDATES, WEIGHT, state_tensors, stored_field
from switch_emu.node.kernels.narrow import narrow

_INFINITY: Final = {"bfloat16": 0x7F80, "float16": 0x7C00}
MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
SLICE_ELEMS: Final = 64 * 1024
"""Hashed, narrowed and written at a time, while the processor's cache has it."""
_LUWU_JSON_BYTES: Final = 1024 * 1024
"""Room that is asked for, beside the tensors, before anything is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """The options of an export."""

    dtype: str = "float32"
    """Dtype of the weights; the optimizer's state is always float32."""
    shard_bytes: int = 4 * 1024**3
    memory_budget_bytes: int = 256 * 1024**2
    has_optimizer: bool = True
    average: bool = False
    """Write the average of the weights in place of the weights, and no optimizer state."""

    def __post_init__(self) -> None:
        if self.dtype not in WIRE_DTYPES:
            raise ConfigError(f"dtype: {self.dtype!r} is not one of {', '.join(WIRE_DTYPES)}")
        if self.shard_bytes < 1:
            raise ConfigError(f"shard_size: must be above 0, got {self.shard_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The result of an export."""

    path: Path
    step: int
    weights_digest: str
    files: dict[str, int]
    """Bytes of each file of tensors."""
    buffer_bytes: int
    """Most bytes of buffers between source and files."""
    seconds: float

    @property
    def nbytes(self) -> int:
        """Bytes of all files of tensors."""
        return sum(self.files.values())


def export_state(
    source: StateSource, out: Path, options: ExportOptions, *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Exported:  # fmt: skip
    """Write the export of a state to `out`, which must not exist; whole or not at all.

    Raises: ConfigError; StateError if the source is damaged; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(out)
    job = _Job(source, options)
    check_space(out, sum(shard.nbytes for shard in job.shards) + _LUWU_JSON_BYTES)
    with making_directory(out) as new:
        new.mkdir()
        document = job.write(new, should_stop)
        write_synced(new / FILE, document.to_json().encode())
    return Exported(
        path=out,
        step=document.step,
        weights_digest=document.weights_digest,
        files={shard.name: shard.nbytes for shard in job.shards},
        buffer_bytes=job.buffer_bytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )


class _Job:
    """One export: which tensors there are, and their bytes."""

    def __init__(self, source: StateSource, options: ExportOptions) -> None:
        if options.average:
            options = replace(options, has_optimizer=False)
        self._source, self._options = source, options
        self._layout = source.description.layout
        chunk_bytes = max(chunk.sum_bytes for chunk in self._layout.chunks)
        narrow_bytes = 0 if options.dtype == "float32" else 16 * SLICE_ELEMS
        self._beside_bytes = narrow_bytes + WRITE_BYTES
        self._buffers_count = buffers_count(
            options.memory_budget_bytes, chunk_bytes, beside_bytes=self._beside_bytes
        )
        self.buffer_bytes = 0
        """Most that were taken."""
        self._updates = self._read_updates()
        dtype = DTYPES[options.dtype].in_files
        weights = [Tensor(p.name, dtype, p.shape) for p in self._layout.parameters]
        self._weights = plan_shards(weights, MODEL, options.shard_bytes)
        self._states = self._plan_states() if options.has_optimizer else []
        states = [tensor for tensor, _, _ in self._states]
        self._optimizer = plan_shards(states, OPTIMIZER, options.shard_bytes)
        self.shards: Sequence[Shard] = (*self._weights, *self._optimizer)

    def write(self, directory: Path, should_stop: Callable[[], bool]) -> ExportDocument:
        """Write all files of tensors; what luwu.json is to say."""
        digest = WeightsDigest()
        with closing(self._weight_values(digest, should_stop)) as values:
            digests = write_tensors(directory, MODEL, self._weights, values)
        with closing(self._state_values(should_stop)) as values:
            digests |= write_tensors(directory, OPTIMIZER, self._optimizer, values)
        attached = {}
        for rank, data in self._source.attached().items() if self._options.has_optimizer else ():
            write_synced(directory / attached_name(rank), data)
            attached[str(rank)] = xxhash.xxh3_128_hexdigest(data)
        return ExportDocument(
            description=self._source.description,
            record=self._source.record,
            attempt=self._source.attempt,
            updates=self._updates,
            weights_digest=digest.hexdigest(),
            dtype=self._options.dtype,
            has_optimizer=self._options.has_optimizer,
            digests=digests,
            attached=attached,
        )

    def _weight_values(
        self, digest: WeightsDigest, should_stop: Callable[[], bool]
    ) -> Generator[memoryview, None, None]:
        """All weights, in slices, as they are written; their digest."""
        parameters = self._layout.parameters
        job, field = self._source.description, AVERAGE if self._options.average else WEIGHT
        wants = (
            Want(index, stored_field(job, field, trainable=parameter.trainable), *piece)
            for index, parameter in enumerate(parameters)
            for piece in self._layout.pieces(index)
        )
        with ThreadPoolExecutor(1, thread_name_prefix="luwu-digest") as hasher:
            for want, values in self._read(wants):
                check_running(should_stop)
                parameter = parameters[want.tensor]
                if not want.part.parameter_start:
                    digest.begin(parameter.name, parameter.dtype, parameter.shape)
                hashed = hasher.submit(digest.add, values)  # SHA-256 is slower than all the rest
                for part in _slices(values):
                    yield _narrowed(part, self._options.dtype, parameter.name)
                hashed.result()

    def _state_values(self, should_stop: Callable[[], bool]) -> Generator[memoryview, None, None]:
        """The optimizer's state, in slices."""
        wants = (
            Want(number, field, *piece)
            for number, (_, field, index) in enumerate(self._states)
            if field != STEP
            for piece in self._layout.pieces(index)
        )
        done = 0
        for want, values in self._read(wants):
            check_running(should_stop)
            yield from self._counts(done, want.tensor)
            done = want.tensor + 1
            for part in _slices(values):
                yield part.view(np.uint8).data
        yield from self._counts(done, len(self._states))

    def _read(self, wants: Iterator[Want]) -> Iterator[tuple[Want, F32Array]]:
        ahead = ReadAhead(self._source, wants, self._buffers_count)
        yield from ahead
        self.buffer_bytes = max(self.buffer_bytes, ahead.taken_bytes + self._beside_bytes)

    def _counts(self, start: int, stop: int) -> Iterator[memoryview]:
        """Those of tensors `start` to `stop` that count updates: scalars, as torch has them."""
        for _, field, index in self._states[start:stop]:
            if field == STEP:
                yield memoryview(np.float32(self._updates[index] or 0).tobytes())

    def _plan_states(self) -> list[tuple[Tensor, str, int]]:
        """(tensor, our field, parameter), in order."""
        return [
            (Tensor(name, "F32", () if field == STEP else parameter.shape), field, index)
            for index, parameter in enumerate(self._layout.parameters)
            for name, field in state_tensors(self._source.description, index, self._updates[index])
        ]

    def _read_updates(self) -> tuple[int | None, ...]:
        """How often each parameter was updated. Raises StateError if its pages disagree."""
        found: list[int | None] = [None] * len(self._layout.parameters)
        for chunk in self._layout.chunks:
            if not chunk.trainable:
                continue
            counts = np.zeros(self._layout.segments_count(chunk.index), np.int64)
            self._source.read_field(chunk.index, UPDATES, counts.view(np.uint8).data)
            segments = self._layout.segments(chunk.index)
            for segment, count in zip(segments, counts.tolist(), strict=True):
                before = found[segment.parameter]
                if before is not None and before != count:
                    name = self._layout.parameters[segment.parameter].name
                    raise StateError(
                        f"the pages of parameter {name} were updated {before} and {count} times; "
                        "all of them must have been as often. Restore the state from a checkpoint."
                    )
                found[segment.parameter] = count
        return tuple(found)


def _narrowed(values: F32Array, dtype: str, name: str) -> memoryview:
    """Float32 values as bytes of the dtype that is written: to nearest, ties to even, as torch.

    Without torch, whose import would take longer than many an export, and more than its budget.
    Raises ConfigError for a value of parameter `name` that the dtype cannot hold.
    """
    if dtype == "float32":
        return values.view(np.uint8).data
    out = np.empty(values.size, np.uint16)
    if dtype == "bfloat16":
        narrow(values, out, None, None)
    else:
        with np.errstate(over="ignore"):  # looked for below
            np.copyto(out.view(np.float16), values, casting="same_kind")
    is_lost = ((out & 0x7FFF) == _INFINITY[dtype]) & np.isfinite(values)
    if is_lost.any():
        raise ConfigError(
            f"dtype: parameter {name} has {values[is_lost][0]:g}, which is beyond {dtype}; export "
            "it in a wider one"
        )
    return out.view(np.uint8).data


def _slices(values: F32Array) -> Iterator[F32Array]:
    for start in range(0, values.size, SLICE_ELEMS):
        yield values[start : start + SLICE_ELEMS]
