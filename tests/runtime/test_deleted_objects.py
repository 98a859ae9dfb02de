"""Which jobs are gone for certain."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Undecodable, Unreachable
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.runtime.deleted_objects import DeletedObjects
from tests.runtime.scripted import ScriptedCluster

JOB = Key("ml", "bert")
BODY = {"metadata": {"name": "bert"}, "spec": {"model": "m", "dataset": "d", "numWorkers": 1}}


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


async def test_a_job_that_is_there_is_not_gone_and_is_asked_for_each_time(cluster: ScriptedCluster) -> None:
    made = cluster.put(TRAINING_JOBS, BODY, namespace="ml")
    gone = DeletedObjects(cluster, TRAINING_JOBS)
    assert not await gone.is_gone(JOB, made.metadata.uid)
    cluster.drop(TRAINING_JOBS, JOB)
    assert await gone.is_gone(JOB, made.metadata.uid)


async def test_a_job_whose_name_another_has_is_gone(cluster: ScriptedCluster) -> None:
    cluster.put(TRAINING_JOBS, BODY, namespace="ml")
    assert await DeletedObjects(cluster, TRAINING_JOBS).is_gone(JOB, "of its predecessor")


async def test_an_object_that_is_gone_is_asked_for_once(cluster: ScriptedCluster) -> None:
    gone = DeletedObjects(cluster, TRAINING_JOBS, memory=2)
    for _ in range(3):
        assert await gone.is_gone(JOB, "1")
    assert len(cluster.calls) == 1
    for uid in ("2", "3", "1"):
        assert await gone.is_gone(JOB, uid)
    assert len(cluster.calls) == 4, "the memory is bounded"


async def test_what_one_worker_says_of_a_uid_means_nothing_for_another_job(cluster: ScriptedCluster) -> None:
    made = cluster.put(TRAINING_JOBS, BODY, namespace="ml")
    gone = DeletedObjects(cluster, TRAINING_JOBS)
    assert await gone.is_gone(Key("elsewhere", "bert"), made.metadata.uid)
    assert not await gone.is_gone(JOB, made.metadata.uid)


async def test_no_answer_is_no_certainty(cluster: ScriptedCluster) -> None:
    gone = DeletedObjects(cluster, TRAINING_JOBS)
    cluster.errors["get"] = [Unreachable("no")]
    with pytest.raises(Unreachable):
        await gone.is_gone(JOB, "1")
    assert await gone.is_gone(JOB, "1")


async def test_a_job_that_does_not_fit_its_model_is_there(cluster: ScriptedCluster) -> None:
    cluster.errors["get"] = [Undecodable("no")]
    assert not await DeletedObjects(cluster, TRAINING_JOBS).is_gone(JOB, "1")
