"""Kinds with little of their own: nodes, claims, leases, priority classes."""

from collections.abc import Iterator

from holdfast.cluster.embedded.kind import METADATA_FIELDS, Special, Surroundings
from holdfast.cluster.embedded.refusals import bad_value, forbidden, missing
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

_ACCESS_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
# What is above is the system's own.
MOST_PRIORITY = 1_000_000_000


def _complete_node(node: JSON) -> None:
    status = node.get("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _make_claim(claim: JSON, _around: Surroundings) -> None:
    claim["status"] = {"phase": "Pending"}


def _claim_problems(claim: JSON, old: JSON | None) -> Iterator[Cause]:
    for mode in claim["spec"].get("accessModes", []):
        if mode not in _ACCESS_MODES:
            supported = ", ".join(f'"{each}"' for each in _ACCESS_MODES)
            why = f'Unsupported value: "{mode}": supported values: {supported}'
            yield Cause("spec.accessModes", why, "FieldValueNotSupported")
    if "storage" not in claim["spec"].get("resources", {}).get("requests", {}):
        yield missing("spec.resources[storage]")
    free = ("resources", "volumeName", "volumeAttributesClassName")
    if old is not None and _without(claim["spec"], free) != _without(old["spec"], free):
        why = "spec is immutable after creation except resources.requests and volumeAttributesClassName"
        yield forbidden("spec", why)


def _without(spec: JSON, fields: tuple[str, ...]) -> JSON:
    return {name: value for name, value in spec.items() if name not in fields}


def _make_priority_class(priority_class: JSON, _around: Surroundings) -> None:
    priority_class["metadata"]["generation"] = 1


def _priority_class_problems(priority_class: JSON, old: JSON | None) -> Iterator[Cause]:
    name, value = priority_class["metadata"]["name"], priority_class.get("value", 0)
    if value > MOST_PRIORITY and not name.startswith("system-"):
        yield forbidden("value", f"maximum allowed value of a user defined priority is {MOST_PRIORITY}")
    if old is not None:
        for field in ("value", "preemptionPolicy"):
            if priority_class.get(field) != old.get(field):
                yield bad_value(field, priority_class.get(field), "field is immutable")


def _event_problems(event: JSON, _old: JSON | None) -> Iterator[Cause]:
    namespace = event.get("involvedObject", {}).get("namespace", "")
    # Of an object without namespace they are told in the default one.
    if namespace != event["metadata"]["namespace"] and (namespace or event["metadata"]["namespace"] != "default"):
        yield bad_value("involvedObject.namespace", namespace, "does not match event.namespace")


NODES = Special(fields=METADATA_FIELDS | {"spec.unschedulable"}, keeps_status_of_creation=True, complete=_complete_node)
CLAIMS = Special(make=_make_claim, problems=_claim_problems)
LEASES = Special(replaced_without_version=False)
PRIORITY_CLASSES = Special(make=_make_priority_class, problems=_priority_class_problems)
EVENTS = Special(
    problems=_event_problems,
    fields=METADATA_FIELDS
    | {f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")}
    | {"reason", "type", "reportingComponent"},
)
