"""Links between processes: one interface, over ZeroMQ, shared memory or inside one process.

Only `luwu.transport` imports zmq; nothing here knows messages or the layout of a model.

    interface.py      the interface, what every transport promises (T1 to T6), and credit
    opening.py        the transport for endpoints, of both kinds where they are
    endpoints.py      endpoints as users write them
    inprocess.py      inside one process
    zeromq.py         over ZeroMQ: tcp and ipc
    sockets.py        ZeroMQ sockets, all their options, and their events
    connections.py    the listener: peers that connect to this process
    dialled.py        a peer that this process connects to
    lanes.py          frames to and from one peer, with credit and counters
    arrivals.py       connections of the listener as the kernel sees them
    curve.py          CURVE keys on sockets, and the handler that decides which may connect
    shm.py            over shared memory, on one host
    shared_links.py   one connection over shared memory: what is lent, given back and returned
    arena.py          shared memory: arenas of ours and of peers, and limits on them
    meetings.py       how two transports over shared memory meet
    notices.py        the bytes of their notices
    descriptors.py    file descriptors passed between processes
"""
