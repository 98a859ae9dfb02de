"""What a worker finds in its environment."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.trainingjob import TrainingJob
from holdfast.local.kubelet.environment import expand
from holdfast.trainingjob.objects.environment import environment
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import training_job

HOST_0 = "bert-training-0.bert-headless.ml.svc"
TEXTS = st.text(st.sampled_from("$()aHOLDFAST_INDEX"), min_size=1, max_size=30)


def values(job: TrainingJob) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in environment(job, DEFAULTS)}


def seen(job: TrainingJob, index: int) -> dict[str, str]:
    """As the kubelet expands it for one worker: each value from those before it."""
    found = {"HOLDFAST_INDEX": str(index)}
    for variable in environment(job, DEFAULTS):
        if "value" in variable:
            found[variable["name"]] = expand(variable["value"], found)
    return found


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        (
            "pytorch",
            {
                "MASTER_ADDR": HOST_0,
                "MASTER_PORT": "29500",
                "WORLD_SIZE": "2",
                "RANK": "1",
                "NODE_RANK": "1",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "PET_NNODES": "2",
                "PET_NODE_RANK": "1",
                "PET_NPROC_PER_NODE": "4",
                "PET_MASTER_ADDR": HOST_0,
                "PET_MASTER_PORT": "29500",
            },
        ),
        (
            "jax",
            {"JAX_COORDINATOR_ADDRESS": f"{HOST_0}:29500", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
        ),
    ],
)
def test_workers_find_each_other_by_their_frameworks_variables(framework: str, expected: dict[str, str]) -> None:
    found = seen(training_job({"framework": framework, "gpusPerWorker": 4}), index=1)
    assert expected.items() <= found.items()


def test_tensorflow_gets_the_whole_gang_and_its_own_place_in_it() -> None:
    job = training_job({"framework": "tensorflow", "networking": {"masterPort": 2222}})
    hosts = [f"bert-training-{index}.bert-headless.ml.svc:2222" for index in range(2)]
    assert json.loads(seen(job, 1)["TF_CONFIG"]) == {
        "cluster": {"worker": hosts},
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize(
    ("framework", "own"), [("pytorch", "MASTER_ADDR"), ("tensorflow", "TF_CONFIG"), ("jax", "JAX_PROCESS_ID")]
)
def test_one_frameworks_variables_are_not_anothers(framework: str, own: str) -> None:
    found = values(training_job({"framework": framework}))
    assert [name for name in ("MASTER_ADDR", "TF_CONFIG", "JAX_PROCESS_ID") if name in found] == [own]


def test_the_index_stands_before_the_variables_that_use_it() -> None:
    first = environment(training_job(), DEFAULTS)[0]
    path = "metadata.labels['batch.kubernetes.io/job-completion-index']"
    assert first == {"name": "HOLDFAST_INDEX", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_a_later_attempt_says_so_and_meets_elsewhere() -> None:
    found = values(training_job(status={"restartCount": 2}))
    assert found["HOLDFAST_ATTEMPT"] == "2"
    assert found["MASTER_ADDR"] == "bert-training-2-0.bert-headless.ml.svc"


def test_numbers_keep_their_value() -> None:
    assert float(values(training_job({"hyperparameters": {"learningRate": 0.00005}}))["LEARNING_RATE"]) == 0.00005


def test_a_hyperparameter_that_is_not_written_is_no_variable() -> None:
    assert "EPOCHS" not in values(training_job({"hyperparameters": {"batchSize": 16}}))


def test_a_variable_of_the_users_replaces_ours_and_comes_last() -> None:
    own = [{"name": "MASTER_PORT", "value": "1234"}, {"name": "NCCL_IB_DISABLE", "value": "0"}]
    found = environment(training_job({"env": own}), DEFAULTS)
    assert [variable for variable in found if variable["name"] == "MASTER_PORT"] == [own[0]]
    assert found[-2:] == own


def test_a_variable_of_the_users_may_come_from_a_secret() -> None:
    own = {"name": "WANDB_API_KEY", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}}
    assert environment(training_job({"env": [own]}), DEFAULTS)[-1] == own


@given(TEXTS)
def test_a_users_text_arrives_as_it_is_written(text: str) -> None:
    spec: dict[str, Any] = {"model": text, "hyperparameters": {"additionalParams": {"note": text}}}
    found = seen(training_job(spec), index=1)
    assert (found["MODEL"], found["PARAM_NOTE"]) == (text, text)


@pytest.mark.parametrize(
    ("spec", "backend", "infiniband_off"),
    [
        ({}, "nccl", "1"),
        ({"gpusPerWorker": 0}, "gloo", None),
        ({"networking": {"backend": "gloo"}}, "gloo", None),
        ({"networking": {"masterPort": 1}}, "nccl", "1"),
        ({"networking": {"rdmaEnabled": True}}, "nccl", "0"),
        ({"framework": "jax"}, "nccl", "1"),
    ],
)
def test_the_backend_follows_the_gpus_unless_it_is_written(
    spec: dict[str, Any], backend: str, infiniband_off: str | None
) -> None:
    found = values(training_job(spec))
    assert (found["HOLDFAST_BACKEND"], found.get("NCCL_IB_DISABLE")) == (backend, infiniband_off)
