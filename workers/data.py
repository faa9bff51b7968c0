"""The data of the built-in job: tokens, and batches that are a pure function of numbers.

A sample is addressed by its global index: sample `i` starts at a place drawn from (seed, i). Step
`s` of `world_size` workers with `per_rank` samples each covers

    s * world_size * per_rank + [ rank 0's samples | rank 1's samples | ... ]

so one process that computes the global batch sees the workers' batches one after the other, and a
step that is replayed, by whomever, sees the same samples. Nothing is stored, nothing advances.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from luwu.base.errors import ConfigError
from luwu.base.seeds import derive
from workers.data_file import TOKEN_SUFFIX, check_data_file

TokenArray = npt.NDArray[np.integer[Any]]

BYTE_VOCAB = 256
_LEFT_OUT = frozenset({"test", "tests", "idlelib", "site-packages", "dist-packages"})
_SCAN_ELEMS = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A text as one flat row of tokens."""

    tokens: TokenArray
    """uint8, or uint16 mapped from its file."""

    vocab: int
    """256 for bytes, else one more than the largest token."""

    digest: str
    """SHA-256 of the bytes; every worker must read the same."""


def load_corpus(path: Path | None) -> Corpus:
    """The tokens of `--data`; without one, the source of Python's standard library.

    A file that ends in `.bin` holds little-endian uint16 tokens; any other is read as bytes.
    Raises: ConfigError if there is nothing to read.
    """
    if path is None:
        text = standard_library_source()
        tokens: TokenArray = np.frombuffer(text, dtype=np.uint8)
        return Corpus(tokens=tokens, vocab=BYTE_VOCAB, digest=hashlib.sha256(text).hexdigest())
    check_data_file(path)
    if path.suffix != TOKEN_SUFFIX:
        return _corpus_of(np.memmap(path, dtype=np.uint8, mode="r"), vocab=BYTE_VOCAB)
    return _corpus_of(np.memmap(path, dtype="<u2", mode="r"), vocab=None)


def standard_library_source() -> bytes:
    """The running Python's own `*.py` files in order of their paths: real text on every machine."""
    root = Path(sysconfig.get_path("stdlib"))
    names = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        place = Path(folder).relative_to(root)
        names += [(place / name).as_posix() for name in files if name.endswith(".py")]
    text = b"".join((root / name).read_bytes() for name in sorted(names))
    if not text:
        raise ConfigError(
            f"no Python source under {root} to train on (a stripped installation?); "
            "give a text file with --data PATH"
        )
    return text


def _corpus_of(tokens: TokenArray, *, vocab: int | None) -> Corpus:
    sha256 = hashlib.sha256()
    largest = 0
    for start in range(0, len(tokens), _SCAN_ELEMS):
        part = np.ascontiguousarray(tokens[start : start + _SCAN_ELEMS])
        sha256.update(part.data)
        if vocab is None:
            largest = max(largest, int(part.max()))
    return Corpus(tokens=tokens, vocab=vocab or largest + 1, digest=sha256.hexdigest())


class Batches:
    """Samples of `context` tokens, each a pure function of (seed, its global index)."""

    def __init__(self, tokens: TokenArray, *, context: int, seed: int) -> None:
        if len(tokens) < context + 1:
            raise ConfigError(
                f"the data has {len(tokens)} tokens, too few for one sample of context {context} "
                f"(it needs {context + 1}); give more with --data, or a smaller --context"
            )
        self._tokens = tokens
        self._context = context
        self._seed = seed

    def sample(self, index: int) -> tuple[Tensor, Tensor]:
        """Tokens and the tokens that follow them: two int64 tensors [T]."""
        places = len(self._tokens) - self._context
        start = derive(self._seed, "sample", index) % places
        text = np.asarray(self._tokens[start : start + self._context + 1], dtype=np.int64)
        return torch.from_numpy(text[:-1].copy()), torch.from_numpy(text[1:].copy())

    def batch(
        self, step: int, *, rank: int, world_size: int, per_rank: int
    ) -> tuple[Tensor, Tensor]:
        """One rank's samples of a step: two int64 tensors [per_rank, T]."""
        first = (step * world_size + rank) * per_rank
        samples = [self.sample(index) for index in range(first, first + per_rank)]
        return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])
