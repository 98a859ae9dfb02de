"""Every field of checkpoint: this is written, exactly that changes in the objects."""

from typing import Any

import pytest

from holdfast.trainingjob.objects.storage import shared_location
from tests.trainingjob.objects.family import GONE, changed
from tests.trainingjob.objects.paths import JSON, POD, SIDECAR, TRAINER, no_variables, secret, variable, variables
from tests.trainingjobs import UID, training_job

BUCKET = {"type": "s3", "s3Bucket": "models"}
# What the fields are written beside: a job that keeps its checkpoints in a bucket.
BESIDE: JSON = {"checkpoint": {"storage": BUCKET}}
# With a TensorBoard, which reads the bucket.
SHOWN: JSON = {**BESIDE, "monitoring": {"tensorboardEnabled": True}}
CLAIM = f"{POD}.volumes[holdfast-checkpoints].persistentVolumeClaim.claimName"
OWN = f"ml/bert/{UID}"
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ALLOW_HTTP")


def no_aws(*readers: str) -> JSON:
    return {path: GONE for at in readers for key in AWS for path in secret(at, key, "", "")}


# A volume keeps what is written to it: nothing is uploaded, and nobody waits for that.
NO_BUCKET: JSON = {
    f"{POD}.volumes[holdfast-checkpoints].emptyDir": GONE,
    **no_variables("HOLDFAST_STORE", at=SIDECAR),
    **no_aws(SIDECAR),
    variable("HOLDFAST_GRACE_SECONDS", SIDECAR): "90",
    f"{POD}.terminationGracePeriodSeconds": 90,
}


def folder(prefix: str) -> JSON:
    """Where on the volume both containers find their checkpoints."""
    return {f"{each}.volumeMounts[/checkpoints].subPath": prefix for each in (SIDECAR, TRAINER)}


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
    ("checkpoint.retention", {"retention": 9}, {variable("HOLDFAST_RETENTION", SIDECAR): "9"}),
    (
        "checkpoint.resumeFrom",
        {"resumeFrom": "s3://other/$(A)/checkpoint-epoch-1"},
        variables(SIDECAR, HOLDFAST_RESUME_FROM="s3://other/$$(A)/checkpoint-epoch-1"),
    ),
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
READER = f"{BOARD}.initContainers[holdfast-sidecar]"
READERS = (SIDECAR, READER)
GOOGLE = dict.fromkeys(
    ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"), "/etc/holdfast-store/service-account.json"
)


def stored(url: str) -> JSON:
    """Where the sidecar keeps them, and where TensorBoard's sidecar looks."""
    return {variable("HOLDFAST_STORE", at): url for at in READERS}


def plain(**values: str) -> JSON:
    return {path: value for at in READERS for path, value in variables(at, **values).items()}


def file_of(name: str) -> JSON:
    """A Secret's file for both readers, each in its own pod."""
    fields = {"name": "holdfast-store", "mountPath": "/etc/holdfast-store", "readOnly": True}
    return {
        **{
            f"{at}.volumeMounts[/etc/holdfast-store].{field}": value
            for at in READERS
            for field, value in fields.items()
        },
        **{
            f"{pod}.volumes[holdfast-store].{field}": value
            for pod in (POD, BOARD)
            for field, value in (("name", "holdfast-store"), ("secret.secretName", name), ("secret.optional", True))
        },
    }


NO_AWS = no_aws(*READERS)
STORES: list[tuple[str, JSON, JSON]] = [
    (
        "checkpoint.storage.s3Bucket",
        {**BUCKET, "s3Bucket": "other"},
        stored(f"s3://other/{OWN}"),
    ),
    (
        "checkpoint.storage.prefix",
        {**BUCKET, "prefix": "team-a/$(HOME)"},
        stored("s3://models/team-a/$$(HOME)"),
    ),
    (
        "checkpoint.storage.region",
        {**BUCKET, "region": "eu-west-1"},
        plain(AWS_REGION="eu-west-1", AWS_DEFAULT_REGION="eu-west-1"),
    ),
    (
        "checkpoint.storage.endpoint",
        {**BUCKET, "endpoint": "http://minio-$(A):9000"},
        plain(AWS_ENDPOINT_URL="http://minio-$$(A):9000"),
    ),
    (
        "checkpoint.storage.secretRef",
        {**BUCKET, "secretRef": {"name": "keys"}},
        {f"{at}.env[{key}].valueFrom.secretKeyRef.name": "keys" for at in READERS for key in AWS},
    ),
    (
        "checkpoint.storage.gcsBucket",
        {"type": "gcs", "gcsBucket": "other"},
        {**stored(f"gs://other/{OWN}"), **NO_AWS},
    ),
    (
        "checkpoint.storage.secretRef",
        {"type": "gcs", "gcsBucket": "other", "secretRef": {"name": "keys"}},
        {
            **stored(f"gs://other/{OWN}"),
            **NO_AWS,
            **plain(**GOOGLE),
            **file_of("keys"),
        },
    ),
    *(
        (
            f"checkpoint.storage.{name}",
            {"type": "azure", "azureContainer": "other", "azureAccount": "acc"},
            {
                **stored(f"az://other/{OWN}"),
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
            **stored(f"az://other/{OWN}"),
            **NO_AWS,
            **plain(AZURE_STORAGE_ACCOUNT_NAME="acc"),
            **secret(SIDECAR, "AZURE_STORAGE_ACCOUNT_KEY", "keys", "AZURE_STORAGE_KEY"),
            **secret(SIDECAR, "AZURE_STORAGE_ENDPOINT", "keys", "AZURE_STORAGE_ENDPOINT"),
            **secret(SIDECAR, "AZURE_ALLOW_HTTP", "keys", "AZURE_ALLOW_HTTP"),
            **secret(READER, "AZURE_STORAGE_ACCOUNT_KEY", "keys", "AZURE_STORAGE_KEY"),
            **secret(READER, "AZURE_STORAGE_ENDPOINT", "keys", "AZURE_STORAGE_ENDPOINT"),
            **secret(READER, "AZURE_ALLOW_HTTP", "keys", "AZURE_ALLOW_HTTP"),
        },
    ),
]


@pytest.mark.parametrize(("field", "written", "expected"), CHECKPOINTS, ids=[case[0] for case in CHECKPOINTS])
def test_a_field_of_the_checkpoints_changes_just_what_it_is_for(field: str, written: JSON, expected: JSON) -> None:
    assert changed({"checkpoint": {"storage": BUCKET, **written}}, since=BESIDE) == expected


@pytest.mark.parametrize(("field", "storage", "expected"), STORES, ids=[case[0] for case in STORES])
def test_sidecars_find_the_store_and_neither_the_training_nor_tensorboard_does(
    field: str, storage: Any, expected: JSON
) -> None:
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


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({}, {}, True),
        ({"prefix": "a"}, {"prefix": "a/"}, True),
        ({"prefix": "a"}, {"prefix": "b"}, False),
        ({"pvcName": "x", "prefix": "a"}, {"pvcName": "y", "prefix": "a"}, False),
        ({"type": "s3", "s3Bucket": "runs", "prefix": "a"}, {"type": "s3", "s3Bucket": "runs", "prefix": "a"}, True),
        ({"type": "s3", "s3Bucket": "runs", "prefix": "a"}, {"type": "s3", "s3Bucket": "other", "prefix": "a"}, False),
        (
            {"type": "s3", "s3Bucket": "runs", "prefix": "a", "endpoint": "http://h"},
            {"type": "s3", "s3Bucket": "runs", "prefix": "a", "region": "eu-1", "endpoint": "http://h/"},
            True,
        ),
        ({"type": "s3", "s3Bucket": "runs", "prefix": "a"}, {"type": "gcs", "gcsBucket": "runs", "prefix": "a"}, False),
        (
            {"type": "gcs", "gcsBucket": "runs", "prefix": "a"},
            {"type": "gcs", "gcsBucket": "runs", "prefix": "a"},
            True,
        ),
        (
            {"type": "azure", "azureContainer": "runs", "azureAccount": "mine", "prefix": "a"},
            {"type": "azure", "azureContainer": "runs", "azureAccount": "yours", "prefix": "a"},
            False,
        ),
        (
            {"type": "nfs", "nfsServer": "h", "nfsPath": "/e/", "prefix": "a"},
            {"type": "nfs", "nfsServer": "h", "nfsPath": "/e", "prefix": "a"},
            True,
        ),
    ],
)
def test_which_jobs_keep_their_checkpoints_in_one_place(
    one: dict[str, Any], other: dict[str, Any], is_same: bool
) -> None:
    places = [shared_location(training_job({"checkpoint": {"storage": storage}})) for storage in (one, other)]
    assert (places[0] == places[1]) == is_same
    assert all(places)
    assert shared_location(training_job({})) == ""
