"""What a TrainingJob's children are called and how they are labelled: functions of the job alone."""

from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import KIND, TrainingJob
from holdfast.pods.template import MANAGED_BY

JOB_LABEL = "training-job"
ATTEMPT_LABEL = "holdfast.dev/attempt"
TENSORBOARD_LABEL = "holdfast.dev/tensorboard"
SPEC_DIGEST = "holdfast.dev/spec-digest"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def attempt(job: TrainingJob) -> int:
    """Which try this is: every restart makes a new Job, so that nothing of an old one is taken for the new."""
    return job.status.restart_count if job.status is not None else 0


def job_name(job: TrainingJob) -> str:
    """The Job whose pods are the workers of this attempt."""
    return _workers(job.metadata.name, attempt(job))


def worker_of(pod: Pod) -> Key | None:
    """The TrainingJob whose worker the pod is; None for other pods, whatever labels they have.

    Anybody can copy labels. The controller reference counts: a pod whose owner does not exist is deleted by the
    garbage collector.
    """
    labels, owner = pod.metadata.labels, pod.metadata.controller
    name, number = labels.get(JOB_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    if labels.get(MANAGED_BY) != "holdfast" or owner is None or not (number.isascii() and number.isdecimal()):
        return None
    is_made_by_us = owner.kind == "Job" and len(number) < 10 and owner.name == _workers(name, int(number))
    return Key(pod.metadata.namespace, name) if is_made_by_us else None


def _workers(job: str, number: int) -> str:
    return f"{job}-training-{number}" if number else f"{job}-training"


def headless_service_name(job: TrainingJob) -> str:
    """The Service that gives every worker a name."""
    return f"{job.metadata.name}-headless"


def master_service_name(job: TrainingJob) -> str:
    """The Service in front of worker 0."""
    return f"{job.metadata.name}-master"


def config_map_name(job: TrainingJob) -> str:
    """The ConfigMap with what the workers are to train."""
    return f"{job.metadata.name}-config"


def claim_name(job: TrainingJob) -> str:
    """The claim that is made for checkpoints when none is named."""
    return f"{job.metadata.name}-checkpoints"


def tensorboard(job: TrainingJob) -> str:
    """The Deployment and the Service of the job's TensorBoard."""
    return f"{job.metadata.name}-tensorboard"


def service_account(job: TrainingJob) -> str:
    """Whom the pods run as: the account that the user names, else the job's own."""
    template = job.spec.pod_template
    return (template and template.service_account_name) or job.metadata.name


def worker_host(job: TrainingJob, index: int) -> str:
    """The DNS name of one worker: the Job controller sets the pod's host name to the Job's name and the index."""
    return f"{job_name(job)}-{index}.{headless_service_name(job)}.{job.metadata.namespace}.svc"


def labels(job: TrainingJob) -> dict[str, str]:
    """On every child of an attempt: whose it is, and the attempt."""
    return {**job_labels(job), ATTEMPT_LABEL: str(attempt(job))}


def job_labels(job: TrainingJob) -> dict[str, str]:
    """On what outlives an attempt: both documents' spelling of the job's name."""
    return {JOB_LABEL: job.metadata.name, "trainingjob": job.metadata.name, MANAGED_BY: "holdfast"}


def tensorboard_labels(job: TrainingJob) -> dict[str, str]:
    """TensorBoard is no worker: with the job's label it would join the headless Service and the anti-affinity."""
    return {TENSORBOARD_LABEL: job.metadata.name, MANAGED_BY: "holdfast"}


def queue_label(job: TrainingJob) -> dict[str, str]:
    """Kueue's queue, if the job is to wait in one: Kueue then decides when the workers' Job may start."""
    queue = job.metadata.labels.get(QUEUE_LABEL)
    return {QUEUE_LABEL: queue} if queue else {}


def metadata(job: TrainingJob, name: str, *, labelled: dict[str, str] | None = None) -> dict[str, Any]:
    """Metadata of a child, with an attempt's labels unless others are given: it goes when the job goes."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job) if labelled is None else labelled,
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
