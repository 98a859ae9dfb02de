"""Every field of checkpoint: this is written, exactly that changes in the objects."""

from typing import Any

import pytest

from tests.trainingjobs import UID
from tests.workloads.family import GONE, changed
from tests.workloads.paths import JSON, POD, TRAINER, variable, variables

BUCKET = {"type": "s3", "s3Bucket": "models"}
# What the fields are written beside: a job that keeps its checkpoints in a bucket.
BESIDE: JSON = {"checkpoint": {"storage": BUCKET}}
# With a TensorBoard, which reads the bucket.
SHOWN: JSON = {**BESIDE, "monitoring": {"tensorboardEnabled": True}}
CLAIM = f"{POD}.volumes[holdfast-checkpoints].persistentVolumeClaim.claimName"
NO_BUCKET = {f"{POD}.volumes[holdfast-checkpoints].emptyDir": GONE}
OWN = f"ml/bert/{UID}"
BOTH = (f"{POD}.initContainers[holdfast-restore]", TRAINER)


def folder(prefix: str) -> JSON:
    """Where on the volume both containers find their checkpoints."""
    return {f"{each}.volumeMounts[holdfast-checkpoints].subPath": prefix for each in BOTH}


def created(mode: str = "ReadWriteMany", size: str | int = "10Gi", **spec: str) -> JSON:
    labels = {"training-job": "bert", "trainingjob": "bert", "app.kubernetes.io/managed-by": "holdfast"}
    fields = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata.name": "bert-checkpoints",
        "metadata.namespace": "ml",
        **{f"metadata.labels.{label}": value for label, value in labels.items()},
        "spec.accessModes": [mode],
        "spec.resources.requests.storage": size,
        **{f"spec.{name}": value for name, value in spec.items()},
    }
    return {f"PersistentVolumeClaim bert-checkpoints {path}": value for path, value in fields.items()}


# What is written of the checkpoints, beside a job that keeps them in a bucket.
CHECKPOINTS: list[tuple[str, JSON, JSON]] = [
    ("checkpoint.frequency", {"frequency": 5}, {variable("CHECKPOINT_FREQUENCY"): "5"}),
    ("checkpoint.interval", {"interval": "1h30m"}, variables(CHECKPOINT_INTERVAL_SECONDS="5400")),
    ("checkpoint.interval", {"interval": "1500ms"}, variables(CHECKPOINT_INTERVAL_SECONDS="1.5")),
    ("checkpoint.retention", {"retention": 9}, {}),
    ("checkpoint.resumeFrom", {"resumeFrom": "s3://other/checkpoint-epoch-1"}, {}),
    (
        "checkpoint.storage.type",
        {"storage": {}},
        {CLAIM: "bert-checkpoints", **NO_BUCKET, **folder(OWN), **created()},
    ),
    (
        "checkpoint.storage.pvcName",
        {"storage": {"pvcName": "shared"}},
        {CLAIM: "shared", **NO_BUCKET, **folder(OWN)},
    ),
    (
        "checkpoint.storage.size",
        {"storage": {"size": "1Ti"}},
        {CLAIM: "bert-checkpoints", **NO_BUCKET, **folder(OWN), **created(size="1Ti")},
    ),
    (
        "checkpoint.storage.storageClassName",
        {"storage": {"storageClassName": "fast"}},
        {CLAIM: "bert-checkpoints", **NO_BUCKET, **folder(OWN), **created(storageClassName="fast")},
    ),
    (
        "checkpoint.storage.prefix",
        {"storage": {"pvcName": "shared", "prefix": "team-a/bert"}},
        {CLAIM: "shared", **NO_BUCKET, **folder("team-a/bert")},
    ),
    *(
        (
            f"checkpoint.storage.{name}",
            {"storage": {"type": "nfs", "nfsServer": "filer", "nfsPath": "/ml"}},
            {
                f"{POD}.volumes[holdfast-checkpoints].nfs.server": "filer",
                f"{POD}.volumes[holdfast-checkpoints].nfs.path": "/ml",
                **NO_BUCKET,
                **folder(OWN),
            },
        )
        for name in ("nfsServer", "nfsPath")
    ),
]
BOARD = "Deployment bert-tensorboard spec.template.spec"
READER = f"{BOARD}.containers[tensorboard]"
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def command(logs: str) -> JSON:
    return {f"{READER}.command": ["tensorboard", "--logdir", logs, "--bind_all", "--port", "6006"]}


def plain(**values: str) -> JSON:
    return {f"{READER}.env[{name}].{part}": text for name, v in values.items() for part, text in _parts(name, v)}


def _parts(name: str, value: str) -> tuple[tuple[str, str], ...]:
    return ("name", name), ("value", value)


def secret(variable_: str, name: str, key: str) -> JSON:
    source = {"name": name, "key": key, "optional": True}
    return {
        f"{READER}.env[{variable_}].name": variable_,
        **{f"{READER}.env[{variable_}].valueFrom.secretKeyRef.{part}": value for part, value in source.items()},
    }


NO_AWS: JSON = {path: GONE for key in AWS for path in secret(key, "", "")}
STORES: list[tuple[str, JSON, JSON]] = [
    (
        "checkpoint.storage.s3Bucket",
        {**BUCKET, "s3Bucket": "other"},
        command(f"s3://other/{OWN}/tensorboard"),
    ),
    (
        "checkpoint.storage.prefix",
        {**BUCKET, "prefix": "team-a/$(HOME)"},
        command("s3://models/team-a/$$(HOME)/tensorboard"),
    ),
    (
        "checkpoint.storage.region",
        {**BUCKET, "region": "eu-west-1"},
        plain(AWS_REGION="eu-west-1", AWS_DEFAULT_REGION="eu-west-1"),
    ),
    (
        "checkpoint.storage.endpoint",
        {**BUCKET, "endpoint": "http://minio-$(A):9000"},
        plain(AWS_ENDPOINT_URL="http://minio-$$(A):9000", S3_ENDPOINT="http://minio-$$(A):9000"),
    ),
    (
        "checkpoint.storage.secretRef",
        {**BUCKET, "secretRef": {"name": "keys"}},
        {f"{READER}.env[{key}].valueFrom.secretKeyRef.name": "keys" for key in AWS},
    ),
    (
        "checkpoint.storage.gcsBucket",
        {"type": "gcs", "gcsBucket": "other"},
        {**command(f"gs://other/{OWN}/tensorboard"), **NO_AWS},
    ),
    (
        "checkpoint.storage.secretRef",
        {"type": "gcs", "gcsBucket": "other", "secretRef": {"name": "keys"}},
        {
            **command(f"gs://other/{OWN}/tensorboard"),
            **NO_AWS,
            **plain(GOOGLE_APPLICATION_CREDENTIALS="/etc/holdfast-store/service-account.json"),
            f"{READER}.volumeMounts[holdfast-store].name": "holdfast-store",
            f"{READER}.volumeMounts[holdfast-store].mountPath": "/etc/holdfast-store",
            f"{READER}.volumeMounts[holdfast-store].readOnly": True,
            f"{BOARD}.volumes[holdfast-store].name": "holdfast-store",
            f"{BOARD}.volumes[holdfast-store].secret.secretName": "keys",
            f"{BOARD}.volumes[holdfast-store].secret.optional": True,
        },
    ),
    *(
        (
            f"checkpoint.storage.{name}",
            {"type": "azure", "azureContainer": "other", "azureAccount": "acc"},
            {
                **command(f"az://other/{OWN}/tensorboard"),
                **NO_AWS,
                **plain(AZURE_STORAGE_ACCOUNT_NAME="acc"),
            },
        )
        for name in ("azureContainer", "azureAccount")
    ),
    (
        "checkpoint.storage.secretRef",
        {"type": "azure", "azureContainer": "other", "azureAccount": "acc", "secretRef": {"name": "keys"}},
        {
            **command(f"az://other/{OWN}/tensorboard"),
            **NO_AWS,
            **plain(AZURE_STORAGE_ACCOUNT_NAME="acc"),
            **secret("AZURE_STORAGE_ACCOUNT_KEY", "keys", "AZURE_STORAGE_KEY"),
        },
    ),
]


@pytest.mark.parametrize(("field", "written", "expected"), CHECKPOINTS, ids=[case[0] for case in CHECKPOINTS])
def test_a_field_of_the_checkpoints_changes_just_what_it_is_for(field: str, written: JSON, expected: JSON) -> None:
    assert changed({"checkpoint": {"storage": BUCKET, **written}}, since=BESIDE) == expected


@pytest.mark.parametrize(("field", "storage", "expected"), STORES, ids=[case[0] for case in STORES])
def test_tensorboard_follows_the_checkpoints_into_the_store(field: str, storage: Any, expected: JSON) -> None:
    assert changed({"checkpoint": {"storage": storage}}, since=SHOWN) == expected


def test_checkpoints_that_are_switched_off_are_like_none() -> None:
    assert changed({"checkpoint": {"enabled": False, "frequency": 7, "interval": "5m"}}) == {}


@pytest.mark.parametrize(
    ("workers", "mode"),
    [(1, "ReadWriteOnce"), (2, "ReadWriteMany"), (100, "ReadWriteMany")],
)
def test_a_claim_is_shared_when_there_is_more_than_one_worker(workers: int, mode: str) -> None:
    found = changed({"checkpoint": {}}, since={"numWorkers": workers})
    assert created(mode).items() <= found.items()
