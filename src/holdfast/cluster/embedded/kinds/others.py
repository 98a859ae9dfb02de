"""Kinds with little of their own: nodes, leases, events."""

from collections.abc import Iterator

from holdfast.cluster.embedded.kind import METADATA_FIELDS, KindHooks
from holdfast.cluster.embedded.refusals import bad_value
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON


def _complete_node(node: JSON) -> None:
    status = node.get("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _event_problems(event: JSON, _old: JSON | None) -> Iterator[Cause]:
    namespace = event.get("involvedObject", {}).get("namespace", "")
    # Of an object without namespace they are told in the default one.
    if namespace != event["metadata"]["namespace"] and (namespace or event["metadata"]["namespace"] != "default"):
        yield bad_value("involvedObject.namespace", namespace, "does not match event.namespace")


NODES = KindHooks(
    fields=METADATA_FIELDS | {"spec.unschedulable"}, keeps_status_of_creation=True, set_defaults=_complete_node
)
LEASES = KindHooks(replaced_without_version=False)
EVENTS = KindHooks(
    validate=_event_problems,
    fields=METADATA_FIELDS
    | {f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")}
    | {"involvedObject.fieldPath"}
    | {"reason", "type", "reportingComponent"},
)
