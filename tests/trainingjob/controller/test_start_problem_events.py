"""When Events are asked why workers do not start: what is seen, and when → an explanation, and the next look."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Job
from holdfast.cluster.errors import Forbidden
from holdfast.cluster.resources import EVENTS
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobSnapshot
from holdfast.trainingjob.start_problems import EVERY_S, StartProblems
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjobs import at, stamp, training_job, workers

REFUSED = "their pods are refused: exceeded quota: gpus"


class Cluster(ScriptedCluster):
    """Tells of a quota that keeps pods from being made."""

    def __init__(self) -> None:
        super().__init__()
        self.tell("exceeded quota: gpus")

    def tell(self, message: str) -> None:
        body: dict[str, Any] = {
            "metadata": {"name": "told"},
            "type": "Warning",
            "reason": "FailedCreate",
            "message": f"Error creating: {message}",
            "lastTimestamp": stamp(1),
        }
        self.put(EVENTS, body, namespace="ml")

    @property
    def asked(self) -> int:
        return len(self.calls_of("list"))


def waiting(job: Job | None = None, **status: Any) -> TrainingJobSnapshot:
    return TrainingJobSnapshot(
        job=training_job(status={"state": "Initializing", **status}), current_job=job or workers()
    )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def explanations(cluster: Cluster) -> StartProblems:
    return StartProblems(cluster, TIMING)


async def test_a_start_that_is_no_longer_than_usual_is_not_asked_about(
    cluster: Cluster, explanations: StartProblems
) -> None:
    observed = await explanations.with_start_problems(waiting(), at(2))
    assert (observed.job_event, cluster.asked) == ("", 0)
    assert explanations.next_check(observed, at(2)) == at(3)


async def test_a_start_that_takes_longer_is_explained(cluster: Cluster, explanations: StartProblems) -> None:
    observed = await explanations.with_start_problems(waiting(), at(3))
    assert (observed.job_event, cluster.asked) == (REFUSED, 1)
    assert explanations.next_check(observed, at(3)) == at(3 + EVERY_S)


async def test_an_answer_serves_for_a_while_and_is_then_asked_for_again(
    cluster: Cluster, explanations: StartProblems
) -> None:
    await explanations.with_start_problems(waiting(), at(3))
    cluster.tell("exceeded quota: pods")
    soon = await explanations.with_start_problems(waiting(), at(3 + EVERY_S - 1))
    assert (soon.job_event, cluster.asked) == (REFUSED, 1)
    later = await explanations.with_start_problems(waiting(), at(3 + EVERY_S))
    assert (later.job_event, cluster.asked) == ("their pods are refused: exceeded quota: pods", 2)


async def test_an_answer_about_one_attempt_is_none_about_the_next(
    cluster: Cluster, explanations: StartProblems
) -> None:
    await explanations.with_start_problems(waiting(), at(3))
    following = workers(name="bert-training-1", status={"startTime": stamp(5)})
    early = await explanations.with_start_problems(waiting(following), at(6))
    assert (early.job_event, cluster.asked) == ("", 1)
    late = await explanations.with_start_problems(waiting(following), at(8))
    assert (late.job_event, cluster.asked) == (REFUSED, 2)


@pytest.mark.parametrize(
    "observed",
    [
        waiting(workers(status={"ready": 2})),
        waiting(workers(suspend=True)),
        waiting(workers(status={"startTime": ""})),
        structs.replace(waiting(), current_job=None),
        waiting(state="Failed"),
        waiting(state="Completed"),
    ],
    ids=["running", "held back", "not begun", "not made", "failed", "completed"],
)
async def test_who_does_not_wait_for_workers_is_not_asked_about_and_its_answer_is_forgotten(
    observed: TrainingJobSnapshot, cluster: Cluster, explanations: StartProblems
) -> None:
    await explanations.with_start_problems(waiting(), at(3))
    assert await explanations.with_start_problems(observed, at(100)) == observed
    assert explanations.next_check(observed, at(100)) is None
    assert cluster.asked == 1
    assert (await explanations.with_start_problems(waiting(), at(4))).job_event == REFUSED
    assert cluster.asked == 2


async def test_a_job_that_is_gone_is_forgotten(cluster: Cluster, explanations: StartProblems) -> None:
    await explanations.with_start_problems(waiting(), at(3))
    explanations.forget(waiting().job.metadata.key)
    explanations.forget(waiting().job.metadata.key)
    await explanations.with_start_problems(waiting(), at(4))
    assert cluster.asked == 2


async def test_events_that_can_not_be_read_are_tried_again_no_sooner(
    cluster: Cluster, explanations: StartProblems
) -> None:
    cluster.errors["list"] = [Forbidden("events is forbidden")]
    first = await explanations.with_start_problems(waiting(), at(3))
    assert first.job_event == ""
    await explanations.with_start_problems(waiting(), at(4))
    assert cluster.asked == 1
    assert explanations.next_check(first, at(4)) == at(3 + EVERY_S)
    assert (await explanations.with_start_problems(waiting(), at(3 + EVERY_S))).job_event == REFUSED


async def test_a_look_is_never_in_the_past(explanations: StartProblems) -> None:
    assert explanations.next_check(waiting(), at(500)) == at(500)
