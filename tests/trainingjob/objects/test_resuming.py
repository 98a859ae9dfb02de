"""checkpoint.resumeFrom: how the sidecar reaches the checkpoint that a new job starts from."""

import pytest
from msgspec import structs

from tests.trainingjob.objects.family import DEFAULTS, JSON, changed, child, container, pod, sidecar
from tests.trainingjob.objects.paths import POD, SIDECAR, secret, variables
from tests.trainingjob.objects.test_checkpoint_fields import GOOGLE
from tests.trainingjobs import UID, training_job

CLAIM: JSON = {"pvcName": "shared"}
NFS: JSON = {"type": "nfs", "nfsServer": "filer", "nfsPath": "/ml"}
S3: JSON = {"type": "s3", "s3Bucket": "models"}
GCS: JSON = {"type": "gcs", "gcsBucket": "models"}
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ALLOW_HTTP")
WHOLE = {"name": "holdfast-checkpoints", "mountPath": "/holdfast-volume", "readOnly": True}
DATA = {"name": "data", "mountPath": "/data", "readOnly": True}
OLD = {"name": "old", "mountPath": "/data/old/", "subPath": "2025", "readOnly": True}
TEMPLATE: JSON = {
    "volumes": [{"name": name, "emptyDir": {}} for name in ("data", "old")],
    "volumeMounts": [
        {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"},
        {"name": "old", "mountPath": "/data/old/", "subPath": "2025"},
    ],
}


def job(storage: JSON, address: str, template: JSON | None = None) -> JSON:
    overlay = {"podTemplate": template} if template else {}
    return {"checkpoint": {"storage": storage, "resumeFrom": address}, **overlay}


def start(spec: JSON) -> tuple[str, list[JSON]]:
    """The address that the sidecar is told, and what is mounted for it beyond what a job without resumeFrom has."""
    plain = {**spec, "checkpoint": {**spec["checkpoint"], "resumeFrom": None}}
    (address,) = [each["value"] for each in sidecar(spec)["env"] if each["name"] == "HOLDFAST_RESUME_FROM"]
    before = sidecar(plain)["volumeMounts"]
    return address, [mount for mount in sidecar(spec)["volumeMounts"] if mount not in before]


def test_from_another_bucket_with_the_same_access() -> None:
    assert changed(job(S3, "s3://other/bert"), since={"checkpoint": {"storage": S3}}) == variables(
        SIDECAR, HOLDFAST_RESUME_FROM="s3://other/bert"
    )


@pytest.mark.parametrize("storage", [CLAIM, NFS, GCS])
def test_from_a_bucket_into_another_storage(storage: JSON) -> None:
    found = changed(job(storage, "s3://other/bert"), since={"checkpoint": {"storage": storage}})
    keys = (secret(SIDECAR, key, "aws-credentials", key) for key in AWS)
    assert found == {
        **variables(SIDECAR, HOLDFAST_RESUME_FROM="s3://other/bert"),
        **{path: value for each in keys for path, value in each.items()},
    }


def test_a_bucket_elsewhere_is_reached_with_what_storage_says() -> None:
    access = {"region": "eu-west-1", "endpoint": "http://minio:9000", "secretRef": {"name": "keys"}}
    found = changed(job({**CLAIM, **access}, "s3://other/bert"), since={"checkpoint": {"storage": CLAIM}})
    keys = (secret(SIDECAR, key, "keys", key) for key in AWS)
    assert found == {
        **variables(SIDECAR, HOLDFAST_RESUME_FROM="s3://other/bert"),
        **variables(SIDECAR, AWS_REGION="eu-west-1", AWS_DEFAULT_REGION="eu-west-1"),
        **variables(SIDECAR, AWS_ENDPOINT_URL="http://minio:9000"),
        **{path: value for each in keys for path, value in each.items()},
    }


def test_from_google_into_a_bucket_of_amazons_with_a_file_of_the_same_secret() -> None:
    storage = {**S3, "secretRef": {"name": "keys"}}
    found = changed(job(storage, "gs://other/bert"), since={"checkpoint": {"storage": storage}})
    mount = {"name": "holdfast-store", "mountPath": "/etc/holdfast-store", "readOnly": True}
    volume = {"name": "holdfast-store", "secret.secretName": "keys", "secret.optional": True}
    assert found == {
        **variables(SIDECAR, HOLDFAST_RESUME_FROM="gs://other/bert"),
        **variables(SIDECAR, **GOOGLE),
        **{f"{SIDECAR}.volumeMounts[/etc/holdfast-store].{field}": value for field, value in mount.items()},
        **{f"{POD}.volumes[holdfast-store].{field}": value for field, value in volume.items()},
    }


def test_from_azure_onto_a_claim() -> None:
    storage = {**CLAIM, "azureAccount": "acc", "secretRef": {"name": "keys"}}
    assert changed(job(storage, "az://other/bert"), since={"checkpoint": {"storage": CLAIM}}) == {
        **variables(SIDECAR, HOLDFAST_RESUME_FROM="az://other/bert", AZURE_STORAGE_ACCOUNT_NAME="acc"),
        **secret(SIDECAR, "AZURE_STORAGE_ACCOUNT_KEY", "keys", "AZURE_STORAGE_KEY"),
        **secret(SIDECAR, "AZURE_STORAGE_ENDPOINT", "keys", "AZURE_STORAGE_ENDPOINT"),
        **secret(SIDECAR, "AZURE_ALLOW_HTTP", "keys", "AZURE_ALLOW_HTTP"),
    }


@pytest.mark.parametrize("storage", [CLAIM, NFS])
@pytest.mark.parametrize("path", ["/team-a/bert", "team-a/bert", "/team-a/bert/"])
def test_a_path_is_on_the_whole_volume_of_the_checkpoints(storage: JSON, path: str) -> None:
    assert start(job(storage, path)) == ("/holdfast-volume/team-a/bert", [WHOLE])


def test_beside_the_whole_volume_the_jobs_own_folder_stays_where_it_is() -> None:
    mounts = {mount["mountPath"]: mount for mount in sidecar(job(CLAIM, "/team-a/bert"))["volumeMounts"]}
    assert mounts["/checkpoints"]["subPath"] == f"ml/bert/{UID}"
    assert "/holdfast-volume" not in {mount["mountPath"] for mount in container(job(CLAIM, "/a"))["volumeMounts"]}


@pytest.mark.parametrize("storage", [CLAIM, S3])
@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/data", DATA),
        ("/data/bert/checkpoint-epoch-3", DATA),
        ("/data/older", DATA),
        ("/data/old", OLD),
        ("/data/old/bert", OLD),
    ],
)
def test_a_path_below_a_mount_of_the_users_is_read_there(storage: JSON, path: str, mount: JSON) -> None:
    assert start(job(storage, path, TEMPLATE)) == (path, [mount])


@pytest.mark.parametrize("path", ["/database/bert", "data/bert"])
def test_a_path_that_only_looks_like_it_is_not(path: str) -> None:
    assert start(job(CLAIM, path, TEMPLATE)) == (f"/holdfast-volume/{path.lstrip('/')}", [WHOLE])


def test_a_path_is_taken_as_it_is_written() -> None:
    assert start(job(CLAIM, "/$(HOME)/bert")) == ("/holdfast-volume/$$(HOME)/bert", [WHOLE])


def test_every_attempt_is_told() -> None:
    spec = job(CLAIM, "/team-a/bert")
    later = child("Job", training_job(spec, status={"restartCount": 3}))["spec"]["template"]["spec"]
    told = {each["name"]: each.get("value") for each in later["initContainers"][0]["env"]}
    assert told["HOLDFAST_RESUME_FROM"] == "/holdfast-volume/team-a/bert"


def test_a_job_without_it_is_told_nothing() -> None:
    assert "HOLDFAST_RESUME_FROM" not in {each["name"] for each in sidecar({"checkpoint": {}})["env"]}
    assert [volume["name"] for volume in pod({"checkpoint": {}})["spec"]["volumes"]] == [
        "holdfast-config",
        "holdfast-shm",
        "holdfast-checkpoints",
        "holdfast-run",
        "holdfast-token",
    ]


IMAGE = "oci://registry.example.com/checkpoints:t1"
PULLED_AT = "/var/run/secrets/holdfast-registries"


def test_from_an_image_that_anybody_may_pull() -> None:
    assert changed(job(CLAIM, IMAGE), since={"checkpoint": {"storage": CLAIM}}) == variables(
        SIDECAR, HOLDFAST_RESUME_FROM=IMAGE
    )


def test_the_pull_secrets_of_the_pod_are_mounted_into_the_sidecar_alone() -> None:
    template = {"imagePullSecrets": [{"name": "ours"}, {"name": "theirs"}]}
    spec, before = job(CLAIM, IMAGE, template), job(CLAIM, "", template)
    before["checkpoint"].pop("resumeFrom")
    found = changed(spec, since=before)
    mount = {"name": "holdfast-pull-secrets", "mountPath": PULLED_AT, "readOnly": True}
    assert {path: value for path, value in found.items() if ".volumes[" not in path} == {
        **variables(SIDECAR, HOLDFAST_RESUME_FROM=IMAGE, HOLDFAST_PULL_SECRETS=PULLED_AT),
        **{f"{SIDECAR}.volumeMounts[{PULLED_AT}].{field}": value for field, value in mount.items()},
    }
    (volume,) = [each for each in pod(spec)["spec"]["volumes"] if each["name"] == "holdfast-pull-secrets"]
    assert [
        (source["secret"]["name"], *source["secret"]["items"][0].values(), source["secret"]["optional"])
        for source in volume["projected"]["sources"]
    ] == [
        ("ours", ".dockerconfigjson", "0.dockerconfigjson", True),
        ("ours", "ca.crt", "0.ca.crt", True),
        ("theirs", ".dockerconfigjson", "1.dockerconfigjson", True),
        ("theirs", "ca.crt", "1.ca.crt", True),
    ]


def test_registries_without_tls_are_told_to_the_sidecar_that_resumes_from_an_image_and_to_no_other() -> None:
    listed = structs.replace(DEFAULTS, plain_http_registries=("a:5000", "b:5000"))

    def told(address: str) -> list[str]:
        env = sidecar(job(CLAIM, address), listed)["env"]
        return [each["value"] for each in env if each["name"] == "HOLDFAST_PLAIN_HTTP_REGISTRIES"]

    assert told(IMAGE) == ["a:5000,b:5000"]
    assert told("s3://other/bert") == []
