"""The five classes of failure.

preemption and infrastructure are nobody's fault and cost nothing; outOfMemory, hang and application use up the
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
from holdfast.times import parse_time

FailureClass = Literal["preemption", "infrastructure", "outOfMemory", "hang", "application"]
# In the order in which they explain each other.
CLASSES: tuple[FailureClass, ...] = ("preemption", "infrastructure", "outOfMemory", "hang", "application")
FREE: tuple[FailureClass, ...] = ("preemption", "infrastructure")
# The init container that runs beside the trainer.
SIDECAR = "holdfast-sidecar"


class WorkerFailure(Struct, frozen=True, kw_only=True):
    cause: FailureClass
    message: str
    exit_code: int | None = None
    permanent: bool = False
    """A new attempt would fail in the same way."""
    node_stopped: bool = False
    """Its node was shut down, or holdfast on this machine was: that is no part of a row of failures."""

    @property
    def is_free(self) -> bool:
        return self.cause in FREE


# How a container ended, in words, and whether its command was found at all.

# What the reference trainer writes as the reason of its termination message when a new attempt would fail in the same
# way. The bare exit code 2 says nothing: argparse and a script that is not there end with 2 as well.
PERMANENT = "PermanentFailure"
LONGEST = 2048
# From a signal the shell makes the exit code 128 + its number.
FROM_SIGNAL = 128
# Others, such as SIGCHLD, end no process.
FATAL = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGUSR1, signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGTERM, signal.SIGXCPU, signal.SIGXFSZ),
)
# Whoever ends by these was stopped by somebody else: the last lines of its log tell nothing about that.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
START_ERRORS = ("StartError", "ContainerCannotRun")
# A shell's 127, and 128 of runtimes that give no reason.
NOT_FOUND_CODES = (127, 128)
# A program that ran for longer has found its command: it is a later one that is missing.
AT_ONCE = timedelta(seconds=10)

# As runc, crun and this machine's own runner say it. Other start errors, such as those of a GPU's hook, may pass.
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


def how(end: ContainerStateTerminated) -> str:
    """What follows the worker's name in a sentence."""
    number = killed_by(end)
    if number is not None and end.reason in ("", "Error"):
        return f"was killed ({number.name})"
    cause = f" ({end.reason})" if end.reason and end.reason != "Error" else ""
    return f"exited with code {end.exit_code}{cause}"


def killed_by(end: ContainerStateTerminated) -> signal.Signals | None:
    number = end.signal or end.exit_code - FROM_SIGNAL
    return next((each for each in FATAL if each == number), None)


def words(end: ContainerStateTerminated) -> str:
    """What it said last, as far as that explains its end."""
    if killed_by(end) in FROM_OUTSIDE and end.reason in ("", "Error"):
        return ""
    told = _termination_reason(end)
    text = told.message if told is not None and told.message else end.message
    return traceback_gist(text) or text.strip()[-LONGEST:]


def is_permanent(end: ContainerStateTerminated) -> bool:
    """Its own termination message says so."""
    told = _termination_reason(end)
    return told is not None and told.reason == PERMANENT


def never_ran(end: ContainerStateTerminated) -> bool:
    """Its command could not be found or executed."""
    if end.reason in START_ERRORS:
        return _NOT_FOUND.search(end.message) is not None
    if end.exit_code not in NOT_FOUND_CODES or not end.started_at or not end.finished_at:
        return False
    return parse_time(end.finished_at) - parse_time(end.started_at) <= AT_ONCE


def traceback_gist(text: str) -> str:
    """The last exception of a Python traceback and where it was raised; "" when there is no traceback.

    The line is of the user's own code, if any of that is in the traceback.
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
    return f"{exception[:LONGEST]} ({file}:{number})"


def _termination_reason(end: ContainerStateTerminated) -> TerminationReason | None:
    if not end.message.startswith("{"):
        return None
    try:
        return msgspec.json.decode(end.message, type=TerminationReason)
    except (msgspec.MsgspecError, RecursionError):
        return None


# What schedulers, kubelets and registries say, made fit for a status: one line, no secrets, the same for every try.

LONGEST = 1024

_RPC = re.compile(r"rpc error: code = \w+ desc = ")
# The sandbox and container of one try: the next has others, and the message would change for ever.
_ID = re.compile(r"(?<!sha256:)\b[0-9a-f]{64}\b")
# Registries redirect to addresses that carry a signature, and somebody may have written a password into one.
_QUERY = re.compile(r"(https?://[^\s\"?]+)\?[^\s\"]*")
_LOGIN = re.compile(r"(https?://)[^\s\"/]*@")


def sanitize(text: str) -> str:
    text = _LOGIN.sub(r"\1", _QUERY.sub(r"\1", _ID.sub("…", _RPC.sub("", text))))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# Why a pod failed, and of which class that failure is.

INDEX_LABEL = "batch.kubernetes.io/job-completion-index"


# SIGTERM and SIGKILL: how a kubelet stops a container.
STOPPED_EXIT_CODES = (143, 137)


# Marks that a machine is about to be taken back, ours and the clouds' own.
PREEMPTION_TAINTS = (
    "holdfast.dev/preempted",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/rebalance-recommendation",
)


# Labels of machines that are cheap because they may be taken back: one of these that goes was preempted.
SPOT = {
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "eks.amazonaws.com/capacityType": "SPOT",
    "karpenter.sh/capacity-type": "spot",
    "kubernetes.azure.com/scalesetpriority": "spot",
}


# What the kubelet writes into a pod that it turned away or threw out.
KUBELETS_REASONS = ("Evicted", "NodeShutdown", "Shutdown", "Terminated", "NodeLost", "NodeAffinity")


ADMISSION_REASONS = ("UnexpectedAdmissionError", "TopologyAffinityError", "OutOf")


# Of these, what a kubelet writes when its node is shut down, and `holdfast up` for pods that ran when it ended.
NODE_STOPPED = ("Terminated", "NodeShutdown", "NodeLost")


# What stands in a container whose end nobody has seen: its machine or its runtime was started anew.
UNSEEN_ENDS = ("ContainerStatusUnknown", "Unknown")


# Of pods that the runner of one machine refuses as they are written.
REFUSED = ("ImageNotRun", "VolumeNotSupported")


BEGINNING_OF_TIME = datetime.min.replace(tzinfo=UTC)


def could_not_start(pod: Pod) -> bool:
    end = failed_container(pod)
    return end is not None and never_ran(end)


def classify_failure(pod: Pod, nodes: Mapping[str, Node], *, collateral: bool) -> WorkerFailure | None:
    """What became of a pod that has failed or was told to go.

    `collateral`: the Job controller is ending the others because one has failed.
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
    """By the scheduler, an eviction, the kubelet or with the machine itself."""
    node = nodes.get(pod.spec.node_name)
    told = pod.condition("DisruptionTarget")
    reason = told.reason if told is not None else pod.status.reason
    if told is None and not reason.startswith(ADMISSION_REASONS) and reason not in (*KUBELETS_REASONS, "Preempting"):
        return lost_with_node(pod, nodes)
    message = (told.message if told is not None else "") or pod.status.message
    because = sanitize(f"{reason}: {message}" if message else reason)
    if reason in ("PreemptionByScheduler", "Preempting"):
        return WorkerFailure(cause="preemption", message=f"{worker_text(pod)} was preempted ({because})")
    message = f"{worker_text(pod)} was taken away ({because})"
    return WorkerFailure(
        cause=failure_class_of_node(node), message=message, node_stopped=pod.status.reason in NODE_STOPPED
    )


def lost_with_node(pod: Pod, nodes: Mapping[str, Node]) -> WorkerFailure | None:
    """Nobody can say what became of a worker whose node is lost."""
    node = nodes.get(pod.spec.node_name)
    if not pod.spec.node_name or (node is not None and node.is_ready):
        return None
    state = "is gone" if node is None else "is not ready"
    return WorkerFailure(cause=failure_class_of_node(node), message=f"{worker_text(pod)} was lost: its node {state}")


def failure_class_of_node(node: Node | None) -> FailureClass:
    """Whoever loses its place on a machine that is being taken back was preempted."""
    if node is None:
        return "infrastructure"
    is_spot = any(node.metadata.labels.get(label) == value for label, value in SPOT.items())
    return "preemption" if is_spot or has_preemption_notice(node) else "infrastructure"


def has_preemption_notice(node: Node) -> bool:
    """It has a notice."""
    marks = {taint.key for taint in node.spec.taints}
    marks |= {condition.type for condition in node.status.conditions if condition.status == "True"}
    return not marks.isdisjoint(PREEMPTION_TAINTS)


def was_deleted_first(pod: Pod) -> bool:
    """Before it ended by itself."""
    if not pod.is_terminating:
        return False
    end = failed_container(pod)
    if end is None or not end.finished_at or deletion_requested_at(pod) <= parse_time(end.finished_at):
        return True
    return is_being_removed(pod) and _was_stopped(end)


def is_being_removed(pod: Pod) -> bool:
    """It has ended, and the kubelet deletes it without grace: its timestamp moves and tells nothing any more."""
    return pod.is_finished and not pod.metadata.deletion_grace_period_seconds


def _was_stopped(end: ContainerStateTerminated) -> bool:
    return end.exit_code in STOPPED_EXIT_CODES and end.reason != "OOMKilled"


def deletion_requested_at(pod: Pod) -> datetime:
    """deletionTimestamp is the end of the grace; it was asked for that much earlier."""
    grace = timedelta(seconds=pod.metadata.deletion_grace_period_seconds or 0)
    return parse_time(pod.metadata.deletion_timestamp) - grace


def failed_at(pod: Pod) -> datetime:
    end = failed_container(pod)
    return parse_time(end.finished_at) if end is not None and end.finished_at else BEGINNING_OF_TIME


def failed_container(pod: Pod) -> ContainerStateTerminated | None:
    """How a container of the pod failed; an init container before the others, since these did not start then.

    The sidecar is started anew when it fails, and stopped last: its end says nothing about the training.
    """
    first = (status for status in pod.status.init_container_statuses if status.name != SIDECAR)
    statuses = (*first, *pod.status.container_statuses)
    ends = (status.state.terminated for status in statuses)
    return next((end for end in ends if end is not None and (end.exit_code or end.signal)), None)


def _exited(pod: Pod, end: ContainerStateTerminated) -> str:
    init = _init_container(pod, end)
    who = f"init container {init} of {worker_text(pod)}" if init else worker_text(pod)
    return f"{who} {how(end)}"


def _init_container(pod: Pod, end: ContainerStateTerminated) -> str:
    """Which one ended so; "" when it was the training itself."""
    return next((each.name for each in pod.status.init_container_statuses if each.state.terminated is end), "")


def _with_termination_message(message: str, end: ContainerStateTerminated) -> str:
    said = words(end)
    return f"{message}: {said}" if said else message


def worker_text(pod: Pod) -> str:
    """As people call it: worker 3 on gpu-7; a pod without a number is alone."""
    place = f" on {pod.spec.node_name}" if pod.spec.node_name else ""
    number = pod.metadata.labels.get(INDEX_LABEL)
    return f"worker {number}{place}" if number is not None else f"its pod{place}"


def index_of(pod: Pod) -> int:
    text = pod.metadata.labels.get(INDEX_LABEL, "")
    return int(text) if text.isdecimal() else -1
