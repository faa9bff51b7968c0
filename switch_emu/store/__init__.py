"""Page stores: the interface, and stores in RAM, in files, and in files with a RAM tier.

Start with `interface.py` (the guarantees), then `file.py` (how), `manifest.py` (the format).

    interface.py    the guarantees of every page store (P1 to P9)
    memory.py       a store in RAM
    file.py         a store in a directory: two sides
    sums.py         a log of sums: what pages were updated with since they were written
    logged.py       a store in RAM, with a store in a directory and its log beside it
    versions.py     where each version of a page lies, the calls that are allowed, pinned versions
    manifest.py     the format of the superblock and the manifests
    geometry.py     offsets of records in the side files
    ring.py         a small record that is replaced often
    direct_io.py    reads and writes of whole blocks, past the page cache
    directory.py    the directory of a store, claimed, made whole or not at all
    config.py       fields, page kinds, the configuration that never changes
    around.py       a store around another: a RAM tier, an emulated disk
    spill.py        sums that do not fit in RAM
    attachments.py  attachments of workers to versions
    striped.py      the pages of several nodes, read as one state
    views.py        checked byte views of memory
    verify.py       checks whether a state is whole
    records.py      records of steps, errors
"""

from switch_emu.store.around import TieredPageStore
from switch_emu.store.config import Field, PageKind, StoreConfig
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.store.directory import store_disk_bytes
from switch_emu.store.file import FilePageStore
from switch_emu.store.interface import PageStore
from switch_emu.store.memory import MemoryPageStore
from switch_emu.store.records import (
    Contributor,
    DecidedStep,
    Durability,
    StaleAttempt,
    VersionMissing,
)
from switch_emu.store.versions import Pin

__all__ = [
    "Contributor",
    "DecidedStep",
    "Durability",
    "Field",
    "FilePageStore",
    "MemoryPageStore",
    "PageKind",
    "PageStore",
    "Pin",
    "StaleAttempt",
    "StoreConfig",
    "TieredPageStore",
    "VersionMissing",
    "aligned_buffer",
    "store_disk_bytes",
]
