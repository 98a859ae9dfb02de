"""The file with the task, in JSON and in YAML."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.manifests import documents
from holdfast.trainingjob.objects.environment import config_map
from tests.trainingjob.objects.family import container, pod
from tests.trainingjobs import training_job

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PITFALLS = [
    "1e-4",
    "0.1",
    "yes",
    "y",
    "null",
    "~",
    "0o17",
    "0x1F",
    "1_000",
    "12:30",
    "- a",
    "a: b",
    "#",
    "",
    " ",
    "\n",
    "é",
]


def files(spec: dict[str, Any]) -> dict[str, str]:
    data: dict[str, str] = config_map(training_job(spec))["data"]
    return data


def test_the_task_is_mounted_where_config_file_says() -> None:
    mount = container()["volumeMounts"][0]
    path = {each["name"]: each.get("value") for each in container()["env"]}["CONFIG_FILE"]
    assert f"{mount['mountPath']}/config.json" == path
    assert pod()["spec"]["volumes"][0] == {"name": mount["name"], "configMap": {"name": "bert-config"}}


def test_the_task_says_what_to_train_and_how_to_meet() -> None:
    spec = {"hyperparameters": {"epochs": 3}, "dataset": "wiki text", "networking": {"masterPort": 2222}}
    assert json.loads(files(spec)["config.json"]) == {
        "name": "bert",
        "namespace": "ml",
        "model": "cnn",
        "dataset": "wiki text",
        "framework": "pytorch",
        "hyperparameters": {"epochs": 3},
        "networking": {"backend": "nccl", "masterPort": 2222},
    }


def test_sidecars_are_told_where_to_report() -> None:
    job = training_job({"monitoring": {}})
    told = config_map(job, '{"url": "https://10.0.0.1"}')["data"]
    assert told == {**config_map(job, None)["data"], "reports.json": '{"url": "https://10.0.0.1"}'}
    (beside,) = pod({"monitoring": {}})["spec"]["initContainers"]
    mount = beside["volumeMounts"][0]
    variables = {each["name"]: each.get("value") for each in beside["env"]}
    assert variables["HOLDFAST_REPORTS_FILE"] == f"{mount['mountPath']}/reports.json"


def test_a_job_without_sidecars_is_not_written_anew_when_another_operator_leads() -> None:
    job = training_job({"monitoring": {"enabled": False}})
    assert config_map(job, "{}") == config_map(job, None)


@given(st.dictionaries(TEXTS, TEXTS | st.sampled_from(PITFALLS), max_size=4), st.floats(1e-300, 1e300))
def test_both_files_say_the_same(params: dict[str, str], rate: float) -> None:
    data = files({"hyperparameters": {"learningRate": rate, "additionalParams": params}})
    assert yaml.safe_load(data["config.yaml"]) == json.loads(data["config.json"])


@pytest.mark.parametrize("text", PITFALLS)
def test_a_text_stays_a_text_for_other_readers_of_yaml_too(text: str) -> None:
    """Go's reader and those of YAML 1.2 take more for numbers than PyYAML does."""
    data = files({"hyperparameters": {"additionalParams": {"value": text}}})
    (task,) = documents(data["config.yaml"])
    assert task["hyperparameters"]["additionalParams"]["value"] == text
