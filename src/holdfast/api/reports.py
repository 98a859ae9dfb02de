"""The report that a sidecar posts, and the answer that it gets.

A sidecar sends what is new every few seconds, and a batch without entries when nothing is: that it lives. What was
not answered with 200 is sent again under the same number. An epoch's end is kept by the sidecar until an answer says
that it is in the job's status; a batch with the end of an epoch carries all earlier ones that are not, in order, so
that an operator that starts anew passes over none.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from holdfast.api.backup_runs import BackupProgress, WantedBackup
from holdfast.errors import HoldfastError

PATH = "/v1/report"
AUDIENCE = "holdfast.dev/reports"
LARGEST_BODY = 64 * 1024
# Where the kubelet and the node's agent call the sidecar.
SIDECAR_PORT = 8470
# The reason in the termination message of a sidecar that can bring nothing back from the image that it was given.
UNUSABLE_IMAGE = "UnusableImage"
MOST_ENTRIES = 256
MOST_METRICS = 64
# More than any training has, and exact in every reader's floating point.
_LARGEST = 2**53
# What the status holds is bounded as its schema says: one number beyond would keep the rest from being written.
LARGEST_EPOCH = 2**31 - 1
# Nothing is kept for longer: an entry that seems older was made before a clock was set.
OLDEST_S = 366 * 86400.0
# No number of a training is larger: what 32-bit floating point can't hold is an overflow.
_HUGE = 3.5e38

Count: TypeAlias = Annotated[int, Meta(ge=0, le=_LARGEST)]
Epoch: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_EPOCH)]
# Seconds since 1970 by the sidecar's own clock, which may be wrong.
Clock: TypeAlias = Annotated[float, Meta(ge=0, le=2.0**53)]
MetricName: TypeAlias = Annotated[str, Meta(max_length=64, pattern=r"\A[A-Za-z_][A-Za-z0-9_.:/-]*\Z")]
Metrics: TypeAlias = Annotated[
    dict[MetricName, Annotated[float, Meta(ge=-_HUGE, le=_HUGE)]], Meta(max_length=MOST_METRICS)
]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=253)]
CheckpointPath: TypeAlias = Annotated[str, Meta(max_length=2048, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
Outcome: TypeAlias = Literal["completed", "uploaded", "quarantined", "failed", "unrestored"]


class ProgressReport(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """Epochs and steps count from 1. Without a step the epoch has ended, and the metrics are its own."""

    epoch: Epoch
    total_epochs: Annotated[int, Meta(ge=1, le=LARGEST_EPOCH)] | None = None
    step: Count | None = None
    steps: Annotated[int, Meta(ge=1, le=_LARGEST)] | None = None
    """How many steps an epoch has."""
    metrics: Metrics = {}
    at: Clock

    @property
    def position(self) -> float:
        """How many epochs are done, with the part of the one under way as far as it is known."""
        if self.step is None:
            return float(self.epoch)
        part = min(self.step / self.steps, 1.0) if self.steps else 0.0
        return max(0, self.epoch - 1) + part


class CheckpointReport(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """What became of one: complete on its volume, in the object store too, found corrupt and put aside, not persisted,
    or not to be had when it was to be resumed from."""

    path: CheckpointPath
    epoch: Epoch
    """How many epochs were done when it was saved."""
    step: Count | None = None
    """How many batches of the next one were, where it was saved within an epoch."""
    outcome: Outcome
    reason: Annotated[str, Meta(max_length=1024)] = ""
    valid_count: Epoch | None = field(default=None, name="kept")
    """How many valid checkpoints there are now."""
    best: CheckpointPath | None = None
    """Which of these has the best metric; comes with `valid_count`."""
    at: Clock


class Resumed(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    path: CheckpointPath
    epoch: Epoch
    """How many epochs were done when it was saved."""


class WorkerReport(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    job: Name
    namespace: Name
    uid: Name
    attempt: Count
    index: Count
    run: Annotated[str, Meta(min_length=1, max_length=64)]
    """Which start of the sidecar this is: random, and new with each."""
    sequence: Annotated[int, Meta(ge=1, le=_LARGEST)]
    """Counts the batches of a run from 1; one that is sent again keeps its number."""
    sent_at: Clock
    progress: Annotated[tuple[ProgressReport, ...], Meta(max_length=MOST_ENTRIES)] = ()
    """In the order in which it was made."""
    checkpoints: Annotated[tuple[CheckpointReport, ...], Meta(max_length=MOST_ENTRIES)] = ()
    resumed: Resumed | None = None
    """What the attempt started from; in the first batch of a run."""
    saves_on_notice: bool = msgspec.field(default=False, name="heeds")
    """The training saves when it is asked to."""
    gpu_utilization_percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    """The mean over the GPUs of this worker; None while it is unknown."""
    backup: BackupProgress | None = None
    """How far a wanted backup is."""

    def age_s(self, entry: ProgressReport | CheckpointReport) -> float:
        """How old an entry was when the batch was sent: both times are of one clock, so that it need not be right."""
        return min(max(0.0, self.sent_at - entry.at), OLDEST_S)


class ReportReply(Struct, frozen=True, kw_only=True, rename="camel"):
    attempt: int
    """The job's current one."""
    attempt_over: bool = msgspec.field(name="over")
    """The caller's attempt has ended: nothing that it does counts any more."""
    is_graceful: bool = msgspec.field(default=False, name="orderly")
    """It has ended for another spec, or its job was deleted, and whoever is next begins when it is gone: what it saves
    until then counts."""
    stop: str = ""
    """Why the training is to save and end, in one word; "" while it is to go on."""
    ended_well: bool = False
    """The caller's training has ended, with exit code 0."""
    save: str = ""
    """Why the training is to save now and go on, in a sentence that differs from notice to notice; "" mostly."""
    recorded_epoch: int = msgspec.field(default=0, name="keptEpoch")
    """Epochs of this attempt up to here are in the job's status, and need not be sent again."""
    backup: WantedBackup | None = None
    """A run of a CheckpointBackup that the caller's sidecar is to carry out."""
    backup_withdrawn: bool = False
    """The run that the report tells about is not wanted any more."""


class NodeNotice(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the node's agent sends to each sidecar on its node when the cloud takes the node back."""

    node: Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
    deadline: Clock
    """When the node goes, in seconds since 1970. It tells one notice from another."""


def node_leaves_text(node_names: Sequence[str]) -> str:
    """Why a training is to save: the operator and the node's agent say the same, so that it saves once."""
    return f"node {', '.join(node_names)} is about to be taken back"


class TerminationReport(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """In the termination message of a sidecar: it is in the pod's status, and survives a lost connection."""

    attempt: Count
    checkpoint: Annotated[str, Meta(max_length=2048)] = ""
    """The newest that is persisted."""
    checkpoint_epoch: Epoch | None = None
    """How many epochs were done when it was saved."""
    lost: tuple[str, ...] = ()
    """Complete, and not persisted in time."""
    progress: ProgressReport | None = None


class InvalidReport(HoldfastError):
    """A report that can't be read, or that breaks a bound. Its own words are never part of the message."""


_decoder = msgspec.json.Decoder(WorkerReport)
_notice_decoder = msgspec.json.Decoder(NodeNotice)


def decode(body: bytes) -> WorkerReport:
    if len(body) > LARGEST_BODY:
        raise InvalidReport(f"the report is larger than {LARGEST_BODY} bytes: send it in parts")
    try:
        batch = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidReport(f"the report can't be read: {_fault(error)}") from None
    if len(batch.progress) + len(batch.checkpoints) > MOST_ENTRIES:
        raise InvalidReport(f"the report has more than {MOST_ENTRIES} entries: send it in parts")
    return batch


def decode_notice(body: bytes) -> NodeNotice:
    try:
        return _notice_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidReport(f"the notice can't be read: {_fault(error)}") from None


def _fault(error: Exception) -> str:
    if not isinstance(error, msgspec.ValidationError):
        return "it is not valid JSON"
    what, _, where = str(error).rpartition(" - at ")
    if not what:  # about the whole
        what, where = where, ""
    # Of msgspec's sentences these two speak of the type alone; others may quote the value.
    known = what.startswith(("Expected", "Object missing"))
    return (what if known else "a value that is not allowed") + (f" at {where}" if where else "")


# Where reports are to be posted, and whom to trust there: written by the leader into each job's ConfigMap.
#
# The file is replaced when another operator leads, so a sidecar reads it anew when it gets no answer.

FILE = "reports.json"


class InvalidEndpointFile(HoldfastError):
    """The file with the operator's address is not as it should be."""


class Endpoint(Struct, frozen=True, kw_only=True):
    url: str
    authority: str
    """The one certificate, in PEM, that the server at `url` shows."""


def encode_endpoint(endpoint: Endpoint) -> str:
    return msgspec.json.format(msgspec.json.encode(endpoint)).decode() + "\n"


def decode_endpoint(text: bytes) -> Endpoint:
    try:
        return msgspec.json.decode(text, type=Endpoint)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidEndpointFile(f"{FILE} does not say where to report: {error}") from None
