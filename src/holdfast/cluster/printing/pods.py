"""A pod's columns: the one word that says how it stands has many sources."""

from datetime import datetime
from typing import Any

from holdfast.cluster.printing.ages import age, parse_optional_time
from holdfast.cluster.printing.columns import AGE, NAME, Column
from holdfast.cluster.protocol import JSON


def _ready(pod: JSON, _now: datetime) -> str:
    statuses = [*_statuses(pod, "containerStatuses"), *_running_sidecars(pod)]
    spec = pod.get("spec", {})
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    return f"{sum(1 for each in statuses if each.get('ready'))}/{len(spec.get('containers', ())) + len(sidecars)}"


def _status(pod: JSON, _now: datetime) -> str:
    status = pod.get("status", {})
    word = status.get("reason") or status.get("phase") or "Pending"
    initializing = _initializing(pod)
    if initializing:
        word = initializing
    else:
        for each in reversed(_statuses(pod, "containerStatuses")):
            word = _container_word(each) or word
    if pod["metadata"].get("deletionTimestamp") and status.get("phase") not in ("Succeeded", "Failed"):
        return "Terminating"
    return word


def _initializing(pod: JSON) -> str:
    """Which of the init containers is not done, if one is not."""
    declared = {each["name"]: each for each in pod.get("spec", {}).get("initContainers") or ()}
    for number, each in enumerate(_statuses(pod, "initContainerStatuses")):
        state = each.get("state") or {}
        sidecar = declared.get(each.get("name"), {}).get("restartPolicy") == "Always"
        if (state.get("terminated") or {}).get("exitCode") == 0 or (sidecar and each.get("started")):
            continue
        word = _container_word(each)
        return f"Init:{word}" if word and word != "PodInitializing" else f"Init:{number}/{len(declared)}"
    return ""


def _container_word(container: JSON) -> str:
    state = container.get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated")
    if waiting.get("reason"):
        return str(waiting["reason"])
    if ended is None:
        return ""
    if ended.get("reason"):
        return str(ended["reason"])
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _restarts(pod: JSON, now: datetime) -> str:
    statuses = [*_statuses(pod, "containerStatuses"), *_running_sidecars(pod)]
    count = sum(each.get("restartCount", 0) for each in statuses)
    ends = [(each.get("lastState") or {}).get("terminated", {}).get("finishedAt") for each in statuses]
    last = max(filter(parse_optional_time, ends), default="")
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _running_sidecars(pod: JSON) -> list[Any]:
    sidecars = {
        each["name"]
        for each in pod.get("spec", {}).get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    }
    return [each for each in _statuses(pod, "initContainerStatuses") if each.get("name") in sidecars]


def _statuses(pod: JSON, which: str) -> list[Any]:
    return pod.get("status", {}).get(which) or []


def _ip(pod: JSON, _now: datetime) -> str:
    return str(pod.get("status", {}).get("podIP") or "<none>")


def _node(pod: JSON, _now: datetime) -> str:
    return str(pod.get("spec", {}).get("nodeName") or "<none>")


POD_COLUMNS = (
    NAME,
    Column(name="READY", show=_ready),
    Column(name="STATUS", show=_status),
    Column(name="RESTARTS", show=_restarts),
    AGE,
    Column(name="IP", show=_ip, wide=True),
    Column(name="NODE", show=_node, wide=True),
)
