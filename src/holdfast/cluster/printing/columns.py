"""The table columns of each kind."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.api import kind
from holdfast.cluster.printing.jsonpath import compile_path
from holdfast.cluster.protocol import JSON
from holdfast.times import age, parse_optional_time, short_duration

# A cell is computed from the object and the current time; None is an empty cell.
Cell: TypeAlias = str | int | float | bool | None
Show: TypeAlias = Callable[[JSON, datetime], Cell]


class TableColumn(Struct, frozen=True, kw_only=True):
    """A table column; a wide column is shown only with -o wide."""

    name: str
    show: Show
    type: str = "string"
    wide: bool = False
    description: str = ""


def name_of(document: JSON, _now: datetime) -> str:
    return str(document["metadata"]["name"])


def age_of(document: JSON, now: datetime) -> str:
    return age(document["metadata"].get("creationTimestamp"), now)


NAME = TableColumn(name="NAME", show=name_of, description="The object's name.")
AGE = TableColumn(name="AGE", show=age_of, description="How long ago it was made.")


def printer_columns(columns: Iterable[kind.PrinterColumn]) -> tuple[TableColumn, ...]:
    """The columns of a custom kind: the name, then its printer columns, or the age if it has none."""
    return NAME, *([_printer_column(column) for column in columns] or [AGE])


def _printer_column(column: kind.PrinterColumn) -> TableColumn:
    find = compile_path(column.path)
    return TableColumn(
        name=column.name,
        show=lambda document, now: _cell(find(document), column.type, now),
        type="string" if column.type == "date" else column.type,
        wide=column.wide,
        description=column.description,
    )


def _cell(found: list[Any], type_: str, now: datetime) -> Cell:
    if not found:
        return None
    if type_ == "date":
        return age(found[0], now)
    if len(found) > 1:
        return ",".join(map(str, found))
    value = found[0]
    return value if isinstance(value, str | int | float) else str(value)


# The columns of pods: STATUS is computed from many fields, as in kubectl.


def _ready(pod: JSON, _now: datetime) -> str:
    statuses = [*_statuses(pod, "containerStatuses"), *_running_sidecars(pod)]
    spec = pod.get("spec", {})
    sidecars = [each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always"]
    return f"{sum(1 for each in statuses if each.get('ready'))}/{len(spec.get('containers', ())) + len(sidecars)}"


def _status(pod: JSON, _now: datetime) -> str:
    status = pod.get("status", {})
    status_text = status.get("reason") or status.get("phase") or "Pending"
    initializing = _initializing(pod)
    if initializing:
        status_text = initializing
    else:
        for each in reversed(_statuses(pod, "containerStatuses")):
            status_text = _container_status(each) or status_text
    if pod["metadata"].get("deletionTimestamp") and status.get("phase") not in ("Succeeded", "Failed"):
        return "Terminating"
    return status_text


def _initializing(pod: JSON) -> str:
    """The status of the first init container that is not done; empty when all are done."""
    declared = {each["name"]: each for each in pod.get("spec", {}).get("initContainers") or ()}
    for number, each in enumerate(_statuses(pod, "initContainerStatuses")):
        state = each.get("state") or {}
        sidecar = declared.get(each.get("name"), {}).get("restartPolicy") == "Always"
        if (state.get("terminated") or {}).get("exitCode") == 0 or (sidecar and each.get("started")):
            continue
        status_text = _container_status(each)
        return (
            f"Init:{status_text}"
            if status_text and status_text != "PodInitializing"
            else f"Init:{number}/{len(declared)}"
        )
    return ""


def _container_status(container: JSON) -> str:
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
    TableColumn(name="READY", show=_ready),
    TableColumn(name="STATUS", show=_status),
    TableColumn(name="RESTARTS", show=_restarts),
    AGE,
    TableColumn(name="IP", show=_ip, wide=True),
    TableColumn(name="NODE", show=_node, wide=True),
)


# The columns of built-in kinds, as in kubectl.

NONE = "<none>"


def columns_of(resource: str) -> tuple[TableColumn, ...]:
    """The columns of a resource such as jobs.batch; name and age for a kind without other columns."""
    return _COLUMNS.get(resource, (NAME, AGE))


def _job_status(job: JSON, _now: datetime) -> str:
    true_conditions = {
        each["type"] for each in job.get("status", {}).get("conditions") or () if each.get("status") == "True"
    }
    ends = {"Complete": "Complete", "Failed": "Failed", "SuccessCriteriaMet": "SuccessCriteriaMet"}
    state = next((state for kind, state in ends.items() if kind in true_conditions), "")
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    return state or ("Suspended" if "Suspended" in true_conditions else "Running")


def _job_completions(job: JSON, _now: datetime) -> str:
    spec = job.get("spec", {})
    desired = spec.get("completions") or spec.get("parallelism") or 1
    return f"{job.get('status', {}).get('succeeded', 0)}/{desired}"


def _job_duration(job: JSON, now: datetime) -> str:
    status = job.get("status", {})
    start, end = parse_optional_time(status.get("startTime")), parse_optional_time(status.get("completionTime"))
    return short_duration((end or now).timestamp() - start.timestamp()) if start else ""


def _images(job: JSON, _now: datetime) -> str:
    containers = job.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
    return ",".join(container.get("image", "") for container in containers)


def _service_type(service: JSON, _now: datetime) -> str:
    return str(service.get("spec", {}).get("type", "ClusterIP"))


def _cluster_ip(service: JSON, _now: datetime) -> str:
    return str(service.get("spec", {}).get("clusterIP") or NONE)


def _external_ip(service: JSON, _now: datetime) -> str:
    balancer = service.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    addresses = [*service.get("spec", {}).get("externalIPs", ()), *(each.get("ip", "") for each in balancer)]
    return ",".join(addresses) or NONE


def _ports(service: JSON, _now: datetime) -> str:
    ports = service.get("spec", {}).get("ports") or ()
    return ",".join(f"{port['port']}/{port.get('protocol', 'TCP')}" for port in ports) or NONE


def _selector(service: JSON, _now: datetime) -> str:
    selector = service.get("spec", {}).get("selector") or {}
    return ",".join(f"{name}={value}" for name, value in sorted(selector.items())) or NONE


def _node_status(node: JSON, _now: datetime) -> str:
    conditions = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions") or ()}
    ready = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{ready},SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ready


def _node_roles(node: JSON, _now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(name.removeprefix(prefix) for name in labels if name.startswith(prefix))) or NONE


def _node_version(node: JSON, _now: datetime) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))


def _node_gpus(node: JSON, _now: datetime) -> str:
    return str(node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", "0"))


def _internal_ip(node: JSON, _now: datetime) -> str:
    addresses = node.get("status", {}).get("addresses") or ()
    return next((each["address"] for each in addresses if each.get("type") == "InternalIP"), NONE)


def _last_seen(event: JSON, now: datetime) -> str:
    series = event.get("series") or {}
    last_seen = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return age(last_seen or event["metadata"].get("creationTimestamp"), now)


def _event_object(event: JSON, _now: datetime) -> str:
    involved = event.get("involvedObject", {})
    return f"{involved.get('kind', '').lower()}/{involved.get('name', '')}"


def _message(event: JSON, _now: datetime) -> str:
    return " ".join(str(event.get("message", "")).split())


def _entries(holder: JSON, _now: datetime) -> int:
    return len(holder.get("data") or ()) + len(holder.get("binaryData") or ())


def _phase(document: JSON, _now: datetime) -> str:
    return "Terminating" if _is_terminating(document) else str(document.get("status", {}).get("phase", ""))


def _is_terminating(document: JSON) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


def _capacity(claim: JSON, _now: datetime) -> str:
    return str(claim.get("status", {}).get("capacity", {}).get("storage", ""))


def _deployment_ready(deployment: JSON, _now: datetime) -> str:
    ready, desired = deployment.get("status", {}).get("readyReplicas", 0), deployment.get("spec", {}).get("replicas", 1)
    return f"{ready}/{desired}"


def _deployment_count(field: str) -> Show:
    return lambda deployment, _now: int(deployment.get("status", {}).get(field, 0))


_COLUMNS: dict[str, tuple[TableColumn, ...]] = {
    "pods": POD_COLUMNS,
    "jobs.batch": (
        NAME,
        TableColumn(name="STATUS", show=_job_status),
        TableColumn(name="COMPLETIONS", show=_job_completions),
        TableColumn(name="DURATION", show=_job_duration),
        AGE,
        TableColumn(name="IMAGES", show=_images, wide=True),
    ),
    "deployments.apps": (
        NAME,
        TableColumn(name="READY", show=_deployment_ready),
        TableColumn(name="UP-TO-DATE", show=_deployment_count("updatedReplicas"), type="integer"),
        TableColumn(name="AVAILABLE", show=_deployment_count("availableReplicas"), type="integer"),
        AGE,
    ),
    "services": (
        NAME,
        TableColumn(name="TYPE", show=_service_type),
        TableColumn(name="CLUSTER-IP", show=_cluster_ip),
        TableColumn(name="EXTERNAL-IP", show=_external_ip),
        TableColumn(name="PORT(S)", show=_ports),
        AGE,
        TableColumn(name="SELECTOR", show=_selector, wide=True),
    ),
    "nodes": (
        NAME,
        TableColumn(name="STATUS", show=_node_status),
        TableColumn(name="ROLES", show=_node_roles),
        AGE,
        TableColumn(name="VERSION", show=_node_version),
        TableColumn(name="INTERNAL-IP", show=_internal_ip, wide=True),
        TableColumn(name="GPUS", show=_node_gpus, wide=True),
    ),
    "events": (
        TableColumn(name="LAST SEEN", show=_last_seen),
        TableColumn(name="TYPE", show=lambda event, _now: event.get("type", "")),
        TableColumn(name="REASON", show=lambda event, _now: event.get("reason", "")),
        TableColumn(name="OBJECT", show=_event_object),
        TableColumn(name="MESSAGE", show=_message),
    ),
    "configmaps": (NAME, TableColumn(name="DATA", show=_entries, type="integer"), AGE),
    "secrets": (
        NAME,
        TableColumn(name="TYPE", show=lambda secret, _now: secret.get("type", "")),
        TableColumn(name="DATA", show=_entries, type="integer"),
        AGE,
    ),
    "namespaces": (NAME, TableColumn(name="STATUS", show=_phase), AGE),
    "persistentvolumeclaims": (
        NAME,
        TableColumn(name="STATUS", show=_phase),
        TableColumn(name="VOLUME", show=lambda claim, _now: claim.get("spec", {}).get("volumeName", "")),
        TableColumn(name="CAPACITY", show=_capacity),
        AGE,
    ),
    "leases.coordination.k8s.io": (
        NAME,
        TableColumn(name="HOLDER", show=lambda lease, _now: lease.get("spec", {}).get("holderIdentity", "")),
        AGE,
    ),
    "priorityclasses.scheduling.k8s.io": (
        NAME,
        TableColumn(name="VALUE", show=lambda each, _now: each.get("value", 0), type="integer"),
        AGE,
    ),
}
