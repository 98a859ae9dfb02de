"""Sidecars of replicas report, too: what each is told, and that its checkpoints are asked of it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from holdfast.api import reports
from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply
from holdfast.api.spotinstancejob import SpotInstanceJob
from holdfast.cluster.resources import PODS, SPOT_INSTANCE_JOBS
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.process import utc_now
from holdfast.runtime.report_server import NotInCacheYet, ReportingPod
from holdfast.spotinstancejob.reports import ReplicaReports, reply_for_replica
from tests.contract.pods import pod_spec
from tests.runtime.report_server import ReportServerLab, running
from tests.runtime.scripted import ScriptedCluster
from tests.runtime.test_backup_requests import wanted
from tests.spotinstancejob.jobs import replica_pod, spot_job
from tests.trainingjob.reports.reports import batch, ended
from tests.trainingjobs import UID, node, stamp

JOB = Key("ml", "bert")


def stands(*attempts: int, phase: str = "Running", **status: Any) -> SpotInstanceJob:
    """The job with its replicas at these attempts."""
    replicas = [
        {"name": f"bert-r{number}", "replica": number, "attempt": attempt, "phase": phase}
        for number, attempt in enumerate(attempts)
    ]
    return spot_job(status={"jobStatuses": replicas, **status})


class Lab:
    def __init__(self) -> None:
        self.cluster = ScriptedCluster()
        self.pods: Store[Pod] = Store()
        self.nodes: Store[Node] = Store()
        self.jobs: Store[SpotInstanceJob] = Store()
        self.kind = ReplicaReports(
            pods=self.pods,
            nodes=self.nodes,
            jobs=self.jobs,
            deleted_jobs=DeletedObjects(self.cluster, SPOT_INSTANCE_JOBS),
        )

    async def reply(self, pod: Pod, *, uid: str = UID) -> ReportReply:
        self.pods.put(pod)
        caller = self.kind.caller(pod)
        assert caller is not None
        return await self.kind.reply(caller, batch(uid=uid, attempt=caller.attempt))


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_replica_is_worker_0_of_its_attempt(lab: Lab) -> None:
    pod = replica_pod(1, attempt=3)
    assert lab.kind.caller(pod) == ReportingPod(pod.metadata.key, pod.metadata.uid, JOB, attempt=3, index=0)


def test_another_pod_is_none_of_this_kind(lab: Lab) -> None:
    assert lab.kind.caller(replica_pod(1, labels={"app.kubernetes.io/managed-by": "me"})) is None


@pytest.mark.parametrize(
    ("job", "attempt", "answer"),
    [
        pytest.param(stands(0, 3), 3, ReportReply(attempt=3, attempt_over=False), id="current"),
        pytest.param(stands(0, 3), 2, ReportReply(attempt=3, attempt_over=True), id="the next one runs"),
        pytest.param(
            stands(0, 3, phase="Recovering"),
            2,
            ReportReply(attempt=3, attempt_over=False),
            id="lost, and perhaps still to be saved",
        ),
        pytest.param(
            stands(0, 3, completionTime=stamp(9)), 3, ReportReply(attempt=3, attempt_over=True), id="the job has ended"
        ),
        pytest.param(
            stands(0, completionTime=stamp(9)), 3, ReportReply(attempt=3, attempt_over=True), id="ended without it"
        ),
    ],
)
def test_a_replica_hears_how_its_attempt_stands(job: SpotInstanceJob, attempt: int, answer: ReportReply) -> None:
    assert reply_for_replica(job, 1, attempt) == answer


@pytest.mark.parametrize("job", [stands(0, 2), stands(0), spot_job()])
def test_an_attempt_that_status_does_not_know_yet_may_try_again(job: SpotInstanceJob) -> None:
    with pytest.raises(NotInCacheYet, match="attempt 3 of replica 1 of ml/bert is not known here"):
        reply_for_replica(job, 1, 3)


async def test_a_replica_saves_when_its_own_machine_is_taken_back(lab: Lab) -> None:
    lab.jobs.put(stands(0, 0))
    first, second = replica_pod(0, node="spot-1"), replica_pod(1, node="spot-2")
    lab.nodes.put(node("spot-1", taint="holdfast.dev/preempted"))
    lab.nodes.put(node("spot-2"))
    assert (await lab.reply(first)).save == "node spot-1 is about to be taken back"
    assert (await lab.reply(second)).save == ""


async def test_a_pod_that_is_being_stopped_is_not_asked_a_second_time(lab: Lab) -> None:
    lab.jobs.put(stands(0))
    lab.nodes.put(node("spot-1", taint="holdfast.dev/preempted"))
    pod = replica_pod(0, node="spot-1")
    stopping = structs.replace(pod, metadata=structs.replace(pod.metadata, deletion_timestamp=stamp(1)))
    assert (await lab.reply(stopping)).save == ""


async def test_a_cache_that_lags_stops_no_replica(lab: Lab) -> None:
    made = lab.cluster.put(SPOT_INSTANCE_JOBS, {"metadata": {"name": "bert"}, "spec": spot_job().spec}, namespace="ml")
    for _ in range(2):  # with none in the cache, and with its predecessor
        with pytest.raises(NotInCacheYet, match="ml/bert is not known here"):
            await lab.reply(replica_pod(0), uid=made.metadata.uid)
        lab.jobs.put(stands(0))
    lab.cluster.drop(SPOT_INSTANCE_JOBS, JOB)
    assert (await lab.reply(replica_pod(0), uid=made.metadata.uid)).attempt_over


# Over TLS, beside the workers of TrainingJobs.


class MixedReportServerLab:
    """An office for both kinds."""

    def __init__(self, office: ReportServerLab) -> None:
        self.office = office
        self.jobs: Store[SpotInstanceJob] = Store()
        gone = DeletedObjects(office.cluster, SPOT_INSTANCE_JOBS)
        office.kinds.append(ReplicaReports(pods=office.pods, nodes=office.nodes, jobs=self.jobs, deleted_jobs=gone))

    async def replica(self, number: int, *, attempt: int = 0) -> str:
        """The pod of a replica; its token."""
        office, seen = self.office, replica_pod(number, attempt=attempt)
        body = {"metadata": {"name": seen.metadata.name, "labels": seen.metadata.labels}, "spec": pod_spec("none")}
        pod = await office.cluster.create(PODS, body, namespace="ml")
        # Its Job is not in this cluster, where the garbage collector would delete the pod without it.
        office.pods.put(
            structs.replace(
                pod, metadata=structs.replace(pod.metadata, owner_references=seen.metadata.owner_references)
            )
        )
        return office.cluster.issue_token(
            pod.metadata.key, uid=pod.metadata.uid, account="default", audience=reports.AUDIENCE
        )


@pytest.fixture
async def mixed() -> AsyncIterator[MixedReportServerLab]:
    async with running() as office:
        yield MixedReportServerLab(office)


async def test_workers_and_replicas_report_to_one_server(mixed: MixedReportServerLab) -> None:
    office = mixed.office
    mixed.jobs.put(stands(0, 2))
    worker, replica = await office.worker(), await mixed.replica(1, attempt=2)
    assert (await office.post(batch(ended(1)), worker))[0] == 200
    status, answer = await office.post(batch(ended(1), attempt=2), replica)
    assert (status, answer["attempt"], answer["over"]) == (200, 2, False)
    assert len(office.taken) == 1, "the progress of a replica is not that of a TrainingJob of its name"


async def test_a_replicas_sidecar_hears_of_the_checkpoint_that_is_asked_of_it(mixed: MixedReportServerLab) -> None:
    office = mixed.office
    mixed.jobs.put(stands(0, 0))
    asked, other = await mixed.replica(0), await mixed.replica(1)
    pod = office.pods.get(Key("ml", "bert-r0-abcde"))
    assert pod is not None
    office.backups.put(pod.metadata.uid, wanted(), deadline=utc_now() + timedelta(seconds=60))
    assert (await office.post(batch(), asked))[1]["backup"]["uid"] == "b1"
    assert (await office.post(batch(), other))[1]["backup"] is None


async def test_a_replica_may_report_of_itself_alone(mixed: MixedReportServerLab) -> None:
    mixed.jobs.put(stands(0, 0))
    token = await mixed.replica(0)
    for foreign in ({"attempt": 1}, {"index": 1}, {"job": "other"}):
        status, answer = await mixed.office.post(batch(**foreign), token)
        assert status == 403
        assert "may report nothing else" in answer["error"]


async def test_a_pod_of_neither_kind_is_told_so(mixed: MixedReportServerLab) -> None:
    office = mixed.office
    pod = await office.cluster.create(PODS, {"metadata": {"name": "p"}, "spec": pod_spec("none")}, namespace="ml")
    office.pods.put(pod)
    token = office.cluster.issue_token(
        pod.metadata.key, uid=pod.metadata.uid, account="default", audience=reports.AUDIENCE
    )
    sentence = "pod ml/p is not a worker of a TrainingJob or a replica of a SpotInstanceJob"
    assert await office.post(batch(), token) == (403, {"error": sentence})
