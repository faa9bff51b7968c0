"""Offsets of records in the side files, and the parts of them in the manifest.

A side file is a row of *bodies*, each a whole number of 4 KiB blocks, so that direct I/O can reach
any page and no two pages share a block (a write of one cannot tear the other). The rest of a page
is packed into the page table of the manifest:

    version, attempt, side            17 bytes
    xxh3-128 of each field            16 bytes per field
    tail: the end of the record       up to 256 bytes; for longer ends the body is rounded up

The table replaces page headers. Costs at the smallest chunk (4,096 elements, AdamW: a
record of 49,216 bytes, of which `updates` makes the last 64):

    header in the page, rounded to 4 KiB    53,248 bytes written      8.2 % more
    header in the page, rounded to 512 B    49,664                    0.9 %, pages share blocks
    this one                                49,152 + 2 copies of 145  0.5 %
    this one, chunks of 1 MiB gradient      3,145,728 + 2 x 145       0.01 %

A checksum beside the data detects torn and rotten bytes; a separate one also detects writes that
were lost or misdirected. A field can be read and verified without the rest of its record.
"""

from __future__ import annotations

from itertools import accumulate

from switch_emu.store.config import PageKind, StoreConfig
from switch_emu.store.direct_io import BLOCK_BYTES
from switch_emu.store.versions import TableShape

TAIL_BYTES_MAX = 256


def tail_bytes(kind: PageKind) -> int:
    """Bytes at the end of a record that lie in the page table."""
    tail = kind.record_bytes % BLOCK_BYTES
    return tail if tail <= TAIL_BYTES_MAX else 0


class Geometry:
    """Offsets and sizes of a store's configuration."""

    def __init__(self, config: StoreConfig) -> None:
        self.body_bytes = [kind.record_bytes - tail_bytes(kind) for kind in config.kinds]
        """Bytes of a record in the side file, per kind."""
        strides = [-(-body // BLOCK_BYTES) * BLOCK_BYTES for body in self.body_bytes]
        starts = [0, *accumulate(strides[kind] for kind in config.page_kinds)]
        self.offsets = starts[:-1]
        """First byte of each page's body in both side files."""
        self.side_bytes = max(starts[-1], 2 * BLOCK_BYTES)
        """Size of a side file; at least two blocks, for the probe of direct I/O."""
        tails = [tail_bytes(kind) for kind in config.kinds]
        self.table = TableShape(
            (len(config.kinds[kind].fields) for kind in config.page_kinds),
            (tails[kind] for kind in config.page_kinds),
        )
