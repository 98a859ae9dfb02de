"""What operator and sidecar tell each other about one run of a CheckpointBackup in application mode.

The operator's answer to a report carries the wanted backup; the sidecar's reports carry how far it is.
"""

from typing import Annotated, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta, Struct

BackupState: TypeAlias = Literal[
    "accepted",  # the sidecar knows of it
    "saving",  # the training was asked to save
    "saved",  # there is a complete checkpoint
    "packing",
    "packed",  # the size of the layer is known
    "pushing",
    "pushed",
    "failed",
]
ORDER: tuple[BackupState, ...] = get_args(BackupState)
FINAL_STATES: frozenset[BackupState] = frozenset({"pushed", "failed"})

# Reasons of a failed run, for conditions.
MOST_REASON, MOST_MESSAGE = 64, 1024


class WantedBackup(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One run of one CheckpointBackup, and what its image says about itself."""

    namespace: str
    backup: str
    """Name of the CheckpointBackup."""
    uid: str
    run: int
    container: str
    """The training's container, whose state the checkpoint is."""
    registry_url: str
    repository: str
    tag: str
    plain_http: bool = False
    """Whether the operator lists the registry as one to be reached without TLS."""
    compression: Literal["none", "zstd"] = "none"
    seconds_left: float = 0.0
    """Until the run's deadline. Seconds, since clocks of nodes differ."""
    owner_uid: str
    owner_kind: str
    owner_name: str = ""
    replica: str = ""
    attempt: int | None = None
    pod_name: str = ""
    pod_uid: str = ""
    base_image: str = ""
    """The training's image with its digest, as far as it is known."""

    @property
    def is_of(self) -> tuple[str, int]:
        return self.uid, self.run


class BackupProgress(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """How far a run is. It is repeated until the run is no longer wanted."""

    uid: Annotated[str, Meta(min_length=1, max_length=64)]
    run: Annotated[int, Meta(ge=1, le=2**53)]
    state: BackupState
    message: Annotated[str, Meta(max_length=MOST_MESSAGE)] = ""
    """What is done or went wrong, in a sentence; also when a checkpoint is older than the request, and why."""
    reason: Annotated[str, Meta(max_length=MOST_REASON, pattern=r"\A[A-Za-z]*\Z")] = ""
    """Why it failed, in one word."""
    is_retryable: bool = msgspec.field(default=False, name="retryable")
    """Whether the next run may succeed though nobody changes anything."""
    image: Annotated[str, Meta(max_length=1024, pattern=r"\A[!-~]*\Z")] = ""
    """host/repository:tag, once it is pushed."""
    digest: Annotated[str, Meta(max_length=160, pattern=r"\A(sha256:[0-9a-f]{64})?\Z")] = ""
    """Of its manifest."""
    bytes: Annotated[int, Meta(ge=0, le=2**53)] = 0
    """Size of the layer, once it is packed."""
    checkpoint: Annotated[str, Meta(max_length=2048, pattern=r"\A[^\x00-\x1f\x7f]*\Z")] = ""
    """Path of the checkpoint, once there is one."""
    saved_at: Annotated[str, Meta(max_length=40)] = ""
    """When it was saved, as the training's node knows the time: RFC 3339."""

    @property
    def is_of(self) -> tuple[str, int]:
        return self.uid, self.run

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES
