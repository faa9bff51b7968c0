"""A star of plain ZeroMQ sockets with LuWu's fan-in and bytes, and no arithmetic: its ceiling.

Every worker sends its gradient to the hub, in frames of one size; when the hub has a frame from all
workers it sends every worker the weights of that frame. No copy but those ZeroMQ makes: frames are
sent from where they are, and received frames are kept as they came. With one worker it is a plain
pair.
"""

from __future__ import annotations

import struct
from typing import Any

import torch
import zmq

from benchmarks.exchange_model import Job, octets
from benchmarks.exchange_part import Document, Part
from luwu.transport.sockets import LOOPBACK_SEND_BYTES

IO_THREADS = 2
"""Of the hub; a connection is served by one."""
_INDEX = struct.Struct("<Q")


class _Star(Part):
    """Memory of one gradient or of all weights, seen as frames of one size."""

    def __init__(self, job: Job, rank: int, *, frame_bytes: int, values: torch.Tensor) -> None:
        super().__init__(job, rank)
        whole = octets(values.to(job.torch_dtype))
        self._frames = [
            whole[start : start + frame_bytes] for start in range(0, len(whole), frame_bytes)
        ]
        self._headers = [_INDEX.pack(index) for index in range(len(self._frames))]

    def _send(self, socket: zmq.Socket[bytes], index: int) -> None:
        socket.send(self._headers[index], zmq.SNDMORE)
        socket.send(self._frames[index], copy=False)


class Hub(_Star):
    """The middle: no gradient of its own, and all weights."""

    has_weights = False

    def __init__(self, job: Job, rank: int, *, endpoint: str, frame_bytes: int) -> None:
        values = torch.cat([job.initial(unit) for unit in range(len(job.unit_elems))])
        super().__init__(job, rank, frame_bytes=frame_bytes, values=values)
        self._context: zmq.Context[Any] = zmq.Context(IO_THREADS)
        self._sockets, self._endpoints = [], []
        for worker in range(job.workers):
            socket = _socket(self._context, endpoint)
            socket.bind(endpoint if endpoint.startswith("tcp") else f"{endpoint}-{worker}")
            self._sockets.append(socket)
            self._endpoints.append(socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def hello(self) -> Document:
        return {"endpoints": self._endpoints}

    def step(self) -> None:
        poller = zmq.Poller()
        for socket in self._sockets:
            poller.register(socket, zmq.POLLIN)
        seen = [0] * len(self._frames)
        left = len(self._frames) * len(self._sockets)
        while left:
            for socket, _ in poller.poll():
                index = _receive(socket)[0]
                left -= 1
                seen[index] += 1
                if seen[index] == len(self._sockets):
                    for other in self._sockets:
                        self._send(other, index)

    def leave(self) -> None:
        self._context.destroy(linger=0)


class Spoke(_Star):
    """A worker: sends its whole gradient, and holds what came back."""

    has_updates = False

    def __init__(self, job: Job, rank: int, *, endpoint: str, frame_bytes: int) -> None:
        values = torch.cat([job.gradient(rank, unit) for unit in range(len(job.unit_elems))])
        super().__init__(job, rank, frame_bytes=frame_bytes, values=values)
        self._context: zmq.Context[Any] = zmq.Context(1)
        self._socket = _socket(self._context, endpoint)
        self._socket.connect(endpoint)
        self._received: dict[int, zmq.Frame] = {}

    def step(self) -> None:
        self._received.clear()
        for index in reversed(range(len(self._frames))):
            self._send(self._socket, index)
        while len(self._received) < len(self._frames):
            index, frame = _receive(self._socket)
            self._received[index] = frame

    def weights(self, unit: int) -> torch.Tensor:
        """From the frames; they are the hub's first weights, which never change."""
        width = self.job.torch_dtype.itemsize
        start = sum(self.job.unit_elems[:unit]) * width
        stop = start + self.job.unit_elems[unit] * width
        frame_bytes = len(self._frames[0])
        first, last = start // frame_bytes, -(-stop // frame_bytes)
        whole = b"".join(self._received[index].buffer for index in range(first, last))
        values = bytearray(whole)[start - first * frame_bytes :]
        return torch.frombuffer(values, dtype=self.job.torch_dtype)[: self.job.unit_elems[unit]]

    def leave(self) -> None:
        self._context.destroy(linger=0)


def _socket(context: zmq.Context[Any], endpoint: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.linger = 0
    if endpoint.startswith("tcp"):
        socket.sndbuf = LOOPBACK_SEND_BYTES  # as LuWu's own have it
    return socket


def _receive(socket: zmq.Socket[bytes]) -> tuple[int, zmq.Frame]:
    (index,) = _INDEX.unpack(socket.recv())
    return index, socket.recv(copy=False)
