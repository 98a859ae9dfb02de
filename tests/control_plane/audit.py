"""What the API server was asked, by whom, in the order in which it answered."""

from pathlib import Path

import msgspec

READS = frozenset({"get", "list", "watch"})
REVIEWS = frozenset({"authentication.k8s.io", "authorization.k8s.io"})

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


class User(msgspec.Struct, frozen=True):
    username: str = ""  # nobody whom the server knows
    groups: tuple[str, ...] = ()


class Target(msgspec.Struct, frozen=True, rename="camel"):
    """What a request was about; empty if it was about no resource."""

    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    api_group: str = ""


class Answer(msgspec.Struct, frozen=True):
    code: int = 0


class Request(msgspec.Struct, frozen=True, rename="camel"):
    verb: str
    stage: str
    user: User
    uri: str = msgspec.field(name="requestURI")
    user_agent: str = ""
    target: Target = msgspec.field(name="objectRef", default=Target())
    answer: Answer = msgspec.field(name="responseStatus", default=Answer())

    @property
    def is_write(self) -> bool:
        """Whether it asks for a change of an object; a review of a token or of rights is a question."""
        return bool(self.target.resource) and self.verb not in READS and self.target.api_group not in REVIEWS

    @property
    def is_answer(self) -> bool:
        """Each request counts once: a watch when it begins, as it may never end, and most others when they are done.

        Of one that was refused for want of a login, the server writes down the beginning alone.
        """
        counts = "ResponseStarted" if self.verb == "watch" or not self.user.username else "ResponseComplete"
        return self.stage == counts


class AuditLog:
    """The server writes a request's line a moment after it has answered, so a test waits for what it expects."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(Request)

    def position(self) -> int:
        """Where the log ends now, to read on from later."""
        return self._path.stat().st_size if self._path.exists() else 0

    def requests(self, since: int = 0) -> list[Request]:
        with self._path.open("rb") as file:
            file.seek(since)
            whole, _, _ = file.read().rpartition(b"\n")  # the last line may be only half written
        return [request for line in whole.splitlines() if (request := self._decoder.decode(line)).is_answer]
