"""The live page of a run: `luwu status --serve PORT`.

    GET /           the page; its script fetches the sections every second
    GET /sections   what changes, as HTML, with an ETag: an unchanged one costs no bytes
    GET /status     the document, as JSON

It listens on loopback alone, and answers only requests whose Host is loopback, so that a page from
elsewhere cannot read it through a name that resolves to 127.0.0.1. It loads nothing from elsewhere,
and its Content-Security-Policy lets no browser do so.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Generic, TypeVar

from luwu.base.clock import SYSTEM_CLOCK
from luwu.base.errors import ConfigError
from luwu.base.loopback import bracketed
from luwu.monitor.watch import Watch
from luwu.report.page import live_html, sections_html

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SCRIPT: Final = """\
const sections = document.getElementById("sections"), heading = document.querySelector("h1");
let etag = "";
async function refresh() {
  try {
    const answer = await fetch("/sections", {headers: {"If-None-Match": etag}, cache: "no-store"});
    if (answer.status === 200) {
      const open = [...sections.querySelectorAll("details")].map(each => each.open);
      sections.innerHTML = await answer.text();
      sections.querySelectorAll("details").forEach((each, i) => { each.open = open[i] || false; });
      etag = answer.headers.get("ETag");
    }
    document.title = heading.textContent = sections.querySelector("[data-title]").dataset.title;
  } catch (error) {
    heading.textContent = "luwu status --serve has ended; this is what it showed last";
  }
  setTimeout(refresh, 1000);
}
refresh();
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    kind: str
    body: bytes

    @property
    def etag(self) -> str:
        return '"' + hashlib.sha256(self.body).hexdigest()[:16] + '"'


def serve_page(host: str, port: int, watch: Watch) -> tuple[int, Callable[[], None]]:
    """Answer requests in threads at an address of loopback; the port, and a function that ends it.

    Raises ConfigError if the port is taken.
    """
    try:
        server = _Server(host, port, watch)
    except OSError as exc:
        raise ConfigError(
            f"--serve: cannot listen at {bracketed(host)}:{port}: {exc.strerror}; give another "
            "port, or 0 for any that is free",
            code="E206",
        ) from exc
    thread = threading.Thread(target=server.serve_forever, name="luwu-page", daemon=True)
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, close


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, watch: Watch) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        self._fixed = {"/live.js": _Answer("text/javascript; charset=utf-8", SCRIPT.encode())}
        self._latest = Latest(lambda: _answers(watch))

    def find(self, path: str) -> _Answer | None:
        """What is at a path."""
        return self._fixed.get(path) or self._latest.get().get(path)


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    """Seconds until an idle connection is closed."""

    def do_GET(self) -> None:
        """Answer a request."""
        assert isinstance(self.server, _Server)
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in LOOPBACK:
            self._answer(HTTPStatus.FORBIDDEN, _Answer("text/plain", b"only for loopback\n"))
            return
        found = self.server.find(self.path.partition("?")[0])
        if found is None:
            self._answer(HTTPStatus.NOT_FOUND, _Answer("text/plain", b"no such page\n"))
        elif self.headers.get("If-None-Match") == found.etag:
            self._answer(HTTPStatus.NOT_MODIFIED, found)
        else:
            self._answer(HTTPStatus.OK, found)

    def log_message(self, *_: object) -> None:
        """Requests are not news."""

    def _answer(self, status: HTTPStatus, answer: _Answer) -> None:
        body = b"" if status is HTTPStatus.NOT_MODIFIED else answer.body
        self.send_response(status)
        headers = {
            "Content-Type": answer.kind, "Content-Length": str(len(body)),
            "ETag": answer.etag, "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        with contextlib.suppress(ConnectionError):  # the reader has gone
            self.end_headers()
            self.wfile.write(body)


def _answers(watch: Watch) -> dict[str, _Answer]:
    document = watch.document()
    sections = sections_html(document)
    return {
        "/": _Answer("text/html; charset=utf-8", live_html(document, sections).encode()),
        "/sections": _Answer("text/html; charset=utf-8", sections.encode()),
        "/status": _Answer("application/json", json.dumps(document).encode()),
    }


EVERY_NS: Final = 10**9
SHARE: Final = 0.02
"""Share of a core for making the document."""

T = TypeVar("T")


class Latest(Generic[T]):
    """A document, made when it is asked for and is too old; safe to ask from several threads.

    It is made at most once a second and never for more than a small share of a core: the longer it
    takes to make, the longer it is kept.
    """

    def __init__(self, make: Callable[[], T], now_ns: Callable[[], int] = SYSTEM_CLOCK.now_ns):
        self._make, self._now_ns = make, now_ns
        self._lock = threading.Lock()
        self._due_ns = 0
        self._made: T | None = None

    def get(self) -> T:
        """The document; made again if it is due."""
        with self._lock:
            begun_ns = self._now_ns()
            if self._made is None or begun_ns >= self._due_ns:
                self._made = self._make()
                took_ns = self._now_ns() - begun_ns
                self._due_ns = begun_ns + max(EVERY_NS, int(took_ns / SHARE))
            return self._made
