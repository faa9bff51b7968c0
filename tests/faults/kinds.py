"""The kinds of faults that a run is made to survive, by number.

Each has a scenario, most of them in this directory, marked `faults(number)`: `pytest -m faults`
runs all of them, with tests elsewhere that show the same kind in another way. docs/reliability.md
is the table for people.
"""

from __future__ import annotations

from typing import Final

KINDS: Final = {
    1: "a worker is killed while it pushes",
    2: "a worker is killed between its last push and the decision",
    3: "a worker hangs",
    4: "a worker comes back",
    5: "workers are added",
    6: "workers are taken away",
    7: "the switch is killed",
    8: "the switch hangs, is replaced, and goes on",
    9: "the node is killed, at any call of its store",
    10: "the node hangs",
    11: "all processes are killed at once",
    12: "messages are lost",
    13: "messages are repeated",
    14: "messages overtake each other",
    15: "delays vary",
    16: "nothing passes, one way or both",
    17: "connections are reset, or half open",
    18: "bits of messages flip",
    19: "a write fails with EIO",
    20: "a flush fails with EIO",
    21: "the disk is full",
    22: "power is lost in the middle of writing",
    23: "writes are lost, or go elsewhere",
    24: "a page rots",
    25: "a copy of the store's records is damaged",
    26: "the disk stalls for five seconds",
    27: "an earlier start of a member speaks",
    28: "a peer has no key, or the wrong one",
    29: "messages are malformed",
    30: "a peer never reads",
    31: "the state of a node comes back older",
    32: "a switch or node dies before there are workers",
    33: "a clock is set back",
    34: "the run directory is full",
    35: "a process dies as the job ends",
    36: "the output is a closed pipe or terminal, or its disk is full",
}
