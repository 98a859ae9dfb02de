"""The pod that goes on from checkpoints: the old one's template, and nothing that clung to the old pod itself.

Before it, another pod brings the base images to a node: runtimes fetch them without the pod's pull secrets, and fail.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.pods.restore.nodes import HOSTNAME_LABEL, RESTORE_LABEL, RESTORE_VALUE, RestorableImage, RestoreNode
from holdfast.pods.template import MANAGED_BY

# Of which backup and run a restored pod is.
RESTORED_FROM = "holdfast.dev/restored-from"
# The volume by which admission gives a pod its token; it is made anew for every pod.
_TOKEN_VOLUME = "kube-api-access-"  # noqa: S105  # the beginning of a name
_TOKEN_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  # a path
# Labels that controllers put on their pods and find them by: a pod that kept them would be taken for one of theirs.
_CONTROLLERS = (
    "pod-template-hash",
    "controller-uid",
    "job-name",
    "controller-revision-hash",
    "pod-template-generation",
    "batch.kubernetes.io/",
    "apps.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "holdfast.dev/",
    MANAGED_BY,
)
# What kubectl, kubelets, network plugins and admission wrote about the old pod.
_OLD_PODS = (
    "kubectl.kubernetes.io/",
    "kubernetes.io/config.",
    "kubernetes.io/limit-ranger",
    "cni.projectcalico.org/",
    "k8s.v1.cni.cncf.io/",
    "k8s.ovn.org/",
    "batch.kubernetes.io/",
    "holdfast.dev/",
)
# What the API server, the scheduler and admission set, or set again.
_SET_BY_SERVERS = (
    "nodeName",
    "serviceAccount",
    "priority",
    "preemptionPolicy",
    "overhead",
    "ephemeralContainers",
    "schedulingGates",
)
BASE_IMAGE_CONTAINER = "base-image"
# What every namespace accepts. A command that may not run as root is as good as one that runs: the image is there.
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


class RestorePlan(Struct, frozen=True, kw_only=True):
    """What a restored pod is made of besides the old one. `secret` is the name of a pull secret, or empty."""

    name: str
    namespace: str
    images: tuple[RestorableImage, ...]
    nodes: tuple[RestoreNode, ...] = ()
    """Those that will do; the scheduler chooses among them. Without any, the template itself says where it runs."""
    secret: str = ""
    source: str = ""
    """The backup and its run, for the annotation."""
    needs_label: bool = True
    """False for a trial, by which a node earns it."""


def restored_pod(old: Mapping[str, Any], plan: RestorePlan) -> dict[str, Any]:
    """old: a pod, or a pod template, as the API server gives it or as a manifest has it."""
    spec = _clean_spec(old.get("spec") or {})
    spec["containers"] = with_images(spec.get("containers") or (), plan.images)
    _place(spec, plan)
    _add_secret(spec, plan.secret)
    metadata = old.get("metadata") or {}
    annotations = {RESTORED_FROM: plan.source} if plan.source else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": plan.name,
            "namespace": plan.namespace,
            "labels": _without(metadata.get("labels") or {}, _CONTROLLERS),
            "annotations": {**_without(metadata.get("annotations") or {}, _OLD_PODS), **annotations},
        },
        "spec": spec,
    }


def with_images(containers: Iterable[Mapping[str, Any]], images: Iterable[RestorableImage]) -> list[dict[str, Any]]:
    """The containers, each created from its checkpoint if there is one."""
    # A digest does not change.
    changes = {each.container: {"image": each.image, "imagePullPolicy": "IfNotPresent"} for each in images}
    return [{**each, **changes.get(str(each.get("name")), {})} for each in containers]


def base_image_pod(old: Mapping[str, Any], plan: RestorePlan) -> dict[str, Any] | None:
    """A pod that only names the base images, and so brings them to a node where there is room for the restored pod.

    Whether its command is in the images does not matter. None if there is nothing to bring.
    """
    spec = _clean_spec(old.get("spec") or {})
    wanted = {each.container: each.fetched_base_image for each in plan.images if each.fetched_base_image}
    if not wanted:
        return None
    resources = {each.get("name"): each.get("resources") for each in spec.get("containers", ())}
    containers = [
        {
            "name": f"{BASE_IMAGE_CONTAINER}-{number}",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["true"],
            "resources": resources.get(name) or {},
            "securityContext": _RESTRICTED,
        }
        for number, (name, image) in enumerate(sorted(wanted.items()))
    ]
    kept = (
        *("tolerations", "affinity", "nodeSelector", "imagePullSecrets", "serviceAccountName", "securityContext"),
        *("priorityClassName", "runtimeClassName", "schedulerName"),
    )
    own = {name: spec[name] for name in kept if name in spec}
    own |= {"restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}
    own["containers"] = containers
    _place(own, plan)
    metadata = {"name": f"{plan.name[:50].rstrip('-.')}-base-image", "namespace": plan.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": own}


def missing_containers(old: Mapping[str, Any], images: Iterable[RestorableImage]) -> list[str]:
    """Images of containers that the template has not: a restored pod would lose them."""
    names = {each.get("name") for each in (old.get("spec") or {}).get("containers", ())}
    return sorted(each.container for each in images if each.container not in names)


def unrestored_containers(old: Mapping[str, Any], images: Iterable[RestorableImage]) -> list[str]:
    """Containers that begin anew, since there is no image of them."""
    saved = {each.container for each in images}
    names = [str(each.get("name")) for each in (old.get("spec") or {}).get("containers", ())]
    return [name for name in names if name not in saved]


def _clean_spec(old: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy({key: value for key, value in old.items() if key not in _SET_BY_SERVERS})
    if "volumes" in spec:
        spec["volumes"] = [each for each in spec["volumes"] if not _is_token_volume(each.get("name", ""))]
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        if mounts := container.get("volumeMounts"):
            container["volumeMounts"] = [each for each in mounts if not _is_token_mount(each)]
    return spec


def _is_token_volume(name: str) -> bool:
    return name.startswith(_TOKEN_VOLUME)


def _is_token_mount(mount: Mapping[str, Any]) -> bool:
    return _is_token_volume(mount.get("name", "")) and mount.get("mountPath") == _TOKEN_MOUNT


def _place(spec: dict[str, Any], plan: RestorePlan) -> None:
    """By the label, and on the chosen nodes: a label of its own says nothing about processors.

    Nodes that are kept for restores may have the label's name as a taint.
    """
    if any(taint.key == RESTORE_LABEL for each in plan.nodes for taint in each.spec.taints):
        spec["tolerations"] = [*(spec.get("tolerations") or ()), {"key": RESTORE_LABEL, "operator": "Exists"}]
    selector = {**(spec.get("nodeSelector") or {}), **({RESTORE_LABEL: RESTORE_VALUE} if plan.needs_label else {})}
    if plan.nodes:
        selector.pop(HOSTNAME_LABEL, None)  # the old node
    if selector:
        spec["nodeSelector"] = selector
    else:
        spec.pop("nodeSelector", None)
    if not plan.nodes:
        return
    chosen = {"key": HOSTNAME_LABEL, "operator": "In", "values": [each.hostname for each in plan.nodes]}
    affinity = copy.deepcopy(spec.get("affinity") or {})
    node_affinity = affinity.setdefault("nodeAffinity", {})
    required = node_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms: Sequence[dict[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    # Terms are alternatives: each of them has to hold with the chosen nodes.
    required["nodeSelectorTerms"] = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), chosen]} for term in terms
    ]
    spec["affinity"] = affinity


def _add_secret(spec: dict[str, Any], name: str) -> None:
    listed = list(spec.get("imagePullSecrets") or ())
    if name and all(each.get("name") != name for each in listed):
        listed.append({"name": name})
    if listed:
        spec["imagePullSecrets"] = listed


def _without(values: Mapping[str, str], beginnings: tuple[str, ...]) -> dict[str, str]:
    return {key: value for key, value in values.items() if not key.startswith(beginnings)}
