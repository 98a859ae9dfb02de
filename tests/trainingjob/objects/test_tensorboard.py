"""A job's TensorBoard."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.trainingjob.objects.sidecar_container import sidecar
from holdfast.trainingjob.objects.tensorboard import has_tensorboard
from tests.trainingjob.objects.family import DEFAULTS, child, children, container
from tests.trainingjobs import UID, training_job

BOARD = {"monitoring": {"tensorboardEnabled": True}}
ON_A_CLAIM = {**BOARD, "checkpoint": {"storage": {"pvcName": "shared"}}}
ON_NFS = {**BOARD, "checkpoint": {"storage": {"type": "nfs", "nfsServer": "filer", "nfsPath": "/ml"}}}
IN_A_BUCKET = {**BOARD, "checkpoint": {"storage": {"type": "gcs", "gcsBucket": "models"}}}


def board(spec: dict[str, Any], *, attempt: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = child("Deployment", training_job(spec, status={"restartCount": attempt}))["spec"]
    return found


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (ON_A_CLAIM, True),
        (IN_A_BUCKET, True),
        ({"checkpoint": {}, "monitoring": {}}, False),
        ({"checkpoint": {}}, False),
        (BOARD, False),
        ({**BOARD, "checkpoint": {"enabled": False}}, False),
        ({"checkpoint": {}, "monitoring": {"enabled": False, "tensorboardEnabled": True}}, False),
    ],
)
def test_it_is_there_when_it_has_something_to_show(spec: dict[str, Any], wanted: bool) -> None:
    job = training_job(spec)
    assert has_tensorboard(job) is wanted
    assert ("bert-tensorboard" in {each["metadata"]["name"] for each in children(job)}) is wanted


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        (ON_A_CLAIM, {"persistentVolumeClaim": {"claimName": "shared"}}),
        ({**BOARD, "checkpoint": {}}, {"persistentVolumeClaim": {"claimName": "bert-checkpoints"}}),
        (ON_NFS, {"nfs": {"server": "filer", "path": "/ml"}}),
    ],
)
def test_it_reads_the_folder_beside_the_checkpoints(spec: dict[str, Any], source: dict[str, Any]) -> None:
    pod = board(spec)["template"]["spec"]
    (reader,) = pod["containers"]
    assert pod["volumes"] == [{"name": "holdfast-checkpoints", **source}]
    assert reader["volumeMounts"] == [
        {
            "name": "holdfast-checkpoints",
            "mountPath": "/tensorboard",
            "subPath": f"ml/bert/{UID}/tensorboard",
            "readOnly": True,
        }
    ]
    assert reader["command"] == ["tensorboard", "--logdir", "/tensorboard", "--bind_all", "--port", "6006"]
    assert "env" not in reader


def test_the_training_is_told_the_folder_that_it_shows() -> None:
    variables = {each["name"]: each.get("value") for each in container(ON_A_CLAIM)["env"]}
    assert variables["TENSORBOARD_DIR"] == "/checkpoints/tensorboard"
    without = {**ON_A_CLAIM, "monitoring": {}}
    assert "TENSORBOARD_DIR" not in {each["name"] for each in container(without)["env"]}


@pytest.mark.parametrize(
    "storage",
    [
        {"type": "s3", "s3Bucket": "models", "secretRef": {"name": "keys"}},
        {"type": "gcs", "gcsBucket": "models", "secretRef": {"name": "keys"}},
        {"type": "azure", "azureContainer": "models", "azureAccount": "acc", "secretRef": {"name": "keys"}},
    ],
)
def test_in_a_bucket_its_sidecar_alone_is_given_the_secret(storage: dict[str, Any]) -> None:
    pod = board({**BOARD, "checkpoint": {"storage": storage}})["template"]["spec"]
    (reader,), (beside,) = pod["containers"], pod["initContainers"]
    assert reader["command"] == ["tensorboard", "--logdir", "/tensorboard", "--bind_all", "--port", "6006"]
    assert reader["volumeMounts"] == [{"name": "events", "mountPath": "/tensorboard", "readOnly": True}]
    assert "env" not in reader
    assert (beside["restartPolicy"], beside["command"]) == ("Always", ["holdfast", "tensorboard-sidecar"])
    assert beside["volumeMounts"][0] == {"name": "events", "mountPath": "/tensorboard"}
    assert "keys" in str(beside["env"]) + str([volume for volume in pod["volumes"] if "secret" in volume])
    mounted = {mount["name"] for each in (reader, beside) for mount in each["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_on_one_machine_it_reserves_nothing() -> None:
    for spec in (ON_A_CLAIM, IN_A_BUCKET):
        defaults = structs.replace(DEFAULTS, sidecar_reserves=False)
        pod = child("Deployment", training_job(spec), defaults)["spec"]["template"]["spec"]
        assert not any(each["resources"] for each in (*pod["containers"], *pod.get("initContainers", ())))


def test_its_service_finds_it_and_nothing_else_does() -> None:
    job = training_job(ON_A_CLAIM)
    labels = board(ON_A_CLAIM)["template"]["metadata"]["labels"]
    services = {each["metadata"]["name"]: each["spec"] for each in children(job) if each["kind"] == "Service"}
    found = [name for name, spec in services.items() if spec["selector"].items() <= labels.items()]
    assert found == ["bert-tensorboard"]
    assert services["bert-tensorboard"]["ports"] == [
        {"name": "http", "port": 6006, "targetPort": 6006, "protocol": "TCP"}
    ]
    assert board(ON_A_CLAIM)["selector"]["matchLabels"] == services["bert-tensorboard"]["selector"]


def test_it_runs_as_the_workers_do_and_without_a_token() -> None:
    template = {
        "securityContext": {"runAsUser": 7},
        "serviceAccountName": "mine",
        "imagePullSecrets": [{"name": "hub"}],
    }
    pod = board({**ON_A_CLAIM, "podTemplate": template})["template"]["spec"]
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (7, True)
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("mine", False)
    assert pod["imagePullSecrets"] == [{"name": "hub"}]
    (reader,) = pod["containers"]
    assert reader["image"] == "tensorboard:test"
    assert reader["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_beside_a_single_worker_it_follows_the_volume_from_node_to_node() -> None:
    (first, second) = (board({**ON_A_CLAIM, "numWorkers": 1}, attempt=attempt) for attempt in (0, 1))
    terms = [
        each["template"]["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        for each in (first, second)
    ]
    assert terms == [
        [
            {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {"training-job": "bert", "holdfast.dev/attempt": attempt}},
            }
        ]
        for attempt in ("0", "1")
    ]
    assert first["strategy"] == {"type": "Recreate"}
    assert first["template"]["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


@pytest.mark.parametrize("spec", [ON_A_CLAIM, {**ON_NFS, "numWorkers": 1}, {**IN_A_BUCKET, "numWorkers": 1}])
def test_elsewhere_it_runs_where_it_likes_and_stays_through_all_attempts(spec: dict[str, Any]) -> None:
    assert not {"affinity", "tolerations"} & board(spec)["template"]["spec"].keys()
    assert board(spec, attempt=0) == board(spec, attempt=5)


def test_with_an_object_store_the_sidecar_brings_the_logs_to_where_tensorboard_reads_them() -> None:
    def told(kind: str, **storage: str) -> bool:
        spec = {"checkpoint": {"storage": {"type": kind, **storage}}, "monitoring": {"tensorboardEnabled": True}}
        found = sidecar(training_job(spec), DEFAULTS)
        assert found is not None
        return {"name": "TENSORBOARD_DIR", "value": "/checkpoints/tensorboard"} in found["env"]

    assert told("s3", s3Bucket="runs")
    assert not told("pvc")  # it lies where it is written
