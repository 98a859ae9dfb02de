"""A server of S3 that turns: from one moment on, whoever writes to it, or whoever asks, is refused."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Turning:
    """In front of the server at `behind`. `refuses` says which methods, with the code that S3 has for that."""

    def __init__(self, behind: int) -> None:
        self.refuses: dict[str, str] = {}
        self.refused = 0
        turning = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if code := turning.refuses.get(self.command):
                    turning.refused += 1
                    self._answer(403, [], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
                    return
                server = http.client.HTTPConnection("127.0.0.1", behind, timeout=30)
                try:
                    server.request(self.command, self.path, body, dict(self.headers.items()))
                    answer = server.getresponse()
                    self._answer(answer.status, answer.getheaders(), answer.read())
                finally:
                    server.close()

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                length = dict(headers).get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def turn_read_only(self) -> None:
        self.refuses = dict.fromkeys(("PUT", "POST", "DELETE"), "AccessDenied")

    @contextmanager
    def running(self) -> Iterator["Turning"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
