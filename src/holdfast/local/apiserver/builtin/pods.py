"""Pods: defaults, admission, immutable fields, binding and grace period; and PriorityClasses."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.meta import Key
from holdfast.api.schema.validation import quantity
from holdfast.api.schema.violations import Cause
from holdfast.cluster.errors import Conflict, Forbidden
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.kinds import METADATA_FIELDS, KindHooks, ObjectReader, bad_value, forbidden, missing
from holdfast.local.apiserver.objects import dns_label_problems

# The pod spec, in pods and in pod templates.

CONTAINERS = ("initContainers", "containers")


def containers_of(spec: JSON) -> Iterator[tuple[str, JSON]]:
    """Every container with its path below the spec, init containers first."""
    for field in CONTAINERS:
        for index, container in enumerate(spec.get(field, [])):
            yield f"{field}[{index}]", container


def complete_pod_spec(spec: JSON) -> None:
    """Set the defaults that depend on other fields."""
    for _, container in containers_of(spec):
        if isinstance(container.get("image"), str):
            container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    for volume in spec.get("volumes", []):
        if set(volume) <= {"name"}:
            volume["emptyDir"] = {}
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if spec.get("serviceAccountName"):
        # The deprecated name of the field has the same value.
        spec["serviceAccount"] = spec["serviceAccountName"]


def _pull_policy(image: str) -> str:
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"


def pod_spec_problems(spec: JSON, path: str) -> Iterator[Cause]:
    names = [volume.get("name", "") for volume in spec.get("volumes", [])]
    yield from _duplicates([(f"{path}.volumes[{index}]", name) for index, name in enumerate(names)])
    yield from _duplicates([(f"{path}.{where}", each.get("name", "")) for where, each in containers_of(spec)])
    for where, container in containers_of(spec):
        yield from _container_problems(container, f"{path}.{where}", set(names))
    for field in ("hostname", "subdomain"):
        if name := spec.get(field):
            yield from (bad_value(f"{path}.{field}", name, problem) for problem in dns_label_problems(name))
    for index, toleration in enumerate(spec.get("tolerations", [])):
        if not toleration.get("key") and toleration.get("operator") != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield bad_value(f"{path}.tolerations[{index}].operator", toleration.get("operator", ""), why)
    yield from _expression_problems(spec.get("affinity", {}), f"{path}.affinity")


def _duplicates(named: list[tuple[str, str]]) -> Iterator[Cause]:
    seen = set()
    for path, name in named:
        if name in seen:
            yield Cause(f"{path}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)


def _container_problems(container: JSON, path: str, volumes: set[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    yield from (bad_value(f"{path}.name", name, problem) for problem in dns_label_problems(name))
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if mount.get("name") not in volumes:
            field = f"{path}.volumeMounts[{index}].name"
            yield Cause(field, f'Not found: "{mount.get("name")}"', "FieldValueNotFound")
    yield from _resource_problems(container.get("resources", {}), f"{path}.resources")


def _resource_problems(resources: JSON, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for name, amount in requests.items():
        if name not in limits:
            if is_extended(name):
                yield missing(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif is_extended(name) and quantity(amount) != quantity(limits[name]):
            yield bad_value(f"{path}.requests", amount, f"must be equal to {name} limit of {limits[name]}")
        elif quantity(amount) > quantity(limits[name]):
            yield bad_value(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}")
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if quantity(amount) < 0:
                yield bad_value(f"{path}.{part}[{name}]", amount, "must be greater than or equal to 0")
            elif is_extended(name) and not quantity(amount).is_integer():
                yield bad_value(f"{path}.{part}[{name}]", amount, "must be an integer")


def _expression_problems(value: Any, path: str) -> Iterator[Cause]:
    """An expression with In or NotIn needs values."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _expression_problems(element, f"{path}[{index}]")
    elif isinstance(value, dict):
        if value.get("operator") in ("In", "NotIn") and not value.get("values"):
            yield missing(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        for name, child in value.items():
            yield from _expression_problems(child, f"{path}.{name}")


def is_extended(resource: str) -> bool:
    """Whether the resource is a device that is counted in integers and never shared, such as nvidia.com/gpu."""
    return "/" in resource and "kubernetes.io/" not in resource


# PriorityClasses, and the priority that a pod gets from its class.

CLASSES = "priorityclasses.scheduling.k8s.io"
DEFAULT_POLICY = "PreemptLowerPriority"
# Higher values are reserved for the system.
MOST_PRIORITY = 1_000_000_000


def assign_priority(pod: JSON, around: ObjectReader) -> None:
    """From the pod's class, or the cluster's default class; a priority in the pod's spec must be equal to it."""
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
    """The lowest of the default classes; there can be two, when a class became a default later."""
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


ENDED = ("Succeeded", "Failed")
DEFAULT_TOLERATION_S = 300
DEFAULT_ACCOUNT = "default"
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _default_pod(pod: JSON) -> None:
    spec = pod.get("spec", {})
    complete_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for _, container in containers_of(spec):
        resources = container.get("resources", {})
        if resources.get("limits"):
            resources["requests"] = resources["limits"] | resources.get("requests", {})
        if spec.get("hostNetwork"):
            for port in container.get("ports", []):
                port.setdefault("hostPort", port.get("containerPort"))


def _prepare_pod(pod: JSON, around: ObjectReader) -> None:
    spec, metadata = pod["spec"], pod["metadata"]
    _assign_account(pod, around)
    assign_priority(pod, around)
    _default_not_ready_tolerations(spec)
    metadata["generation"] = 1
    pod["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def _assign_account(pod: JSON, around: ObjectReader) -> None:
    spec, metadata = pod["spec"], pod["metadata"]
    account = spec.setdefault("serviceAccountName", DEFAULT_ACCOUNT)
    spec["serviceAccount"] = account
    # No controller here creates the default account of a namespace, so the default account may be absent.
    if account != DEFAULT_ACCOUNT and around.document("serviceaccounts", Key(metadata["namespace"], account)) is None:
        where = f"{metadata['namespace']}/{account}"
        raise Forbidden(
            f'pods "{metadata.get("name")}" is forbidden: error looking up service account {where}: '
            f'serviceaccount "{account}" not found'
        )


def _default_not_ready_tolerations(spec: JSON) -> None:
    """For five minutes, unless the pod has a toleration of its own."""
    tolerations = spec.get("tolerations", [])
    spec["tolerations"] = tolerations + [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": DEFAULT_TOLERATION_S}
        for taint in _LOST_NODE_TAINTS
        if not any(_tolerates(each, taint) for each in tolerations)
    ]


def _tolerates(toleration: JSON, taint: str) -> bool:
    tolerated: bool = toleration.get("key", taint) == taint and toleration.get("effect", "NoExecute") == "NoExecute"
    return tolerated


def _qos_class(spec: JSON) -> str:
    """The QoS class, which decides the order of eviction."""
    resources = [container.get("resources", {}) for _, container in containers_of(spec)]
    if not any(each.get(part, {}).get(name) for each in resources for part in each for name in ("cpu", "memory")):
        return "BestEffort"
    guaranteed = all(
        each.get("limits", {}).get(name) and each["limits"][name] == each.get("requests", {}).get(name)
        for each in resources
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _update_pod(pod: JSON, _old: JSON) -> None:
    _default_not_ready_tolerations(pod["spec"])


def _update_pod_status(pod: JSON, old: JSON) -> None:
    """A status update can't change the owners, nor remove the QoS class."""
    owners = old["metadata"].get("ownerReferences")
    pod["metadata"].pop("ownerReferences", None)
    if owners:
        pod["metadata"]["ownerReferences"] = owners
    pod.setdefault("status", {}).setdefault("qosClass", old.get("status", {}).get("qosClass", "BestEffort"))


def _validate_pod(pod: JSON, old: JSON | None) -> Iterator[Cause]:
    yield from pod_spec_problems(pod.get("spec", {}), "spec")
    if old is not None and _immutable_spec(pod["spec"], old["spec"]) != _immutable_spec(old["spec"], old["spec"]):
        yield forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        )


def _immutable_spec(spec: JSON, old: JSON) -> JSON:
    """The spec without its mutable fields."""
    known = old.get("tolerations", [])
    fixed = {name: value for name, value in spec.items() if name not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("initContainers", "containers"):
        fixed[field] = [{**container, "image": ""} for container in spec.get(field, [])]
    return {**fixed, "tolerations": [each for each in known if each in spec.get("tolerations", [])]}


def grace_s(pod: JSON, requested: int | None) -> int:
    """A pod that is not bound or has ended runs no container, so it is removed at once."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ENDED:
        return 0
    period: int = pod["spec"].get("terminationGracePeriodSeconds", 0) if requested is None else requested
    return max(1, period) if period < 0 else period


def bound(pod: JSON, node: str, uid: str, now: str) -> JSON:
    """The pod, bound to its node; only once, and only while the pod is not being deleted."""
    metadata, assigned = pod["metadata"], pod["spec"].get("nodeName")
    refusal = f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": '
    if uid and uid != metadata["uid"]:
        raise Conflict(
            f"{refusal}Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        )
    if metadata.get("deletionTimestamp"):
        raise Conflict(f"{refusal}pod {metadata['name']} is being deleted, cannot be assigned to a host")
    if assigned:
        raise Conflict(f'{refusal}pod {metadata["name"]} is already assigned to node "{assigned}"')
    others = [each for each in pod["status"].get("conditions", []) if each["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    status = {**pod["status"], "conditions": [*others, scheduled]}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}


PODS = KindHooks(
    fields=METADATA_FIELDS
    | {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"}
    | {"status.podIP", "status.nominatedNodeName"},
    counts_generations=True,
    set_defaults=_default_pod,
    prepare_create=_prepare_pod,
    prepare_update=_update_pod,
    prepare_status_update=_update_pod_status,
    validate=_validate_pod,
    grace_s=grace_s,
)
