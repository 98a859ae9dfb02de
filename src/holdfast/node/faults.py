"""What a failed step means: one word for programs, and a sentence that says what would help."""

import re
from typing import Literal, NamedTuple

from holdfast.checkpoints.errors import CheckpointError, StorageFull
from holdfast.checkpoints.images.errors import (
    ArchiveRefused,
    DigestMismatch,
    InvalidImageReference,
    InvalidRegistrySecret,
    LayerTooLarge,
    PlainHttpRefused,
    RegistryError,
    RegistryForbidden,
    RegistryUnauthorized,
    RegistryUnreachable,
    RepositoryNotFound,
)
from holdfast.errors import HoldfastError

LONGEST_WORDS = 600
GPU_RESOURCES = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/")

FEATURE_GATE = "ContainerCheckpoint"
SIDECARS_MODE = "or use holdfast's sidecar and mode application, which needs nothing of the runtime"
GPU_HINT = (
    " The container has GPUs: CUDA state needs NVIDIA's driver 570 or newer, CRIU's CUDA plugin on the node, and no "
    "peer transport between GPUs."
)

_CRIU_MISSING = re.compile(
    r"criu.*(not found|no such file|not installed|not available|not enabled)|support (is )?not (available|enabled)",
    re.IGNORECASE | re.DOTALL,
)


# For conditions and metrics; docs/troubleshooting.md says of each what to do.
FailureReason = Literal[
    "AgentForbidden",
    "ArchiveRefused",
    "ArchiveUnreadable",
    "CheckpointDisabled",
    "CheckpointFailed",
    "CheckpointNotSupported",
    "CheckpointTimeout",
    "ContainerNotRunning",
    "ContainerUnknown",
    "CredentialRefused",
    "CredentialUnavailable",
    "CriuMissing",
    "DeadlineExceeded",
    "DigestMismatch",
    "DiskFull",
    "InternalError",
    "InvalidImageReference",
    "InvalidRegistrySecret",
    "KubeletForbidden",
    "KubeletUnauthorized",
    "KubeletUntrusted",
    "LayerTooLarge",
    "NoContainer",
    "NodeGone",
    "NodePreempted",
    "PlainHttpRefused",
    "PodGone",
    "PodNotHere",
    "PodNotRunning",
    "PodReplaced",
    "PushFailed",
    "RegistryForbidden",
    "RegistryRefused",
    "RegistryUnauthorized",
    "RegistryUnreachable",
    "RepositoryNotFound",
]


class RunFailure(NamedTuple):
    reason: FailureReason
    message: str


class RunFailed(HoldfastError):
    """The whole run can't go on, whatever the container."""

    def __init__(self, failure: RunFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class KubeletAnswer(NamedTuple):
    """A refusal of the kubelet."""

    status: int
    words: str


def kubelet_failure(answer: KubeletAnswer, *, node: str, container: str, is_known: bool, has_gpus: bool) -> RunFailure:
    """is_known: whether the pod with this uid is on the node and the container runs."""
    said = f"the kubelet of {node} answers {answer.status}: {words(answer.words)}"
    if answer.status == 401:
        return RunFailure(
            "KubeletUnauthorized",
            f"{said}; it does not accept the agent's token: start the kubelet with "
            "authentication.webhook.enabled: true, and look whether the token is that of this cluster",
        )
    if answer.status == 403:
        return RunFailure(
            "KubeletForbidden",
            f"{said}; bind the agent's service account to a ClusterRole with the verb create on nodes/checkpoint "
            "(manifests/node has both)",
        )
    if answer.status in (404, 405):
        if is_known:
            return RunFailure(
                "CheckpointDisabled",
                f"{said}; the container runs there, so the endpoint is off: switch the feature gate {FEATURE_GATE} "
                "of the kubelet on (it is on by default since Kubernetes 1.30) and enableDebuggingHandlers, too",
            )
        return RunFailure("ContainerUnknown", f"{said}; no container {container} of this pod runs on {node}")
    failure = _runtime_failure(said, answer.words)
    if has_gpus and failure.reason not in ("DiskFull", "CheckpointTimeout"):
        failure = failure._replace(message=failure.message + GPU_HINT)
    return failure


def is_passing(answer: KubeletAnswer) -> bool:
    """Whether the same call may go well a moment later: the runtime or the kubelet is just starting."""
    return answer.status in (429, 502, 503, 504) or (
        answer.status == 500 and bool(re.search(r"code = Unavailable|connection refused", answer.words))
    )


def _runtime_failure(said: str, text: str) -> RunFailure:
    if re.search(r"no space left|disk quota exceeded", text, re.IGNORECASE):
        return RunFailure("DiskFull", said)
    if re.search(r"not implemented|unimplemented|unknown method", text, re.IGNORECASE):
        return RunFailure(
            "CheckpointNotSupported",
            f"{said}; the container runtime can't checkpoint: use containerd 2.1 or newer, or CRI-O with "
            f"enable_criu_support, {SIDECARS_MODE}",
        )
    if _CRIU_MISSING.search(text):
        return RunFailure("CriuMissing", f"{said}; install CRIU 4 or newer on the node, {SIDECARS_MODE}")
    if re.search(r"deadline ?exceeded|timed? ?out|context canceled", text, re.IGNORECASE):
        return RunFailure(
            "CheckpointTimeout", f"{said}; the container has not been saved in time: raise spec.timeoutSeconds"
        )
    return RunFailure(
        "CheckpointFailed",
        f"{said}; CRIU's dump.log and the runtime's log on the node say what can't be saved: change that, "
        f"{SIDECARS_MODE}",
    )


def disk_failure(*, free: int, needed: int, where: str) -> RunFailure:
    """A disk that was full in the middle may have room again when it is looked at."""
    wanted = f"about {size_text(needed)} are needed" if needed > free else "more was needed a moment ago"
    return RunFailure(
        "DiskFull",
        f"{where} has {size_text(free)} free, and {wanted}: a checkpoint takes about three times its size; free space "
        "there, or use a larger disk",
    )


def deadline_failure(timeout_s: int, doing: str, obstacle: str = "") -> RunFailure:
    because = f" ({obstacle})" if obstacle else ""
    return RunFailure(
        "DeadlineExceeded",
        f"the run was not done within {timeout_s} s: it was {doing}{because}; raise spec.timeoutSeconds if that takes "
        "longer",
    )


def internal_failure(node: str) -> RunFailure:
    return RunFailure("InternalError", f"an error in holdfast: the log of the agent on {node} says more")


_REASONS: tuple[tuple[type[HoldfastError], FailureReason], ...] = (
    (ArchiveRefused, "ArchiveRefused"),
    (RegistryUnauthorized, "RegistryUnauthorized"),
    (RegistryForbidden, "RegistryForbidden"),
    (RepositoryNotFound, "RepositoryNotFound"),
    (LayerTooLarge, "LayerTooLarge"),
    (DigestMismatch, "DigestMismatch"),
    (RegistryUnreachable, "RegistryUnreachable"),
    (PlainHttpRefused, "PlainHttpRefused"),
    (InvalidRegistrySecret, "InvalidRegistrySecret"),
    (InvalidImageReference, "InvalidImageReference"),
    (RegistryError, "RegistryRefused"),
    (StorageFull, "DiskFull"),
)


def checkpoint_failure(error: CheckpointError) -> RunFailure:
    """Errors of archives, images and registries say themselves what would help."""
    reason: FailureReason = next((word for kind, word in _REASONS if isinstance(error, kind)), "PushFailed")
    return RunFailure(reason, str(error))


def words(text: str) -> str:
    """What another program said, on one line and cut."""
    line = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return f"{line[:LONGEST_WORDS]}…" if len(line) > LONGEST_WORDS else line or "nothing"


def size_text(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"
