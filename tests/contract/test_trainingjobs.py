"""A TrainingJob on any engine: the same defaults, and the same refusals at the same place."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cluster.errors import BadRequest, Invalid
from holdfast.cluster.protocol import JSON, Cluster

from .engine import Engine
from .kinds import TRAINING_JOBS, install, key_of

DEFINITION = Path(__file__).parents[2] / "manifests" / "crds" / "ml.example.com_trainingjobs.yaml"


@pytest.fixture(scope="module", autouse=True)
async def training_jobs(engine: Engine) -> None:
    await install(engine.cluster, TRAINING_JOBS, yaml.safe_load(DEFINITION.read_text()))


def training_job(name: str = "bert", **spec: Any) -> JSON:
    return {"metadata": {"name": name}, "spec": {"model": "cnn", "dataset": "mnist", "numWorkers": 2, **spec}}


@pytest.mark.every_engine
async def test_what_is_not_written_gets_its_default(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(TRAINING_JOBS, training_job(failurePolicy={}), namespace=namespace)
    assert made.spec["framework"] == "pytorch"
    assert made.spec["failurePolicy"]["restartPolicy"] == "OnFailure"
    assert made.spec["failurePolicy"]["backoffLimit"] == 3
    # Not a default of the schema: the operator tells "not written" from "written".
    assert "gpusPerWorker" not in made.spec


@pytest.mark.every_engine
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"numWorkers": 0}, "spec.numWorkers"),
        ({"numWorkers": 101}, "spec.numWorkers"),
        ({"numWorkers": "two"}, "spec.numWorkers"),
        ({"numWorkers": None}, "spec.numWorkers"),
        ({"framework": "fortran"}, "spec.framework"),
        ({"checkpoint": {"storage": {"type": "s3"}}}, "spec.checkpoint.storage.s3Bucket"),
        ({"successPolicy": {"targetAccuracy": 1.5}}, "spec.successPolicy.targetAccuracy"),
    ],
)
async def test_a_spec_that_makes_no_sense_is_refused_with_its_path(
    cluster: Cluster, namespace: str, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(TRAINING_JOBS, training_job(**spec), namespace=namespace)
    assert field in {cause.field for cause in refused.value.causes}


async def test_a_misspelt_field_is_refused_with_its_path(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'unknown field "spec\.checkpoint\.retenton"'):
        await cluster.create(TRAINING_JOBS, training_job(checkpoint={"retenton": 3}), namespace=namespace)


async def test_a_name_too_long_for_its_children_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid, match="46"):
        await cluster.create(TRAINING_JOBS, training_job("b" * 47), namespace=namespace)


async def test_the_operators_status_and_the_users_spec_stay_apart(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(TRAINING_JOBS, {**training_job(), "status": {"state": "Failed"}}, namespace=namespace)
    assert made.status == {}
    running = await cluster.patch_status(
        TRAINING_JOBS, key_of(made), {"status": {"state": "Running"}, "spec": {"numWorkers": 9}}
    )
    assert (running.status["state"], running.spec["numWorkers"]) == ("Running", 2)
    assert running.metadata.generation == made.metadata.generation
