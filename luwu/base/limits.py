"""Every cap of the protocol and the store in one place: what a peer may at most make us hold."""

from __future__ import annotations

from typing import Final

MIB: Final = 1024 * 1024

PROTOCOL_VERSION: Final = 18
"""Raised by any change that an older peer would misread."""

DATA_HEADER_BYTES_MAX: Final = 1024
CONTROL_HEADER_BYTES_MAX: Final = 4096

PAYLOAD_BYTES_MAX: Final = 64 * MIB
"""One frame: an extent, or a layout description. Larger ones are rejected by the configuration."""

CHUNK_COUNT_MAX: Final = 4 * 1024 * 1024
"""Chunks in one job: bounds what a hostile layout description can make a node hold."""

WORLD_SIZE_MAX: Final = 1024
"""Ranks in one job; contributor sets are bitmaps of this many bits."""

SEGMENTS_MAX: Final = 4096
"""Parameters with a part in one chunk, and segments of an extent: a push has a bit for each."""

TEXT_CHARS_MAX: Final = 940
"""Reasons and refusals; four bytes each and with all other fields they fit a control header."""

ALIGN_ELEMS: Final = 64
"""Every parameter starts on a multiple of this: vectorised kernels treat a tail differently."""

NORM_BLOCK_ELEMS: Final = 4096
"""Squares are summed over blocks of this many elements, counted from the unit's start."""

CLIPS_MAX: Final = 16
"""Calls of `clip_grad_norm_` in one step: the answer has the norm of each."""

FIELD_CHARS_MAX: Final = 64
"""Name of a field of a page's record."""

READERS_MAX: Final = 16
"""Versions a node holds for readers at once: each may take the space of the state on disk."""

READERS_OF_CONNECTION_MAX: Final = 4
"""Readers of one connection at most, so that one cannot take all places."""

TURN_MESSAGES_MAX: Final = 512
"""Messages that a switch or node handles before it looks at its timers again."""

TURN_BYTES_MAX: Final = 64 * MIB
"""Bytes of messages that it handles before."""

UNFLUSHED_BYTES_MAX: Final = MIB
"""Bytes of messages that a loop handles before its answers leave, which wait for one another."""

ZERO_COPY_BYTES_MIN: Final = 64 * 1024
"""A buffer of at least this is sent from where it lies, a smaller one as a copy: below, a copy is
cheaper than tracking (measured: 1 to 5 us against 15 to 22 us)."""

CREDIT_BYTES_DEFAULT: Final = 256 * MIB
"""Default limit of bytes queued to one peer."""

GRADIENT_BYTES: Final = 64 * MIB
"""Gradients that a worker has written and its parent has not received."""

ARENA_BYTES_MIN: Final = 64 * MIB
"""Shared memory that a process of a job must be able to make, where links are shm://."""

POOL_BYTES_DEFAULT: Final = 256 * MIB
"""Memory for a switch's slots, and as much for its copies of weights, where extents are not so
large that a few of them need more."""

QUEUED_MESSAGES_MAX: Final = 1024
"""Messages of one connection that a listener holds unread; what is beyond waits at its sender."""

UNJOINED_MESSAGES_MAX: Final = 100_000
"""Messages of a connection that has not joined. A worker that finds its switch started again
repeats all that is open, which is a push or pull for each extent, and joins then."""

MALFORMED_MESSAGES_MAX: Final = 3
"""Messages of one connection that cannot be read; it is heard no more after the last."""

KEEP_PIECES_MAX: Final = 1024
"""Pieces of what one worker keeps beside a step, each of at most a chunk."""

NODE_COUNT_MAX: Final = 64
"""Optimizer nodes of one job."""

CHUNK_BYTES_STEP: Final = 16 * 1024
"""`--chunk` is a multiple of this: 4,096 float32 elements, one block of the norm."""

INT64_MAX: Final = 2**63 - 1

COUNT_MAX: Final = 2**48
"""The highest count of steps, attempts, epochs or starts that a state from elsewhere may have: a
job that continues from it never overflows an integer of 64 bits."""

FILE_BYTES_MAX: Final = 64 * MIB
"""A file from elsewhere that is read whole: an export of 100,000 parameters describes itself in
less."""

LINE_BYTES_MAX: Final = 16 * MIB
"""A line of a file of any size: the units of a large model are on one."""

VALUES_MAX: Final = 2 * MIB
"""Values in such a file: each takes a hundred times its bytes in RAM."""

TOML_BYTES_MAX: Final = MIB
"""A file of a user: its parser is slow."""

DEPTH_MAX: Final = 64
"""How deep lists and tables may be nested in a file from elsewhere."""

assert DATA_HEADER_BYTES_MAX <= CONTROL_HEADER_BYTES_MAX < ZERO_COPY_BYTES_MIN < PAYLOAD_BYTES_MAX
assert PAYLOAD_BYTES_MAX <= TURN_BYTES_MAX  # a turn takes any message
assert PAYLOAD_BYTES_MAX <= GRADIENT_BYTES <= ARENA_BYTES_MIN  # one finds room, shared or not
assert PAYLOAD_BYTES_MAX + CONTROL_HEADER_BYTES_MAX <= CREDIT_BYTES_DEFAULT  # so does a message
assert PAYLOAD_BYTES_MAX <= POOL_BYTES_DEFAULT
