"""What a process makes of its variables: its place, its folders, and a clear word about what can't be right."""

import json
from pathlib import Path

import pytest

from holdfast.train.environment import BadEnvironment, Environment, rank_and_world, read
from holdfast.trainingjob.objects.environment import environment
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import training_job

ALONE = Environment(
    rank=0,
    world=1,
    attempt=0,
    restart=0,
    epochs=None,
    checkpoint_dir=None,
    resume_from=None,
    frequency=1,
    interval_s=None,
    progress_file=None,
    notice_file=None,
)


def tf_config(task: str, index: int, **cluster: int) -> str:
    hosts = {kind: [f"{kind}-{number}:2222" for number in range(count)] for kind, count in cluster.items()}
    return json.dumps({"cluster": hosts, "task": {"type": task, "index": index}})


def test_without_variables_a_process_is_alone_and_keeps_nothing() -> None:
    assert read({}) == ALONE


def test_an_empty_variable_counts_as_not_set() -> None:
    names = ("RANK", "WORLD_SIZE", "TF_CONFIG", "EPOCHS", "CHECKPOINT_DIR", "CHECKPOINT_FREQUENCY", "PROGRESS_FILE")
    assert read(dict.fromkeys(names, "")) == ALONE


def test_every_variable_of_a_worker_is_read() -> None:
    told = read(
        {
            "RANK": "2",
            "WORLD_SIZE": "4",
            "HOLDFAST_ATTEMPT": "3",
            "TORCHELASTIC_RESTART_COUNT": "1",
            "EPOCHS": "20",
            "CHECKPOINT_DIR": "/checkpoints/attempt-3",
            "RESUME_FROM": "/checkpoints/attempt-3.resume",
            "CHECKPOINT_FREQUENCY": "5",
            "CHECKPOINT_INTERVAL_SECONDS": "0.5",
            "PROGRESS_FILE": "/run/progress",
            "HOLDFAST_NOTICE_FILE": "/run/notice",
        }
    )
    assert told == Environment(
        rank=2,
        world=4,
        attempt=3,
        restart=1,
        epochs=20,
        checkpoint_dir=Path("/checkpoints/attempt-3"),
        resume_from=Path("/checkpoints/attempt-3.resume"),
        frequency=5,
        interval_s=0.5,
        progress_file=Path("/run/progress"),
        notice_file=Path("/run/notice"),
    )


def test_a_folder_stays_the_same_when_the_script_changes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read({"CHECKPOINT_DIR": "saved"}).checkpoint_dir == tmp_path / "saved"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "4"}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "JAX_PROCESS_ID": "3", "JAX_NUM_PROCESSES": "4"}, (1, 2)),
        ({"TF_CONFIG": tf_config("worker", 1, worker=3)}, (1, 3)),
        ({"TF_CONFIG": tf_config("chief", 0, chief=1, worker=2)}, (0, 3)),
        ({"TF_CONFIG": tf_config("worker", 0, chief=1, worker=2)}, (1, 3)),
        ({"TF_CONFIG": tf_config("worker", 1, worker=2, ps=1)}, (1, 2)),
    ],
)
def test_rank_and_world_size_are_those_of_the_framework(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world(environ) == expected


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_the_place_is_read_from_what_the_operator_writes(framework: str) -> None:
    written = environment(training_job({"framework": framework, "numWorkers": 3}), DEFAULTS)
    given = {each["name"]: str(each.get("value", "")).replace("$(HOLDFAST_INDEX)", "2") for each in written}
    assert rank_and_world(given) == (2, 3)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "1"}, "RANK is set and WORLD_SIZE is not: set both"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set and RANK is not"),
        ({"JAX_PROCESS_ID": "1"}, "JAX_PROCESS_ID is set and JAX_NUM_PROCESSES is not"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2: with WORLD_SIZE 2 it is at most 1"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1': write a whole number of at least 0"),
        ({"RANK": "\u0661", "WORLD_SIZE": "2"}, "RANK is"),  # a digit, and none that anybody else reads
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE is '0': write a whole number of at least 1"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not like"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG is not like"),
        ({"TF_CONFIG": '{"cluster": [], "task": {"type": "worker", "index": 0}}'}, "TF_CONFIG is not like"),
        ({"TF_CONFIG": tf_config("worker", 2, worker=2)}, "the task worker 2, which is none of its workers"),
        ({"TF_CONFIG": tf_config("worker", -1, worker=2)}, "the task worker -1"),
        ({"TF_CONFIG": tf_config("ps", 0, worker=2, ps=1)}, "the task ps 0"),
        ({"HOLDFAST_ATTEMPT": "first"}, "HOLDFAST_ATTEMPT is 'first'"),
        ({"EPOCHS": "1e3"}, "EPOCHS is '1e3'"),
        ({"CHECKPOINT_FREQUENCY": "0"}, "CHECKPOINT_FREQUENCY is '0': write a whole number of at least 1"),
        ({"CHECKPOINT_INTERVAL_SECONDS": "10m"}, "CHECKPOINT_INTERVAL_SECONDS is '10m': write a number of seconds"),
        ({"CHECKPOINT_INTERVAL_SECONDS": "0"}, "above 0"),
        ({"CHECKPOINT_INTERVAL_SECONDS": "nan"}, "above 0"),
        ({"CHECKPOINT_INTERVAL_SECONDS": "inf"}, "above 0"),
    ],
)
def test_what_can_t_be_right_is_refused_by_name(environ: dict[str, str], words: str) -> None:
    with pytest.raises(BadEnvironment) as refused:
        read(environ)
    assert words in str(refused.value)
