"""Resources of a real switch that the running pool of slots would need.

A slot here holds a chunk, thousands of elements; a switch's pipeline sees packets of 64 to 256. So
a slot takes as many packet slots as its chunk has packets, and each of those has, in each copy, a
bitmap of its contributors and a counter beside its values (SwitchML: `bitmap_checker.p4`). Values
take 4 bytes, as integers do; the emulation itself keeps every contribution in float mode, until it
can add them in rank order, and that is reported beside it. Pure.
"""

from __future__ import annotations

import math
from typing import Any, Final

from switch_emu.switch.core.fixed_slots import COPIES, PoolRange

ELEMENT_BYTES: Final = 4
PACKET_ELEMS: Final = (64, 128, 256)
"""SwitchML's packets of 256 and 1,024 bytes (64 and 256 elements), and one between."""
WORD_BYTES: Final = 4
"""A bitmap is words of 32 contributors; a counter is one."""

_BLOCK_BYTES = 1024 * 128 // 8
_BLOCKS_PER_STAGE = 8 * 10


_STAGE_BYTES = _BLOCKS_PER_STAGE * _BLOCK_BYTES

CHIPS: Final = {"tofino1": 12 * _STAGE_BYTES, "tofino2": 20 * _STAGE_BYTES}
"""Programmable switches: the SRAM of one pipeline, all of it.

An upper bound for a pool: the tables of a program take part of it. A block is 1,024 words of
128 bits (forum.p4.org, topic 1399); a stage has 8 rows and 10 columns of blocks, a pipeline of
Tofino 12 stages and one of Tofino 2 20 (Intel's compiler, published in p4lang/p4c under
`backends/tofino/bf-p4c`: `memories.h`, `device.h`).
"""


def sram_bytes(pool: PoolRange, child_count: int, packet_elems: int) -> dict[str, int]:
    """The pool's share of a switch's memory, by use."""
    elems = pool.slot_bytes // ELEMENT_BYTES
    copies = pool.slot_count * COPIES
    packets = copies * math.ceil(elems / packet_elems)
    uses = {
        "values": copies * elems * ELEMENT_BYTES,
        "bitmaps": packets * math.ceil(child_count / 32) * WORD_BYTES,
        "counters": packets * WORD_BYTES,
    }
    return {**uses, "total": sum(uses.values())}


def pool_resources(pool: PoolRange, child_count: int) -> dict[str, Any]:
    """The resource report of a pool."""
    elems = pool.slot_bytes // ELEMENT_BYTES
    by_packet = {str(each): sram_bytes(pool, child_count, each) for each in PACKET_ELEMS}
    largest = by_packet[str(PACKET_ELEMS[-1])]["total"]
    return {
        "slots": pool.slot_count,
        "first_slot": pool.first_slot,
        "copies": COPIES,
        "elements_per_slot": elems,
        "packets_per_chunk": {str(each): math.ceil(elems / each) for each in PACKET_ELEMS},
        "sram_bytes": by_packet,
        "emulation_bytes": pool.bytes_max(child_count),
        "window_bytes": pool.window_bytes,
        "fits": {
            name: {
                "sram_bytes": nbytes,
                "is_held": largest <= nbytes,
                "slots_held": nbytes * pool.slot_count // largest,
            }
            for name, nbytes in CHIPS.items()
        },
    }


def window_of_link(
    pool: PoolRange, *, rate_bytes_per_s: float, round_trip_s: float
) -> dict[str, Any]:
    """The aggregation window beside a link's bandwidth x round trip: what keeps it full."""
    product = rate_bytes_per_s * round_trip_s
    return {
        "rate_bytes_per_s": rate_bytes_per_s,
        "round_trip_s": round_trip_s,
        "product_bytes": product,
        "window_bytes": pool.window_bytes,
        "is_enough": pool.window_bytes >= product,
        "slots_needed": max(1, math.ceil(product / pool.slot_bytes)),
    }
