"""Where pages are kept: the interface, and stores in RAM, in files, and in files with a RAM tier.

Start reading at `interface.py` (what holds), then `file.py` (how), `manifest.py` (the format).
"""

from switch_emu.store.config import Field, PageKind, StoreConfig, check_config
from switch_emu.store.direct_io import aligned_buffer
from switch_emu.store.directory import store_disk_bytes
from switch_emu.store.file import FilePageStore
from switch_emu.store.interface import PageStore
from switch_emu.store.memory import MemoryPageStore
from switch_emu.store.pins import Pin
from switch_emu.store.records import (
    Contributor,
    DecidedStep,
    Durability,
    StaleAttempt,
    StoreStats,
    VersionMissing,
)
from switch_emu.store.tier import TieredPageStore

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
    "StoreStats",
    "TieredPageStore",
    "VersionMissing",
    "aligned_buffer",
    "check_config",
    "store_disk_bytes",
]
