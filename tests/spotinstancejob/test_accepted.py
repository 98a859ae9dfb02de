"""The API server, and the embedded one, take the objects as they are and leave what they say alone."""

from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.cluster.resources import JOBS
from holdfast.local.apiserver.server import open_cluster
from holdfast.runtime.process import utc_now
from holdfast.spotinstancejob.images import checkpoints_in_registry
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, base_image_pod, replica_job
from tests.control_plane.server import ControlPlane
from tests.spotinstancejob.golden import BASE, DEFAULTS, fixture
from tests.spotinstancejob.jobs import CPU_CONTAINER, GPU_CONTAINER, JSON, owned_image, spot_job
from tests.trainingjob.objects.family import GONE, differences, fields
from tests.trainingjob.objects.test_accepted import tried

TEMPLATES = {
    "fixture": fixture(),
    "everything written": spot_job(
        {
            **GPU_CONTAINER,
            "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
            "securityContext": {"runAsUser": 7},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        },
        CPU_CONTAINER,
        checkpoints={
            "checkpointRepoCredentialRef": {"name": "registry"},
            "checkpointStorage": {"type": "s3", "bucket": "b", "region": "r", "secretRef": {"name": "s"}},
        },
        job_spec={"backoffLimit": 3, "activeDeadlineSeconds": 600, "ttlSecondsAfterFinished": 5, "suspend": True},
        pod_spec={
            "volumes": [{"name": "data", "emptyDir": {}}],
            "initContainers": [{"name": "first", "image": "x"}],
            "affinity": {"podAntiAffinity": {}},
            "imagePullSecrets": [{"name": "own"}],
        },
        template_metadata={"labels": {"team": "a"}, "annotations": {"b": "c"}},
    ),
    "several containers": spot_job(CPU_CONTAINER, {"name": "logger", "image": "x"}),
}


def here(job: SpotInstanceJob, namespace: str) -> SpotInstanceJob:
    return structs.replace(job, metadata=structs.replace(job.metadata, namespace=namespace))


def objects(job: SpotInstanceJob, mode: Any) -> list[JSON]:
    """A first attempt, and a restored one with what brings its base images."""
    names = ["main", "logger", "training"]
    present = [each["name"] for each in job.spec.job_template["spec"]["template"]["spec"]["containers"]]
    saved = ["training" if "training" in present else present[0]] if mode == "application" else present
    assert set(saved) <= set(names)
    images = [owned_image(7, 0, name, mode=mode, labels={"base-image": BASE}) for name in saved]
    (found,) = checkpoints_in_registry(job, images)
    restored = ReplicaAttempt(
        replica=0, attempt=1, mode=mode, node="gpu-1", checkpoint=found, reservation="r", pull_secret="bert-pull"
    )
    jobs = [
        replica_job(job, ReplicaAttempt(replica=0, attempt=0, mode=mode), DEFAULTS),
        replica_job(job, restored, DEFAULTS),
    ]
    pod = base_image_pod(job, restored, DEFAULTS)
    return [*({"apiVersion": "batch/v1", "kind": "Job", **each} for each in jobs), *([pod] if pod else [])]


@pytest.mark.parametrize("mode", ["application", "container"])
@pytest.mark.parametrize("job", TEMPLATES.values(), ids=TEMPLATES)
def test_what_is_made_is_stored_as_it_is(
    control_plane: ControlPlane, namespace: str, job: SpotInstanceJob, mode: str
) -> None:
    made = objects(here(job, namespace), mode)
    stored = tried(control_plane, made)
    changed = differences(fields(made), fields(stored)).items()
    # An amount that is written as a number becomes text.
    assert {path: pair for path, pair in changed if pair[0] != GONE and str(pair[0]) != str(pair[1])} == {}


NON_ROOT = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    ("profile", "job"),
    [
        pytest.param("baseline", fixture(), id="baseline: the fixture"),
        pytest.param(
            "restricted",
            spot_job({**GPU_CONTAINER, "securityContext": {**CONFINED, **NON_ROOT}}),
            id="restricted, by the container",
        ),
        pytest.param(
            "restricted",
            spot_job({**GPU_CONTAINER, "securityContext": CONFINED}, pod_spec={"securityContext": NON_ROOT}),
            id="restricted, by the pod",
        ),
        pytest.param(
            "restricted",
            spot_job(
                {**GPU_CONTAINER, "securityContext": CONFINED},
                pod_spec={"securityContext": {**NON_ROOT, "runAsUser": 1000}},
            ),
            id="restricted, with a user",
        ),
    ],
)
def test_a_sidecar_asks_for_no_more_than_a_namespace_gives_the_training(
    control_plane: ControlPlane, namespace: str, profile: str, job: SpotInstanceJob
) -> None:
    control_plane.kubectl("label", "namespace", namespace, f"pod-security.kubernetes.io/enforce={profile}")
    (first, *_) = objects(here(job, namespace), "application")
    template = first["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "trial", "namespace": namespace},
        "spec": template["spec"],
    }
    (made,) = tried(control_plane, [pod])
    assert made["metadata"]["name"] == "trial"


@pytest.mark.parametrize("mode", ["application", "container"])
@pytest.mark.parametrize("job", TEMPLATES.values(), ids=TEMPLATES)
async def test_the_embedded_engine_takes_them_too(job: SpotInstanceJob, mode: str) -> None:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    try:
        for each in objects(here(job, "default"), mode):
            if each["kind"] == "Job":
                body = {**each, "metadata": {**each["metadata"], "ownerReferences": []}}
                assert (await cluster.create(JOBS, body, namespace="default")).metadata.name == body["metadata"]["name"]
    finally:
        await cluster.close()
