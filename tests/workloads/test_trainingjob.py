"""The children of a TrainingJob: spec → objects."""

import json
from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob
from holdfast.workloads.trainingjob import names
from holdfast.workloads.trainingjob.config import config_map
from holdfast.workloads.trainingjob.environment import environment
from holdfast.workloads.trainingjob.gpus import gpus_per_worker, worker_resources
from holdfast.workloads.trainingjob.job import spec_digest, workers_job
from holdfast.workloads.trainingjob.services import headless_service, master_service
from tests.trainingjobs import UID, training_job

IMAGE = "holdfast:test"
HOST_0 = "bert-training-0.bert-headless.ml.svc"


def values(job: TrainingJob) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in environment(job)}


def pod(spec: dict[str, Any]) -> dict[str, Any]:
    """The template as it goes over the wire."""
    template = workers_job(training_job(spec), IMAGE)["spec"]["template"]
    written: dict[str, Any] = json.loads(msgspec.json.encode(template))
    return written


def container(spec: dict[str, Any]) -> dict[str, Any]:
    trainer: dict[str, Any] = pod(spec)["spec"]["containers"][0]
    return trainer


def test_every_child_is_named_labelled_and_owned() -> None:
    job = training_job()
    children = [config_map(job), headless_service(job), master_service(job), workers_job(job, IMAGE)]
    assert [child["metadata"]["name"] for child in children] == [
        "bert-config",
        "bert-headless",
        "bert-master",
        "bert-training",
    ]
    for child in children:
        metadata = child["metadata"]
        assert metadata["namespace"] == "ml"
        assert metadata["labels"] == {
            "training-job": "bert",
            "trainingjob": "bert",
            "holdfast.dev/attempt": "0",
            "app.kubernetes.io/managed-by": "holdfast",
        }
        assert metadata["ownerReferences"] == [
            {
                "apiVersion": "ml.example.com/v1",
                "kind": "TrainingJob",
                "name": "bert",
                "uid": UID,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]


def test_a_later_attempt_has_names_and_addresses_of_its_own() -> None:
    job = training_job(status={"restartCount": 2})
    assert names.workers(job) == "bert-training-2"
    assert values(job)["MASTER_ADDR"] == "bert-training-2-0.bert-headless.ml.svc"
    assert values(job)["HOLDFAST_ATTEMPT"] == "2"
    assert master_service(job)["spec"]["selector"]["batch.kubernetes.io/job-name"] == "bert-training-2"


def test_every_pod_has_a_host_name_that_fits_for_the_longest_name() -> None:
    job = training_job(status={"restartCount": 9999})
    job = structs.replace(job, metadata=structs.replace(job.metadata, name="x" * 46))
    assert len(f"{names.workers(job)}-99") <= 63


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        (
            "pytorch",
            {
                "MASTER_ADDR": HOST_0,
                "MASTER_PORT": "29500",
                "WORLD_SIZE": "2",
                "RANK": "$(HOLDFAST_INDEX)",
                "NODE_RANK": "$(HOLDFAST_INDEX)",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "PET_NNODES": "2",
                "PET_NODE_RANK": "$(HOLDFAST_INDEX)",
                "PET_NPROC_PER_NODE": "4",
                "PET_MASTER_ADDR": HOST_0,
                "PET_MASTER_PORT": "29500",
            },
        ),
        (
            "jax",
            {
                "JAX_COORDINATOR_ADDRESS": f"{HOST_0}:29500",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": "$(HOLDFAST_INDEX)",
            },
        ),
    ],
)
def test_workers_find_each_other_by_their_frameworks_variables(framework: str, expected: dict[str, str]) -> None:
    found = values(training_job({"framework": framework, "gpusPerWorker": 4}))
    assert expected.items() <= found.items()


def test_tensorflow_gets_the_whole_gang_and_its_own_place_in_it() -> None:
    text = values(training_job({"framework": "tensorflow", "networking": {"masterPort": 2222}}))["TF_CONFIG"]
    config = json.loads(text.replace("$(HOLDFAST_INDEX)", "1"))
    hosts = [f"bert-training-{index}.bert-headless.ml.svc:2222" for index in range(2)]
    assert config == {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 1}}


def test_one_frameworks_variables_are_not_anothers() -> None:
    assert "TF_CONFIG" not in values(training_job({"framework": "jax"}))
    assert "MASTER_ADDR" not in values(training_job({"framework": "jax"}))


def test_the_index_stands_before_the_variables_that_use_it() -> None:
    first = environment(training_job())[0]
    path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert first == {"name": "HOLDFAST_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_hyperparameters_are_variables_by_their_names() -> None:
    hyperparameters = {
        "learningRate": 0.00005,
        "batchSize": 16,
        "epochs": 3,
        "optimizer": "adamw",
        "warmupSteps": 100,
        "gradientAccumulationSteps": 4,
        "mixedPrecision": True,
        "additionalParams": {"weight_decay": "0.01", "label-smoothing": "0.1"},
    }
    found = values(training_job({"hyperparameters": hyperparameters}))
    expected = {
        "BATCH_SIZE": "16",
        "EPOCHS": "3",
        "OPTIMIZER": "adamw",
        "WARMUP_STEPS": "100",
        "GRADIENT_ACCUMULATION_STEPS": "4",
        "MIXED_PRECISION": "true",
        "PARAM_WEIGHT_DECAY": "0.01",
        "PARAM_LABEL_SMOOTHING": "0.1",
    }
    assert expected.items() <= found.items()
    assert float(found["LEARNING_RATE"]) == 0.00005


def test_a_hyperparameter_that_is_not_written_is_no_variable() -> None:
    assert "EPOCHS" not in values(training_job({"hyperparameters": {"batchSize": 16}}))


def test_a_variable_of_the_users_replaces_ours_and_comes_last() -> None:
    own = [{"name": "MASTER_PORT", "value": "1234"}, {"name": "NCCL_DEBUG", "value": "INFO"}]
    found = environment(training_job({"env": own}))
    assert [variable for variable in found if variable["name"] == "MASTER_PORT"] == [own[0]]
    assert found[-2:] == own


def test_text_that_looks_like_a_reference_is_not_expanded() -> None:
    assert values(training_job({"model": "bert $(RANK)"}))["MODEL"] == "bert $$(RANK)"


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({}, 1),
        ({"gpusPerWorker": 0}, 0),
        ({"gpusPerWorker": 4}, 4),
        ({"resources": {"limits": {"nvidia.com/gpu": "2"}}}, 2),
        ({"resources": {"requests": {"nvidia.com/gpu": 3}}}, 3),
        ({"resources": {"limits": {"cpu": "1"}}}, 1),
    ],
)
def test_gpus_are_what_is_written_else_one(spec: dict[str, Any], gpus: int) -> None:
    assert gpus_per_worker(training_job(spec).spec) == gpus


@pytest.mark.parametrize(
    ("spec", "resources"),
    [
        ({}, {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}),
        ({"gpusPerWorker": 0}, {}),
        (
            {"gpusPerWorker": 2, "resources": {"requests": {"cpu": "8"}}},
            {"requests": {"cpu": "8", "nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}},
        ),
        (
            {"gpusPerWorker": 0, "resources": {"requests": {"nvidia.com/gpu": "0"}, "limits": {"memory": "1Gi"}}},
            {"limits": {"memory": "1Gi"}},
        ),
    ],
)
def test_gpus_are_asked_for_and_limited_alike(spec: dict[str, Any], resources: dict[str, Any]) -> None:
    assert worker_resources(training_job(spec).spec) == resources


@pytest.mark.parametrize(
    ("spec", "backend"),
    [
        ({}, "nccl"),
        ({"gpusPerWorker": 0}, "gloo"),
        ({"networking": {"backend": "gloo"}}, "gloo"),
        ({"networking": {"masterPort": 1}}, "nccl"),
    ],
)
def test_the_backend_follows_the_gpus_unless_it_is_written(spec: dict[str, Any], backend: str) -> None:
    assert values(training_job(spec))["HOLDFAST_BACKEND"] == backend


def test_the_task_is_mounted_as_json_where_config_file_says() -> None:
    job = training_job({"hyperparameters": {"epochs": 3}, "dataset": "wiki text"})
    data = config_map(job)["data"]
    task = json.loads(data["config.json"])
    assert task["dataset"] == "wiki text"
    assert task["hyperparameters"] == {"epochs": 3}
    mount = container({})["volumeMounts"][0]
    assert f"{mount['mountPath']}/config.json" == values(job)["CONFIG_FILE"]
    assert pod({})["spec"]["volumes"][0]["configMap"]["name"] == "bert-config"


def test_the_job_is_indexed_with_a_worker_for_each_index() -> None:
    spec = workers_job(training_job({"numWorkers": 8}), IMAGE)["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["subdomain"] == "bert-headless"


@pytest.mark.parametrize(
    ("policy", "limit", "actions"),
    [
        (None, 3, ["Ignore"]),
        ({"backoffLimit": 0}, 0, ["Ignore"]),
        ({"restartPolicy": "Never", "backoffLimit": 5}, 0, ["Ignore"]),
        ({"restartPolicy": "Always"}, 3, ["Ignore"]),
        ({"restartPolicy": "ExitCode", "backoffLimit": 2}, 2, ["Ignore", "FailJob"]),
    ],
)
def test_the_failure_policy_becomes_the_jobs(policy: dict[str, Any] | None, limit: int, actions: list[str]) -> None:
    spec = workers_job(training_job({"failurePolicy": policy} if policy else {}), IMAGE)["spec"]
    assert spec["backoffLimit"] == limit
    assert [rule["action"] for rule in spec["podFailurePolicy"]["rules"]] == actions


def test_an_image_and_its_command_run_as_written() -> None:
    trainer = container({"image": "torch:2", "command": ["torchrun"], "args": ["train.py"]})
    assert (trainer["image"], trainer["command"], trainer["args"]) == ("torch:2", ["torchrun"], ["train.py"])


def test_without_an_image_the_default_one_runs_with_its_own_entry_point() -> None:
    trainer = container({})
    assert trainer["image"] == IMAGE
    assert "command" not in trainer
    assert "args" not in trainer


def test_wishes_about_scheduling_reach_the_pod() -> None:
    wishes = {
        "priority": "high",
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    }
    spec = pod({"scheduling": wishes})["spec"]
    assert spec["priorityClassName"] == "high"
    assert spec["nodeSelector"] == wishes["nodeSelector"]
    assert spec["tolerations"] == wishes["tolerations"]
    assert "podAntiAffinity" in spec["affinity"]


def test_pods_are_restricted_and_see_no_api_token() -> None:
    spec = pod({})["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (1000, 1000)
    assert container({})["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_pod_template_lays_over_what_it_names() -> None:
    overlay = {
        "labels": {"team": "vision", "training-job": "mine"},
        "annotations": {"note": "x"},
        "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "imagePullSecrets": [{"name": "registry"}],
        "imagePullPolicy": "Always",
        "serviceAccountName": "trainer",
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"runAsUser": 7},
    }
    template = pod({"podTemplate": overlay})
    assert template["metadata"]["labels"]["team"] == "vision"
    assert template["metadata"]["labels"]["training-job"] == "bert"
    assert template["metadata"]["annotations"] == {"note": "x"}
    spec = template["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["holdfast-config", "data"]
    assert spec["containers"][0]["volumeMounts"][1] == {"name": "data", "mountPath": "/data"}
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["containers"][0]["imagePullPolicy"] == "Always"
    assert spec["serviceAccountName"] == "trainer"
    assert spec["hostNetwork"] is True
    assert spec["terminationGracePeriodSeconds"] == 0
    assert (spec["securityContext"]["runAsUser"], spec["securityContext"]["fsGroup"]) == (7, 1000)


def test_the_headless_service_names_workers_before_they_are_ready() -> None:
    spec = headless_service(training_job())["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == {"training-job": "bert"}


def test_metrics_are_served_when_monitoring_is_on() -> None:
    off = training_job()
    on = training_job({"monitoring": {"enabled": True, "metricsPort": 9000}})
    assert [port["port"] for port in master_service(off)["spec"]["ports"]] == [29500]
    assert [port["port"] for port in master_service(on)["spec"]["ports"]] == [29500, 9000]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"suspend": True}, True),
        ({"ttlSecondsAfterFinished": 5}, True),
        ({"failurePolicy": {"backoffLimit": 9, "activeDeadlineSeconds": 60}}, True),
        ({"checkpoint": {"retention": 9}}, False),
        ({"numWorkers": 3}, False),
        ({"image": "other"}, False),
        ({"failurePolicy": {"restartPolicy": "ExitCode"}}, False),
        ({"hyperparameters": {"epochs": 4}}, False),
    ],
)
def test_a_change_makes_a_new_attempt_only_if_it_alters_the_training(change: dict[str, Any], same: bool) -> None:
    assert (spec_digest(training_job(change).spec) == spec_digest(training_job().spec)) is same


def test_how_many_checkpoints_are_kept_alters_no_training() -> None:
    few, many = (training_job({"checkpoint": {"frequency": 2, "retention": count}}) for count in (1, 9))
    assert spec_digest(few.spec) == spec_digest(many.spec)
