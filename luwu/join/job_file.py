"""The job of a script in a file, which rank 0 writes as it joins; an estimate is made of it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from luwu.base.expendable import Expendable
from luwu.base.json_file import read_json, write_json
from luwu.wire.description import Description, parse_description

JOB_FILE: Final = "LUWU_JOB_FILE"
"""The variable that names the file; without it nothing is written."""


class ScriptJob(NamedTuple):
    """The job that a script joins."""

    description: Description
    stays: frozenset[int]
    """Units whose weights stay between forward and backward."""
    may_be_clipped: bool
    """Its optimizer has a `max_grad_norm`."""


def write_job(description: Description, stays: Collection[int], *, may_be_clipped: bool) -> None:
    """Write the job into the file that the environment names, if it names one."""
    name = os.environ.get(JOB_FILE)
    if name is None:
        return
    document = {
        "description": description.to_bytes().decode(), "stays": sorted(stays),
        "may_be_clipped": may_be_clipped,
    }  # fmt: skip
    with Expendable().writing(Path(name)):
        write_json(Path(name), document)


def read_job(file: Path, extent_chunks: int) -> ScriptJob | None:
    """The job in a file; None if there is none yet. `extent_chunks`: as the job has it."""
    found = read_json(file)
    if found is None:
        return None
    description = parse_description(found["description"].encode(), extent_chunks)
    return ScriptJob(description, frozenset(found["stays"]), found["may_be_clipped"])
