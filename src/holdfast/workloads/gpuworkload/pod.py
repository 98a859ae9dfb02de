"""The pod template of a GPUWorkload, as it could run on any node; and pinned to one."""

from typing import Any

import msgspec

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.workloads.gpuworkload import names
from holdfast.workloads.gpuworkload.container import container
from holdfast.workloads.trainingjob.defaults import Defaults
from holdfast.workloads.trainingjob.scheduling import GPU_TOLERATION

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
    return {"metadata": {"labels": names.workload_labels(workload)}, "spec": spec}


def pinned_to_node(template: dict[str, Any], node: str, place: str) -> dict[str, Any]:
    """For one node alone, by affinity and not by nodeName: so the scheduler still sees to it that there is room."""
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}}
    metadata = {**template["metadata"], "labels": {**template["metadata"]["labels"], names.PLACE_LABEL: place}}
    return {"metadata": metadata, "spec": {**template["spec"], "affinity": {"nodeAffinity": required}}}


def _tolerations(workload: GPUWorkload) -> list[dict[str, Any]]:
    """Where nothing is written the taint of GPU nodes; an empty list means none."""
    written = workload.spec.tolerations
    return [GPU_TOLERATION] if written is None else [msgspec.to_builtins(each) for each in written]
