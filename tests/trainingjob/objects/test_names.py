"""What the children are called, how they are labelled, and whom they belong to."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.objects import names
from tests.trainingjob.objects.family import DEFAULTS, children
from tests.trainingjobs import UID, training_job

EVERYTHING = {"checkpoint": {}, "monitoring": {"tensorboardEnabled": True}}
MONITORED = structs.replace(DEFAULTS, service_monitors=True)
ATTEMPT_LABELS = {
    "training-job": "bert",
    "trainingjob": "bert",
    "holdfast.dev/attempt": "0",
    "app.kubernetes.io/managed-by": "holdfast",
}


def family(status: dict[str, Any] | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    job = training_job(EVERYTHING, status=status)
    return {(child["kind"], child["metadata"]["name"]): child["metadata"] for child in children(job, MONITORED)}


def queued(queue: str) -> TrainingJob:
    job = training_job()
    return structs.replace(
        job, metadata=structs.replace(job.metadata, labels={"kueue.x-k8s.io/queue-name": queue, "team": "vision"})
    )


def test_every_child_has_its_name() -> None:
    assert list(family()) == [
        ("ConfigMap", "bert-config"),
        ("Service", "bert-headless"),
        ("Service", "bert-master"),
        ("ServiceAccount", "bert"),
        ("PersistentVolumeClaim", "bert-checkpoints"),
        ("Service", "bert-tensorboard"),
        ("Deployment", "bert-tensorboard"),
        ("ServiceMonitor", "bert-master"),
        ("Job", "bert-training"),
    ]


def test_every_child_is_in_the_jobs_namespace_and_in_the_operators_caches() -> None:
    for metadata in family().values():
        assert metadata["namespace"] == "ml"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "holdfast"


def test_every_child_but_the_claim_goes_with_the_job() -> None:
    owner = {
        "apiVersion": "ml.example.com/v1",
        "kind": "TrainingJob",
        "name": "bert",
        "uid": UID,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    for (kind, _), metadata in family().items():
        assert metadata.get("ownerReferences") == (None if kind == "PersistentVolumeClaim" else [owner])


def test_what_belongs_to_an_attempt_is_labelled_with_it() -> None:
    found = family()
    beside = [("PersistentVolumeClaim", "bert-checkpoints"), *(key for key in found if key[1] == "bert-tensorboard")]
    for key in found.keys() - set(beside):
        assert found[key]["labels"] == ATTEMPT_LABELS


def test_what_outlives_an_attempt_does_not_change_with_it() -> None:
    before, after = (
        family(status)["PersistentVolumeClaim", "bert-checkpoints"] for status in (None, {"restartCount": 4})
    )
    assert before == after


def test_tensorboard_is_not_taken_for_a_worker() -> None:
    assert family()["Deployment", "bert-tensorboard"]["labels"] == {
        "holdfast.dev/tensorboard": "bert",
        "app.kubernetes.io/managed-by": "holdfast",
    }


def test_a_later_attempt_has_names_and_addresses_of_its_own() -> None:
    job = training_job(status={"restartCount": 2})
    assert names.job_name(job) == "bert-training-2"
    assert names.worker_host(job, 1, "job") == "bert-training-2-1.bert-headless.ml.svc"
    assert names.worker_host(job, 1, "namespace") == "bert-training-2-1.holdfast-workers.ml.svc"
    assert names.labels(job)["holdfast.dev/attempt"] == "2"


def test_every_name_fits_for_the_longest_job() -> None:
    job = training_job(EVERYTHING, status={"restartCount": 9999})
    job = structs.replace(job, metadata=structs.replace(job.metadata, name="x" * 46))
    assert len(f"{names.job_name(job)}-99") <= 63
    assert all(len(child["metadata"]["name"]) <= 63 for child in children(job))
    host = names.worker_host(job, 99, "job")
    assert all(len(label) <= 63 for label in host.split("."))


@pytest.mark.parametrize(("written", "account"), [({}, "bert"), ({"serviceAccountName": "mine"}, "mine")])
def test_pods_run_as_the_account_that_is_named_else_as_the_jobs_own(written: dict[str, Any], account: str) -> None:
    assert names.service_account(training_job({"podTemplate": written})) == account


def test_the_queue_is_on_the_workers_job_alone() -> None:
    job = queued("research")
    assert names.queue_label(job) == {"kueue.x-k8s.io/queue-name": "research"}
    marked = [child["kind"] for child in children(job) if "kueue.x-k8s.io/queue-name" in child["metadata"]["labels"]]
    assert marked == ["Job"]
    workers = children(job)[-1]
    assert workers["metadata"]["labels"] == {**ATTEMPT_LABELS, "kueue.x-k8s.io/queue-name": "research"}
    assert workers["spec"]["template"]["metadata"]["labels"] == ATTEMPT_LABELS


def test_without_a_queue_there_is_no_such_label() -> None:
    assert names.queue_label(training_job()) == {}
    assert names.queue_label(queued("")) == {}
