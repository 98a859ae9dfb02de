"""Reports over TLS: which reports are accepted, and what each answer says."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import PodStatus
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply
from holdfast.cluster.errors import Unreachable
from holdfast.cluster.resources import TRAINING_JOBS
from tests.runtime.report_server import JOB, ReportServerLab, lab
from tests.trainingjob.reports.reports import batch, ended
from tests.trainingjobs import INDEX, deleted, node, stamp

__all__ = ["lab"]


def encoded(answer: ReportReply) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found


async def test_a_workers_report_is_taken_and_answered(lab: ReportServerLab) -> None:
    report = batch(ended(3, of=10, loss=0.4))
    assert await lab.post(report, await lab.worker()) == (200, encoded(ReportReply(attempt=0, attempt_over=False)))
    assert lab.taken == [(JOB, report)]


async def test_the_answer_has_what_is_recorded_and_that_the_worker_is_to_stop(lab: ReportServerLab) -> None:
    lab.set_status(epochs={"attempt": 0, "done": 4, "goal": "EarlyStopped"})
    answer = ReportReply(attempt=0, attempt_over=False, stop="EarlyStopped", recorded_epoch=4)
    assert await lab.post(batch(), await lab.worker()) == (200, encoded(answer))


@pytest.mark.parametrize(("code", "well"), [(0, True), (1, False), (None, False)])
async def test_the_answer_says_how_the_training_ended(lab: ReportServerLab, code: int | None, well: bool) -> None:
    token = await lab.worker()
    (pod,) = lab.pods.list()
    state = {"terminated": {"exitCode": code}} if code is not None else {}
    status = msgspec.convert({"containerStatuses": [{"name": "trainer", "state": state}]}, PodStatus)
    lab.pods.put(structs.replace(pod, status=status))
    assert (await lab.post(batch(), token))[1]["endedWell"] is well


async def test_the_answer_asks_all_workers_to_save_when_the_machine_of_one_is_taken_back(
    lab: ReportServerLab,
) -> None:
    first, _ = await lab.worker(), await lab.worker(1, on="spot-1")
    assert (await lab.post(batch(), first))[1]["save"] == ""
    lab.nodes.put(node("spot-1"))
    assert (await lab.post(batch(sequence=3), first))[1]["save"] == ""
    lab.nodes.put(node("spot-1", taint="holdfast.dev/preempted"))
    assert (await lab.post(batch(sequence=4), first))[1]["save"] == "node spot-1 is about to be taken back"
    await lab.worker(1, attempt=1, on="spot-2")
    lab.nodes.put(node("spot-2", taint="holdfast.dev/preempted"))
    assert (await lab.post(batch(sequence=5), first))[1]["save"] == "node spot-1 is about to be taken back"


async def test_the_answer_to_a_worker_of_an_old_attempt_says_that_it_is_over(lab: ReportServerLab) -> None:
    token = await lab.worker(attempt=1)
    lab.set_status(restartCount=2)
    assert await lab.post(batch(ended(9), attempt=1), token) == (
        409,
        encoded(ReportReply(attempt=2, attempt_over=True)),
    )
    assert lab.taken == []


async def test_the_answer_to_a_worker_that_makes_way_for_another_spec_says_that_its_checkpoint_counts(
    lab: ReportServerLab,
) -> None:
    token = await lab.worker(attempt=1)
    changed = {
        "type": "Restarting",
        "status": "True",
        "reason": "SpecChanged",
        "message": "",
        "lastTransitionTime": stamp(0),
    }
    lab.set_status(state="Restarting", restartCount=2, conditions=[changed])
    answer = ReportReply(attempt=2, attempt_over=True, is_graceful=True)
    assert await lab.post(batch(attempt=1), token) == (409, encoded(answer))
    lab.set_status(state="Restarting", restartCount=3, conditions=[changed])
    assert await lab.post(batch(attempt=1), token) == (409, encoded(ReportReply(attempt=3, attempt_over=True)))


async def test_the_answer_asks_the_others_to_save_when_a_worker_is_deleted(lab: ReportServerLab) -> None:
    first, second = await lab.worker(), await lab.worker(1)
    leaving = next(pod for pod in lab.pods.list() if pod.metadata.labels[INDEX] == "1")
    lab.pods.put(deleted(leaving, asked=0))
    assert (await lab.post(batch(), first))[1]["save"] == "worker 1 is about to be stopped"
    assert (await lab.post(batch(index=1), second))[1]["save"] == ""  # its own pod asks it


async def test_the_answer_to_a_report_for_a_job_that_was_made_anew_says_that_it_is_over(
    lab: ReportServerLab,
) -> None:
    status, answer = await lab.post(batch(uid="of its predecessor"), await lab.worker())
    assert (status, answer["over"]) == (409, True)


async def test_a_cache_that_lags_stops_no_training(lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"model": "m", "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0}
    body = {"metadata": {"name": JOB.name}, "spec": spec}
    made = await lab.cluster.create(TRAINING_JOBS, body, namespace=JOB.namespace)
    report, token = batch(uid=made.metadata.uid), await lab.worker()
    for _ in range(2):  # with its predecessor in the cache, and with none
        status, answer = await lab.post(report, token)
        assert (status, answer) == (503, {"error": "ml/bert is not known here: try again in a moment"})
        lab.jobs.remove(JOB)
    await lab.cluster.delete(TRAINING_JOBS, JOB)

    async def away(resource: Any, key: Key) -> Any:
        raise Unreachable("get ml/bert: no answer from the server")

    with monkeypatch.context() as outage:
        outage.setattr(lab.cluster, "get", away)
        assert (await lab.post(report, token))[0] == 503
    # Its workers are to save what they have.
    assert await lab.post(report, token) == (409, encoded(ReportReply(attempt=0, attempt_over=True, is_graceful=True)))
    assert lab.taken == []
