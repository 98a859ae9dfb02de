"""A server of S3 that turns: from one moment on, whoever writes to it, or whoever asks, is refused."""

from tests.checkpoints.servers.front import Answer, Front, passed_on
from tests.checkpoints.servers.refusing import refusal


class Turning(Front):
    """In front of the server at `behind`. `refuses` says which methods, with the code that S3 has for that."""

    def __init__(self, behind: int) -> None:
        super().__init__()
        self._behind = behind
        self.refuses: dict[str, str] = {}
        self.refused = 0

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if code := self.refuses.get(method):
            self.refused += 1
            return refusal(403, code)
        return passed_on(self._behind, method, path, headers, body)

    def turn_read_only(self) -> None:
        self.refuses = dict.fromkeys(("PUT", "POST", "DELETE"), "AccessDenied")
