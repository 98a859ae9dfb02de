"""Why a pod failed, and which of the five failure classes that is.

preemption and infrastructure are not the job's fault and cost nothing; outOfMemory, hang and application use up the
backoffLimit.
"""

import re
import signal
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec
from msgspec import Struct

from holdfast.api.core.objects import ContainerStateTerminated, Node, Pod
from holdfast.api.provisionedinstance import SPOT_NODE_LABEL
from holdfast.api.reports import UNUSABLE_IMAGE
from holdfast.pods.template import SIDECAR_CONTAINER
from holdfast.times import parse_time

FailureClass = Literal["preemption", "infrastructure", "outOfMemory", "hang", "application"]
# In the order in which they explain each other.
CLASSES: tuple[FailureClass, ...] = ("preemption", "infrastructure", "outOfMemory", "hang", "application")
FREE: tuple[FailureClass, ...] = ("preemption", "infrastructure")


class WorkerFailure(Struct, frozen=True, kw_only=True):
    cause: FailureClass
    message: str
    exit_code: int | None = None
    permanent: bool = False
    """A new attempt would fail in the same way."""
    node_stopped: bool = False
    """The node was shut down, or `holdfast up` was stopped: this is not part of a row of failures."""

    @property
    def is_free(self) -> bool:
        return self.cause in FREE


# How a container ended, as text, and whether its command was found at all.

# What the reference trainer writes as the reason of its termination message when a new attempt would fail in the same
# way. The bare exit code 2 proves nothing: argparse and a missing script end with 2 as well.
PERMANENT = "PermanentFailure"
MAX_TERMINATION_TEXT = 2048
# The shell reports a signal as exit code 128 + the number of the signal.
FROM_SIGNAL = 128
# Other signals, such as SIGCHLD, end no process.
FATAL = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ),
)
# A process that ends by these signals was stopped from outside: the last lines of its log do not explain the end.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_ERRORS = ("StartError", "ContainerCannotRun")
# 127 of a shell, and 128 of runtimes that give no reason.
NOT_FOUND_CODES = (127, 128)
# A program that ran for longer has found its command: a later command is missing.
AT_ONCE = timedelta(seconds=10)

# As runc, crun and the runner of `holdfast up` report it. Other start errors, such as those of a GPU's hook, may be
# temporary.
_NOT_FOUND = re.compile(
    r"(\bexec\b|executable file|can't run|working directory).*"
    r"(not found|no such file or directory|permission denied|exec format error|is a directory)",
    re.IGNORECASE | re.DOTALL,
)
# PyTorch puts the rank before each line of a traceback.
_RANK = re.compile(r"^\[\w+\]: ?", re.MULTILINE)
_FRAME = re.compile(r'\s+File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")


class TerminationReason(Struct, frozen=True):
    """A termination message with a reason."""

    reason: str
    message: str = ""


def exit_text(end: ContainerStateTerminated) -> str:
    """What follows the worker's name in a sentence."""
    number = killed_by(end)
    if number is not None and end.reason in ("", "Error"):
        return f"was killed ({number.name})"
    cause = f" ({end.reason})" if end.reason and end.reason != "Error" else ""
    return f"exited with code {end.exit_code}{cause}"


def killed_by(end: ContainerStateTerminated) -> signal.Signals | None:
    number = end.signal or end.exit_code - FROM_SIGNAL
    return next((each for each in FATAL if each == number), None)


def termination_text(end: ContainerStateTerminated) -> str:
    """The last message of the container, as far as it explains the end."""
    if killed_by(end) in FROM_OUTSIDE and end.reason in ("", "Error"):
        return ""
    termination = _termination_reason(end)
    text = termination.message if termination is not None and termination.message else end.message
    return traceback_gist(text) or text.strip()[-MAX_TERMINATION_TEXT:]


def is_permanent(end: ContainerStateTerminated) -> bool:
    """The container's own termination message declares the failure permanent."""
    termination = _termination_reason(end)
    return termination is not None and termination.reason == PERMANENT


def found_image_unusable(end: ContainerStateTerminated) -> bool:
    """The sidecar could bring nothing back from the image that it was given."""
    termination = _termination_reason(end)
    return termination is not None and termination.reason == UNUSABLE_IMAGE


def never_ran(end: ContainerStateTerminated) -> bool:
    """The command could not be found or executed."""
    if end.reason in START_ERRORS:
        return _NOT_FOUND.search(end.message) is not None
    if end.exit_code not in NOT_FOUND_CODES or not end.started_at or not end.finished_at:
        return False
    return parse_time(end.finished_at) - parse_time(end.started_at) <= AT_ONCE


def traceback_gist(text: str) -> str:
    """The last exception of a Python traceback and where it was raised; "" when there is no traceback.

    The location is in the user's own code, if the traceback has any of it.
    """
    frames: list[tuple[str, str]] = []
    exception = ""
    for line in _RANK.sub("", text).splitlines():
        frame = _FRAME.match(line)
        if frame is not None:
            if exception:
                frames, exception = [], ""
            frames.append((frame[1], frame[2]))
        elif frames and not exception and line[:1].strip():
            exception = line.strip()
    if not exception:
        return ""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    file, number = (own or frames)[-1]
    return f"{exception[:MAX_TERMINATION_TEXT]} ({file}:{number})"


def _termination_reason(end: ContainerStateTerminated) -> TerminationReason | None:
    if not end.message.startswith("{"):
        return None
    try:
        return msgspec.json.decode(end.message, type=TerminationReason)
    except (msgspec.MsgspecError, RecursionError):
        return None


# Messages of schedulers, kubelets and registries, made fit for a status: one line, no secrets, stable over retries.

MAX_MESSAGE = 1024

_RPC = re.compile(r"rpc error: code = \w+ desc = ")
# The sandbox and container ids of one try: the next try has others, and the message would change for ever.
_ID = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")
# Registries redirect to URLs that carry a signature, and a user may have written a password into a URL.
_QUERY = re.compile(r"(https?://[^\s\"?]+)\?[^\s\"]*")
_LOGIN = re.compile(r"(https?://)[^\s\"/]*@")


def sanitize(text: str) -> str:
    text = _LOGIN.sub(r"\1", _QUERY.sub(r"\1", _ID.sub("…", _RPC.sub("", text))))
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


# The failure of a pod, and its class.

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


# SIGTERM and SIGKILL: how a kubelet stops a container.
STOPPED_EXIT_CODES = (143, 137)


# Taints and conditions of a node that is about to be reclaimed, of holdfast and of the clouds.
PREEMPTED = "holdfast.dev/preempted"
PREEMPTION_TAINTS = (
    PREEMPTED,
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/rebalance-recommendation",
)


# Labels of spot nodes, of holdfast and of the clouds: cheap because the cloud may reclaim them.
# A spot node that goes was preempted.
SPOT = {
    SPOT_NODE_LABEL: "true",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


# Reasons that the kubelet writes into a pod that it rejected or evicted.
KUBELETS_REASONS = ("Evicted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost", "NodeAffinity")


ADMISSION_REASONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")


# Of these reasons, those that a kubelet writes at a node shutdown (KEP-2000), and `holdfast up` for pods that ran when
# it ended.
NODE_STOPPED = ("Terminated", "NodeShutdown", "NodeLost")


# Reasons of a container whose end was not seen: its node or its runtime was restarted.
UNSEEN_ENDS = ("ContainerStatusUnknown", "Unknown")


# Reasons of pods that the runner of `holdfast up` rejects because of their spec.
REFUSED = ("ImageNotRun", "VolumeNotSupported")


BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)


def could_not_start(pod: Pod) -> bool:
    end = failed_container(pod)
    return end is not None and never_ran(end)


def classify_failure(pod: Pod, nodes: Mapping[str, Node], *, collateral: bool) -> WorkerFailure | None:
    """The failure of a pod that has failed or is terminating.

    `collateral`: the Job controller deletes the other pods because one has failed.
    """
    if pod.status.phase == "Succeeded":
        return None
    end = failed_container(pod)
    taken = _taken_away(pod, nodes)
    if taken is not None:
        return taken
    if was_deleted_first(pod):
        if collateral:
            return None
        return WorkerFailure(cause="infrastructure", message=f"{worker_text(pod)} was deleted from outside")
    if end is None:
        why = sanitize(pod.status.message or pod.status.reason) or "without a word"
        return WorkerFailure(cause="application", message=f"{worker_text(pod)} failed: {why}")
    if end.reason == "OOMKilled":
        how = f"OOMKilled, exit code {end.exit_code}; raise resources.limits.memory"
        message = f"{worker_text(pod)} ran out of memory ({how})"
        return WorkerFailure(
            cause="outOfMemory", message=_with_termination_message(message, end), exit_code=end.exit_code
        )
    if end.reason in UNSEEN_ENDS:
        return WorkerFailure(cause="infrastructure", message=f"{_exited(pod, end)}: nobody saw how it ended")
    if pod.status.reason in REFUSED:
        message = f"{worker_text(pod)} can't run here: {sanitize(pod.status.message)}"
        return WorkerFailure(cause="application", message=message, permanent=True)
    if _init_container(pod, end):  # its code is not the training's own verdict
        return WorkerFailure(cause="application", message=_with_termination_message(_exited(pod, end), end))
    message = _with_termination_message(_exited(pod, end), end)
    return WorkerFailure(cause="application", message=message, exit_code=end.exit_code, permanent=is_permanent(end))


def _taken_away(pod: Pod, nodes: Mapping[str, Node]) -> WorkerFailure | None:
    """By the scheduler, by an eviction, by the kubelet, or together with the node itself."""
    node = nodes.get(pod.spec.node_name)
    condition = pod.condition("DisruptionTarget")
    reason = condition.reason if condition is not None else pod.status.reason
    if (
        condition is None
        and not reason.startswith(ADMISSION_REASONS)
        and reason not in (*KUBELETS_REASONS, "Preempting")
    ):
        return lost_with_node(pod, nodes)
    message = (condition.message if condition is not None else "") or pod.status.message
    because = sanitize(f"{reason}: {message}" if message else reason)
    if reason in ("PreemptionByScheduler", "Preempting"):
        return WorkerFailure(cause="preemption", message=f"{worker_text(pod)} was preempted ({because})")
    message = f"{worker_text(pod)} was taken away ({because})"
    return WorkerFailure(
        cause=failure_class_of_node(node), message=message, node_stopped=pod.status.reason in NODE_STOPPED
    )


def lost_with_node(pod: Pod, nodes: Mapping[str, Node]) -> WorkerFailure | None:
    """The end of a worker whose node is lost is unknown."""
    node = nodes.get(pod.spec.node_name)
    if not pod.spec.node_name or (node is not None and node.is_ready):
        return None
    state = "is gone" if node is None else "is not ready"
    return WorkerFailure(cause=failure_class_of_node(node), message=f"{worker_text(pod)} was lost: its node {state}")


def failure_class_of_node(node: Node | None) -> FailureClass:
    """A pod that fails with a reclaimed or spot node was preempted."""
    if node is None:
        return "infrastructure"
    is_spot = any(node.metadata.labels.get(label) == value for label, value in SPOT.items())
    return "preemption" if is_spot or has_preemption_notice(node) else "infrastructure"


def has_preemption_notice(node: Node) -> bool:
    """Whether a taint or a condition of the node announces a preemption."""
    markers = {taint.key for taint in node.spec.taints}
    markers |= {condition.type for condition in node.status.conditions if condition.status == "True"}
    return not markers.isdisjoint(PREEMPTION_TAINTS)


def was_deleted_first(pod: Pod) -> bool:
    """Whether the pod was deleted before it ended by itself."""
    if not pod.is_terminating:
        return False
    end = failed_container(pod)
    if end is None or not end.finished_at or deletion_requested_at(pod) <= parse_time(end.finished_at):
        return True
    return is_being_removed(pod) and _was_stopped(end)


def is_being_removed(pod: Pod) -> bool:
    """The pod has ended and the kubelet deletes it without grace: the timestamp moves and proves nothing any more."""
    return pod.is_finished and not pod.metadata.deletion_grace_period_seconds


def _was_stopped(end: ContainerStateTerminated) -> bool:
    return end.exit_code in STOPPED_EXIT_CODES and end.reason != "OOMKilled"


def deletion_requested_at(pod: Pod) -> datetime:
    """deletionTimestamp is the end of the grace period; the deletion was requested that much earlier."""
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return parse_time(pod.metadata.deletion_timestamp) - grace


def failed_at(pod: Pod) -> datetime:
    end = failed_container(pod)
    return parse_time(end.finished_at) if end is not None and end.finished_at else BEGINNING_OF_TIME


def failed_container(pod: Pod) -> ContainerStateTerminated | None:
    """How a container of the pod failed; an init container first, since the other containers did not start then.

    The sidecar is restarted when it fails, and stopped last: its end does not explain the end of the training.
    """
    first = (status for status in pod.status.init_container_statuses if status.name != SIDECAR_CONTAINER)
    statuses = (*first, *pod.status.container_statuses)
    ends = (status.state.terminated for status in statuses)
    return next((end for end in ends if end is not None and (end.exit_code or end.signal)), None)


def _exited(pod: Pod, end: ContainerStateTerminated) -> str:
    init = _init_container(pod, end)
    who = f"init container {init} of {worker_text(pod)}" if init else worker_text(pod)
    return f"{who} {exit_text(end)}"


def _init_container(pod: Pod, end: ContainerStateTerminated) -> str:
    """The init container that ended so; "" when the training itself did."""
    return next((each.name for each in pod.status.init_container_statuses if each.state.terminated is end), "")


def _with_termination_message(message: str, end: ContainerStateTerminated) -> str:
    text = termination_text(end)
    return f"{message}: {text}" if text else message


def worker_text(pod: Pod) -> str:
    """The worker as people call it: worker 3 on gpu-7. A pod without an index is the only one."""
    on_node = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    number = pod.metadata.labels.get(INDEX_LABEL)
    return f"worker {number}{on_node}" if number is not None else f"its pod{on_node}"


def index_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(INDEX_LABEL, "")
    return int(text) if text.isdecimal() else -1
