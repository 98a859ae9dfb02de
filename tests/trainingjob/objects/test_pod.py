"""A worker's pod: what it runs, as whom, with what mounted."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.meta import WORKING_DIRECTORY
from holdfast.gpuworkload.job import container as gpu_container
from tests.gpuworkloads import workload
from tests.trainingjob.objects.family import DEFAULTS, child, container, pod
from tests.trainingjobs import training_job

RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
CLAIMED = {"checkpoint": {"storage": {"pvcName": "shared"}}}


@pytest.mark.parametrize(
    ("spec", "image"),
    [
        ({}, "torch:default"),
        ({"framework": "pytorch"}, "torch:default"),
        ({"framework": "jax"}, "trainer:test"),
        ({"framework": "tensorflow"}, "trainer:test"),
        ({"image": "mine:1"}, "mine:1"),
    ],
)
def test_without_an_image_the_frameworks_default_runs_else_the_default_of_all(spec: dict[str, Any], image: str) -> None:
    defaults = structs.replace(DEFAULTS, images={"pytorch": "torch:default", "jax": ""})
    trainer = container(spec, defaults)
    assert trainer["image"] == image
    assert "command" not in trainer
    assert "args" not in trainer


@pytest.mark.parametrize(
    ("folder", "local", "expected"),
    [("/home/me", True, "/home/me"), ("/home/me", False, None), ("relative", True, None), ("", True, None)],
)
def test_on_one_machine_alone_a_command_runs_in_the_folder_that_is_noted(
    folder: str, local: bool, expected: str | None
) -> None:
    defaults, noted = structs.replace(DEFAULTS, local_folders=local), {WORKING_DIRECTORY: folder}
    job, work = training_job({"command": ["a"]}), workload({"command": ["a"]})
    job = structs.replace(job, metadata=structs.replace(job.metadata, annotations=noted))
    work = structs.replace(work, metadata=structs.replace(work.metadata, annotations=noted))
    (trainer,) = child("Job", job, defaults)["spec"]["template"]["spec"]["containers"]
    assert trainer.get("workingDir") == expected
    assert gpu_container(work, defaults).get("workingDir") == expected


def test_pods_are_restricted_and_see_no_api_token() -> None:
    spec = pod(CLAIMED)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for each in (*spec["initContainers"], *spec["containers"]):
        assert each["securityContext"].items() >= RESTRICTED.items()


def test_the_users_security_context_replaces_field_by_field() -> None:
    own = {"runAsUser": 0, "runAsNonRoot": False, "supplementalGroups": [7]}
    found = pod({"podTemplate": {"securityContext": own}})["spec"]["securityContext"]
    assert found == {**pod()["spec"]["securityContext"], **own}


def test_the_account_of_a_job_gives_no_token_away() -> None:
    assert child("ServiceAccount", training_job())["automountServiceAccountToken"] is False


def test_only_the_trainer_may_lock_memory_for_rdma() -> None:
    spec = pod({**CLAIMED, "networking": {"rdmaEnabled": True}})["spec"]
    capabilities = [each["securityContext"]["capabilities"] for each in (*spec["initContainers"], *spec["containers"])]
    assert capabilities == [{"drop": ["ALL"]}, {"drop": ["ALL"], "add": ["IPC_LOCK"]}]


def test_labels_of_the_users_never_replace_those_that_workers_are_found_by() -> None:
    labels = pod({"podTemplate": {"labels": {"team": "vision", "training-job": "mine"}}})["metadata"]["labels"]
    assert (labels["team"], labels["training-job"]) == ("vision", "bert")


def test_annotations_of_the_users_replace_ours() -> None:
    own = {"prometheus.io/path": "/stats"}
    found = pod({"monitoring": {}, "podTemplate": {"annotations": own}})["metadata"]["annotations"]
    assert found == {"prometheus.io/scrape": "true", "prometheus.io/port": "8080", "prometheus.io/path": "/stats"}


def test_a_pod_has_nothing_that_is_not_asked_for() -> None:
    template = pod({"gpusPerWorker": 0, "monitoring": {"enabled": False}})
    assert template["metadata"].keys() == {"labels"}
    assert template["spec"].keys() == {
        "restartPolicy",
        "subdomain",
        "serviceAccountName",
        "automountServiceAccountToken",
        "enableServiceLinks",
        "securityContext",
        "containers",
        "volumes",
    }


def test_the_end_of_a_failed_workers_log_is_kept() -> None:
    spec = pod(CLAIMED)["spec"]
    policies = {each["terminationMessagePolicy"] for each in (*spec["initContainers"], *spec["containers"])}
    assert policies == {"FallbackToLogsOnError"}


@pytest.mark.parametrize("place", ["/dev/shm", "/dev/shm/", "/dev//shm"])
def test_shared_memory_of_the_users_takes_the_place_of_ours(place: str) -> None:
    own = {"name": "mine", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
    template = {"volumes": [own], "volumeMounts": [{"name": "mine", "mountPath": place}]}
    spec = pod({"podTemplate": template, "monitoring": {"enabled": False}})["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["holdfast-config", "mine"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["holdfast-config", "mine"]


def test_a_mount_below_shared_memory_does_not_replace_it() -> None:
    template = {
        "volumes": [{"name": "mine", "emptyDir": {}}],
        "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/cache"}],
    }
    mounts = container({"podTemplate": template, "monitoring": {"enabled": False}})["volumeMounts"]
    assert [mount["mountPath"] for mount in mounts] == ["/etc/holdfast", "/dev/shm", "/dev/shm/cache"]


def test_every_mount_has_its_volume() -> None:
    for spec in ({}, CLAIMED, {"checkpoint": {"storage": {"type": "s3", "s3Bucket": "models"}}}):
        found = pod(spec)["spec"]
        mounted = {
            mount["name"]
            for each in (*found.get("initContainers", ()), *found["containers"])
            for mount in each["volumeMounts"]
        }
        assert mounted == {volume["name"] for volume in found["volumes"]}


def test_without_checkpoints_nothing_is_told_of_them() -> None:
    for spec in ({}, {"checkpoint": {"enabled": False}}):
        names = {variable["name"] for variable in container(spec)["env"]}
        assert not names & {"CHECKPOINT_DIR", "RESUME_FROM", "CHECKPOINT_FREQUENCY", "TENSORBOARD_DIR"}


def test_all_attempts_share_a_volume_and_none_a_folder() -> None:
    attempts = [child("Job", training_job(CLAIMED, status={"restartCount": count})) for count in (0, 1)]
    pods = [attempt["spec"]["template"]["spec"] for attempt in attempts]
    mounts = [each["initContainers"][0]["volumeMounts"] for each in pods]
    folders = [
        {variable["name"]: variable.get("value") for variable in each["containers"][0]["env"]}["CHECKPOINT_DIR"]
        for each in pods
    ]
    assert mounts[0] == mounts[1]
    assert folders == ["/checkpoints/attempt-0", "/checkpoints/attempt-1"]
