"""Computes the status of a pod from the states of its containers, as a kubelet reports it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from holdfast.cluster.protocol import JSON

FIRST_DELAY_S = 10.0
LONGEST_DELAY_S = 300.0
# A container that has run this long is no longer in a crash loop.
HEALTHY_AFTER_S = 600.0


class Waiting(Struct, frozen=True):
    reason: str = "PodInitializing"
    message: str = ""


class Running(Struct, frozen=True):
    started_at: str


class Terminated(Struct, frozen=True, kw_only=True):
    exit_code: int
    reason: str
    message: str = ""
    signal: int = 0
    started_at: str = ""
    finished_at: str = ""


State: TypeAlias = Waiting | Running | Terminated


class ContainerSnapshot(Struct, frozen=True, kw_only=True):
    """A container's part of its pod's status."""

    name: str
    image: str
    state: State = Waiting()
    last: Terminated | None = None
    restarts: int = 0
    started: bool = False
    ready: bool = False
    is_sidecar: bool = False


def restarts_again(policy: str, exit_code: int) -> bool:
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def restart_delay_s(crashes: int) -> float:
    """The back-off after so many crashes in a row: no delay for the first restart, then 10 s and doubling."""
    return 0.0 if crashes <= 1 else min(FIRST_DELAY_S * 2 ** min(crashes - 2, 10), LONGEST_DELAY_S)


class PodResult(Struct, frozen=True, kw_only=True):
    """How a pod ended. A disrupted pod was not at fault: the Job controller replaces it without counting a failure."""

    phase: str
    reason: str = ""
    message: str = ""
    disrupted: bool = False


class PodSnapshot(Struct, frozen=True, kw_only=True):
    """Everything that the status of a pod is computed from."""

    init: tuple[ContainerSnapshot, ...]
    main: tuple[ContainerSnapshot, ...]
    pod_ip: str = ""
    host_ip: str = ""
    start_time: str = ""
    result: PodResult | None = None


def phase(snapshot: PodSnapshot) -> str:
    if snapshot.result:
        return snapshot.result.phase
    if not initialized(snapshot):
        return "Pending"
    never_ran = any(isinstance(fact.state, Waiting) and fact.last is None for fact in snapshot.main)
    return "Pending" if never_ran else "Running"


def initialized(snapshot: PodSnapshot) -> bool:
    return all(
        fact.started if fact.is_sidecar else isinstance(fact.state, Terminated) and fact.state.exit_code == 0
        for fact in snapshot.init
    )


def outcome(main: Iterable[ContainerSnapshot]) -> str:
    """The phase of a pod whose main containers have ended for good."""
    ended_well = all(isinstance(fact.state, Terminated) and fact.state.exit_code == 0 for fact in main)
    return "Succeeded" if ended_well else "Failed"


def pod_status(snapshot: PodSnapshot, before: Sequence[Mapping[str, object]], now: str) -> JSON:
    """The status to write; `before` are the conditions of the pod: only the kubelet's own conditions are replaced."""
    result = snapshot.result or PodResult(phase="")
    status: JSON = {
        "phase": phase(snapshot),
        "conditions": conditions(snapshot, before, now),
        "containerStatuses": [container_status(fact) for fact in snapshot.main],
    }
    if snapshot.init:
        status["initContainerStatuses"] = [container_status(fact) for fact in snapshot.init]
    optional = {
        "reason": result.reason,
        "message": result.message,
        "hostIP": snapshot.host_ip,
        "podIP": snapshot.pod_ip,
        "startTime": snapshot.start_time,
    }
    status |= {name: value for name, value in optional.items() if value}
    if snapshot.pod_ip:
        status |= {"podIPs": [{"ip": snapshot.pod_ip}], "hostIPs": [{"ip": snapshot.host_ip}]}
    return status


def container_status(fact: ContainerSnapshot) -> JSON:
    status: JSON = {
        "name": fact.name,
        "image": fact.image,
        "imageID": "",
        "restartCount": fact.restarts,
        "ready": fact.ready,
        "started": fact.started,
        "state": _state(fact.state),
    }
    return status | ({"lastState": _state(fact.last)} if fact.last else {})


def _state(state: State) -> JSON:
    match state:
        case Waiting(reason, message):
            return {"waiting": _without_empty(reason=reason, message=message)}
        case Running(started_at):
            return {"running": {"startedAt": started_at}}
        case Terminated():
            return {
                "terminated": {"exitCode": state.exit_code}
                | _without_empty(
                    reason=state.reason,
                    message=state.message,
                    signal=state.signal,
                    startedAt=state.started_at,
                    finishedAt=state.finished_at,
                )
            }


def _without_empty(**fields: object) -> JSON:
    return {name: value for name, value in fields.items() if value}


def conditions(snapshot: PodSnapshot, before: Sequence[Mapping[str, object]], now: str) -> list[JSON]:
    wanted = _conditions(snapshot)
    others = [dict(one) for one in before if one["type"] not in wanted]
    old = {one["type"]: one for one in before}
    return others + [_with_transition_time(kind, fields, old.get(kind), now) for kind, fields in wanted.items()]


def _with_transition_time(kind: str, fields: JSON, old: Mapping[str, object] | None, now: str) -> JSON:
    """The condition; an unchanged status retains its lastTransitionTime."""
    same = old is not None and old["status"] == fields["status"]
    since = (old or {}).get("lastTransitionTime") if same else now
    return {"type": kind, "lastTransitionTime": since, **fields}


def _conditions(snapshot: PodSnapshot) -> dict[str, JSON]:
    facts = (*(fact for fact in snapshot.init if fact.is_sidecar), *snapshot.main)
    unready = [fact.name for fact in facts if not fact.ready]
    found = {"Initialized": _initialized(snapshot), "ContainersReady": _ready(unready), "Ready": _ready(unready)}
    if snapshot.result:
        reason = "PodCompleted" if snapshot.result.phase == "Succeeded" else "PodFailed"
        found |= {kind: {"status": "False", "reason": reason} for kind in ("ContainersReady", "Ready")}
        if snapshot.result.disrupted:
            found["DisruptionTarget"] = {
                "status": "True",
                "reason": "TerminationByKubelet",
                "message": snapshot.result.message,
            }
    return found


def _initialized(snapshot: PodSnapshot) -> JSON:
    if initialized(snapshot):
        return {"status": "True"}
    incomplete = [fact.name for fact in snapshot.init if not isinstance(fact.state, Terminated) and not fact.started]
    message = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return {"status": "False", "reason": "ContainersNotInitialized", "message": message}


def _ready(unready: Sequence[str]) -> JSON:
    if not unready:
        return {"status": "True"}
    message = f"containers with unready status: [{' '.join(unready)}]"
    return {"status": "False", "reason": "ContainersNotReady", "message": message}
