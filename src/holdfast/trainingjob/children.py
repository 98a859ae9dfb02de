"""The children of a TrainingJob: the wanted object of each, and the patch that an existing child needs."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.api.core.objects import ConfigMap, Deployment, Job, Service, ServiceAccount, ServicePort, ServiceSpec
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import JSON, Resource
from holdfast.cluster.resources import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    SERVICE_ACCOUNTS,
    SERVICE_MONITORS,
    SERVICES,
)
from holdfast.pods.template import Defaults, Discovery
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import config_map
from holdfast.trainingjob.objects.job import (
    avoided_nodes_annotation,
    mutable_fields,
    pod_template,
    with_avoided_nodes,
    workers_job,
)
from holdfast.trainingjob.objects.services import (
    headless_service,
    master_service,
    namespace_service,
    service_account,
    service_monitor,
)
from holdfast.trainingjob.objects.sidecar import has_sidecar
from holdfast.trainingjob.objects.storage import checkpoint_pvc
from holdfast.trainingjob.objects.tensorboard import has_tensorboard, tensorboard_deployment, tensorboard_service


class Child(Struct, frozen=True):
    resource: Resource[Any]
    body: JSON
    is_shared: bool = False
    """It serves all jobs of the namespace, and belongs to none of them."""

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


def supporting_children(
    job: TrainingJob, defaults: Defaults, reports: str | None, attempt_job: Job | None
) -> Iterator[Child]:
    """The children that must exist before the workers start: their task, DNS names, service account and storage.

    `reports` is the address that the sidecars report to, and `attempt_job` the Job of the attempt, if it exists.
    """
    discovery: Discovery = defaults.discovery if attempt_job is None else names.discovery_of(attempt_job)
    yield Child(CONFIG_MAPS, config_map(job, reports if has_sidecar(job) else None))
    if discovery == "namespace":
        yield Child(SERVICES, namespace_service(job.metadata.namespace), is_shared=True)
    yield Child(SERVICES, headless_service(job, discovery))
    yield Child(SERVICES, master_service(job, discovery, defaults.cluster_domain))
    account = service_account(job)
    if account is not None:
        yield Child(SERVICE_ACCOUNTS, account)
    if has_tensorboard(job):
        yield Child(SERVICES, tensorboard_service(job))
        yield Child(DEPLOYMENTS, _with_digest(tensorboard_deployment(job, defaults)))
    if attempt_job is not None:
        return  # what follows is made once for an attempt, and never changed
    claim = checkpoint_pvc(job, defaults)
    if claim is not None:
        yield Child(CLAIMS, claim)
    monitor = service_monitor(job) if defaults.service_monitors else None
    if monitor is not None:
        yield Child(SERVICE_MONITORS, monitor)


def unwanted_children(job: TrainingJob) -> Iterator[tuple[Resource[Any], str]]:
    """Children that an earlier spec of the job had, by resource and name."""
    if not has_tensorboard(job):
        yield DEPLOYMENTS, names.tensorboard(job)
        yield SERVICES, names.tensorboard(job)


class WorkerTemplate(Struct, frozen=True):
    """The pod template of a job's workers."""

    body: dict[str, Any]
    avoided: tuple[str, ...] = ()
    """The nodes that the template excludes."""
    discovery: Discovery = "job"
    """How the workers find each other."""


class WorkerTemplates:
    """Renders the template of an attempt once: gang admission reads its size, and the Job gets the template itself."""

    def __init__(self, defaults: Defaults, avoided: Callable[[TrainingJob], tuple[str, ...]]) -> None:
        self._defaults = defaults
        self._avoided = avoided
        self._rendered: dict[Key, tuple[object, WorkerTemplate]] = {}

    def of(self, job: TrainingJob) -> WorkerTemplate:
        avoided, meta = self._avoided(job), job.metadata
        version = (meta.uid, meta.generation, names.attempt(job), meta.labels, meta.annotations, avoided)
        rendered = self._rendered.get(meta.key)
        if rendered is None or rendered[0] != version:
            body = with_avoided_nodes(pod_template(job, self._defaults), avoided)
            rendered = self._rendered[meta.key] = version, WorkerTemplate(body, avoided, self._defaults.discovery)
        return rendered[1]

    def forget(self, key: Key) -> None:
        """The Job has its template, or the TrainingJob has ended."""
        self._rendered.pop(key, None)


def workers_child(job: TrainingJob, template: WorkerTemplate | None, *, suspended: bool) -> Child:
    """The Job of the attempt; without a template to compare it with a Job that exists."""
    if template is None:
        return Child(JOBS, workers_job(job, None, suspended=suspended))
    body = workers_job(job, template.body, suspended=suspended)
    labels = {**body["metadata"]["labels"], **names.discovery_labels(template.discovery)}
    annotations = {**body["metadata"]["annotations"], **avoided_nodes_annotation(template.avoided)}
    return Child(JOBS, {**body, "metadata": {**body["metadata"], "labels": labels, "annotations": annotations}})


def belongs_to(child: Object, job: TrainingJob) -> bool:
    owner = child.metadata.controller
    return owner is not None and owner.uid == job.metadata.uid


def is_of_another_form(child: Child, seen: Object) -> bool:
    """Whether a Service has to be made anew to become what is wanted.

    One that loses its selector in place keeps the addresses that were behind it, and its name leads there. One that was
    made without a selector has both families of addresses, which a cluster may not have. That somebody has opened one
    with addresses to the outside, as a NodePort, is no other form.
    """
    if not isinstance(seen, Service):
        return False
    wanted = msgspec.convert(child.body["spec"], ServiceSpec)
    return _is_second_name(wanted) != _is_second_name(seen.spec) or bool(wanted.selector) != bool(seen.spec.selector)


def _is_second_name(spec: ServiceSpec) -> bool:
    return spec.type == "ExternalName"


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
            if _is_second_name(msgspec.convert(spec, ServiceSpec)) != _is_second_name(seen.spec):
                return {}  # what its name resolves to may be in use
            changed = _replaced("selector", spec.get("selector", {}), seen.spec.selector)
            if msgspec.convert(spec.get("ports", ()), tuple[ServicePort, ...]) != seen.spec.ports:
                changed["ports"] = spec.get("ports")
            if spec.get("externalName", "") != seen.spec.external_name:
                changed["externalName"] = spec.get("externalName")
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
