"""Names and labels of a TrainingJob's children: functions of the job alone."""

from typing import Any

from holdfast.api.core.objects import Job, Pod, Service
from holdfast.api.meta import Key
from holdfast.api.trainingjob import KIND, TrainingJob
from holdfast.pods.template import MANAGED_BY, Discovery

JOB_LABEL = "training-job"
ATTEMPT_LABEL = "holdfast.dev/attempt"
TENSORBOARD_LABEL = "holdfast.dev/tensorboard"
SPEC_DIGEST = "holdfast.dev/spec-digest"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
# On the Service of a namespace, and on the pods and Jobs of the attempts whose workers find each other through it.
DISCOVERY_LABEL = "holdfast.dev/discovery"
NAMESPACE_SERVICE = "holdfast-workers"


def attempt(job: TrainingJob) -> int:
    """The attempt's number: every restart creates a new Job, so that old pods are never taken for new ones."""
    return job.status.restart_count if job.status is not None else 0


def job_name(job: TrainingJob) -> str:
    """The Job whose pods are the workers of this attempt."""
    return _job_name(job.metadata.name, attempt(job))


def worker_of(pod: Pod) -> Key | None:
    """The TrainingJob whose worker the pod is; None for other pods, whatever labels they have.

    Any user can copy labels. The controller reference counts: a pod whose owner does not exist is deleted by the
    garbage collector.
    """
    labels, owner = pod.metadata.labels, pod.metadata.controller
    name, number = labels.get(JOB_LABEL, ""), labels.get(ATTEMPT_LABEL, "")
    if labels.get(MANAGED_BY) != "holdfast" or owner is None or not (number.isascii() and number.isdecimal()):
        return None
    is_ours = owner.kind == "Job" and len(number) < 10 and owner.name == _job_name(name, int(number))
    return Key(pod.metadata.namespace, name) if is_ours else None


def _job_name(job: str, number: int) -> str:
    return f"{job}-training-{number}" if number else f"{job}-training"


def headless_service_name(job: TrainingJob) -> str:
    """The Service that gives every worker a DNS name, unless that of the namespace does."""
    return f"{job.metadata.name}-headless"


def master_service_name(job: TrainingJob) -> str:
    """The Service in front of worker 0."""
    return f"{job.metadata.name}-master"


def config_map_name(job: TrainingJob) -> str:
    """The ConfigMap with the workers' configuration."""
    return f"{job.metadata.name}-config"


def claim_name(job: TrainingJob) -> str:
    """The PersistentVolumeClaim that is created for checkpoints when the user names none."""
    return f"{job.metadata.name}-checkpoints"


def tensorboard(job: TrainingJob) -> str:
    """The Deployment and the Service of the job's TensorBoard."""
    return f"{job.metadata.name}-tensorboard"


def service_account(job: TrainingJob) -> str:
    """The service account of the pods: the one that the user names, else the job's own."""
    template = job.spec.pod_template
    return (template and template.service_account_name) or job.metadata.name


def subdomain(job: TrainingJob, discovery: Discovery) -> str:
    """The headless Service below which the workers have their names."""
    return NAMESPACE_SERVICE if discovery == "namespace" else headless_service_name(job)


def worker_host(job: TrainingJob, index: int, discovery: Discovery) -> str:
    """The DNS name of one worker: the Job controller sets the pod's host name to the Job's name and the index."""
    return f"{job_name(job)}-{index}.{subdomain(job, discovery)}.{job.metadata.namespace}.svc"


def discovery_labels(discovery: Discovery) -> dict[str, str]:
    return {DISCOVERY_LABEL: discovery} if discovery == "namespace" else {}


def discovery_of(attempt_job: Job) -> Discovery:
    """How the workers of an attempt find each other: what its Job was made for, whatever the operator is told now."""
    return "namespace" if attempt_job.metadata.labels.get(DISCOVERY_LABEL) == "namespace" else "job"


def is_namespace_service(service: Service) -> bool:
    """A Service of that name without the labels is somebody else's."""
    labels = service.metadata.labels
    is_named_so = service.metadata.name == NAMESPACE_SERVICE
    return is_named_so and namespace_service_labels().items() <= labels.items()


def namespace_service_labels() -> dict[str, str]:
    return {DISCOVERY_LABEL: "namespace", MANAGED_BY: "holdfast"}


def labels(job: TrainingJob) -> dict[str, str]:
    """For every child of an attempt: the job and the attempt."""
    return {**job_labels(job), ATTEMPT_LABEL: str(attempt(job))}


def job_labels(job: TrainingJob) -> dict[str, str]:
    """For children that outlive an attempt: the job's name, under the label of both specification documents."""
    return {JOB_LABEL: job.metadata.name, "trainingjob": job.metadata.name, MANAGED_BY: "holdfast"}


def tensorboard_labels(job: TrainingJob) -> dict[str, str]:
    """TensorBoard is no worker: with the job's label its pod would match the headless Service and the anti-affinity."""
    return {TENSORBOARD_LABEL: job.metadata.name, MANAGED_BY: "holdfast"}


def queue_label(job: TrainingJob) -> dict[str, str]:
    """Kueue's queue, if the job names one: Kueue then decides when the workers' Job may start."""
    queue = job.metadata.labels.get(QUEUE_LABEL)
    return {QUEUE_LABEL: queue} if queue else {}


def metadata(job: TrainingJob, name: str, *, labelled: dict[str, str] | None = None) -> dict[str, Any]:
    """Metadata of a child, with an attempt's labels unless others are given: the child is deleted with the job."""
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
