"""What the operator sets is what the trainer reads, whatever the framework."""

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainer.settings import RankInfo, read_rank_info, settings, with_config_file
from holdfast.trainingjob.objects.environment import config_map, environment
from tests.trainingjob.objects.family import DEFAULTS

HYPERPARAMETERS = {
    "learningRate": 5e-05,
    "batchSize": 64,
    "epochs": 4,
    "optimizer": "adamw",
    "warmupSteps": 3,
    "gradientAccumulationSteps": 2,
    "mixedPrecision": True,
    "additionalParams": {"seed": "5", "weight-decay": "0.25"},
}


def job(framework: str) -> TrainingJob:
    spec = {
        "model": "cnn",
        "dataset": "synthetic",
        "numWorkers": 3,
        "gpusPerWorker": 0,
        "framework": framework,
        "hyperparameters": HYPERPARAMETERS,
    }
    metadata = {"name": "digits", "namespace": "ml-training", "uid": "7c1e"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, TrainingJob)


def worker(training: TrainingJob, index: int) -> dict[str, str]:
    """The environment as a kubelet resolves it for one worker."""
    found = {"HOLDFAST_INDEX": str(index)}
    for variable in environment(training, DEFAULTS):
        if "value" in variable:
            value = variable["value"]
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match.group(1)], value)
    return found


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_a_worker_finds_its_place(framework: str) -> None:
    training = job(framework)
    found = [read_rank_info(worker(training, index)) for index in range(3)]
    host = found[0].host
    assert host.startswith("digits-training-0.digits-headless")
    assert found == [RankInfo(rank=rank, size=3, host=host, port=29500) for rank in range(3)]


@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_every_hyperparameter_arrives(framework: str) -> None:
    chosen = settings(with_config_file(worker(job(framework), 1)))
    assert (chosen.model, chosen.dataset, chosen.optimizer) == ("cnn", "synthetic", "adamw")
    assert (chosen.learning_rate, chosen.batch_size, chosen.epochs) == (5e-05, 64, 4)
    assert (chosen.warmup_steps, chosen.accumulation_steps, chosen.mixed_precision) == (3, 2, True)
    assert (chosen.seed, chosen.weight_decay) == (5, 0.25)


def test_all_workers_of_an_attempt_have_the_same_digest() -> None:
    training = job("pytorch")
    assert len({settings(worker(training, index)).digest for index in range(3)}) == 1


def test_the_job_s_file_alone_says_the_same(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(config_map(job("pytorch"))["data"]["config.json"])
    from_file, from_environ = (
        settings(with_config_file({"CONFIG_FILE": str(file)})),
        settings(worker(job("pytorch"), 0)),
    )
    # Where the sidecar and the training meet is said in the environment alone.
    assert from_file == replace(from_environ, attempt="", progress_file=None, notice_file=None)
