"""Reads a TrainingJob, its children and their nodes from the caches."""

from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.api.core.objects import ConfigMap, Deployment, Job, Node, Pod, Service, ServiceAccount
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    TRAINING_JOBS,
)
from holdfast.pods.template import MANAGED_BY, MANAGED_SELECTOR
from holdfast.runtime.children import BY_NODE, BY_OWNER, node_of, owner_uid
from holdfast.runtime.informer import Informers, Store
from holdfast.runtime.operator import Operator
from holdfast.trainingjob.decide.snapshot import FINISHED_STATES, TrainingJobSnapshot
from holdfast.trainingjob.gang_reader import BY_STORAGE, storage_of, waits_for_store
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.job import spec_digest
from holdfast.trainingjob.objects.resources import gpus_per_worker, min_workers
from holdfast.trainingjob.objects.storage import checkpoint_storage

BY_TRAINING_JOB = "training-job"
BY_BOARD = "tensorboard"


def training_job_key(pod: Pod) -> Iterable[Key]:
    """A worker pod is owned by a Job; a label of the pod names the TrainingJob."""
    if (key := names.worker_of(pod)) is not None:
        yield key


def training_job_of(pod: Pod) -> Iterable[str]:
    return map(str, training_job_key(pod))


def tensorboard_of(pod: Pod) -> Iterable[Key]:
    """The TrainingJob whose TensorBoard runs in the pod."""
    labels = pod.metadata.labels
    if labels.get(MANAGED_BY) == "holdfast" and names.TENSORBOARD_LABEL in labels:
        yield Key(pod.metadata.namespace, labels[names.TENSORBOARD_LABEL])


def board_name_of(pod: Pod) -> Iterable[str]:
    return map(str, tensorboard_of(pod))


class FreedStores:
    """An event source: requeues jobs when another job with the same checkpoint storage has ended or is deleted."""

    def __init__(self, jobs: Store[TrainingJob]) -> None:
        self._jobs = jobs

    def attach(self, informers: Informers, add: Callable[[Key], None]) -> None:
        def changed(old: TrainingJob | None, new: TrainingJob | None) -> None:
            if old is not None and (new is None or _state(old) != _state(new)):
                for storage in storage_of(old):
                    for job in self._jobs.by(BY_STORAGE, storage):
                        add(job.metadata.key)

        informers.of(TRAINING_JOBS).handlers.append(changed)


def _state(job: TrainingJob) -> str | None:
    return job.status.state if job.status is not None else None


class TrainingJobCaches(Struct, frozen=True):
    """The stores that the controller reads: all nodes and pods; of other built-in kinds only objects of holdfast."""

    training_jobs: Store[TrainingJob]
    jobs: Store[Job]
    pods: Store[Pod]
    nodes: Store[Node]
    services: Store[Service]
    config_maps: Store[ConfigMap]
    accounts: Store[ServiceAccount]
    deployments: Store[Deployment]

    @classmethod
    def of(cls, operator: Operator) -> "TrainingJobCaches":
        return cls(
            training_jobs=operator.store(TRAINING_JOBS, {BY_STORAGE: storage_of}),
            jobs=operator.store(JOBS, {BY_OWNER: owner_uid}, labels=MANAGED_SELECTOR),
            pods=operator.store(PODS, {BY_TRAINING_JOB: training_job_of, BY_NODE: node_of, BY_BOARD: board_name_of}),
            nodes=operator.store(NODES),
            services=operator.store(SERVICES, labels=MANAGED_SELECTOR),
            config_maps=operator.store(CONFIG_MAPS, labels=MANAGED_SELECTOR),
            accounts=operator.store(SERVICE_ACCOUNTS, labels=MANAGED_SELECTOR),
            deployments=operator.store(DEPLOYMENTS, labels=MANAGED_SELECTOR),
        )

    def child(self, kind: str, key: Key) -> Object | None:
        getters: dict[str, Callable[[Key], Object | None]] = {
            "ConfigMap": self.config_maps.get,
            "Service": self.services.get,
            "ServiceAccount": self.accounts.get,
            "Deployment": self.deployments.get,
            "Job": self.jobs.get,
        }
        return getters[kind](key)

    def keys_on_node(self, node: str) -> Iterable[Key]:
        """Jobs that have workers on the node."""
        for pod in self.pods.by(BY_NODE, node):
            yield from training_job_key(pod)

    def keys_that_share(self, service: Service) -> Iterable[Key]:
        """Jobs that need the Service of their namespace, if it is that, when it comes, changes or goes."""
        if names.is_namespace_service(service):
            for job in self.training_jobs.list():
                if job.metadata.namespace == service.metadata.namespace and _state(job) not in FINISHED_STATES:
                    yield job.metadata.key

    def snapshot(self, job: TrainingJob) -> TrainingJobSnapshot:
        """Everything that the caches have for a decision."""
        owned = self.jobs.by(BY_OWNER, job.metadata.uid)
        workers = next((child for child in owned if child.metadata.name == names.job_name(job)), None)
        digest = workers.metadata.annotations.get(names.SPEC_DIGEST) if workers else None
        pods = self.pods.by(BY_TRAINING_JOB, str(job.metadata.key))
        current = tuple(pod for pod in pods if workers is not None and _is_owned_by(pod, workers))
        return TrainingJobSnapshot(
            job=job,
            current_job=workers,
            old_jobs=tuple(child for child in owned if child is not workers),
            pods=current,
            old_pods=tuple(pod for pod in pods if pod not in current),
            nodes=self._nodes(pods),
            gpus_per_worker=gpus_per_worker(job.spec),
            claim=_claim(job),
            spec_changed=workers is not None and digest != spec_digest(job.spec),
            queued=names.QUEUE_LABEL in job.metadata.labels,
            min_workers=min_workers(job.spec),
            store_in_use=waits_for_store(job, self.training_jobs),
        )

    def _nodes(self, pods: Iterable[Pod]) -> dict[str, Node]:
        found = ((name, self.nodes.get(Key("", name))) for name in {pod.spec.node_name for pod in pods} if name)
        return {name: node for name, node in found if node is not None}


def _claim(job: TrainingJob) -> str:
    storage = checkpoint_storage(job)
    return (storage.pvc_name or names.claim_name(job)) if storage is not None and storage.type == "pvc" else ""


def _is_owned_by(pod: Pod, job: Job) -> bool:
    owner = pod.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid
