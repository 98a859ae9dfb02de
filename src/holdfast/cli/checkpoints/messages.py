"""What is asked about a job's checkpoints and what is found, the same whether the work is done here or in a pod."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from holdfast.checkpoints.retention import Metric

# undigested: complete, and without a manifest so far. superseded: saved by a worker that was cut off, after a later
# attempt had begun further back; it counts only if there is nothing else.
State = Literal["valid", "undigested", "superseded", "unfinished", "damaged", "quarantined"]


class ListRequest(Struct, frozen=True, kw_only=True, tag="list"):
    """job: its uid; attempt: the job's current one; running: whether it may be writing now.

    by: the metric that the best one is chosen by.
    """

    job: str
    attempt: int
    running: bool
    by: Metric = "loss"


class VerifyRequest(Struct, frozen=True, kw_only=True, tag="verify"):
    """Of one epoch, or of all."""

    epoch: int | None = None


class PruneRequest(Struct, frozen=True, kw_only=True, tag="prune"):
    """Keep the newest so many valid ones and the best; without `delete`, only say what would go."""

    job: str
    attempt: int
    keep: int
    delete: bool = False
    by: Metric = "loss"


class Which(Struct, frozen=True, kw_only=True):
    """The checkpoint that is downloaded: the best by a metric, or the newest valid one, of all epochs or of one."""

    epoch: int | None = None
    best_by: Metric | None = None


Request: TypeAlias = ListRequest | VerifyRequest | PruneRequest


class CheckpointInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag="saved"):
    """A checkpoint as it is found; `path` is below the job's own folder."""

    epoch: int
    attempt: int
    path: str
    state: State
    step: int | None = None
    """The batches of the epoch that are done, where it was saved within it."""
    bytes: int | None = None
    files: int | None = None
    workers: int | None = None
    saved_at: str | None = None
    reason: str = ""
    resumes: bool = False
    """Whether the next attempt would go on from it."""
    metrics: dict[str, float] = {}
    best: bool = False
    """Whether it has the best metric of all valid ones, so that it is kept beside the newest."""


class VerifyResult(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="verified"):
    """Everything of it was read; each sentence of `damage` is about a file."""

    saved: CheckpointInfo
    damage: tuple[str, ...] = ()


class PruneResult(Struct, frozen=True, kw_only=True, tag="doomed"):
    """What goes, or has gone."""

    saved: CheckpointInfo
    deleted: bool


class RequestFailed(Struct, frozen=True, kw_only=True, tag="trouble"):
    """Why the work could not be done."""

    message: str


class EndOfStream(Struct, frozen=True, kw_only=True, tag="end"):
    """Said last: what stops without it was interrupted."""


Fact: TypeAlias = CheckpointInfo | VerifyResult | PruneResult
Line: TypeAlias = Fact | RequestFailed | EndOfStream

_lines: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def encode(line: Line | Request) -> str:
    return msgspec.json.encode(line).decode()


def decode(text: bytes | str) -> Line:
    """Raises a `MsgspecError` for what is none."""
    return _lines.decode(text)


def decode_request(text: str) -> Request:
    return _requests.decode(text)
