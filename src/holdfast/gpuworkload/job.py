"""The Job of a GPUWorkload's attempt: container, labels, pod template."""

from typing import Any

import msgspec

from holdfast.api.gpuworkload import KIND, GPUWorkload
from holdfast.pods.template import GPU, GPU_TOLERATION, MANAGED_BY, Defaults, container_security, escape_dollar, on_node

WORKLOAD = "workload"


def container(workload: GPUWorkload, defaults: Defaults) -> dict[str, Any]:
    spec = workload.spec
    folder = defaults.working_directory(workload.metadata)
    optional = {"command": spec.command, "args": spec.args, "workingDir": folder}
    return {
        "name": WORKLOAD,
        "image": spec.image or defaults.image,
        **{name: msgspec.to_builtins(value) for name, value in optional.items() if value},
        "env": _environment(workload),
        "resources": _resources(workload),
        "securityContext": container_security(),
        # Without a termination message, the last lines of a failed container's log show the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _environment(workload: GPUWorkload) -> list[dict[str, Any]]:
    """The user's variables come last: a variable of the user replaces one of holdfast."""
    variables = [msgspec.to_builtins(variable) for variable in workload.spec.env]
    default = {"name": "MODEL", "value": escape_dollar(workload.spec.model_name)}
    return variables if any(variable["name"] == "MODEL" for variable in variables) else [default, *variables]


def _resources(workload: GPUWorkload) -> dict[str, dict[str, Any]]:
    """The resources of the spec, with the GPUs added: Kubernetes requires equal requests and limits of a device."""
    resources = workload.spec.resources
    written = msgspec.to_builtins(resources) if resources is not None else {}
    return {side: {**written.get(side, {}), GPU: str(workload.spec.gpu_count)} for side in ("requests", "limits")}


# Labels of a GPUWorkload's children.

WORKLOAD_LABEL = "gpu-workload"
# The attempt of a pod: the reservation of the attempt turns into real use when the pod is bound.
RESERVATION_LABEL = "holdfast.dev/place"


def workload_labels(workload: GPUWorkload) -> dict[str, str]:
    return {WORKLOAD_LABEL: workload.metadata.name, MANAGED_BY: "holdfast"}


def workload_metadata(workload: GPUWorkload, name: str) -> dict[str, Any]:
    """Metadata of a child: the child is deleted together with the workload."""
    owner = {
        "apiVersion": KIND.api_version,
        "kind": KIND.kind,
        "name": workload.metadata.name,
        "uid": workload.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "name": name,
        "namespace": workload.metadata.namespace,
        "labels": workload_labels(workload),
        "ownerReferences": [owner],
    }


# The pod template of a GPUWorkload, as it could run on any node, and pinned to one node.

# The restricted profile of the Pod Security Standards.
_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "runAsGroup": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod_template(workload: GPUWorkload, defaults: Defaults) -> dict[str, Any]:
    fields = {"nodeSelector": workload.spec.node_selector, "tolerations": _tolerations(workload)}
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _SECURITY,
        "containers": [container(workload, defaults)],
        **{name: value for name, value in fields.items() if value},
    }
    return {"metadata": {"labels": workload_labels(workload)}, "spec": spec}


def pinned_to_node(template: dict[str, Any], node: str, reservation: str) -> dict[str, Any]:
    """The template for one node, with the label by which the ledger knows the pod."""
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], RESERVATION_LABEL: reservation}}
    return {"metadata": metadata, "spec": on_node(template["spec"], node)}


def _tolerations(workload: GPUWorkload) -> list[dict[str, Any]]:
    """Without tolerations in the spec the taint of GPU nodes is tolerated; an empty list means none."""
    written = workload.spec.tolerations
    return [GPU_TOLERATION] if written is None else [msgspec.to_builtins(each) for each in written]


# The Job of one attempt of a GPUWorkload.


def workload_job(workload: GPUWorkload, defaults: Defaults, reservation: str) -> dict[str, Any]:
    """Name and node come from the workload's status, so that a Job that is created again after a crash is the same.

    The Job never replaces its pod. The operator does, because it selects a node again.
    """
    status = workload.status
    assert status is not None
    assert status.job_name
    assert status.assigned_node
    return {
        "metadata": workload_metadata(workload, status.job_name),
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": pinned_to_node(pod_template(workload, defaults), status.assigned_node, reservation),
        },
    }
