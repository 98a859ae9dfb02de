"""The service account that a job's pods run as, where the user names none: an identity of their own, with no rights."""

from typing import Any

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names


def service_account(job: TrainingJob) -> dict[str, Any] | None:
    """None where the user names one."""
    if job.spec.pod_template is not None and job.spec.pod_template.service_account_name:
        return None
    return {"metadata": names.metadata(job, names.service_account(job)), "automountServiceAccountToken": False}
