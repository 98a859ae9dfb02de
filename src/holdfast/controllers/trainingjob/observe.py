"""Reads a TrainingJob and what belongs to it from the caches."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.api.builtin import ConfigMap, Job, Pod, Service
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, PODS, SERVICES, TRAINING_JOBS
from holdfast.planning.trainingjob.observed import Observed
from holdfast.runtime.cache import Store
from holdfast.runtime.operator import Operator
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.job import spec_digest

OURS = f"{names.MANAGED_BY}=holdfast"
BY_OWNER = "owner"


def owner_uid(obj: Object) -> Iterable[str]:
    owner = obj.metadata.controller
    return (owner.uid,) if owner is not None else ()


class Caches(Struct, frozen=True):
    """The stores that the controller reads; of the built-in kinds they hold only what holdfast made."""

    training_jobs: Store[TrainingJob]
    jobs: Store[Job]
    pods: Store[Pod]
    services: Store[Service]
    config_maps: Store[ConfigMap]

    @classmethod
    def of(cls, operator: Operator) -> "Caches":
        return cls(
            training_jobs=operator.store(TRAINING_JOBS),
            jobs=operator.store(JOBS, {BY_OWNER: owner_uid}, labels=OURS),
            pods=operator.store(PODS, {BY_OWNER: owner_uid}, labels=OURS),
            services=operator.store(SERVICES, labels=OURS),
            config_maps=operator.store(CONFIG_MAPS, labels=OURS),
        )

    def child(self, kind: str, key: Key) -> Object | None:
        match kind:
            case "ConfigMap":
                return self.config_maps.get(key)
            case "Service":
                return self.services.get(key)
            case _:
                return self.jobs.get(key)

    def observe(self, key: Key) -> Observed | None:
        """All that a decision needs; None when there is no such job or it is being deleted."""
        job = self.training_jobs.get(key)
        if job is None or job.metadata.deletion_timestamp:
            return None
        owned = self.jobs.by(BY_OWNER, job.metadata.uid)
        workers = next((child for child in owned if child.metadata.name == names.workers(job)), None)
        digest = workers.metadata.annotations.get(names.SPEC_DIGEST) if workers else None
        return Observed(
            job=job,
            workers=workers,
            earlier=tuple(child for child in owned if child is not workers),
            pods=tuple(self.pods.by(BY_OWNER, workers.metadata.uid)) if workers else (),
            outdated=workers is not None and digest != spec_digest(job.spec),
        )
