"""The API server, and the embedded one, take the objects as they are and leave what they say alone."""

import json
from random import Random
from typing import Any

import pytest
import yaml
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Resource
from holdfast.cluster.resources import CLAIMS, CONFIG_MAPS, DEPLOYMENTS, SERVICE_ACCOUNTS, SERVICES
from holdfast.cluster.resources import JOBS as WORKER_JOBS
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from tests.control_plane.kubectl import KubectlFailed
from tests.control_plane.server import ControlPlane
from tests.trainingjob.objects.family import GONE, children, differences, fields
from tests.trainingjob.objects.golden import EXAMPLES, example
from tests.trainingjobs import training_job

JSON = dict[str, Any]

RESOURCES: dict[str, Resource[Any]] = {
    each.kind: each for each in (CLAIMS, CONFIG_MAPS, DEPLOYMENTS, SERVICE_ACCOUNTS, SERVICES, WORKER_JOBS)
}
BOUNDED = {"limits": {"cpu": "2", "memory": "4Gi"}}
BOARD = {"monitoring": {"tensorboardEnabled": True}}
JOBS = {name: example(name) for name in EXAMPLES} | {
    "on a claim": training_job({**BOARD, "numWorkers": 1, "checkpoint": {"storage": {"storageClassName": "fast"}}}),
    "on nfs": training_job(
        {**BOARD, "checkpoint": {"storage": {"type": "nfs", "nfsServer": "filer", "nfsPath": "/ml", "prefix": "a b"}}}
    ),
    "in gcs": training_job(
        {**BOARD, "checkpoint": {"storage": {"type": "gcs", "gcsBucket": "models", "secretRef": {"name": "keys"}}}}
    ),
    "in azure": training_job(
        {
            **BOARD,
            "checkpoint": {
                "interval": "30m",
                "storage": {"type": "azure", "azureContainer": "models", "azureAccount": "acc"},
            },
        }
    ),
    "resuming from elsewhere": training_job(
        {
            "checkpoint": {
                "resumeFrom": "gs://old/$(bert)",
                "storage": {"type": "s3", "s3Bucket": "models", "secretRef": {"name": "keys"}},
            }
        }
    ),
    "resuming from a neighbour's folder": training_job({"checkpoint": {"resumeFrom": "old/bert"}}),
    "watched": training_job({"progressDeadlineSeconds": 60, "resources": BOUNDED}),
    "elastic": training_job({"command": ["torchrun", "--nnodes=1:2"], "failurePolicy": {"restartPolicy": "ExitCode"}}),
    "with all of a template": training_job(
        {
            "framework": "tensorflow",
            "podTemplate": {
                "volumes": [{"name": "data", "emptyDir": {"medium": "Memory"}}],
                "volumeMounts": [{"name": "data", "mountPath": "/dev/shm"}],
                "imagePullSecrets": [{"name": "hub"}],
                "imagePullPolicy": "Always",
                "annotations": {"note": "x"},
                "labels": {"team": "vision"},
                "topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
                ],
                "securityContext": {"runAsUser": 7, "supplementalGroups": [8]},
                "terminationGracePeriodSeconds": 120,
            },
        }
    ),
}


def here(job: TrainingJob, namespace: str) -> TrainingJob:
    return structs.replace(job, metadata=structs.replace(job.metadata, namespace=namespace))


def tried(plane: ControlPlane, objects: list[JSON]) -> list[JSON]:
    """What the server would store of them; it refuses unknown and doubled fields."""
    listing = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    answer = plane.kubectl("create", "--dry-run=server", "--validate=strict", "-o=yaml", "-f", "-", input=listing)
    return list(yaml.safe_load_all(answer))


def pods(job: TrainingJob) -> list[JSON]:
    """A pod of every template, as far as the server has a say in it."""
    templates = [each["spec"]["template"] for each in children(job) if "template" in each.get("spec", {})]
    return [_pod(f"trial-{number}", job.metadata.namespace, template) for number, template in enumerate(templates)]


def _pod(name: str, namespace: str, template: JSON) -> JSON:
    # Accounts and priorities of the examples are not there; that they are looked up is Kubernetes' own affair.
    spec = {field: value for field, value in template["spec"].items() if field != "priorityClassName"}
    metadata = {**template["metadata"], "name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, "serviceAccountName": "default"}}


@pytest.fixture
def restricted(control_plane: ControlPlane, namespace: str) -> str:
    """A namespace that enforces the restricted profile."""
    control_plane.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    return namespace


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_what_is_made_is_stored_as_it_is(control_plane: ControlPlane, namespace: str, job: TrainingJob) -> None:
    made = children(here(job, namespace))
    stored = tried(control_plane, made)
    lost = {path: pair for path, pair in differences(fields(made), fields(stored)).items() if pair[0] != GONE}
    assert lost == {}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
async def test_the_embedded_engine_takes_them_too(job: TrainingJob) -> None:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    made = children(here(job, "default"))
    try:
        for each in made:
            kind = RESOURCES[each["kind"]]
            stored = await cluster.create(kind, {**each, "metadata": _unowned(each["metadata"])}, namespace="default")
            assert stored.metadata.name == each["metadata"]["name"]
    finally:
        await cluster.close()


def _unowned(metadata: JSON) -> JSON:
    """Without the owner that was never made: what it leaves behind is collected at once."""
    return {name: value for name, value in metadata.items() if name != "ownerReferences"}


@pytest.mark.parametrize("name", [name for name in JOBS if name != "on nfs"])
def test_pods_keep_to_the_restricted_profile(control_plane: ControlPlane, restricted: str, name: str) -> None:
    wanted = pods(here(JOBS[name], restricted))
    made = tried(control_plane, wanted)
    assert [pod["metadata"]["name"] for pod in made] == [pod["metadata"]["name"] for pod in wanted] != []


@pytest.mark.parametrize(
    ("resources", "quality"),
    [(BOUNDED, "Guaranteed"), ({"requests": {"cpu": "2"}}, "Burstable"), ({"limits": {"cpu": "2"}}, "Burstable")],
)
def test_a_sidecar_leaves_the_quality_of_service_as_it_was(
    control_plane: ControlPlane, namespace: str, resources: JSON, quality: str
) -> None:
    (made,) = tried(control_plane, pods(here(training_job({"checkpoint": {}, "resources": resources}), namespace)))
    assert made["status"]["qosClass"] == quality


def test_on_the_nodes_network_the_ports_of_two_workers_keep_them_apart(
    control_plane: ControlPlane, namespace: str
) -> None:
    job = training_job({"checkpoint": {}, "podTemplate": {"hostNetwork": True}})
    (made,) = tried(control_plane, pods(here(job, namespace)))
    (beside,) = made["spec"]["initContainers"]
    assert [port["hostPort"] for port in beside["ports"]] == [8470, 8471]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (
            training_job({"checkpoint": {}, "networking": {"rdmaEnabled": True}}),
            'container "trainer" must not include "IPC_LOCK" in securityContext.capabilities.add)',
        ),
        (
            JOBS["on nfs"],
            'volume "holdfast-checkpoints" uses restricted volume type "nfs")',
        ),
    ],
    ids=["rdma", "nfs"],
)
def test_these_are_the_exceptions_to_the_profile(
    control_plane: ControlPlane, restricted: str, job: TrainingJob, why: str
) -> None:
    with pytest.raises(KubectlFailed) as refused:
        tried(control_plane, pods(here(job, restricted))[-1:])
    (_, _, reasons) = refused.value.output.strip().partition('violates PodSecurity "restricted:latest": ')
    assert reasons.partition("(")[2] == why
