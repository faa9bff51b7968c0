"""From a job's description to its pages: the store's configuration and views of a record."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from luwu.aggregate.interface import F32Array
from luwu.base.digest import WeightsDigest
from luwu.base.dtypes import DTYPES
from luwu.base.errors import ConfigError
from luwu.layout import Layout, Share
from luwu.wire.description import Description
from luwu.wire.stored import BLOCK_ELEMS, NEVER_NEGATIVE, UPDATES, WEIGHT, scale_name, stored_fields
from switch_emu.node.kernels import kernel_name
from switch_emu.node.kernels.narrow import Stored, narrow, widen
from switch_emu.store import Field, PageKind, PageStore, StoreConfig
from switch_emu.store.striped import StripedPages

Pages = PageStore | StripedPages
"""Decided weights, by chunk: of one node, or of several."""


def store_config(description: Description, node: int = 0, replicas: int = 1) -> StoreConfig:
    """A node's pages of a job: one per owned chunk; trained ones with moments, frozen ones without.

    Raises ConfigError on all nodes if one of them owns no chunk: then none makes a store.
    """
    layout = description.layout
    chunks_count = len(layout.chunks)
    if not all(layout.stripe_chunks):
        together = ", those of each large matrix at one node" if layout.sheets else ""
        raise ConfigError(
            f"optimizer_nodes: the model has {chunks_count} chunk{'s'[: chunks_count != 1]}"
            f"{together}, too few for {layout.optimizer_nodes} nodes; give fewer"
            f"{', or a smaller --chunk' * (not together)}"
        )
    chunks = [layout.chunks[index] for index in Share(layout, node, replicas).chunks()]
    kernel = kernel_name(description.optimizer, description.state_fields)
    kinds: dict[tuple[object, ...], int] = {}
    built: list[PageKind] = []
    page_kinds: list[int] = []
    for chunk in chunks:
        segments_count = layout.segments_count(chunk.index)
        form, counted = chunk.form, segments_count if chunk.trainable else 0
        key = (chunk.trainable, chunk.elems, counted, form)
        if key not in kinds:
            kinds[key] = len(built)
            stored = stored_fields(description, chunk.index)
            name = f"{description.optimizer if chunk.trainable else 'frozen'}-{chunk.elems}"
            if chunk.trainable:
                name += f"-{segments_count}"
            if form.state != "float32" or form.master != "float32":
                name += f"-{form.master}-{form.state}"
            if form.whole:
                name += "-whole"
            built.append(PageKind(name, tuple(Field(*each) for each in stored)))
        page_kinds.append(kinds[key])
    return StoreConfig(
        kinds=tuple(built),
        page_kinds=tuple(page_kinds),
        page_elems=tuple(chunk.elems for chunk in chunks),
        optimizer=kernel,
        chunk_bytes=layout.chunk_bytes,
        layout_hash=node_layout_hash(description, node, replicas),
        description=description.to_bytes(),
    )


def node_layout_hash(description: Description, node: int, replicas: int) -> str:
    """The layout hash in a store's configuration; with several nodes, with the node."""
    count = description.layout.optimizer_nodes
    if count == 1:
        return description.hash
    of = f"{description.hash}, node {node} of {count}"
    return of if replicas == 1 else f"{of}, {replicas} replicas"


def field_view(kind: PageKind, record: memoryview, name: str) -> Stored:
    """One field of a record as it is stored, without a copy."""
    start, stop = kind.range(name)
    form = DTYPES[kind.dtype(name)].numpy
    found: Stored = np.frombuffer(record[start:stop], form)
    return found


def store_values(kind: PageKind, record: memoryview, name: str, values: F32Array) -> None:
    """Write float32 values into a field of a record, as it stores them, to the nearest."""
    into, scales = field_view(kind, record, name), None
    if into.itemsize == 1:
        scales = field_view(kind, record, scale_name(name))
    narrow(values, into, scales, None, is_unsigned=name in NEVER_NEGATIVE)


def read_values(
    read: Callable[[str, memoryview], None], dtype: str, name: str, into: memoryview
) -> None:
    """Fill `into`, float32, with what a page keeps of its weights or its state.

    `read` fills memory with a field as it is stored; `dtype`: that of this field.
    """
    if dtype == "float32":
        read(name, into)
        return
    out = np.frombuffer(into, np.float32)
    stored, scales = np.empty(out.size, DTYPES[dtype].numpy), None
    read(name, stored.view(np.uint8).data)
    if stored.itemsize == 1:
        scales = np.empty(out.size // BLOCK_ELEMS, np.float32)
        read(scale_name(name), scales.view(np.uint8).data)
    widen(stored, scales, out)


def read_content(
    read: Callable[[str, memoryview], None], kind: PageKind, name: str, into: memoryview
) -> None:
    """Fill `into` with a field that travels: values as `read_values` has them, or int64 [segments],
    the counts of updates."""
    if name != UPDATES:
        read_values(read, kind.dtype(name), name, into)
        return
    counts = np.empty(kind.fields[kind.index(UPDATES)].elems, np.int64)
    read(UPDATES, counts.view(np.uint8).data)
    np.frombuffer(into, np.int64)[:] = counts  # an older store has one for all segments


def weights_digest(store: Pages, layout: Layout) -> str:
    """The digest of the decided weights (I3): one definition for every arm."""
    assert store.decided is not None
    digest, chunk_now, weights = WeightsDigest(), -1, np.empty(0, np.float32)
    for index, parameter in enumerate(layout.parameters):
        digest.begin(parameter.name, parameter.dtype, parameter.shape)
        for chunk, part in layout.pieces(index):
            if chunk != chunk_now:
                box, chunk_now = layout.chunks[chunk], chunk
                weights = np.empty(box.elems, np.float32)
                read = partial(store.read_field, chunk, store.decided.version)
                read_values(read, box.form.master, WEIGHT, weights.view(np.uint8).data)
            digest.add(weights[part.chunk_start : part.chunk_start + part.elems])
    return digest.hexdigest()
