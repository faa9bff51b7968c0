"""The built-in GPT as a job: its layout, and the activations of its step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from luwu.base.config import RunConfig
from luwu.estimate.job import job_of
from luwu.estimate.shape import JobShape
from luwu.launch.serving import Sizes
from luwu.layout import Layout, Parameter, Unit
from luwu.wire.description import Description

if TYPE_CHECKING:
    from workers.gpt import GPTConfig
    from workers.options import Options

INDEX_BYTES: Final = 8
FLOAT32_BYTES: Final = 4
ROOT: Final = "root"
"""Name of the unit that holds all others."""


def gpt_job(config: RunConfig, sizes: Sizes, *, is_in_ram: bool) -> JobShape:
    """The job of `compare`. Raises ConfigError."""
    options = gpt_options(config)
    description = Description(
        layout=gpt_layout(options, config.data, sizes.chunk_bytes, sizes.extent_chunks),
        optimizer="adamw", state_fields=("m", "v"),
        update="streaming" if config.max_grad_norm is None else "at_step",
    )  # fmt: skip
    units = description.layout.units
    keeps_all = config.reshard_after_forward is False
    return job_of(
        config, description, is_in_ram=is_in_ram,
        stays=frozenset(i for i, unit in enumerate(units) if keeps_all or unit.name == ROOT),
        activation_bytes=activation_bytes(options.gpt(_vocab(config.data)), batch=options.batch),
    )  # fmt: skip


def gpt_options(config: RunConfig) -> Options:
    """Options for `workers/train.py`."""
    from workers.options import Options

    asked = {name: getattr(config, name) for name in ("layers", "width", "batch", "context")}
    return replace(
        Options(
            arm="luwu",
            dtype=config.dtype,
            state_dtype=config.state_dtype,
            master_dtype=config.master_dtype,
        ),
        **{name: value for name, value in asked.items() if value is not None},
    )


def parameters_count(config: RunConfig) -> int:
    """Parameters of the built-in GPT, counted without storage."""
    from workers.gpt import without_storage

    model = without_storage(gpt_options(config).gpt(_vocab(config.data)))
    return sum(parameter.numel() for parameter in model.parameters())


def gpt_layout(
    options: Options, data: Path | None, chunk_bytes: int, extent_chunks: int = 1
) -> Layout:
    """Where every parameter of the built-in GPT lies, as `fully_shard` of its blocks lays it out.

    The model is made without storage, and a text is not read: its vocabulary is bytes.
    """
    from torch import nn

    from workers.gpt import without_storage

    model = without_storage(options.gpt(_vocab(data)))
    names = [name for name, _ in model.named_parameters()]
    units: dict[str, list[int]] = {"root": []}
    for index, name in enumerate(names):
        parts = name.split(".")
        units.setdefault(".".join(parts[:2]) if parts[0] == "blocks" else "root", []).append(index)
    tables = {
        id(parameter)
        for module in model.modules() if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }  # fmt: skip

    def parameter(name: str, each: nn.Parameter) -> Parameter:
        stored = options.stored.of(each.numel(), is_embedding=id(each) in tables)
        return Parameter(
            name=name, shape=tuple(each.shape), wire_dtype=options.dtype,
            state_dtype=stored.state, master_dtype=stored.master,
        )  # fmt: skip

    return Layout(
        parameters=tuple(parameter(name, each) for name, each in model.named_parameters()),
        units=tuple(Unit(name=name, parameters=tuple(each)) for name, each in units.items()),
        chunk_bytes=chunk_bytes,
        extent_chunks=extent_chunks,
    )


def _vocab(data: Path | None) -> int:
    """Different tokens; a text is not read: its tokens are bytes."""
    from workers.data import BYTE_VOCAB, TOKEN_SUFFIX, load_corpus

    is_tokens = data is not None and data.suffix == TOKEN_SUFFIX
    return load_corpus(data).vocab if is_tokens else BYTE_VOCAB


def activation_bytes(config: GPTConfig, *, batch: int) -> int:
    """Bytes that autograd saves of a forward and its loss, of so many samples, and that backward
    takes beside them; no parameters.

    Backward has two gradients at a time, of what an operation gave and of what it took: as much as
    twice the largest tensor that is saved. Attention is the fused one, which workers have: it keeps
    no [B, H, T, T]. A forward on the meta device would count the same, but makes torch import its
    compiler, which takes more than a second.
    """
    tokens = batch * config.context
    ids = [INDEX_BYTES * tokens, INDEX_BYTES * config.context]
    loss = [FLOAT32_BYTES * tokens * config.vocab, FLOAT32_BYTES]
    saved = ids + _dropped(config, tokens) + _head(config, tokens) + loss
    for _ in range(config.layers):
        if config.checkpointing == "none":
            saved += _block(config, tokens)
        else:
            saved.append(tokens * config.width * config.dtype.itemsize)  # its input alone
    return sum(saved) + 2 * max(saved)


def _block(config: GPTConfig, tokens: int) -> list[int]:
    """Sizes of the tensors that the layers of a block save: the input of each norm and linear
    layer; of the fused attention its inputs, a logarithm per head, and its output, which is the
    input of the projection."""
    D = config.width
    width_bytes = tokens * D * config.dtype.itemsize
    attention = [
        width_bytes, 3 * width_bytes, FLOAT32_BYTES * tokens * config.heads, width_bytes,
        *_cast(config, 3 * D * D, D * D), *_dropped(config, tokens),
    ]  # fmt: skip
    mlp = [
        width_bytes, 4 * width_bytes, 4 * width_bytes,
        *_cast(config, 4 * D * D, 4 * D * D), *_dropped(config, tokens),
    ]  # fmt: skip
    return [*_norm(config, tokens), *attention, *_norm(config, tokens), *mlp]


def _head(config: GPTConfig, tokens: int) -> list[int]:
    """The last norm, and the layer of the logits."""
    taken = tokens * config.width * config.dtype.itemsize
    return [*_norm(config, tokens), taken, *_cast(config, config.width * config.vocab)]


def _norm(config: GPTConfig, tokens: int) -> list[int]:
    """Its input; a mean and a deviation per token."""
    size, D = config.dtype.itemsize, config.width
    return [tokens * D * size, tokens * size, tokens * size, *_cast(config, D, D)]


def _cast(config: GPTConfig, *elems: int) -> list[int]:
    """Copies of weights in the dtype of the computation; none where it is that of the weights."""
    size = config.dtype.itemsize
    return [] if size == FLOAT32_BYTES else [count * size for count in elems]


def _dropped(config: GPTConfig, tokens: int) -> list[int]:
    """The mask of a dropout; none where nothing is dropped."""
    return [tokens * config.width * config.dtype.itemsize] if config.dropout else []
