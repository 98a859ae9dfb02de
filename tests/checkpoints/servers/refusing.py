"""A server that refuses every request in the way that it is told to, as S3 would."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


class Refusing:
    """Requests that write are answered with `status` and `code`; those that read, too, unless `reading` is allowed."""

    def __init__(self, status: int, code: str, *, reading: bool = False) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                allowed = reading and self.command == "GET"
                missing = allowed and "list-type" not in self.path
                answer = b"" if missing else EMPTY if allowed else body
                self.send_response(404 if missing else 200 if allowed else status)
                self.send_header("Content-Length", str(len(answer)))
                self.send_header("Content-Type", "application/xml")
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @contextmanager
    def running(self) -> Iterator["Refusing"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
