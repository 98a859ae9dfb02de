"""What a TrainingJob's children are called and how they are labelled: functions of the job alone."""

from typing import Any

from holdfast.api.trainingjob import KIND, TrainingJob

JOB_LABEL = "training-job"
ATTEMPT_LABEL = "holdfast.dev/attempt"
SPEC_DIGEST = "holdfast.dev/spec-digest"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
MANAGED_BY = "app.kubernetes.io/managed-by"


def attempt(job: TrainingJob) -> int:
    """Which try this is: every restart makes a new Job, so that nothing of an old one is taken for the new."""
    return job.status.restart_count if job.status is not None else 0


def workers(job: TrainingJob) -> str:
    """The Job whose pods are the workers of this attempt."""
    number = attempt(job)
    return f"{job.metadata.name}-training-{number}" if number else f"{job.metadata.name}-training"


def headless(job: TrainingJob) -> str:
    """The Service that gives every worker a name."""
    return f"{job.metadata.name}-headless"


def master(job: TrainingJob) -> str:
    """The Service in front of worker 0."""
    return f"{job.metadata.name}-master"


def config(job: TrainingJob) -> str:
    """The ConfigMap with what the workers are to train."""
    return f"{job.metadata.name}-config"


def worker_host(job: TrainingJob, index: int) -> str:
    """The DNS name of one worker: the Job controller sets the pod's host name to the Job's name and the index."""
    return f"{workers(job)}-{index}.{headless(job)}.{job.metadata.namespace}.svc"


def labels(job: TrainingJob) -> dict[str, str]:
    """On every child: both documents' spelling of the job's name, and the attempt."""
    return {
        JOB_LABEL: job.metadata.name,
        "trainingjob": job.metadata.name,
        ATTEMPT_LABEL: str(attempt(job)),
        MANAGED_BY: "holdfast",
    }


def metadata(job: TrainingJob, name: str) -> dict[str, Any]:
    """Metadata of a child: it goes when the job goes."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job),
        "ownerReferences": [
            {
                "apiVersion": KIND.api_version,
                "kind": KIND.kind,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
