"""The Services of a job: what finds the workers, and what worker 0 is called."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.trainingjob.objects.environment import environment
from tests.trainingjob.objects.family import DEFAULTS, JSON, child, children
from tests.trainingjobs import training_job

SHARING = structs.replace(DEFAULTS, discovery="namespace")
SECOND = {"restartCount": 2}


def services(spec: JSON | None = None, *, status: JSON | None = None, **options: Any) -> dict[str, JSON]:
    """By name, what is made for a job."""
    made = children(training_job(spec, status=status), structs.replace(DEFAULTS, **options))
    return {each["metadata"]["name"]: each for each in made if each["kind"] == "Service"}


def test_workers_have_names_before_they_are_ready() -> None:
    spec = services()["bert-headless"]["spec"]
    assert (spec["clusterIP"], spec["publishNotReadyAddresses"]) == ("None", True)
    assert spec["selector"] == {"training-job": "bert"}


@pytest.mark.parametrize("spec", [{}, {"monitoring": {"enabled": False}}])
def test_worker_0_has_a_second_name_that_costs_nothing(spec: JSON) -> None:
    master = services(spec, status=SECOND)["bert-master"]["spec"]
    assert master["type"] == "ExternalName"
    assert master["externalName"] == "bert-training-2-0.bert-headless.ml.svc.cluster.local"
    assert "selector" not in master
    assert [port["port"] for port in master["ports"]] == [29500]


def test_the_second_name_is_whole_in_a_cluster_with_another_domain() -> None:
    master = services(cluster_domain="ml.example")["bert-master"]["spec"]
    assert master["externalName"] == "bert-training-0.bert-headless.ml.svc.ml.example"


@pytest.mark.parametrize("discovery", ["job", "namespace"])
def test_a_worker_0_that_is_scraped_has_an_endpoint(discovery: str) -> None:
    master = services({"monitoring": {"metricsPort": 9000}}, status=SECOND, discovery=discovery)["bert-master"]["spec"]
    assert master["selector"] == {
        "batch.kubernetes.io/job-name": "bert-training-2",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    assert "type" not in master
    assert [port["port"] for port in master["ports"]] == [29500, 9000]


def test_with_discovery_by_namespace_one_service_finds_the_workers_of_all_jobs() -> None:
    made = services(discovery="namespace")
    assert list(made) == ["holdfast-workers", "bert-headless", "bert-master"]
    shared = made["holdfast-workers"]
    assert "ownerReferences" not in shared["metadata"]
    assert (shared["spec"]["clusterIP"], shared["spec"]["publishNotReadyAddresses"]) == ("None", True)
    template = child("Job", training_job(), SHARING)["spec"]["template"]
    assert shared["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert template["spec"]["subdomain"] == "holdfast-workers"
    assert shared["spec"]["selector"].items() <= shared["metadata"]["labels"].items()


def test_then_the_jobs_own_service_is_there_and_has_nothing_behind_it() -> None:
    spec = services(discovery="namespace")["bert-headless"]["spec"]
    assert spec["clusterIP"] == "None"
    assert "selector" not in spec


@pytest.mark.parametrize(
    ("framework", "variable"),
    [
        ("pytorch", "MASTER_ADDR"),
        ("pytorch", "PET_MASTER_ADDR"),
        ("jax", "JAX_COORDINATOR_ADDRESS"),
        ("tensorflow", "TF_CONFIG"),
    ],
)
def test_then_all_that_leads_to_a_worker_leads_through_the_shared_one(framework: str, variable: str) -> None:
    variables = {
        each["name"]: each.get("value", "") for each in environment(training_job({"framework": framework}), SHARING)
    }
    assert "bert-training-0.holdfast-workers.ml.svc" in variables[variable]
    assert "bert-headless" not in variables[variable]
    assert services(discovery="namespace")["bert-master"]["spec"]["externalName"] == (
        "bert-training-0.holdfast-workers.ml.svc.cluster.local"
    )


def test_a_label_of_the_users_does_not_take_a_worker_out_of_the_shared_service() -> None:
    job = training_job({"podTemplate": {"labels": {"holdfast.dev/discovery": "none"}}})
    assert child("Job", job, SHARING)["spec"]["template"]["metadata"]["labels"]["holdfast.dev/discovery"] == "namespace"


def test_tensorboard_is_not_behind_the_shared_service() -> None:
    job = training_job({"checkpoint": {}, "monitoring": {"tensorboardEnabled": True}})
    labels = child("Deployment", job, SHARING)["spec"]["template"]["metadata"]["labels"]
    assert "holdfast.dev/discovery" not in labels
