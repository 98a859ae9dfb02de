"""Who may report what."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ReportReply
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.protocol import Identity
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.process import utc_now
from holdfast.runtime.report_server import (
    NotInCacheYet,
    ReportingPod,
    ReportNotAllowed,
    ensure_own_report,
    identify_pod,
)
from holdfast.trainingjob.reports.authorization import find_reply
from holdfast.trainingjob.reports.receiver import ReportReceiver, TrainingJobReports
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjob.reports.reports import batch
from tests.trainingjobs import UID, owned, running, training_job, workers

POD = Key("ml", "bert-training-0-abcde")
CALLER = ReportingPod(POD, "pod-uid", Key("ml", "bert"), attempt=2, index=0)
IDENTITY = Identity(username="system:serviceaccount:ml:bert", namespace="ml", pod_name=POD.name, pod_uid=CALLER.uid)


def pods(**labels: str | None) -> Store[Pod]:
    """With one worker of attempt 2; a label of None is taken off."""
    pod = owned(running(0, attempt=2), workers(name="bert-training-2"))
    all_labels = {**pod.metadata.labels, "app.kubernetes.io/managed-by": "holdfast"}
    for name, value in labels.items():
        all_labels[name] = value or ""
        if value is None:
            del all_labels[name]
    store: Store[Pod] = Store()
    store.put(structs.replace(pod, metadata=structs.replace(pod.metadata, uid=CALLER.uid, labels=all_labels)))
    return store


def jobs(status: dict[str, Any] | None = None) -> Store[TrainingJob]:
    store: Store[TrainingJob] = Store()
    store.put(training_job(status={"state": "Running", "restartCount": 2, **(status or {})}))
    return store


def identified(identity: Identity, pods: Store[Pod]) -> ReportingPod:
    receiver, cluster = ReportReceiver(now=utc_now), ScriptedCluster()
    workers = TrainingJobReports(
        pods=pods,
        nodes=Store(),
        jobs=Store(),
        deleted_jobs=DeletedObjects(cluster, TRAINING_JOBS),
        uptime=receiver.uptime,
        sink=receiver.inbox.put,
    )
    kind, caller = identify_pod(identity, pods, [workers])
    assert kind is workers
    return caller


async def not_asked(job: Key, uid: str) -> bool:
    raise AssertionError(f"{job} is in the cache")


def test_a_workers_own_token_tells_which_worker_it_is() -> None:
    assert identified(IDENTITY, pods()) == CALLER


@pytest.mark.parametrize("missing", [{"pod_name": ""}, {"pod_uid": ""}])
def test_a_token_of_an_account_alone_is_not_a_workers(missing: dict[str, str]) -> None:
    with pytest.raises(ReportNotAllowed, match="not bound to a pod"):
        identified(structs.replace(IDENTITY, **missing), pods())


@pytest.mark.parametrize(
    "labels",
    [
        {"training-job": None},
        {"app.kubernetes.io/managed-by": "somebody"},
        {"holdfast.dev/attempt": None},
        {"holdfast.dev/attempt": "-1"},
        {"holdfast.dev/attempt": "²"},
        {"batch.kubernetes.io/job-completion-index": "x"},
    ],
)
def test_a_pod_that_is_no_worker_has_nothing_to_report(labels: dict[str, str | None]) -> None:
    with pytest.raises(ReportNotAllowed, match="is not a worker of a TrainingJob"):
        identified(IDENTITY, pods(**labels))


def test_a_token_of_a_pods_predecessor_is_not_the_pods() -> None:
    with pytest.raises(ReportNotAllowed):
        identified(structs.replace(IDENTITY, pod_uid="earlier"), pods())


@pytest.mark.parametrize("other", [{"namespace": "other"}, {"pod_name": "nobody"}])
def test_a_pod_that_no_cache_shows_may_try_again(other: dict[str, str]) -> None:
    with pytest.raises(NotInCacheYet, match="try again"):
        identified(structs.replace(IDENTITY, **other), pods())


def test_a_worker_may_speak_of_itself() -> None:
    ensure_own_report(CALLER, batch(attempt=2))


@pytest.mark.parametrize(
    "foreign", [{"job": "other"}, {"namespace": "other"}, {"attempt": 1}, {"attempt": 3}, {"index": 1}]
)
def test_a_worker_may_speak_of_nothing_else(foreign: dict[str, Any]) -> None:
    with pytest.raises(ReportNotAllowed, match="is worker 0 of attempt 2 of ml/bert, and may report nothing else"):
        ensure_own_report(CALLER, batch(**{"attempt": 2, **foreign}))


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        ({}, ReportReply(attempt=2, attempt_over=False)),
        ({"epochs": {"attempt": 2, "done": 7}}, ReportReply(attempt=2, attempt_over=False, recorded_epoch=7)),
        # What the attempt before had told says nothing of this one's epochs.
        ({"epochs": {"attempt": 1, "done": 7}}, ReportReply(attempt=2, attempt_over=False)),
        (
            {"epochs": {"attempt": 2, "done": 7, "goal": "TargetReached"}},
            ReportReply(attempt=2, attempt_over=False, stop="TargetReached", recorded_epoch=7),
        ),
        ({"restartCount": 3}, ReportReply(attempt=3, attempt_over=True)),
        ({"state": "Completed"}, ReportReply(attempt=2, attempt_over=True)),
        ({"state": "Failed"}, ReportReply(attempt=2, attempt_over=True)),
        ({"state": "Suspended"}, ReportReply(attempt=2, attempt_over=False)),
    ],
)
async def test_a_worker_hears_how_its_attempt_stands(status: dict[str, Any], answer: ReportReply) -> None:
    assert await find_reply(CALLER, UID, jobs(status), not_asked) == answer


async def test_an_attempt_that_no_cache_shows_may_try_again() -> None:
    with pytest.raises(NotInCacheYet, match="attempt 2 of ml/bert is not known here"):
        await find_reply(CALLER, UID, jobs({"restartCount": 1}), not_asked)


@pytest.mark.parametrize(("uid", "seen"), [(UID, Store()), ("another", jobs())], ids=["gone", "made anew"])
async def test_a_job_that_no_cache_shows_is_over_only_if_it_is_gone_for_certain(
    uid: str, seen: Store[TrainingJob]
) -> None:
    async def is_gone(job: Key, of: str) -> bool:
        assert (job, of) == (CALLER.job, uid)
        return certain

    certain = True
    assert await find_reply(CALLER, uid, seen, is_gone) == ReportReply(attempt=2, attempt_over=True, is_graceful=True)
    certain = False
    with pytest.raises(NotInCacheYet, match="ml/bert is not known here: try again"):
        await find_reply(CALLER, uid, seen, is_gone)


async def test_a_job_without_a_status_is_in_its_first_attempt() -> None:
    store: Store[TrainingJob] = Store()
    store.put(training_job())
    assert await find_reply(structs.replace(CALLER, attempt=0), UID, store, not_asked) == ReportReply(
        attempt=0, attempt_over=False
    )
