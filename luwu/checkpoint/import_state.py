"""Safetensors files -> a state directory, page by page; the state appears as a whole or not at all.

    an export       the state it was made from: weights, optimizer state, counts, the step's record
    weights alone   a fresh state at step 0 with these weights, for the model of another state

The files are checked before anything is made. Pages are put together in a bounded number of
buffers, from slices of the files, and written by a few threads. At the end the weights are read
back from the new pages, and their digest is compared with that of the export.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.digest import WeightsDigest
from luwu.base.errors import DamagedFileError
from luwu.base.making import check_absent, check_space, making_directory
from luwu.checkpoint.document import read_document
from luwu.checkpoint.origin import Origin, OriginFiles
from luwu.checkpoint.page_filler import PageFiller, filler_buffers
from luwu.checkpoint.pieces import pieces_of
from luwu.checkpoint.read_ahead import ReadAhead, Want
from luwu.checkpoint.source import RestingState, description_of
from luwu.wire.description import Description
from luwu.wire.stored import WEIGHT
from switch_emu.node.pages import store_config
from switch_emu.store import FilePageStore, StoreConfig, store_disk_bytes
from switch_emu.store.attachments import RECORD_KEY, AttachmentFiles
from switch_emu.store.directory import read_config
from switch_emu.store.striped import (
    node_count_of,
    node_directory,
    present_nodes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """The options of an import."""

    chunk_bytes: int | None = None
    """None: as the state had it that was exported, or that tells the layout."""
    memory_budget_bytes: int = 256 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The result of an import."""

    path: Path
    step: int
    weights_digest: str
    chunk_bytes: int
    nbytes: int
    """Bytes of the state, once."""
    seconds: float


def import_state(
    source: Path, state: Path, options: ImportOptions, *, like: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Imported:  # fmt: skip
    """Make the state directory `state`, which must not exist, from the files in `source`.

    `like`: a state directory or an export with the same model; the weights are then taken from any
    safetensors, and the optimizer starts afresh at step 0.
    Raises: ConfigError; DamagedFileError; StoreFullError; Interrupted.
    """
    started_ns = SYSTEM_CLOCK.now_ns()
    check_absent(state)
    if like is None:
        origin = Origin.of_export(read_document(source), source)
    else:
        origin = Origin.of_weights(description_at(like))
    description = _with_chunk(origin.description, options.chunk_bytes)
    config = store_config(description)
    with OriginFiles(source, origin, owner="this export" if like is None else str(like)) as files:
        buffers_count = filler_buffers(config, options.memory_budget_bytes)
        check_space(state, store_disk_bytes(config))
        with making_directory(state) as new:
            _make(new, config, description, files, buffers_count, should_stop)
            digest = _digest_of(new, buffers_count)
            if origin.weights_digest not in (None, digest):
                raise DamagedFileError(
                    f"{source}: the weights have the digest {digest}, the export records "
                    f"{origin.weights_digest!s:.80}; it changed after it was written. Get it "
                    "again."
                )
    return Imported(
        path=state,
        step=origin.record.version,
        weights_digest=digest,
        chunk_bytes=config.chunk_bytes,
        nbytes=config.state_bytes,
        seconds=(SYSTEM_CLOCK.now_ns() - started_ns) / 1e9,
    )


def description_at(path: Path) -> Description:
    """The job of a state directory, at rest or not, or of an export. Raises ConfigError."""
    count = node_count_of(path)
    if count is not None:
        present = (0,) if count == 1 else present_nodes(path)[1]
        configs = {n: read_config(node_directory(path, n, count)) for n in present}
        return description_of(configs, path)
    return read_document(path, is_whole=False).description


def _with_chunk(description: Description, chunk_bytes: int | None) -> Description:
    """The same job cut otherwise; a state that is imported is always that of one node."""
    layout = replace(description.layout, optimizer_nodes=1)
    if chunk_bytes is not None:
        layout = replace(layout, chunk_bytes=chunk_bytes)
    return replace(description, layout=layout)


def _make(
    path: Path, config: StoreConfig, description: Description, files: OriginFiles,
    buffers_count: int, should_stop: Callable[[], bool],
) -> None:  # fmt: skip
    """A store whose first version is that of the origin."""
    origin = files.origin
    record = origin.record
    with FilePageStore.create(path, config, first_version=record.version) as store:
        store.record_attempt(record.attempt)
        with PageFiller(store, description, files, buffers_count) as filler:
            filler.fill(should_stop)
        files.check_digests()
        record = replace(record, extra={**record.extra, **_keep(path, origin, config.chunk_bytes)})
        store.prepare(record)
        store.decide(record.version, record.attempt)
        store.record_attempt(origin.attempt)


def _keep(path: Path, origin: Origin, piece_bytes: int) -> dict[str, str]:
    """Put what ranks attached beside the state; what the step's record says of it."""
    if not origin.attached:
        return {}
    version, attempt = origin.record.version, origin.record.attempt
    with AttachmentFiles(path, synced=True, decided=None) as files:
        for rank, data in origin.attached.items():
            for piece, start in enumerate(range(0, len(data), piece_bytes)):
                part = memoryview(data)[start : start + piece_bytes]
                files.put(version, attempt, rank, piece, part)
        return {RECORD_KEY: files.seal(version, attempt)}


def _digest_of(path: Path, buffers_count: int) -> str:
    """The digest of the weights in a store (I3)."""
    digest = WeightsDigest()
    with RestingState(path) as state:
        layout = state.description.layout
        wants = (
            Want(index, WEIGHT, piece)
            for index in range(len(layout.parameters))
            for piece in pieces_of(layout, index)
        )
        for want, values in ReadAhead(state, wants, buffers_count):
            if not want.piece.parameter_start:
                parameter = layout.parameters[want.tensor]
                digest.begin(parameter.name, parameter.dtype, parameter.shape)
            digest.add(values)
    return digest.hexdigest()
