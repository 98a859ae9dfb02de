"""All objects that are made for a TrainingJob, and what a change of its spec changes in them."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import Defaults
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.environment import config_map
from holdfast.trainingjob.objects.job import pod_template, workers_job
from holdfast.trainingjob.objects.services import (
    headless_service,
    master_service,
    namespace_service,
    service_account,
    service_monitor,
)
from holdfast.trainingjob.objects.storage import checkpoint_pvc
from holdfast.trainingjob.objects.tensorboard import has_tensorboard, tensorboard_deployment, tensorboard_service
from tests.trainingjobs import training_job

DEFAULTS = Defaults(image="trainer:test", holdfast_image="holdfast:test", tensorboard_image="tensorboard:test")
GONE = "gone"

JSON = dict[str, Any]


def children(job: TrainingJob, defaults: Defaults = DEFAULTS) -> list[JSON]:
    """As they go over the wire, in the order in which they are made."""
    found = [{"apiVersion": version, "kind": kind, **body} for version, kind, body in _bodies(job, defaults) if body]
    plain: list[JSON] = json.loads(msgspec.json.encode(found))
    return plain


def _bodies(job: TrainingJob, defaults: Defaults) -> Iterator[tuple[str, str, JSON | None]]:
    yield "v1", "ConfigMap", config_map(job)
    if defaults.discovery == "namespace":
        yield "v1", "Service", namespace_service(job.metadata.namespace)
    yield "v1", "Service", headless_service(job, defaults.discovery)
    yield "v1", "Service", master_service(job, defaults.discovery, defaults.cluster_domain)
    yield "v1", "ServiceAccount", service_account(job)
    yield "v1", "PersistentVolumeClaim", checkpoint_pvc(job, defaults)
    if has_tensorboard(job):
        yield "v1", "Service", tensorboard_service(job)
        yield "apps/v1", "Deployment", tensorboard_deployment(job, defaults)
    if defaults.service_monitors:
        yield "monitoring.coreos.com/v1", "ServiceMonitor", service_monitor(job)
    yield "batch/v1", "Job", workers_job(job, pod_template(job, defaults), suspended=False)


def child(kind: str, job: TrainingJob, defaults: Defaults = DEFAULTS) -> JSON:
    """The only object of that kind."""
    (found,) = [body for body in children(job, defaults) if body["kind"] == kind]
    return found


def pod(spec: JSON | None = None, defaults: Defaults = DEFAULTS) -> JSON:
    template: JSON = child("Job", training_job(spec), defaults)["spec"]["template"]
    return template


def sidecar(spec: JSON | None = None, defaults: Defaults = DEFAULTS) -> JSON:
    (found,) = pod(spec, defaults)["spec"]["initContainers"]
    return dict(found)


def container(spec: JSON | None = None, defaults: Defaults = DEFAULTS) -> JSON:
    trainer: JSON = pod(spec, defaults)["spec"]["containers"][0]
    return trainer


def changed(spec: JSON, *, since: JSON | None = None, defaults: Defaults = DEFAULTS) -> JSON:
    """Every field of every object that differs because `spec` is written, by its path, with its new value.

    The Job's digest of the spec is left out: it changes with all of them.
    """
    jobs = training_job(since), training_job({**(since or {}), **spec})
    before, after = (fields(map(_opened, children(job, defaults))) for job in jobs)
    return {path: new for path, (_, new) in differences(before, after).items() if names.SPEC_DIGEST not in path}


def differences(before: JSON, after: JSON) -> dict[str, tuple[Any, Any]]:
    """What was and what is, wherever they differ."""
    pairs = {path: (before.get(path, GONE), after.get(path, GONE)) for path in sorted(before.keys() | after.keys())}
    return {path: (old, new) for path, (old, new) in pairs.items() if old != new}


def fields(objects: Iterable[JSON]) -> JSON:
    """Every field of every object, by its path."""
    return {
        f"{body['kind']} {body['metadata']['name']} {path}": value for body in objects for path, value in _flat(body)
    }


def _opened(body: JSON) -> JSON:
    """A ConfigMap with its JSON file opened up, and without the YAML that says the same."""
    if body["kind"] != "ConfigMap":
        return body
    return {**body, "data": json.loads(body["data"]["config.json"])}


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Maps and lists of maps taken apart; the elements of a list are known by where they are mounted, or by name."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from _flat(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, below in enumerate(value):
            yield from _flat(below, f"{path}[{below.get('mountPath', below.get('name', index))}]")
    else:
        yield path, value
