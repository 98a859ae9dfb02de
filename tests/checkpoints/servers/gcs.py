"""What fake-gcs-server lacks of Google's XML API, in front of it: plain puts, uploads in parts, copies.

All else is passed on. An upload in parts becomes one put when it is completed; a copy becomes one of the JSON API.
"""

import re
import urllib.parse
from itertools import count
from typing import NamedTuple

from tests.checkpoints.servers.front import Answer, Front, passed_on

# The front takes puts as they are; the server takes them as signed ones, whose signature it does not check.
SIGNED = "X-Goog-Algorithm=GOOG4-RSA-SHA256"
NO_BUCKET = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code></Error>"


class Upload(NamedTuple):
    """In parts, and not complete yet."""

    headers: dict[str, str]
    parts: dict[int, bytes]


class GcsFront(Front):
    def __init__(self, behind: int) -> None:
        super().__init__()
        self.behind = behind
        self.uploads: dict[str, Upload] = {}
        self._ids = count(1)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        backend, _, query = path.partition("?")
        asked = urllib.parse.parse_qs(query, keep_blank_values=True)
        if method == "POST" and "uploads" in asked:
            return self._begin(headers)
        if "uploadId" in asked:
            return self._go_on(method, backend, asked, body)
        if method == "PUT" and "x-goog-copy-source" in headers:
            return self._copy(backend, headers["x-goog-copy-source"])
        if method == "PUT":
            return self._put(backend, headers, body)
        return self._no_bucket(passed_on(self.behind, method, path, headers, body))

    def _begin(self, headers: dict[str, str]) -> Answer:
        name = f"upload-{next(self._ids)}"
        self.uploads[name] = Upload(headers, {})
        text = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
        return Answer(200, [], text.encode())

    def _go_on(self, method: str, backend: str, asked: dict[str, list[str]], body: bytes) -> Answer:
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
        put = self._put(backend, upload.headers, b"".join(upload.parts[number] for number in wanted))
        text = b'<CompleteMultipartUploadResult><ETag>"whole"</ETag></CompleteMultipartUploadResult>'
        return Answer(put.status, [], text)

    def _put(self, backend: str, headers: dict[str, str], body: bytes) -> Answer:
        kept = {name: value for name, value in headers.items() if name.startswith(("x-goog-meta-", "content-type"))}
        done = self._no_bucket(passed_on(self.behind, "PUT", f"{backend}?{SIGNED}", kept, body))
        return Answer(done.status, [("ETag", '"put"')], done.body if done.status >= 400 else b"")

    def _copy(self, backend: str, source: str) -> Answer:
        bucket, _, key = urllib.parse.unquote(backend).lstrip("/").partition("/")
        from_bucket, _, from_key = urllib.parse.unquote(source).lstrip("/").partition("/")
        quoted = [urllib.parse.quote(text, safe="") for text in (from_bucket, from_key, bucket, key)]
        path = "/storage/v1/b/{}/o/{}/rewriteTo/b/{}/o/{}".format(*quoted)
        return Answer(passed_on(self.behind, "POST", path, {"content-type": "application/json"}, b"{}").status, [], b"")

    def _no_bucket(self, answer: Answer) -> Answer:
        """The server's own way to say it is not Google's."""
        if answer.status == 500 and b"no bucket named" in answer.body:
            return Answer(404, [("Content-Type", "application/xml")], NO_BUCKET)
        return answer
