"""The children of a TrainingJob: the wanted object of each, and the patch that an existing child needs."""

import hashlib
from collections.abc import Collection, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.api.core.objects import ConfigMap, Deployment, Job, Service, ServiceAccount, ServicePort
from holdfast.api.meta import Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import CONFIG_MAPS, DEPLOYMENTS, JOBS, SERVICE_ACCOUNTS, SERVICES
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.config import config_map
from holdfast.trainingjob.objects.job import mutable_fields, workers_job
from holdfast.trainingjob.objects.pod import avoided_nodes_annotation, with_avoided_nodes
from holdfast.trainingjob.objects.services import headless_service, master_service, service_account
from holdfast.trainingjob.objects.sidecar import has_sidecar
from holdfast.trainingjob.objects.tensorboard import has_tensorboard, tensorboard_deployment, tensorboard_service


class Child(Struct, frozen=True):
    resource: Resource[Any]
    body: JSON

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


def supporting_children(job: TrainingJob, defaults: Defaults, reports: str | None) -> Iterator[Child]:
    """The children that must exist before the workers start: their task, their DNS names and their service account.

    `reports` is the address that the sidecars report to.
    """
    yield Child(CONFIG_MAPS, config_map(job, reports if has_sidecar(job) else None))
    yield Child(SERVICES, headless_service(job))
    yield Child(SERVICES, master_service(job))
    account = service_account(job)
    if account is not None:
        yield Child(SERVICE_ACCOUNTS, account)
    if has_tensorboard(job):
        yield Child(SERVICES, tensorboard_service(job))
        yield Child(DEPLOYMENTS, _with_digest(tensorboard_deployment(job, defaults)))


def workers_child(job: TrainingJob, defaults: Defaults, *, suspended: bool, avoided: Collection[str]) -> Child:
    body = workers_job(job, defaults, suspended=suspended)
    metadata = {
        **body["metadata"],
        "annotations": {**body["metadata"]["annotations"], **avoided_nodes_annotation(avoided)},
    }
    spec = {**body["spec"], "template": with_avoided_nodes(body["spec"]["template"], avoided)}
    return Child(JOBS, {**body, "metadata": metadata, "spec": spec})


def belongs_to(child: Object, job: TrainingJob) -> bool:
    owner = child.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def patch_for(job: TrainingJob, child: Child, seen: Object, *, suspended: bool = False) -> JSON:
    """The merge patch that corrects `seen`; empty when nothing differs."""
    patch = _spec_difference(job, child, seen, suspended)
    metadata = child.body["metadata"]
    if any(seen.metadata.labels.get(name) != value for name, value in metadata["labels"].items()):
        patch.setdefault("metadata", {})["labels"] = metadata["labels"]
    if patch:
        # The patch is for the object that was read, not for a later object of the same name. A uid would guard the
        # patch too, but the API server answers a different uid with Invalid, which looks like a permanent refusal.
        patch.setdefault("metadata", {})["resourceVersion"] = seen.metadata.resource_version
    return patch


def _spec_difference(job: TrainingJob, child: Child, seen: Object, suspended: bool) -> JSON:
    match seen:
        case ConfigMap():
            return _replaced("data", child.body["data"], seen.data)
        case Service():
            spec = child.body["spec"]
            changed = _replaced("selector", spec["selector"], seen.spec.selector)
            if msgspec.convert(spec["ports"], tuple[ServicePort, ...]) != seen.spec.ports:
                changed["ports"] = spec["ports"]
        case Job():
            current = {"suspend": seen.spec.suspend, "backoffLimit": seen.spec.backoff_limit}
            wanted = mutable_fields(job, suspended=suspended)
            changed = {name: value for name, value in wanted.items() if current[name] != value}
        case ServiceAccount():
            wanted = child.body["automountServiceAccountToken"]
            return {} if seen.automount_service_account_token == wanted else {"automountServiceAccountToken": wanted}
        case Deployment():
            digest = child.body["metadata"]["annotations"][names.SPEC_DIGEST]
            if seen.metadata.annotations.get(names.SPEC_DIGEST) == digest:
                return {}
            return {"metadata": {"annotations": {names.SPEC_DIGEST: digest}}, "spec": child.body["spec"]}
        case _:
            raise TypeError(f"{type(seen).__name__} is no child of a TrainingJob")
    return {"spec": changed} if changed else {}


def _replaced(field: str, wanted: dict[str, str], seen: dict[str, str]) -> JSON:
    """The merge patch that replaces a map: unwanted keys are set to null."""
    return {} if wanted == seen else {field: {**dict.fromkeys(seen.keys() - wanted.keys()), **wanted}}


def _with_digest(body: JSON) -> JSON:
    """The cache stores no spec of a Deployment: the digest shows whether the spec is the wanted one."""
    digest = hashlib.sha256(msgspec.json.encode(body["spec"], order="sorted")).hexdigest()[:16]
    return {**body, "metadata": {**body["metadata"], "annotations": {names.SPEC_DIGEST: digest}}}
