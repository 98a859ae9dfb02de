from typing import Any

import msgspec
import pytest

from holdfast.api.meta import Key, ObjectMeta
from holdfast.cluster.errors import BadRequest
from holdfast.cluster.kubernetes import requests
from holdfast.cluster.kubernetes.requests import ApiRequest
from holdfast.cluster.protocol import DeleteOptions, Propagation

from .kinds import CONFIG_MAPS, JOBS, NODES, Job, JobSpec

X = Key("ml", "x")
STRICT = {"fieldManager": "holdfast", "fieldValidation": "Strict"}


def document(ask: ApiRequest) -> dict[str, Any]:
    return msgspec.json.decode(ask.body, type=dict[str, Any])


def delete(uid: str = "", resource_version: str = "", grace_period_s: int | None = None) -> dict[str, Any]:
    options = DeleteOptions(
        uid=uid,
        resource_version=resource_version,
        propagation=Propagation.FOREGROUND,
        grace_period_s=grace_period_s,
    )
    ask = requests.to_delete(JOBS, X, options)
    assert (ask.method, ask.path) == ("DELETE", "/apis/batch/v1/namespaces/ml/jobs/x")
    return document(ask)


@pytest.mark.parametrize(
    ("ask", "path", "tried"),
    [
        (requests.list_request(JOBS, "", {}), "/apis/batch/v1/jobs", "list jobs.batch"),
        (requests.list_request(JOBS, "ml", {}), "/apis/batch/v1/namespaces/ml/jobs", "list jobs.batch in ml"),
        (requests.list_request(NODES, "", {}), "/api/v1/nodes", "list nodes"),
        (requests.to_get(CONFIG_MAPS, X), "/api/v1/namespaces/ml/configmaps/x", "get configmaps ml/x"),
        (requests.to_get(NODES, Key("", "gpu-1")), "/api/v1/nodes/gpu-1", "get nodes gpu-1"),
        (requests.to_get(NODES, Key("", "a/../b?c")), "/api/v1/nodes/a%2F..%2Fb%3Fc", "get nodes a/../b?c"),
        (
            requests.to_patch(JOBS, X, {}, subresource="status"),
            "/apis/batch/v1/namespaces/ml/jobs/x/status",
            "patch jobs.batch/status ml/x",
        ),
    ],
)
def test_every_object_has_its_path_and_its_words(ask: ApiRequest, path: str, tried: str) -> None:
    assert (ask.path, ask.description) == (path, tried)


def test_only_reads_are_reads() -> None:
    assert not requests.list_request(JOBS, "", {}).write
    assert not requests.to_get(JOBS, X).write
    assert requests.to_create(JOBS, {}, "ml").write
    assert requests.to_replace(JOBS, X, {}).write
    assert requests.to_patch(JOBS, X, {}).write
    assert requests.to_delete(
        JOBS, X, DeleteOptions(uid="", resource_version="", propagation=Propagation.ORPHAN, grace_period_s=None)
    ).write


def test_a_list_sends_the_parameters_that_are_set() -> None:
    assert requests.list_request(JOBS, "", {"labelSelector": "a=b", "fieldSelector": ""}).query == {
        "labelSelector": "a=b"
    }


def test_a_created_model_gets_its_kind() -> None:
    ask = requests.to_create(JOBS, Job(metadata=ObjectMeta(name="x"), spec=JobSpec(parallelism=4)), "ml")
    assert document(ask) == {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x"},
        "spec": {"parallelism": 4},
    }
    assert (ask.method, ask.path, ask.query) == ("POST", "/apis/batch/v1/namespaces/ml/jobs", STRICT)
    assert ask.description == "create jobs.batch ml/x"


def test_a_created_object_may_say_its_namespace_itself() -> None:
    ask = requests.to_create(JOBS, {"metadata": {"generateName": "x-", "namespace": "ml"}}, "")
    assert (ask.path, ask.description) == ("/apis/batch/v1/namespaces/ml/jobs", "create jobs.batch ml/x-*")


def test_a_replacement_is_whole_and_strict() -> None:
    ask = requests.to_replace(JOBS, X, {"metadata": {"resourceVersion": "7"}})
    assert (ask.method, ask.query) == ("PUT", STRICT)
    assert document(ask) == {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"resourceVersion": "7"}}


def test_a_patch_says_only_what_changes() -> None:
    ask = requests.to_patch(JOBS, X, {"metadata": {"labels": {"gone": None}}})
    assert (ask.method, ask.content_type, ask.query) == ("PATCH", "application/merge-patch+json", STRICT)
    assert document(ask) == {"metadata": {"labels": {"gone": None}}}


def test_a_delete_carries_what_was_looked_at() -> None:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    assert delete() == options
    assert delete(uid="u") == {**options, "preconditions": {"uid": "u"}}
    assert delete(uid="u", resource_version="7", grace_period_s=0) == {
        **options,
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "gracePeriodSeconds": 0,
    }


def test_a_log_is_asked_for_as_text() -> None:
    ask = requests.to_pod_log(X, container="trainer", tail_lines=0, limit_bytes=None)
    assert (ask.path, ask.accept) == ("/api/v1/namespaces/ml/pods/x/log", "*/*")
    assert ask.query == {"container": "trainer", "tailLines": "0"}


@pytest.mark.parametrize("key", [Key("ml", ""), Key("", "x"), Key("ml", ".."), Key(".", "x")])
def test_a_key_that_would_mean_something_else_is_refused(key: Key) -> None:
    with pytest.raises(BadRequest):
        requests.to_get(JOBS, key)
    with pytest.raises(BadRequest):
        requests.to_delete(
            JOBS, key, DeleteOptions(uid="", resource_version="", propagation=Propagation.ORPHAN, grace_period_s=None)
        )
    with pytest.raises(BadRequest):
        requests.to_pod_log(key, container="", tail_lines=None, limit_bytes=None)


def test_creating_without_a_namespace_is_refused() -> None:
    with pytest.raises(BadRequest, match="Job lives in a namespace, and none was given"):
        requests.to_create(JOBS, {"metadata": {"name": "x"}}, "")
