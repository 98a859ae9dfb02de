"""The claim for a job's checkpoints, where the user names none. It has no owner: checkpoints outlive their job."""

from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.checkpoints import checkpoint_storage
from holdfast.workloads.trainingjob.defaults import Defaults


def checkpoint_pvc(job: TrainingJob, defaults: Defaults) -> dict[str, Any] | None:
    """None where no claim is to be made."""
    kept = checkpoint_storage(job)
    if kept is None or kept.type != "pvc" or kept.pvc_name:
        return None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteMany" if job.spec.num_workers > 1 else "ReadWriteOnce"],
        "resources": {"requests": {"storage": kept.size or defaults.claim_size}},
    }
    if kept.storage_class_name:
        spec["storageClassName"] = kept.storage_class_name
    metadata = {"name": names.claim_name(job), "namespace": job.metadata.namespace, "labels": names.job_labels(job)}
    return {"metadata": metadata, "spec": spec}
