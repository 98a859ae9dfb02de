"""The Job of a replica's attempt: what is the template's, what is added, and what a restored attempt has besides."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.spotinstancejob import names
from holdfast.spotinstancejob.application import store_of
from holdfast.spotinstancejob.images import Checkpoint, checkpoints_in_registry
from holdfast.spotinstancejob.replica_job import (
    ReplicaAttempt,
    base_image_pod,
    foreign_pull_credential,
    replica_job,
    save_mode,
)
from tests.spotinstancejob.golden import DEFAULTS, EXAMPLES, golden
from tests.spotinstancejob.jobs import (
    CPU_CONTAINER,
    GPU_CONTAINER,
    JSON,
    REPOSITORY,
    digest,
    owned_image,
    replica_pod,
    spot_job,
)
from tests.trainingjobs import UID

RESERVED = {"key": "holdfast.dev/reserved", "operator": "Equal", "value": UID, "effect": "NoSchedule"}
BASE = "registry.example.com/base@sha256:" + "b" * 64


def made(job: SpotInstanceJob, mode: Any = "container", **more: Any) -> JSON:
    """The Job as it goes over the wire."""
    attempt = ReplicaAttempt(**{"replica": 0, "attempt": 0, "mode": mode, **more})
    plain: JSON = json.loads(msgspec.json.encode(replica_job(job, attempt, DEFAULTS)))
    return plain


def pod_spec(job: SpotInstanceJob, mode: Any = "container", **more: Any) -> JSON:
    spec: JSON = made(job, mode, **more)["spec"]["template"]["spec"]
    return spec


def trainer(job: SpotInstanceJob, **more: Any) -> JSON:
    found: JSON = next(
        each for each in pod_spec(job, "application", **more)["containers"] if each["name"] == "training"
    )
    return found


def sidecar(job: SpotInstanceJob, **more: Any) -> JSON:
    *_, found = pod_spec(job, "application", **more)["initContainers"]
    assert found["name"] == "holdfast-sidecar"
    return dict(found)


def variables(container: JSON) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def checkpoint(job: SpotInstanceJob, *containers: str, mode: str = "container", **labels: str) -> Checkpoint:
    images = [owned_image(7, 1, name, mode=mode, labels=labels) for name in containers or ("training",)]
    (found,) = checkpoints_in_registry(job, images)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gets_just_these_objects(name: str) -> None:
    expected = list(yaml.safe_load_all(golden(name).read_text()))
    assert json.loads(msgspec.json.encode(EXAMPLES[name]())) == expected


# What every attempt has.


def test_the_labels_of_job_and_pod_tell_whose_they_are() -> None:
    job = spot_job(
        template_metadata={"labels": {"team": "vision", "holdfast.dev/replica": "7"}, "annotations": {"a": "b"}}
    )
    body = made(job, replica=1, attempt=4, reservation="bert-r1-4")
    own = {
        "holdfast.dev/spot-job": "bert",
        "holdfast.dev/replica": "1",
        "holdfast.dev/attempt": "4",
        "app.kubernetes.io/managed-by": "holdfast",
    }
    assert body["metadata"]["name"] == "bert-r1-4"
    assert body["metadata"]["labels"] == own
    template = body["spec"]["template"]["metadata"]
    assert template == {
        "labels": {**own, "team": "vision", "holdfast.dev/place": "bert-r1-4"},
        "annotations": {"a": "b"},
    }


def test_metadata_of_the_template_is_the_jobs() -> None:
    job = spot_job()
    job.spec.job_template["metadata"] = {"labels": {"queue": "a"}, "annotations": {"note": "b"}}
    metadata = made(job)["metadata"]
    assert metadata["labels"]["queue"] == "a"
    assert metadata["annotations"] == {"note": "b"}


def test_the_first_attempt_has_the_name_of_the_replica() -> None:
    assert made(spot_job(), replica=1)["metadata"]["name"] == "bert-r1"


@pytest.mark.parametrize(
    "written",
    [
        {"backoffLimit": 6},
        {"activeDeadlineSeconds": 3600},
        {"ttlSecondsAfterFinished": 1},
        {"suspend": True},
        {"completions": 1, "parallelism": 1},
        {"podReplacementPolicy": "TerminatingOrFailed"},
        {"managedBy": "someone.example.com/else"},
        {"manualSelector": True, "selector": {"matchLabels": {"a": "b"}}},
    ],
    ids=lambda written: ",".join(written),
)
def test_what_is_counted_over_all_attempts_is_not_left_to_one_job(written: JSON) -> None:
    spec = made(spot_job(job_spec=written))["spec"]
    del spec["template"]
    assert spec == {"completions": 1, "parallelism": 1, "backoffLimit": 0, "podReplacementPolicy": "Failed"}


def test_the_rest_of_the_template_is_taken_over() -> None:
    rules = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    job = spot_job(
        job_spec={"podFailurePolicy": rules}, pod_spec={"priorityClassName": "high", "nodeSelector": {"disk": "ssd"}}
    )
    assert made(job)["spec"]["podFailurePolicy"] == rules
    spec = pod_spec(job)
    assert (spec["priorityClassName"], spec["nodeSelector"]) == ("high", {"disk": "ssd"})


@pytest.mark.parametrize(("written", "expected"), [({}, "Never"), ({"restartPolicy": "OnFailure"}, "OnFailure")])
def test_a_container_is_not_restarted_unless_that_is_written(written: JSON, expected: str) -> None:
    assert pod_spec(spot_job(pod_spec=written))["restartPolicy"] == expected


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        (
            {"requests": {"nvidia.com/gpu": 1}},
            {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}},
        ),
        (
            {"requests": {"nvidia.com/gpu": 1, "cpu": 2, "hugepages-2Mi": "2Mi"}, "limits": {"memory": "1Gi"}},
            {
                "requests": {"nvidia.com/gpu": 1, "cpu": 2, "hugepages-2Mi": "2Mi"},
                "limits": {"memory": "1Gi", "nvidia.com/gpu": 1},
            },
        ),
        (
            {"requests": {"rdma/hca": 1}, "limits": {"rdma/hca": 2}},
            {"requests": {"rdma/hca": 1}, "limits": {"rdma/hca": 2}},
        ),
        ({"requests": {"kubernetes.io/x": 1}}, {"requests": {"kubernetes.io/x": 1}}),
        ({"limits": {"nvidia.com/gpu": 1}}, {"limits": {"nvidia.com/gpu": 1}}),
    ],
)
def test_extended_resources_under_requests_alone_are_limits_too(resources: JSON, expected: JSON) -> None:
    job = spot_job(
        {**CPU_CONTAINER, "resources": resources},
        pod_spec={"initContainers": [{"name": "first", "image": "x", "resources": resources}]},
    )
    spec = pod_spec(job)
    assert [each["resources"] for each in (*spec["containers"], *spec["initContainers"])] == [expected, expected]


@pytest.mark.parametrize(
    ("containers", "written", "expected"),
    [
        ((GPU_CONTAINER,), None, [{"key": "nvidia.com/gpu", "operator": "Exists"}, RESERVED]),
        ((GPU_CONTAINER,), [], [RESERVED]),
        ((GPU_CONTAINER,), [{"key": "a", "operator": "Exists"}], [{"key": "a", "operator": "Exists"}, RESERVED]),
        ((CPU_CONTAINER,), None, [RESERVED]),
    ],
)
def test_replicas_may_use_the_machines_that_are_kept_for_their_job(
    containers: tuple[JSON, ...], written: list[JSON] | None, expected: list[JSON]
) -> None:
    job = spot_job(*containers, pod_spec={} if written is None else {"tolerations": written})
    assert pod_spec(job)["tolerations"] == expected


def test_an_attempt_runs_on_its_node_and_the_templates_own_wishes_hold() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    spread = {"podAntiAffinity": {"x": 1}}
    terms = [{"matchExpressions": [zone]}, {}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}
    job = spot_job(pod_spec={"affinity": {"nodeAffinity": {**required, **preferred}, **spread}})
    before = repr(job)
    affinity = pod_spec(job, node="gpu-7")["affinity"]
    only = [{"key": "metadata.name", "operator": "In", "values": ["gpu-7"]}]
    assert affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone], "matchFields": only},
        {"matchFields": only},
    ]
    assert affinity["nodeAffinity"] | required == {**required, **preferred}
    assert affinity["podAntiAffinity"] == {"x": 1}
    assert repr(job) == before, "the template belongs to the cache"


def test_an_attempt_without_a_node_is_left_to_the_scheduler() -> None:
    assert "affinity" not in pod_spec(spot_job())


@pytest.mark.parametrize(
    ("reference", "pull_secret", "expected"),
    [
        (None, "", None),
        ({"name": "registry"}, "", ["registry"]),
        ({"name": "registry", "namespace": "ml"}, "", ["registry"]),
        ({"name": "registry", "namespace": "shared"}, "", None),
        (None, "bert-pull", ["bert-pull"]),
    ],
)
@pytest.mark.parametrize("own", [[], [{"name": "own"}], [{"name": "registry"}]])
def test_pods_pull_with_the_repositorys_credential_besides_their_own(
    reference: JSON | None, pull_secret: str, expected: list[str] | None, own: list[JSON]
) -> None:
    job = spot_job(
        checkpoints={"checkpointRepoCredentialRef": reference} if reference else {},
        pod_spec={"imagePullSecrets": own} if own else {},
    )
    found = [each["name"] for each in pod_spec(job, pull_secret=pull_secret).get("imagePullSecrets", ())]
    assert found == list(dict.fromkeys([*(each["name"] for each in own), *(expected or ())]))


# How replicas are saved.


@pytest.mark.parametrize(
    ("written", "containers", "storage", "can_restore", "expected"),
    [
        ("auto", (GPU_CONTAINER,), None, True, "application"),
        ("auto", (CPU_CONTAINER, GPU_CONTAINER), None, True, "application"),
        ("auto", (CPU_CONTAINER,), None, True, "container"),
        ("auto", (CPU_CONTAINER,), None, False, "application"),
        ("auto", (CPU_CONTAINER,), {"type": "gcs", "bucket": "b"}, True, "application"),
        ("container", (GPU_CONTAINER,), None, False, "container"),
        ("application", (CPU_CONTAINER,), None, True, "application"),
    ],
)
def test_the_mode_is_the_written_one_else_what_the_containers_allow(
    written: str, containers: tuple[JSON, ...], storage: JSON | None, can_restore: bool, expected: str
) -> None:
    job = spot_job(*containers, checkpoints={"mode": written, **({"checkpointStorage": storage} if storage else {})})
    assert save_mode(job, can_restore=can_restore) == expected


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        (None, ()),
        ({"name": "push"}, ()),
        ({"name": "push", "namespace": "ml"}, ()),
        ({"name": "push", "namespace": "shared"}, ("shared/push", "no pod of ml", "kubectl -n shared get secret push")),
    ],
)
def test_a_credential_that_pods_cant_pull_with_is_told_with_what_to_copy(
    reference: JSON | None, parts: tuple[str, ...]
) -> None:
    said = foreign_pull_credential(
        spot_job(checkpoints={"checkpointRepoCredentialRef": reference} if reference else {})
    )
    assert bool(said) == bool(parts)
    assert all(part in said for part in parts)


# Mode container.


def test_in_container_mode_nothing_is_added_to_the_containers() -> None:
    spec = pod_spec(spot_job(CPU_CONTAINER))
    assert spec["containers"] == [CPU_CONTAINER]
    assert set(spec) == {"containers", "restartPolicy", "tolerations"}


def test_a_restored_container_is_made_of_its_image_by_digest() -> None:
    job = spot_job(CPU_CONTAINER, {"name": "logger", "image": "x", "imagePullPolicy": "Always"})
    body = made(job, attempt=1, checkpoint=checkpoint(job, "main", "logger"))
    assert body["spec"]["template"]["spec"]["containers"] == [
        {"name": "main", "image": f"{REPOSITORY}@{digest(7, 'main')}", "imagePullPolicy": "IfNotPresent"},
        {"name": "logger", "image": f"{REPOSITORY}@{digest(7, 'logger')}", "imagePullPolicy": "IfNotPresent"},
    ]
    for metadata in (body["metadata"], body["spec"]["template"]["metadata"]):
        assert metadata["annotations"]["holdfast.dev/restored-from"].endswith(digest(7, "main"))


def test_base_images_are_brought_to_the_node_before_by_a_pod_that_may_run_there() -> None:
    job = spot_job({**GPU_CONTAINER, "securityContext": {"runAsUser": 0}}, pod_spec={"priorityClassName": "high"})
    attempt = ReplicaAttempt(
        replica=1,
        attempt=2,
        mode="container",
        node="gpu-7",
        pull_secret="bert-pull",
        checkpoint=checkpoint(job, **{"base-image": BASE}),
    )
    pod = base_image_pod(job, attempt, DEFAULTS)
    assert pod is not None
    assert pod["metadata"]["name"] == "bert-r1-2-base-image"
    assert pod["metadata"]["labels"] == names.replica_labels("bert", 1, 2)
    assert pod["metadata"]["ownerReferences"][0]["uid"] == UID
    (container,) = pod["spec"]["containers"]
    assert container["image"] == BASE
    wanted = replica_job(job, attempt, DEFAULTS)["spec"]["template"]["spec"]
    for field in ("tolerations", "affinity", "imagePullSecrets", "priorityClassName"):
        assert pod["spec"][field] == wanted[field]


@pytest.mark.parametrize(
    ("mode", "labels", "restores"),
    [
        ("container", {}, True),
        ("container", {"base-image": "only/a-name:1"}, True),
        ("container", {"base-image": BASE}, False),
        ("application", {"base-image": BASE}, True),
    ],
)
def test_there_is_nothing_to_bring_without_a_base_image_that_a_registry_has(
    mode: Any, labels: dict[str, str], restores: bool
) -> None:
    job = spot_job()
    found = checkpoint(job, mode=mode, **labels) if restores else None
    attempt = ReplicaAttempt(replica=0, attempt=1, mode=mode, node="n", checkpoint=found)
    assert base_image_pod(job, attempt, DEFAULTS) is None


# Mode application.


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


# Whose a pod is.


def test_a_replicas_pod_is_known_by_labels_and_owner() -> None:
    found = names.replica_of(replica_pod(1, attempt=3))
    assert found is not None
    assert (str(found.job), found.replica, found.attempt) == ("ml/bert", 1, 3)


@pytest.mark.parametrize(
    "labels",
    [
        {"holdfast.dev/attempt": "2"},
        {"holdfast.dev/replica": "0"},
        {"holdfast.dev/replica": "x"},
        {"holdfast.dev/spot-job": "other"},
        {"app.kubernetes.io/managed-by": "me"},
    ],
)
def test_labels_that_do_not_go_with_the_owner_make_no_replica(labels: JSON) -> None:
    assert names.replica_of(replica_pod(1, attempt=3, labels=labels)) is None


def test_a_pod_without_an_owner_is_no_replica() -> None:
    pod = replica_pod(0)
    bare: Pod = structs.replace(pod, metadata=structs.replace(pod.metadata, owner_references=()))
    assert names.replica_of(bare) is None
