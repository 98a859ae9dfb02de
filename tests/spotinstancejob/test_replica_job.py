"""The Job of a replica's attempt: what is the template's, what is added, and what a restored attempt has besides."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.spotinstancejob import names
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
    replica_pod,
    spot_job,
)
from tests.spotinstancejob.replicas import checkpoint, made, pod_spec
from tests.trainingjobs import UID

RESERVED = {"key": "holdfast.dev/reserved", "operator": "Equal", "value": UID, "effect": "NoSchedule"}
BASE = "registry.example.com/base@sha256:" + "b" * 64


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


def test_no_rule_of_the_template_has_the_jobs_controller_replace_a_pod() -> None:
    """The new one would begin anew, or from an old image, while the operator restores another attempt."""
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    broken = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    both = made(spot_job(job_spec={"podFailurePolicy": {"rules": [disrupted, broken]}}))
    assert both["spec"]["podFailurePolicy"] == {"rules": [broken]}
    assert "podFailurePolicy" not in made(spot_job(job_spec={"podFailurePolicy": {"rules": [disrupted]}}))["spec"]
    # Such a rule is refused without backoffLimitPerIndex, which a replica's Job does not have.
    of_index = {"backoffLimitPerIndex": 1, "podFailurePolicy": {"rules": [{**broken, "action": "FailIndex"}, broken]}}
    assert made(spot_job(job_spec=of_index))["spec"]["podFailurePolicy"] == {"rules": [broken]}


def test_the_rest_of_the_template_is_taken_over() -> None:
    rules = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    job = spot_job(
        job_spec={"podFailurePolicy": rules}, pod_spec={"priorityClassName": "high", "nodeSelector": {"disk": "ssd"}}
    )
    assert made(job)["spec"]["podFailurePolicy"] == rules
    spec = pod_spec(job)
    assert (spec["priorityClassName"], spec["nodeSelector"]) == ("high", {"disk": "ssd"})


@pytest.mark.parametrize("written", [{}, {"restartPolicy": "Never"}, {"restartPolicy": "OnFailure"}])
def test_no_kubelet_restarts_a_container(written: JSON) -> None:
    assert pod_spec(spot_job(pod_spec=written))["restartPolicy"] == "Never"


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
