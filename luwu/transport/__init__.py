"""Links between processes: one interface, over ZeroMQ, shared memory or inside one process.

Only `luwu.transport` imports zmq; nothing here knows messages or the layout of a model.
"""

from luwu.base.limits import CREDIT_BYTES_DEFAULT
from luwu.transport.arena_limits import check_arena
from luwu.transport.inprocess import InProcessNetwork, InProcessTransport
from luwu.transport.interface import (
    BUFFERS_COUNT_MAX,
    LISTENER,
    Buffer,
    Counters,
    CreditExceeded,
    Delivery,
    PeerDown,
    PeerFailed,
    PeerGone,
    PeerUp,
    Received,
    SendHandle,
    Transport,
)
from luwu.transport.shm import ShmTransport
from luwu.transport.sockets import ZeroMqTiming
from luwu.transport.striped import StripedTransport
from luwu.transport.zeromq import ZeroMqTransport

__all__ = [
    "BUFFERS_COUNT_MAX",
    "CREDIT_BYTES_DEFAULT",
    "LISTENER",
    "Buffer",
    "Counters",
    "CreditExceeded",
    "Delivery",
    "InProcessNetwork",
    "InProcessTransport",
    "PeerDown",
    "PeerFailed",
    "PeerGone",
    "PeerUp",
    "Received",
    "SendHandle",
    "ShmTransport",
    "StripedTransport",
    "Transport",
    "ZeroMqTiming",
    "ZeroMqTransport",
    "check_arena",
]
