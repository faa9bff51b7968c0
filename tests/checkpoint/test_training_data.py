"""Data of a resumed run: what the guide shows goes on where it was; what cannot is refused."""

from __future__ import annotations

import re
import runpy
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.distributed import DistributedSampler

from luwu.base.errors import ConfigError
from luwu.training.state.attached import _stateful

PAGE = Path(__file__).resolve().parents[2] / "docs/training.md"
BATCHES_PER_EPOCH = 5


def run_guide(directory: Path, rank: int, first: int, steps: int) -> list[list[int]]:
    """The batches that the guide's loop trains on, from step `first` up to `steps`."""
    found = re.search(r"<!-- test: data -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    seen: list[list[int]] = []
    names = {
        "DistributedSampler": DistributedSampler, "DataLoader": DataLoader, "islice": islice,
        "BatchSampler": BatchSampler, "data": torch.arange(2 * 3 * BATCHES_PER_EPOCH + 1),
        "batch_size": 3, "steps": steps, "optimizer": SimpleNamespace(next_step=first),
        "luwu": SimpleNamespace(world_size=lambda: 2, rank=lambda: rank),
        "train": lambda x: seen.append(x.tolist()),
    }  # fmt: skip
    script = directory / "guide.py"
    script.write_text(found[1])
    runpy.run_path(str(script), init_globals=names)
    return seen


@pytest.mark.feature("a DistributedSampler and a resumed run")
@pytest.mark.parametrize("first", [0, 1, 4, 5, 7, 11, 12])
@pytest.mark.parametrize("rank", [0, 1])
def test_the_guide_goes_on_with_the_data(tmp_path: Path, rank: int, first: int) -> None:
    """Goal: whichever step a run is resumed at, the batches are those of a run that never ended;
    within an epoch none comes twice, at any rank."""
    whole = run_guide(tmp_path, rank, 0, 12)
    assert len(whole) == 12
    assert run_guide(tmp_path, rank, first, 12) == whole[first:]
    epoch = [
        x
        for each in (0, 1)
        for batch in run_guide(tmp_path, each, 0, BATCHES_PER_EPOCH)
        for x in batch
    ]
    assert len(epoch) == len(set(epoch))


@pytest.mark.feature("a DistributedSampler and a resumed run")
def test_a_sampler_without_a_place_is_refused_with_what_works() -> None:
    """Goal: the message leads to the page, for samplers and loaders alike."""
    data = torch.arange(8)
    for thing in (DistributedSampler(data, 2, 0), DataLoader(data)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"place in the data from optimizer\.next_step"):
            _stateful("sampler", thing)
