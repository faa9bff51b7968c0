"""A relay on the wire that sees what passes, and may change a bit of it."""

from __future__ import annotations

import socket
import threading

from luwu.transport.endpoints import TcpEndpoint


class Tap:
    """A relay that keeps what the first side sends, and may flip a bit of it."""

    def __init__(self, target: TcpEndpoint) -> None:
        self._target = (target.host, target.port)
        self._server = socket.create_server(("127.0.0.1", 0))
        host, port = self._server.getsockname()
        self.endpoint = str(TcpEndpoint(host, port, target.key))
        """Where to dial, with the key of the process behind it."""
        self.seen = bytearray()
        self.flip = False
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for each in self._open:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads[1:]:
            thread.join()
        for each in (*self._open, self._server):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for one, other, is_ours in ((near, far, True), (far, near, False)):
                self._threads.append(
                    threading.Thread(target=self._hand_on, args=(one, other, is_ours))
                )
                self._threads[-1].start()

    def _hand_on(self, one: socket.socket, other: socket.socket, is_ours: bool) -> None:
        try:
            while data := bytearray(one.recv(65536)):
                if is_ours and self.flip:
                    data[-1] ^= 1
                if is_ours:
                    self.seen += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass
