"""Where workers run: what the user wishes, and the taint of GPU nodes when GPUs are asked for."""

from typing import Any

import msgspec

from holdfast.api.trainingjob import PodTemplate, Scheduling, TrainingJob
from holdfast.workloads.trainingjob.gpus import GPU, gpus_per_worker

GPU_TOLERATION = {"key": GPU, "operator": "Exists"}


def scheduling(job: TrainingJob) -> dict[str, Any]:
    """The fields of a pod's spec that say where it runs and who goes first; only those that are needed."""
    wishes, template = job.spec.scheduling or Scheduling(), job.spec.pod_template or PodTemplate()
    fields = {
        "priorityClassName": wishes.priority,
        "nodeSelector": wishes.node_selector,
        "affinity": wishes.affinity,
        "tolerations": tolerations(job),
        "topologySpreadConstraints": template.topology_spread_constraints,
        "runtimeClassName": template.runtime_class_name,
    }
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value}


def tolerations(job: TrainingJob) -> list[dict[str, Any]]:
    wishes = job.spec.scheduling
    if wishes is not None and wishes.tolerations is not None:
        return [msgspec.to_builtins(toleration) for toleration in wishes.tolerations]
    return [GPU_TOLERATION] if gpus_per_worker(job.spec) else []
