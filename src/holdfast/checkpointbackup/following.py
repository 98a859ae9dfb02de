"""Decides how the run under way goes on or ends. Pure functions: no I/O, no clock.

An agent writes the phases of its run itself; the operator ends what no agent can end. What a sidecar reports becomes
phases here.
"""

from collections.abc import Iterator
from datetime import datetime

from holdfast.api.backup_runs import ORDER, BackupProgress, BackupState
from holdfast.api.checkpointbackup import CheckpointBackupSpec, Phase
from holdfast.api.core.objects import Pod
from holdfast.checkpointbackup.actions import Action, AdvanceRun, DeletePod, EndRun, Explanation, FollowRun
from holdfast.checkpointbackup.due import DueRuns, due_runs
from holdfast.checkpointbackup.schedule import InvalidSchedule, parse_schedule
from holdfast.checkpointbackup.snapshot import POD_ENDED, BackupTiming, CheckpointBackupSnapshot

# The phase that follows from each state that a sidecar reports.
PHASE_OF: dict[BackupState, Phase] = {
    "accepted": "Checkpointing",
    "saving": "Checkpointing",
    "saved": "Checkpointed",
    "packing": "ImageBuilding",
    "packed": "ImageBuilt",
    "pushing": "ImagePushing",
    "pushed": "ImagePushed",
}
PHASES: tuple[Phase, ...] = tuple(dict.fromkeys(PHASE_OF[state] for state in ORDER if state in PHASE_OF))


def follow(observed: CheckpointBackupSnapshot, now: datetime, timing: BackupTiming) -> tuple[Action, ...]:
    due = _skipped(observed, now)
    if observed.status.mode == "application":
        return _follow_sidecar(observed, due, timing)
    status = observed.status
    if status.phase == "ImagePushed" and observed.backup.spec.stop_pod and not observed.has_external_agent:
        return (DeletePod(),)
    end = _lost_pod(observed) if status.phase is None else None
    if end is None and observed.node is None:
        end = Explanation(
            "NodeGone", f"node {status.node_name} is gone, and with it what was saved of run {status.run}"
        )
    if end is None:
        end = _overdue(observed, timing)
    if end is not None:
        return (EndRun("CompletedWithError" if status.built_images else "Failed", end),)
    is_late = observed.run_age_s >= timing.late_s
    return (FollowRun(due, _missing(observed) if is_late else None),)


def _skipped(observed: CheckpointBackupSnapshot, now: datetime) -> DueRuns:
    try:
        return due_runs(observed.backup, parse_schedule(observed.backup.spec), now)
    except InvalidSchedule:
        return DueRuns()  # changed meanwhile: it is refused when the run has ended


def _lost_pod(observed: CheckpointBackupSnapshot) -> Explanation | None:
    pod = observed.pod_of_run
    if pod is None:
        return Explanation("PodGone", f"pod {observed.pod_name} was deleted before it was saved")
    if pod.is_finished:
        return Explanation(POD_ENDED, f"pod {observed.pod_name} ended ({pod.status.phase}) before it was saved")
    return None


def _missing(observed: CheckpointBackupSnapshot) -> Explanation | None:
    """What keeps the run from going on, as far as the operator sees it."""
    status = observed.status
    where = f"run {status.run} waits for node {status.node_name}"
    if observed.node is not None and not observed.node.is_ready:
        return Explanation("NodeNotReady", f"{where}, which is not ready")
    if observed.has_external_agent:
        return None if status.phase else Explanation("AgentLate", f"{where}: the external agent there has not begun")
    if not observed.has_ready_agent:
        return Explanation(
            "NoAgent",
            f"{where}: no ready agent of holdfast is seen there; install it with kubectl apply -k manifests/node, or "
            "look at it with kubectl get pods -A -l app.kubernetes.io/name=holdfast-node -o wide",
        )
    return None  # it is there, and carries out one run at a time


def _overdue(observed: CheckpointBackupSnapshot, timing: BackupTiming) -> Explanation | None:
    """An agent that is there ends its run by itself, and needs a moment for it."""
    missing, timeout_s = _missing(observed), observed.backup.spec.timeout_seconds
    nobody_ends_it = missing is not None and missing.reason in ("NodeNotReady", "NoAgent")
    if observed.run_age_s < timeout_s + (0.0 if nobody_ends_it else timing.grace_s):
        return None
    passed = f"{seconds_text(observed.backup.spec)} have passed"
    if missing is not None:
        return Explanation(missing.reason, f"{missing.message}; {passed}")
    status = observed.status
    if status.phase is None:
        busy = f"the agent of node {status.node_name}, which carries out one run at a time, has not begun"
        return Explanation("AgentLate", f"{busy}; {passed}")
    return Explanation("DeadlineExceeded", f"run {status.run} stands at {status.phase}, and {passed}")


def seconds_text(spec: CheckpointBackupSpec) -> str:
    return f"the {spec.timeout_seconds} s of spec.timeoutSeconds"


# A run that the sidecar carries out.


def _follow_sidecar(observed: CheckpointBackupSnapshot, due: DueRuns, timing: BackupTiming) -> tuple[Action, ...]:
    progress, status = observed.progress, observed.status
    if observed.rejected_reason:
        return (EndRun("Failed", Explanation("Refused", observed.rejected_reason)),)
    if progress is not None and progress.state == "failed":
        return (EndRun("Failed", Explanation(progress.reason or "SaveFailed", progress.message or "the save failed")),)
    if status.phase == "ImagePushed":  # an operator that has died since knows no more than this
        return (_after_push(observed, status.message or ""),)
    if progress is not None and progress.state == "pushed":
        return (*_advances(observed, progress), _after_push(observed, progress.message or f"pushed {progress.image}"))
    end = _lost_pod(observed) or _silent_too_long(observed, timing)
    if end is not None:
        return (EndRun("Failed", end),)
    advances = tuple(_advances(observed, progress)) if progress is not None else ()
    if advances or progress is not None or observed.run_age_s < timing.late_s:
        return advances or (FollowRun(due),)
    silence = f"run {status.run}: the sidecar of pod {observed.pod_name} has not answered yet"
    return (FollowRun(due, Explanation("SidecarLate", f"{silence}; {_look_at_sidecar(observed.pod)}")),)


def _advances(observed: CheckpointBackupSnapshot, progress: BackupProgress) -> Iterator[AdvanceRun]:
    """Each phase between the one in status and the one that was reported: reports come every few seconds."""
    reached = PHASES.index(PHASE_OF[progress.state])
    phase = observed.status.phase
    first = PHASES.index(phase) + 1 if phase in PHASES else 0
    yield from (AdvanceRun(phase, progress) for phase in PHASES[first : reached + 1])


def _silent_too_long(observed: CheckpointBackupSnapshot, timing: BackupTiming) -> Explanation | None:
    if observed.run_age_s < observed.backup.spec.timeout_seconds + timing.grace_s:
        return None
    passed = f"{seconds_text(observed.backup.spec)} have passed"
    if observed.progress is None:
        return Explanation("SidecarSilent", f"the sidecar of pod {observed.pod_name} did not answer; {passed}")
    return Explanation("DeadlineExceeded", f"the sidecar was at {observed.progress.state!r}, and {passed}")


def _look_at_sidecar(pod: Pod | None) -> str:
    name = pod.metadata.name if pod is not None else "POD"
    return f"look at it with kubectl logs {name} -c holdfast-sidecar"


def _after_push(observed: CheckpointBackupSnapshot, message: str) -> Action:
    return DeletePod() if observed.backup.spec.stop_pod else EndRun("Completed", Explanation("Pushed", message))
