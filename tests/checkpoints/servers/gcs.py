"""What fake-gcs-server lacks of Google's XML API, in front of it: plain puts, uploads in parts, copies.

All else is passed on. An upload in parts becomes one put when it is completed; a copy becomes one of the JSON API.
"""

import http.client
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import NamedTuple

# The front takes puts as they are; the server takes them as signed ones, whose signature it does not check.
SIGNED = "X-Goog-Algorithm=GOOG4-RSA-SHA256"
NO_BUCKET = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code></Error>"


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Upload(NamedTuple):
    """In parts, and not complete yet."""

    headers: dict[str, str]
    parts: dict[int, bytes]


class GcsFront:
    def __init__(self, behind: int) -> None:
        self.behind = behind
        self.uploads: dict[str, Upload] = {}
        self._ids = count(1)
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                answer = front.answer(self.command, self.path, dict(self.headers.items()), body)
                self.send_response(answer.status)
                for name, value in answer.headers:
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                        self.send_header(name, value)
                if self.command == "HEAD":
                    length = next((value for name, value in answer.headers if name.lower() == "content-length"), "0")
                else:
                    length = str(len(answer.body))
                self.send_header("Content-Length", length)
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Nothing to say."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @contextmanager
    def running(self) -> Iterator["GcsFront"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        place, _, query = path.partition("?")
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        given = {name.lower(): value for name, value in headers.items()}
        if method == "POST" and "uploads" in asked:
            return self._begin(given)
        if "uploadId" in asked:
            return self._go_on(method, place, asked, body)
        if method == "PUT" and "x-goog-copy-source" in given:
            return self._copy(place, given["x-goog-copy-source"])
        if method == "PUT":
            return self._put(place, given, body)
        return self._no_bucket(self._pass_on(method, path, given, body))

    def _begin(self, headers: dict[str, str]) -> Answer:
        name = f"upload-{next(self._ids)}"
        self.uploads[name] = Upload(headers, {})
        text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
        return Answer(200, [], text.encode())

    def _go_on(self, method: str, place: str, asked: dict[str, list[str]], body: bytes) -> Answer:
        upload = self.uploads.get(asked["uploadId"][0])
        if upload is None:
            return Answer(404, [], b"<Error><Code>NoSuchUpload</Code></Error>")
        if method == "PUT":
            number = int(asked["partNumber"][0])
            upload.parts[number] = body
            return Answer(200, [("ETag", f'"{number}"')], b"")
        del self.uploads[asked["uploadId"][0]]
        if method == "DELETE":
            return Answer(204, [], b"")
        wanted = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        put = self._put(place, upload.headers, b"".join(upload.parts[number] for number in wanted))
        text = b'<CompleteMultipartUploadResult><ETag>"whole"</ETag></CompleteMultipartUploadResult>'
        return Answer(put.status, [], text)

    def _put(self, place: str, headers: dict[str, str], body: bytes) -> Answer:
        kept = {name: value for name, value in headers.items() if name.startswith(("x-goog-meta-", "content-type"))}
        done = self._no_bucket(self._pass_on("PUT", f"{place}?{SIGNED}", kept, body))
        return Answer(done.status, [("ETag", '"put"')], done.body if done.status >= 400 else b"")

    def _copy(self, place: str, source: str) -> Answer:
        bucket, _, key = urllib.parse.unquote(place).lstrip("/").partition("/")
        from_bucket, _, from_key = urllib.parse.unquote(source).lstrip("/").partition("/")
        quoted = [urllib.parse.quote(text, safe="") for text in (from_bucket, from_key, bucket, key)]
        path = "/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}".format(*quoted)
        return Answer(self._pass_on("POST", path, {"content-type": "application/json"}, b"{}").status, [], b"")

    def _pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.behind, timeout=60)
        try:
            headers = {name: value for name, value in headers.items() if name not in ("host", "content-length")}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    def _no_bucket(self, answer: Answer) -> Answer:
        """The server's own way to say it is not Google's."""
        if answer.status == 500 and b"no bucket named" in answer.body:
            return Answer(404, [("Content-Type", "application/xml")], NO_BUCKET)
        return answer
