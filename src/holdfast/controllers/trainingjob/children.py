"""The children of a TrainingJob: what each should be, and how one that is there differs from it."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.api.builtin import ConfigMap, Job, Service, ServicePort
from holdfast.api.meta import Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, SERVICES
from holdfast.workloads.trainingjob.config import config_map
from holdfast.workloads.trainingjob.job import adjustable, workers_job
from holdfast.workloads.trainingjob.services import headless_service, master_service


class Child(Struct, frozen=True):
    resource: Resource[Any]
    body: JSON

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


def around_workers(job: TrainingJob) -> Iterator[Child]:
    """What must be there before the workers start: their task and their names."""
    yield Child(CONFIG_MAPS, config_map(job))
    yield Child(SERVICES, headless_service(job))
    yield Child(SERVICES, master_service(job))


def workers_of(job: TrainingJob, default_image: str) -> Child:
    return Child(JOBS, workers_job(job, default_image))


def belongs_to(child: Object, job: TrainingJob) -> bool:
    owner = child.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def difference(job: TrainingJob, child: Child, seen: Object) -> JSON:
    """The merge patch that mends `seen`; empty when there is nothing to mend."""
    patch = _spec_difference(job, child, seen)
    labels = child.body["metadata"]["labels"]
    if any(seen.metadata.labels.get(name) != value for name, value in labels.items()):
        patch["metadata"] = {"labels": labels}
    if patch:
        # The patch is for the object that was looked at, not for one that took its name since: a uid would guard it
        # too, but the API server answers another uid as Invalid, which looks like a refusal for good.
        patch.setdefault("metadata", {})["resourceVersion"] = seen.metadata.resource_version
    return patch


def _spec_difference(job: TrainingJob, child: Child, seen: Object) -> JSON:
    match seen:
        case ConfigMap():
            return _replaced("data", child.body["data"], seen.data)
        case Service():
            spec = child.body["spec"]
            changed = _replaced("selector", spec["selector"], seen.spec.selector)
            if msgspec.convert(spec["ports"], tuple[ServicePort, ...]) != seen.spec.ports:
                changed["ports"] = spec["ports"]
        case Job():
            there = {
                "suspend": seen.spec.suspend,
                "backoffLimit": seen.spec.backoff_limit,
                "activeDeadlineSeconds": seen.spec.active_deadline_seconds,
            }
            changed = {name: value for name, value in adjustable(job).items() if there[name] != value}
        case _:
            raise TypeError(f"{type(seen).__name__} is no child of a TrainingJob")
    return {"spec": changed} if changed else {}


def _replaced(field: str, wanted: dict[str, str], seen: dict[str, str]) -> JSON:
    """A map as a merge patch replaces it: keys that are not wanted are set to null."""
    return {} if wanted == seen else {field: {**dict.fromkeys(seen.keys() - wanted.keys()), **wanted}}
