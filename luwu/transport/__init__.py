"""Links between processes: one interface, over ZeroMQ, shared memory or inside one process.

Only `luwu.transport` imports zmq; nothing here knows messages or the layout of a model.

    interface.py      the interface, and what every transport promises (T1 to T6)
    opening.py        the transport for an endpoint
    endpoints.py      endpoints as users write them
    credits.py        the credit of a peer, in bytes
    inprocess.py      inside one process
    zeromq.py         over ZeroMQ: tcp and ipc
    sockets.py        ZeroMQ sockets and all their options
    connections.py    the listener: peers that connect to this process
    dialled.py        a peer that this process connects to
    lanes.py          frames to and from one peer, with credit and counters
    monitor.py        events of a ZeroMQ socket
    arrivals.py       connections of the listener as the kernel sees them
    curve.py          CURVE keys on sockets
    zap.py            the handler that decides which keys may connect
    shm.py            over shared memory, on one host
    shared_links.py   one connection over shared memory: what is lent and given back
    meetings.py       how two transports over shared memory meet
    notices.py        the bytes of their notices
    returns.py        buffers that peers lent, and their return
    arena_limits.py   limits of the machine on shared memory
    free_list.py      free stretches of an arena
    mapping.py        arenas mapped into this process
    descriptors.py    file descriptors passed between processes
    mixed.py          shared memory and sockets in one transport
"""

from luwu.base.limits import CREDIT_BYTES_DEFAULT
from luwu.transport.arena_limits import check_arena
from luwu.transport.inprocess import InProcessNetwork, InProcessTransport
from luwu.transport.interface import (
    BUFFERS_COUNT_MAX,
    LISTENER,
    Buffer,
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
from luwu.transport.zeromq import ZeroMqTransport

__all__ = [
    "BUFFERS_COUNT_MAX",
    "CREDIT_BYTES_DEFAULT",
    "LISTENER",
    "Buffer",
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
    "Transport",
    "ZeroMqTiming",
    "ZeroMqTransport",
    "check_arena",
]
