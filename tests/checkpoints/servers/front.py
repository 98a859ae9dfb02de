"""A server of the tests' own: for what the real ones do not do, or not when a test wants it."""

import http.client
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

# Those that every answer gets anew.
OWN_HEADERS = ("transfer-encoding", "content-length", "connection", "date", "server")


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Front(ABC):
    """Every request is answered by `answer`."""

    def __init__(self) -> None:
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = front.answer(self.command, self.path, headers, body)
                self.send_response(answer.status)
                for name, value in answer.headers:
                    if name.lower() not in OWN_HEADERS:
                        self.send_header(name, value)
                said = next((value for name, value in answer.headers if name.lower() == "content-length"), "")
                is_head = self.command == "HEAD"
                self.send_header("Content-Length", said if is_head and said else str(len(answer.body)))
                self.end_headers()
                self.wfile.write(b"" if is_head else answer.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @abstractmethod
    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """The names of the headers are in lower case."""

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @contextmanager
    def running(self) -> Iterator[Self]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def passed_on(behind: int, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """What the server at the port `behind` says to it."""
    connection = http.client.HTTPConnection("127.0.0.1", behind, timeout=60)
    try:
        kept = {name: value for name, value in headers.items() if name not in ("host", "content-length")}
        connection.request(method, path, body, kept)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheaders(), answer.read())
    finally:
        connection.close()
