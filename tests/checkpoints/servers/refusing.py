"""A server that refuses every request in the way that it is told to, as S3 would."""

from tests.checkpoints.servers.front import Answer, Front

EMPTY = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
XML = [("Content-Type", "application/xml")]


class Refusing(Front):
    """Requests that write are answered with `status` and `code`; those that read, too, unless `reading` is allowed."""

    def __init__(self, status: int, code: str, *, reading: bool = False) -> None:
        super().__init__()
        self._refusal = refusal(status, code)
        self._reading = reading

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if not self._reading or method != "GET":
            return self._refusal
        return Answer(200, XML, EMPTY) if "list-type" in path else Answer(404, XML, b"")


def refusal(status: int, code: str) -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    return Answer(status, XML, body.encode())
