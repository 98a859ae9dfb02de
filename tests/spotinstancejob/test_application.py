"""Mode application: what the training is told, and the sidecar that saves, restores and reports beside it."""

import pytest
from msgspec import structs

from holdfast.spotinstancejob.application import store_of
from holdfast.spotinstancejob.replica_job import ReplicaAttempt, replica_job
from tests.spotinstancejob.golden import DEFAULTS
from tests.spotinstancejob.jobs import CPU_CONTAINER, GPU_CONTAINER, JSON, REPOSITORY, digest, spot_job
from tests.spotinstancejob.replicas import checkpoint, pod_spec, sidecar, trainer, variables
from tests.trainingjobs import UID


def test_the_training_is_told_where_to_save_and_what_to_go_on_from() -> None:
    found = variables(trainer(spot_job(), attempt=2))
    assert found["CHECKPOINT_DIR"] == "/checkpoints/attempt-2"
    assert found["RESUME_FROM"] == "/checkpoints/attempt-2.resume"
    assert found["HOLDFAST_ATTEMPT"] == "2"
    assert found["PROGRESS_URL"] == "http://127.0.0.1:8471/progress"


def test_what_the_user_has_written_replaces_ours_one_by_one() -> None:
    written = {
        **GPU_CONTAINER,
        "env": [{"name": "CHECKPOINT_DIR", "value": "/mine"}, {"name": "SEED", "value": "1"}],
        "livenessProbe": {"exec": {"command": ["true"]}},
        "lifecycle": {"postStart": {"exec": {"command": ["date"]}}},
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    found = trainer(spot_job(written, pod_spec={"volumes": [{"name": "data", "emptyDir": {}}]}))
    assert [each["value"] for each in found["env"] if each["name"] == "CHECKPOINT_DIR"] == ["/mine"]
    assert found["env"][-1] == {"name": "SEED", "value": "1"}
    assert found["livenessProbe"] == {"exec": {"command": ["true"]}}
    assert set(found["lifecycle"]) == {"postStart", "preStop"}
    assert found["terminationMessagePolicy"] == "File"
    assert found["volumeMounts"][0] == {"name": "data", "mountPath": "/data"}


def test_the_other_containers_stay_as_they_are() -> None:
    first = {"name": "first", "image": "x"}
    spec = pod_spec(spot_job(CPU_CONTAINER, GPU_CONTAINER, pod_spec={"initContainers": [first]}), "application")
    assert spec["containers"][0] == CPU_CONTAINER
    assert spec["initContainers"][0] == first
    assert [each["name"] for each in spec["initContainers"]] == ["first", "holdfast-sidecar"]


def test_the_sidecar_is_that_of_a_worker_without_others() -> None:
    found = variables(sidecar(spot_job(), replica=1, attempt=2))
    assert (found["HOLDFAST_INDEX"], found["HOLDFAST_WORKERS"]) == ("0", "1")
    assert (found["HOLDFAST_JOB"], found["HOLDFAST_NAMESPACE"], found["HOLDFAST_JOB_UID"]) == ("bert", "ml", UID)
    assert found["CHECKPOINT_DIR"] == "/checkpoints/attempt-2"
    assert "HOLDFAST_RESUME_FROM" not in found
    assert "HOLDFAST_STORE" not in found


def test_a_restored_attempt_runs_the_templates_image_and_its_sidecar_fetches_the_checkpoint() -> None:
    job = spot_job(
        checkpoints={"checkpointRepoCredentialRef": {"name": "registry"}},
        pod_spec={"imagePullSecrets": [{"name": "own"}]},
    )
    found = checkpoint(job, mode="application")
    assert trainer(job, attempt=1, checkpoint=found)["image"] == GPU_CONTAINER["image"]
    told = variables(sidecar(job, attempt=1, checkpoint=found))
    assert told["HOLDFAST_RESUME_FROM"] == f"oci://{REPOSITORY}@{digest(7)}"
    assert told["HOLDFAST_RESUME_NEWEST"] == "true"
    spec = pod_spec(job, "application", attempt=1, checkpoint=found)
    (secrets,) = [each for each in spec["volumes"] if each["name"] == "holdfast-pull-secrets"]
    assert [each["secret"]["name"] for each in secrets["projected"]["sources"]][::2] == ["own", "registry"]
    only_sidecar = [
        each["name"] for each in spec["containers"] for mount in each["volumeMounts"] if "secret" in mount["name"]
    ]
    assert only_sidecar == []


@pytest.mark.parametrize(
    ("has_image", "is_exact", "expected"),
    [
        (True, False, {"HOLDFAST_RESUME_FROM", "HOLDFAST_RESUME_NEWEST"}),
        (True, True, {"HOLDFAST_RESUME_FROM", "HOLDFAST_RESUME_EXACTLY"}),
        (False, False, set()),
        (False, True, {"HOLDFAST_RESUME_EXACTLY"}),
    ],
)
def test_a_replica_that_goes_one_image_back_leaves_out_what_it_has_in_the_store(
    has_image: bool, is_exact: bool, expected: set[str]
) -> None:
    job = spot_job(checkpoints={"checkpointStorage": {"type": "gcs", "bucket": "b"}})
    found = checkpoint(job, mode="application") if has_image else None
    told = variables(sidecar(job, attempt=3, checkpoint=found, is_exact=is_exact))
    assert {name for name in told if name.startswith("HOLDFAST_RESUME_")} == expected
    assert told["HOLDFAST_STORE"], "what the attempt saves is kept all the same"


def test_registries_without_tls_are_told_where_the_sidecar_fetches_an_image() -> None:
    job = spot_job()
    plain = structs.replace(DEFAULTS, plain_http_registries=("127.0.0.1:5000",))
    attempt = ReplicaAttempt(replica=0, attempt=1, mode="application", checkpoint=checkpoint(job, mode="application"))
    spec = replica_job(job, attempt, plain)["spec"]["template"]["spec"]
    assert variables(spec["initContainers"][0])["HOLDFAST_PLAIN_HTTP_REGISTRIES"] == "127.0.0.1:5000"


@pytest.mark.parametrize(
    ("storage", "expected"),
    [
        (None, ""),
        ({"type": "gcs", "bucket": "b"}, f"gs://b/ml/bert/{UID}/r1"),
        ({"type": "gcs", "bucket": "b", "pathPrefix": "team/x"}, "gs://b/team/x/r1"),
        ({"type": "s3", "bucket": "b", "region": "eu-central-1"}, f"s3://b/ml/bert/{UID}/r1"),
        ({"type": "azure", "bucket": "c", "azureAccount": "acc"}, f"az://c/ml/bert/{UID}/r1"),
    ],
)
def test_each_replica_has_its_own_folder_in_the_store(storage: JSON | None, expected: str) -> None:
    job = spot_job(checkpoints={"checkpointStorage": storage} if storage else {})
    assert store_of(job, 1) == expected
    assert variables(sidecar(job, replica=1)).get("HOLDFAST_STORE", "") == expected


@pytest.mark.parametrize(
    ("storage", "names_of_variables"),
    [
        ({"type": "gcs", "bucket": "b", "secretRef": {"name": "s"}}, {"GOOGLE_APPLICATION_CREDENTIALS"}),
        ({"type": "gcs", "bucket": "b"}, set()),
        (
            {"type": "s3", "bucket": "b", "secretRef": {"name": "s"}, "region": "r", "endpoint": "http://x:1"},
            {"AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_ENDPOINT_URL"},
        ),
        (
            {"type": "azure", "bucket": "c", "azureAccount": "acc", "secretRef": {"name": "s"}},
            {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"},
        ),
    ],
)
def test_the_sidecar_alone_reaches_the_store(storage: JSON, names_of_variables: set[str]) -> None:
    job = spot_job(checkpoints={"checkpointStorage": storage})
    assert set(variables(sidecar(job))) >= names_of_variables
    assert not set(variables(trainer(job))) & {"AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS"}
    assert pod_spec(job, "application")["terminationGracePeriodSeconds"] == 180


def test_a_grace_period_that_is_written_stays() -> None:
    job = spot_job(
        checkpoints={"checkpointStorage": {"type": "gcs", "bucket": "b"}},
        pod_spec={"terminationGracePeriodSeconds": 45},
    )
    assert pod_spec(job, "application")["terminationGracePeriodSeconds"] == 45
    assert variables(sidecar(job))["HOLDFAST_GRACE_SECONDS"] == "45"


@pytest.mark.parametrize(
    ("of_pod", "of_container", "user", "any_user"),
    [
        (None, None, (0, False), True),
        ({"runAsUser": 1000}, None, (None, None), False),
        ({"runAsUser": 1000}, {"runAsUser": 7, "runAsGroup": 8}, (7, None), False),
        ({"runAsNonRoot": True}, None, (None, None), True),
        (None, {"runAsNonRoot": True}, (None, True), True),
        ({"runAsNonRoot": True}, {"runAsNonRoot": False}, (0, False), True),
    ],
)
def test_the_sidecar_runs_as_the_training_or_else_as_one_that_can_read_what_it_writes(
    of_pod: JSON | None, of_container: JSON | None, user: tuple[int | None, bool | None], any_user: bool
) -> None:
    container = {**GPU_CONTAINER, **({"securityContext": of_container} if of_container else {})}
    found = sidecar(spot_job(container, pod_spec={"securityContext": of_pod} if of_pod else {}))
    security = found["securityContext"]
    assert (security.get("runAsUser"), security.get("runAsNonRoot")) == user
    assert ("add" in security["capabilities"]) == (security.get("runAsUser") == 0)
    assert security["readOnlyRootFilesystem"] is True
    assert ("HOLDFAST_ANY_USER" in variables(found)) == any_user


@pytest.mark.parametrize(
    ("resources", "limits"), [({"limits": {"cpu": "2"}}, {"cpu": "500m"}), ({"requests": {"cpu": "2"}}, None)]
)
def test_the_sidecar_leaves_the_quality_of_service_as_it_was(resources: JSON, limits: JSON | None) -> None:
    found = sidecar(spot_job({**GPU_CONTAINER, "resources": {**resources}}))
    assert found["resources"].get("limits") == limits


def test_on_one_machine_the_training_runs_in_the_folder_that_it_was_applied_from() -> None:
    job = spot_job()
    annotations = {"holdfast.dev/working-directory": "/home/ada/bert"}
    job = structs.replace(job, metadata=structs.replace(job.metadata, annotations=annotations))
    local = structs.replace(DEFAULTS, local_folders=True, shared_loopback=True)
    spec = replica_job(job, ReplicaAttempt(replica=0, attempt=0, mode="application"), local)["spec"]["template"]["spec"]
    assert spec["containers"][0]["workingDir"] == "/home/ada/bert"
    assert variables(spec["containers"][0])["PROGRESS_URL"] == "http://$(HOLDFAST_POD_IP):8471/progress"
