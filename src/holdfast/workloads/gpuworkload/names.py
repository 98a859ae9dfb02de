"""How what belongs to a GPUWorkload is labelled."""

from typing import Any

from holdfast.api.gpuworkload import KIND, GPUWorkload
from holdfast.workloads.trainingjob.names import MANAGED_BY

WORKLOAD_LABEL = "gpu-workload"
# The try that a pod is of: what was assumed for it is made good when it is bound.
PLACE_LABEL = "holdfast.dev/place"


def workload_labels(workload: GPUWorkload) -> dict[str, str]:
    return {WORKLOAD_LABEL: workload.metadata.name, MANAGED_BY: "holdfast"}


def workload_metadata(workload: GPUWorkload, name: str) -> dict[str, Any]:
    """Metadata of a child: it goes when the workload goes."""
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
