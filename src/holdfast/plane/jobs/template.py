"""A Job's pod, as its template says and its index completes it."""

from typing import Any

from holdfast.cluster.protocol import JSON
from holdfast.plane.jobs.replicas import NewPod
from holdfast.plane.jobs.standing import FAILURES, IGNORED_FAILURES, INDEX
from holdfast.plane.objects import JOBS, TRACKING, Job

INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
# Five random characters follow, and a name has 63.
LONGEST_PREFIX = 58


def pod_body(job: Job, replica: NewPod) -> JSON:
    template = job.spec.template
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    marks: dict[str, str] = {}
    annotations: dict[str, str] = {}
    prefix = f"{job.metadata.name}-"
    if replica.index is not None:
        marks[INDEX] = str(replica.index)
        hostname = f"{job.metadata.name}-{replica.index}"
        prefix = f"{hostname}-"
        spec = _with_index_env(spec) | {"hostname": hostname}
    if replica.failures is not None:
        annotations[FAILURES] = str(replica.failures)
        annotations |= {IGNORED_FAILURES: str(replica.ignored_failures)} if replica.ignored_failures else {}
    return {
        "metadata": {
            "generateName": _prefix(prefix),
            "labels": {**metadata.get("labels", {}), **marks},
            "annotations": {**metadata.get("annotations", {}), **marks, **annotations},
            "finalizers": [*metadata.get("finalizers", []), TRACKING],
            "ownerReferences": [_owner_reference(job)],
        },
        "spec": spec,
    }


def _prefix(text: str) -> str:
    return text if len(text) <= LONGEST_PREFIX else f"{text[: LONGEST_PREFIX - 1]}-"


def _owner_reference(job: Job) -> JSON:
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _with_index_env(spec: JSON) -> JSON:
    fields = ("initContainers", "containers")
    return {
        **spec,
        **{field: [_container_with_index_env(each) for each in spec[field]] for field in fields if field in spec},
    }


def _container_with_index_env(container: dict[str, Any]) -> JSON:
    """The container with its index in the environment, unless it sets that variable itself."""
    env = container.get("env", [])
    if any(variable["name"] == INDEX_VARIABLE for variable in env):
        return container
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    return {**container, "env": [*env, {"name": INDEX_VARIABLE, "valueFrom": source}]}
