"""Pods: what admission adds, what can't change, and how they end."""

from collections.abc import Iterator

from holdfast.api.meta import Key
from holdfast.cluster.embedded.kind import METADATA_FIELDS, KindHooks, ObjectReader
from holdfast.cluster.embedded.kinds.podspec import complete_pod_spec, containers_of, pod_spec_problems
from holdfast.cluster.embedded.kinds.priorities import assign_priority
from holdfast.cluster.embedded.refusals import forbidden
from holdfast.cluster.errors import Cause, Conflict, Forbidden
from holdfast.cluster.protocol import JSON

ENDED = ("Succeeded", "Failed")
DEFAULT_TOLERATION_S = 300
DEFAULT_ACCOUNT = "default"
_LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _complete(pod: JSON) -> None:
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
    # Nothing here makes the default account of a namespace, so that one may be absent.
    if account != DEFAULT_ACCOUNT and around.document("serviceaccounts", Key(metadata["namespace"], account)) is None:
        where = f"{metadata['namespace']}/{account}"
        raise Forbidden(
            f'pods "{metadata.get("name")}" is forbidden: error looking up service account {where}: '
            f'serviceaccount "{account}" not found'
        )


def _default_not_ready_tolerations(spec: JSON) -> None:
    """For a while, unless the pod says for how long."""
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
    """The class that tells who is evicted first."""
    resources = [container.get("resources", {}) for _, container in containers_of(spec)]
    if not any(each.get(part, {}).get(name) for each in resources for part in each for name in ("cpu", "memory")):
        return "BestEffort"
    guaranteed = all(
        each.get("limits", {}).get(name) and each["limits"][name] == each.get("requests", {}).get(name)
        for each in resources
        for name in ("cpu", "memory")
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _carry(pod: JSON, _old: JSON) -> None:
    _default_not_ready_tolerations(pod["spec"])


def _carry_status(pod: JSON, old: JSON) -> None:
    """A status update can't change the owners, nor take the quality class away."""
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
    """The spec without what may change."""
    known = old.get("tolerations", [])
    fixed = {name: value for name, value in spec.items() if name not in ("activeDeadlineSeconds", "tolerations")}
    for field in ("initContainers", "containers"):
        fixed[field] = [{**container, "image": ""} for container in spec.get(field, [])]
    return {**fixed, "tolerations": [each for each in known if each in spec.get("tolerations", [])]}


def grace_s(pod: JSON, asked: int | None) -> int:
    """Nothing runs of a pod that is not bound or has ended: it goes at once."""
    if not pod["spec"].get("nodeName") or pod.get("status", {}).get("phase") in ENDED:
        return 0
    period: int = pod["spec"].get("terminationGracePeriodSeconds", 0) if asked is None else asked
    return max(1, period) if period < 0 else period


def bound(pod: JSON, node: str, uid: str, now: str) -> JSON:
    """The pod, given its node; once only, and only while it is wanted."""
    metadata, taken = pod["metadata"], pod["spec"].get("nodeName")
    refusal = f'Operation cannot be fulfilled on pods/binding "{metadata["name"]}": '
    if uid and uid != metadata["uid"]:
        raise Conflict(
            f"{refusal}Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        )
    if metadata.get("deletionTimestamp"):
        raise Conflict(f"{refusal}pod {metadata['name']} is being deleted, cannot be assigned to a host")
    if taken:
        raise Conflict(f'{refusal}pod {metadata["name"]} is already assigned to node "{taken}"')
    others = [each for each in pod["status"].get("conditions", []) if each["type"] != "PodScheduled"]
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}
    status = {**pod["status"], "conditions": [*others, scheduled]}
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": status}


PODS = KindHooks(
    fields=METADATA_FIELDS
    | {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"}
    | {"status.podIP", "status.nominatedNodeName"},
    counts_generations=True,
    set_defaults=_complete,
    prepare_create=_prepare_pod,
    prepare_update=_carry,
    prepare_status_update=_carry_status,
    validate=_validate_pod,
    grace_s=grace_s,
)
