"""Requests about the checkpoints of a job and their results, the same for work in this process and in a pod."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from holdfast.checkpoints.retention import Metric

# undigested: complete, but without a manifest so far. superseded: saved by a disconnected worker after a later attempt
# had resumed from an earlier checkpoint; used only if there is no other checkpoint.
State = Literal["valid", "undigested", "superseded", "unfinished", "damaged", "quarantined"]


class ListRequest(Struct, frozen=True, kw_only=True, tag="list"):
    """job: uid of the job; attempt: its current attempt; running: whether the job may be writing now.

    by: the metric that selects the best checkpoint.
    """

    job: str
    attempt: int
    running: bool
    by: Metric = "loss"


class VerifyRequest(Struct, frozen=True, kw_only=True, tag="verify"):
    """Verify the checkpoints of one epoch, or all checkpoints."""

    epoch: int | None = None


class PruneRequest(Struct, frozen=True, kw_only=True, tag="prune"):
    """Retain the newest `keep` valid checkpoints and the best; without `delete`, only report what would be deleted."""

    job: str
    attempt: int
    keep: int
    delete: bool = False
    by: Metric = "loss"


class Which(Struct, frozen=True, kw_only=True):
    """Selects the checkpoint to download: the best by a metric, or the newest valid one, of all epochs or of one."""

    epoch: int | None = None
    best_by: Metric | None = None


Request: TypeAlias = ListRequest | VerifyRequest | PruneRequest


class CheckpointInfo(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", tag="saved"):
    """A checkpoint in the storage; `path` is relative to the folder of the job."""

    epoch: int
    attempt: int
    path: str
    state: State
    step: int | None = None
    """The finished batches of the epoch, for a checkpoint within an epoch."""
    bytes: int | None = None
    files: int | None = None
    workers: int | None = None
    saved_at: str | None = None
    reason: str = ""
    resumes: bool = False
    """Whether the next attempt would resume from this checkpoint."""
    metrics: dict[str, float] = {}
    best: bool = False
    """Whether it has the best metric of all valid checkpoints, so that it is retained beside the newest."""


class VerifyResult(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="verified"):
    """The result of reading all files; each sentence of `damage` is about one file."""

    saved: CheckpointInfo
    damage: tuple[str, ...] = ()


class PruneResult(Struct, frozen=True, kw_only=True, tag="doomed"):
    """A checkpoint that was deleted or would be deleted."""

    saved: CheckpointInfo
    deleted: bool


class RequestFailed(Struct, frozen=True, kw_only=True, tag="trouble"):
    """The request failed, with the reason."""

    message: str


class EndOfStream(Struct, frozen=True, kw_only=True, tag="end"):
    """The last message: a stream without it was interrupted."""


Fact: TypeAlias = CheckpointInfo | VerifyResult | PruneResult
Line: TypeAlias = Fact | RequestFailed | EndOfStream

_line_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
_request_decoder: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def encode(line: Line | Request) -> str:
    return msgspec.json.encode(line).decode()


def decode(text: bytes | str) -> Line:
    """Decode one line; raises a `MsgspecError` for any other text."""
    return _line_decoder.decode(text)


def decode_request(text: str) -> Request:
    return _request_decoder.decode(text)
