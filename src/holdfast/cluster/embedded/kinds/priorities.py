"""PriorityClasses, and the priority that a pod has by its class."""

from collections.abc import Iterator

from holdfast.api.meta import Key
from holdfast.cluster.embedded.kind import KindHooks, ObjectReader
from holdfast.cluster.embedded.refusals import bad_value, forbidden
from holdfast.cluster.errors import Cause, Forbidden
from holdfast.cluster.protocol import JSON

CLASSES = "priorityclasses.scheduling.k8s.io"
DEFAULT_POLICY = "PreemptLowerPriority"
# What is above is the system's own.
MOST_PRIORITY = 1_000_000_000


def assign_priority(pod: JSON, around: ObjectReader) -> None:
    """By the pod's class, or the cluster's default one; what the pod says itself may only repeat that."""
    spec, refusal = pod["spec"], f'pods "{pod["metadata"].get("name")}" is forbidden: '
    if name := spec.get("priorityClassName", ""):
        chosen = around.document(CLASSES, Key("", name))
        if chosen is None:
            raise Forbidden(f"{refusal}no PriorityClass with name {name} was found")
    else:
        chosen = _default(around) or {}
        if chosen:
            spec["priorityClassName"] = chosen["metadata"]["name"]
    computed = (
        ("priority", "integer", "priority", chosen.get("value", 0)),
        ("preemptionPolicy", "string", "PreemptionPolicy", chosen.get("preemptionPolicy", DEFAULT_POLICY)),
    )
    for field, kind, title, value in computed:
        own = spec.setdefault(field, value)
        if own != value:
            raise Forbidden(
                f"{refusal}the {kind} value of {title} ({own}) must not be provided in pod spec; priority admission "
                f"controller computed {value} from the given PriorityClass name"
            )


def _default(around: ObjectReader) -> JSON | None:
    """The least of the default classes: there can be two when one was made a default later."""
    classes = (each for each in around.documents(CLASSES) if each.get("globalDefault"))
    return min(classes, key=lambda each: int(each.get("value", 0)), default=None)


def _prepare_priority_class(priority_class: JSON, around: ObjectReader) -> None:
    priority_class["metadata"]["generation"] = 1
    if priority_class.get("globalDefault") and (other := _default(around)):
        raise Forbidden(
            f'{CLASSES} "{priority_class["metadata"]["name"]}" is forbidden: PriorityClass '
            f"{other['metadata']['name']} is already marked as default. Only one default can exist"
        )


def _validate_priority_class(priority_class: JSON, old: JSON | None) -> Iterator[Cause]:
    name, value = priority_class["metadata"]["name"], priority_class.get("value", 0)
    if value > MOST_PRIORITY and not name.startswith("system-"):
        yield forbidden("value", f"maximum allowed value of a user defined priority is {MOST_PRIORITY}")
    if old is not None:
        for field in ("value", "preemptionPolicy"):
            if priority_class.get(field) != old.get(field):
                yield bad_value(field, priority_class.get(field), "field is immutable")


PRIORITY_CLASSES = KindHooks(prepare_create=_prepare_priority_class, validate=_validate_priority_class)
