"""Tokens and batches of the built-in job."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from luwu.base.errors import ConfigError
from workers.data import Batches, load_corpus, standard_library_source


def test_built_in_text_is_python_source_and_repeatable() -> None:
    corpus = load_corpus(None)
    text = corpus.tokens.tobytes()
    assert len(text) > 2_000_000
    assert text.count(b"import ") > 1000
    assert corpus.vocab == 256
    assert corpus.digest == hashlib.sha256(standard_library_source()).hexdigest()


def test_files_are_bytes_of_text_or_tokens(tmp_path: Path) -> None:
    """Goal: a .bin file is uint16 tokens and says its vocabulary; any other is read as bytes."""
    tokens = np.array([5, 50256, 0, 7], dtype="<u2")
    text = np.frombuffer("größer".encode(), np.uint8)
    for name, values, vocab in (("text.txt", text, 256), ("tokens.bin", tokens, 50257)):
        path = tmp_path / name
        values.tofile(path)
        corpus = load_corpus(path)
        np.testing.assert_array_equal(corpus.tokens, values)
        assert isinstance(corpus.tokens, np.memmap)  # larger than memory is fine
        assert corpus.vocab == vocab
        assert corpus.digest == hashlib.sha256(path.read_bytes()).hexdigest()


def test_unusable_data_is_refused_with_what_to_do(tmp_path: Path) -> None:
    empty, odd = tmp_path / "empty.txt", tmp_path / "odd.bin"
    empty.write_bytes(b"")
    odd.write_bytes(b"abc")
    for path, found in [
        (tmp_path / "missing.txt", "does not exist; name a text file"),
        (tmp_path, "is a directory; name a text file"),
        (empty, "is empty; name a file"),
        (odd, "3 bytes, an odd number.*rename it"),
    ]:
        with pytest.raises(ConfigError, match=found):
            load_corpus(path)


def test_too_short_data_is_refused_and_just_enough_is_not() -> None:
    tokens = np.arange(9, dtype=np.uint8)
    with pytest.raises(ConfigError, match=r"9 tokens, too few .* needs 10.*smaller --context"):
        Batches(tokens, context=9, seed=0)
    x_T, y_T = Batches(tokens, context=8, seed=0).sample(123)
    assert x_T.tolist() == list(range(8))
    assert y_T.tolist() == list(range(1, 9))


def test_targets_are_the_next_tokens_and_all_places_are_used() -> None:
    tokens = np.arange(20, dtype=np.uint16)
    batches = Batches(tokens, context=4, seed=5)
    starts = set()
    for index in range(400):
        x_T, y_T = batches.sample(index)
        assert x_T.dtype == y_T.dtype == torch.int64
        torch.testing.assert_close(y_T, x_T + 1, rtol=0, atol=0)
        starts.add(int(x_T[0]))
    assert starts == set(range(16))


@pytest.mark.parametrize("step", [0, 1, 7])
def test_ranks_together_see_the_global_batch(step: int) -> None:
    """Goal: one process with the global batch sees what the workers see, in rank order.
    Method: compare the ranks' batches, asked for in another order, with one large batch."""
    tokens = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)
    workers = Batches(tokens, context=16, seed=9)
    by_rank = {r: workers.batch(step, rank=r, world_size=3, per_rank=4) for r in (2, 0, 1)}
    whole_x, whole_y = Batches(tokens, context=16, seed=9).batch(
        step, rank=0, world_size=1, per_rank=12
    )
    torch.testing.assert_close(torch.cat([by_rank[r][0] for r in range(3)]), whole_x)
    torch.testing.assert_close(torch.cat([by_rank[r][1] for r in range(3)]), whole_y)


def test_seed_and_step_change_the_samples() -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 5000).astype(np.uint8)

    def first(seed: int, step: int) -> list[int]:
        batches = Batches(tokens, context=16, seed=seed)
        return batches.batch(step, rank=0, world_size=2, per_rank=2)[0].flatten().tolist()

    assert first(1, 0) == first(1, 0)
    assert first(1, 0) != first(2, 0)
    assert first(1, 0) != first(1, 1)
