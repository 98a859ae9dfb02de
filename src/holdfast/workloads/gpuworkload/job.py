"""The Job of one try of a GPUWorkload."""

from typing import Any

from holdfast.api.gpuworkload import GPUWorkload
from holdfast.workloads.gpuworkload import names
from holdfast.workloads.gpuworkload.pod import pinned_to_node, pod_template
from holdfast.workloads.trainingjob.defaults import Defaults


def workload_job(workload: GPUWorkload, defaults: Defaults, place: str) -> dict[str, Any]:
    """Named and pinned as the workload's status says, so that a Job that is made again after a crash is the same.

    It never replaces its pod: that is the operator's, which looks for the right node again.
    """
    status = workload.status
    assert status is not None
    assert status.job_name
    assert status.assigned_node
    return {
        "metadata": names.workload_metadata(workload, status.job_name),
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": pinned_to_node(pod_template(workload, defaults), status.assigned_node, place),
        },
    }
