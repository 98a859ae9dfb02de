"""What the workers tell, from their sidecars' posts to what a user sees, on every engine."""

from time import time
from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.kinds import KINDS
from holdfast.api.reports import (
    LARGEST_BODY,
    LARGEST_EPOCH,
    CheckpointReport,
    ProgressReport,
    Resumed,
    TerminationReport,
)
from holdfast.api.schema.crd import crd_manifest
from holdfast.cluster.protocol import DeleteOptions
from holdfast.cluster.resources import CONFIG_MAPS, JOBS, PODS, TRAINING_JOBS
from holdfast.runtime.operator import Operator
from holdfast.trainingjob.decide import progress
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.contract.pool import Pool
from tests.contract.waiting import until
from tests.trainingjob.controller.lab import SeenTrainingJob, TrainingJobLab
from tests.trainingjob.controller.sidecars import Sidecar, Sidecars

pytestmark = pytest.mark.usefixtures("office", "soon")

STORAGE = {"type": "nfs", "nfsServer": "files.invalid", "nfsPath": "/runs"}
SAVING = {"checkpoint": {"storage": STORAGE}}
WATCHED: dict[str, Any] = {"monitoring": {"enabled": True}, "hyperparameters": {"epochs": 10}, "numWorkers": 1}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is written at once, for tests that are not about that."""
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.0)


def epochs(*accuracies: float, first: int = 1) -> list[ProgressReport]:
    """The ends of epochs, a second each."""
    now = time()
    return [
        ProgressReport(epoch=first + n, metrics={"accuracy": value, "loss": 1 - value}, at=now - len(accuracies) + n)
        for n, value in enumerate(accuracies)
    ]


def saved(epoch: int, outcome: Any = "completed", **more: Any) -> CheckpointReport:
    path = f"attempt-0/checkpoint-epoch-{epoch}"
    return CheckpointReport(path=path, epoch=epoch, outcome=outcome, at=time(), **more)


async def two_started(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> tuple[Sidecar, ...]:
    """The sidecars of a job of two workers that runs."""
    await pool.add()
    await lab.submit(**{**WATCHED, "numWorkers": 2})
    pods = await pool.running(2)
    await lab.until_state("Running")
    return await sidecars.of(*pods)


async def started(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, **spec: Any) -> tuple[Pod, Sidecar]:
    """A job of one worker that runs, and the worker's sidecar."""
    await pool.add()
    await lab.submit(**{**WATCHED, **spec})
    (pod,) = await pool.running(1)
    await lab.until_state("Running")
    (sidecar,) = await sidecars.of(pod)
    return pod, sidecar


def at_epoch(epoch: int) -> Any:
    return lambda job: job.status.current_epoch == epoch


@pytest.mark.every_engine
async def test_what_a_worker_reports_is_in_the_status(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    _, sidecar = await started(lab, pool, sidecars, **SAVING)
    status, answer = await sidecar.report(*epochs(0.5, 0.6, 0.7, 0.8), checkpoints=(saved(3, valid_count=2),))
    assert (status, answer["over"], answer["stop"]) == (200, False, "")
    told = (await lab.until(at_epoch(4), "has come to epoch 4")).status
    assert (told.progress, told.total_epochs) == ("40%", 10)
    assert told.metrics == {"accuracy": 0.8, "loss": pytest.approx(0.2)}
    assert told.checkpoint is not None
    assert (told.checkpoint.last, told.checkpoint.last_epoch) == ("attempt-0/checkpoint-epoch-3", 3)
    assert (told.checkpoint.count, told.checkpoint.resumed_from) == (2, None)
    assert told.estimated_completion_time is not None
    assert told.state == "Running"
    # The next answer tells what is kept, so that it need not be sent again.
    _, answer = await sidecar.report()
    assert answer["keptEpoch"] == 4


@pytest.mark.every_engine
def test_progress_has_columns_of_its_own() -> None:
    kind = next(kind for kind in KINDS if str(kind).startswith("trainingjobs."))
    columns = crd_manifest(kind)["spec"]["versions"][0]["additionalPrinterColumns"]
    paths = {column["name"]: column["jsonPath"] for column in columns}
    assert paths["PROGRESS"] == ".status.progress"
    assert paths["EPOCH"] == ".status.currentEpoch"


async def test_only_worker_0_tells_how_far_it_is(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    first, second = await two_started(lab, pool, sidecars)
    assert (await second.report(*epochs(0.9, 0.9, 0.9)))[0] == 200
    assert (await first.report(*epochs(0.5)))[0] == 200
    assert (await lab.until(at_epoch(1), "has come to epoch 1")).status.metrics["accuracy"] == 0.5


@pytest.mark.parametrize("operator_options", [{"report_timeout_s": 3600.0}])
async def test_the_gpu_utilization_is_the_mean_over_the_workers(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, operator_with_office: tuple[Operator, ReportReceiver]
) -> None:
    registry = operator_with_office[0].registry
    labels = {"namespace": lab.namespace, "training_job": "bert"}

    def shown() -> float | None:
        return registry.get_sample_value("trainingjob_gpu_utilization_percent", labels)

    first, second = await two_started(lab, pool, sidecars)
    before = await settled(lab, 100)
    assert shown() is None
    assert (await second.report(gpu_utilization_percent=101.0))[0] == 400
    for percent in (10.0, 60.0):
        assert (await second.report(gpu_utilization_percent=percent))[0] == 200
        assert shown() == percent
    assert (await lab.get()).metadata.resource_version == before.metadata.resource_version
    (end,) = epochs(0.5)
    entry = msgspec.structs.replace(end, metrics={**end.metrics, "gpu_utilization_percent": 30.0})
    assert (await first.report(entry, gpu_utilization_percent=30.0))[0] == 200
    assert shown() == 45.0
    seen = await lab.until(at_epoch(1), "has come to epoch 1")
    assert seen.status.metrics == {"accuracy": 0.5, "loss": 0.5, "gpu_utilization_percent": 45.0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'"epoch": NaN', 400),
        (b'"epoch": -1', 400),
        (b'"epoch": 1e400', 400),
        (b'"epoch": "3"', 400),
        (b'"epoch": 3, "metrics": {"loss": NaN}', 400),
        (b'"epoch": 3, "metrics": {"loss": 1e39}', 400),
        (b'"epoch": 3, "metrics": {"a b": 1}', 400),
        (b'"epoch": 3, "metrics": {"loss": ' + b" " * LARGEST_BODY + b"1}", 413),
    ],
    ids=["nan", "negative", "infinite", "text", "metric-nan", "metric-huge", "metric-name", "large"],
)
async def test_what_no_training_can_mean_is_refused(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, body: bytes, status: int
) -> None:
    _, sidecar = await started(lab, pool, sidecars)
    whole = msgspec.json.encode(sidecar.batch(ProgressReport(epoch=999, at=1.0)))
    answer = await sidecar.send(whole.replace(b'"epoch":999', body))
    assert answer[0] == status
    assert answer[1]["error"]
    await sidecar.report(*epochs(0.5))
    seen = await lab.until(at_epoch(1), "has heard what was right")
    assert seen.status.metrics == {"accuracy": 0.5, "loss": 0.5}


@pytest.mark.every_engine
async def test_a_report_about_somebody_else_is_refused(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    pod, sidecar = await started(lab, pool, sidecars)
    await lab.submit("other", **WATCHED)
    (foreign,) = await pool.running(1, job="other-training")
    (other,) = await sidecars.of(foreign)
    mine = msgspec.json.encode(sidecar.batch(*epochs(0.9)))
    assert (await sidecar.send(mine, token=other.token))[0] == 403
    assert (await sidecar.send(mine, token="made.up.token"))[0] == 401
    assert (await sidecar.report(*epochs(0.9), index=1))[0] == 403
    assert (await sidecar.report(*epochs(0.9), attempt=1))[0] == 403
    assert (await sidecar.report(*epochs(0.9), uid="of-another-one"))[0] == 409
    await other.report(*epochs(0.5))
    await lab.until(at_epoch(1), "has heard its own", "other")
    assert (await lab.get()).status.epochs is None
    assert pod.metadata.labels["training-job"] == "bert"


async def test_a_worker_of_an_earlier_attempt_is_told_that_it_is_over(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    pod, sidecar = await started(lab, pool, sidecars)
    await sidecar.report(*epochs(0.5, 0.6))
    await pool.end(pod, exit_code=7)
    await lab.until_state("Running", attempt=1)
    (again,) = await sidecars.of(*await pool.running(1, job="bert-training-1"))
    await again.report(*epochs(0.55), resumed=Resumed(path="attempt-0/checkpoint-epoch-0", epoch=0))
    status, answer = await sidecar.report(*epochs(0.9, 0.9, 0.9, 0.9))
    # On a cluster where the pod is gone by now its token is worth nothing.
    assert (status, answer.get("over")) in ((409, True), (401, None), (503, None))
    seen = await lab.until(lambda job: job.status.epochs and job.status.epochs.attempt == 1, "hears the new attempt")
    assert (seen.status.current_epoch, seen.status.metrics["accuracy"]) == (1, 0.55)


@pytest.mark.every_engine
async def test_the_largest_report_that_is_taken_can_be_written(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    _, sidecar = await started(lab, pool, sidecars, **SAVING)
    metrics = {f"{'m' * 60}{n}": -3.5e38 for n in range(64)}
    entry = ProgressReport(epoch=LARGEST_EPOCH, total_epochs=LARGEST_EPOCH, metrics=metrics, at=0.0)
    checkpoint = CheckpointReport(
        path="x" * 2048, epoch=LARGEST_EPOCH, outcome="completed", reason="r" * 1024, valid_count=LARGEST_EPOCH, at=0.0
    )
    corrupt = CheckpointReport(path="z" * 2048, epoch=1, outcome="quarantined", reason="r" * 1024, at=2.0**53)
    resumed = Resumed(path="y" * 2048, epoch=LARGEST_EPOCH)
    # By a clock that is far off.
    told = await sidecar.report(entry, sent_at=2.0**53, checkpoints=(checkpoint, corrupt), resumed=resumed)
    assert told[0] == 200
    seen = (await lab.until(at_epoch(LARGEST_EPOCH), "is written")).status
    assert (seen.progress, len(seen.metrics)) == ("100%", 64)
    assert seen.checkpoint is not None
    assert (seen.checkpoint.last, seen.checkpoint.resumed_from) == ("x" * 2048, "y" * 2048)
    assert "z" * 900 in await lab.event("CheckpointQuarantined")


async def test_the_target_ends_the_job_at_the_exact_epoch_once_the_model_is_saved(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    _, sidecar = await started(lab, pool, sidecars, successPolicy={"targetAccuracy": 0.9}, **SAVING)
    ten = epochs(0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.91, 0.6, 0.95, 0.99)
    assert (await sidecar.report(*ten, checkpoints=(saved(5),)))[0] == 200
    waiting = await lab.until(lambda job: job.status.epochs and job.status.epochs.goal, "has its goal")
    assert (waiting.status.state, waiting.status.current_epoch) == ("Running", 7)
    assert (waiting.status.metrics["accuracy"], waiting.status.progress) == (0.91, "70%")
    assert (await sidecar.report())[1]["stop"] == "TargetReached"
    await sidecar.report(checkpoints=(saved(7),))
    done = await lab.until_state("Completed")
    assert done.reason("Succeeded") == "TargetReached"
    assert done.message == "the accuracy reached successPolicy.targetAccuracy 0.9 in epoch 7"
    assert done.status.checkpoint is not None
    assert done.status.checkpoint.last_epoch == 7
    await pool.running(0)
    assert (await sidecar.report())[0] in (409, 401, 503)


async def test_without_checkpoints_nobody_waits_when_the_loss_gets_no_better(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    _, sidecar = await started(lab, pool, sidecars, successPolicy={"earlyStoppingPatience": 3})
    await sidecar.report(*epochs(0.1, 0.5, 0.4, 0.45, 0.49, 0.6, 0.7))
    done = await lab.until_state("Completed")
    assert (done.reason("Succeeded"), done.status.current_epoch) == ("EarlyStopped", 5)
    assert done.message.startswith("no better loss than 0.5 of epoch 2 came until epoch 5")


@pytest.mark.parametrize("operator_options", [{"final_save_s": 1.0}])
async def test_a_last_checkpoint_that_does_not_come_is_not_waited_for_for_ever(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    _, sidecar = await started(lab, pool, sidecars, successPolicy={"targetAccuracy": 0.9}, **SAVING)
    await sidecar.report(*epochs(0.95))
    done = await lab.until_state("Completed")
    assert (done.reason("Succeeded"), done.status.checkpoint) == ("TargetReached", None)


async def test_a_training_that_ends_by_itself_after_its_goal_has_reached_it(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    pod, sidecar = await started(lab, pool, sidecars, successPolicy={"targetAccuracy": 0.9}, **SAVING)
    await sidecar.report(*epochs(0.95))
    await lab.until(lambda job: job.status.epochs and job.status.epochs.goal, "has its goal")
    await pool.end(pod, exit_code=143)
    done = await lab.until_state("Completed")
    assert (done.reason("Succeeded"), done.status.restart_count) == ("TargetReached", 0)


async def test_what_became_of_checkpoints_is_told_in_events(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    _, sidecar = await started(lab, pool, sidecars, **SAVING)
    await sidecar.report(
        checkpoints=(
            saved(4, "quarantined", reason="weights.npz: the digest differs"),
            saved(5, "failed", reason="no space left on device"),
        ),
        resumed=Resumed(path="attempt-0/checkpoint-epoch-3", epoch=3),
    )
    corrupt = await lab.event("CheckpointQuarantined")
    assert "attempt-0/checkpoint-epoch-4 is corrupt" in corrupt
    assert "weights.npz: the digest differs" in corrupt
    assert "no space left on device" in await lab.event("CheckpointFailed")
    assert await lab.event("Resumed") == "attempt 0 goes on from attempt-0/checkpoint-epoch-3"
    seen = await lab.get()
    assert seen.status.checkpoint is not None
    assert seen.status.checkpoint.resumed_from == "attempt-0/checkpoint-epoch-3"
    assert seen.status.current_epoch == 3


async def settled(lab: TrainingJobLab, ttl_s: int) -> SeenTrainingJob:
    """The job once the operator has looked at it after now: it writes that it has seen a change that means nothing."""
    await lab.patch(ttlSecondsAfterFinished=ttl_s)
    return await lab.until(lambda job: job.status.observed_generation == job.metadata.generation, "is looked at")


async def test_progress_is_written_seldom_and_never_lost(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, sidecar = await started(lab, pool, sidecars)
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 3600.0)
    await sidecar.report(*epochs(0.1))
    first = await lab.until(at_epoch(1), "has the first epoch")
    for epoch in range(2, 10):
        await sidecar.report(*epochs(0.1 * epoch, first=epoch))
        assert (await settled(lab, epoch)).status.current_epoch == 1
    assert (await lab.get()).status.epochs == first.status.epochs
    await sidecar.report(*epochs(1.0, first=10))
    await pool.end(pod)
    done = await lab.until_state("Completed")
    assert (done.status.progress, done.status.current_epoch) == ("100%", 10)
    assert done.status.metrics["accuracy"] == 1.0


async def test_a_stream_of_reports_does_not_put_off_the_next_write(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sidecar = await started(lab, pool, sidecars)
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 2.0)
    seen = set()
    for epoch in range(1, 2000):
        await sidecar.report(*epochs(0.5, first=epoch))
        seen.add((await settled(lab, epoch)).status.current_epoch)
        if len(seen - {None}) == 3:
            break
    assert len(seen - {None}) == 3


@pytest.mark.every_engine
async def test_a_settled_job_is_not_written(lab: TrainingJobLab, pool: Pool, sidecars: Sidecars) -> None:
    pod, sidecar = await started(lab, pool, sidecars, **SAVING)
    await sidecar.report(*epochs(0.5), checkpoints=(saved(1),))
    await lab.until(at_epoch(1), "has the epoch")
    before = await settled(lab, 100)
    for number in range(2):
        await lab.cluster.patch(PODS, pod.metadata.key, {"metadata": {"labels": {"touched": str(number)}}})
        await sidecar.report()
        # What comes later is looked at later.
        await lab.submit(f"other-{number}", **WATCHED)
        await lab.until_state("Running", f"other-{number}")
    assert (await lab.get()).metadata.resource_version == before.metadata.resource_version


async def test_what_was_told_before_a_failure_is_in_the_status_of_the_next_attempt(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, sidecar = await started(lab, pool, sidecars, **SAVING)
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 3600.0)
    await sidecar.report(*epochs(0.1))
    await lab.until(at_epoch(1), "has the first epoch")
    await sidecar.report(*epochs(0.2, 0.3, first=2), checkpoints=(saved(3),))
    # Nobody sees it end: it is taken away.
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))
    again = await lab.until_state("Running", attempt=1)
    assert again.status.current_epoch == 3
    assert again.status.checkpoint is not None
    assert again.status.checkpoint.last_epoch == 3


async def test_a_goal_that_was_told_just_before_a_failure_counts(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, sidecar = await started(lab, pool, sidecars, successPolicy={"targetAccuracy": 0.9})
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 3600.0)
    await sidecar.report(*epochs(0.1))
    await lab.until(at_epoch(1), "has the first epoch")
    await sidecar.report(*epochs(0.95, 0.96, first=2))
    await lab.cluster.delete(PODS, pod.metadata.key, DeleteOptions(uid=pod.metadata.uid))
    done = await lab.until_state("Completed")
    assert (done.reason("Succeeded"), done.status.current_epoch) == ("TargetReached", 2)


async def test_what_could_not_be_reported_is_read_from_the_termination_message(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars
) -> None:
    pod, sidecar = await started(lab, pool, sidecars, **SAVING)
    await sidecar.report(*epochs(0.5))
    await lab.until(at_epoch(1), "has the first epoch")
    word = TerminationReport(
        attempt=0,
        checkpoint="attempt-0/checkpoint-epoch-10",
        progress=ProgressReport(epoch=10, total_epochs=10, metrics={"accuracy": 0.99}, at=time()),
    )
    end = {"exitCode": 0, "reason": "Completed", "message": msgspec.json.encode(word).decode()}
    told = {"name": "holdfast-sidecar", "image": "", "imageID": "", "ready": False, "restartCount": 0}
    statuses = [{**told, "state": {"terminated": end}}]
    await lab.cluster.patch_status(PODS, pod.metadata.key, {"status": {"initContainerStatuses": statuses}})
    await pool.end(pod)
    done = await lab.until_state("Completed")
    assert (done.status.progress, done.status.metrics["accuracy"]) == ("100%", 0.99)
    assert done.status.checkpoint is not None
    assert done.status.checkpoint.last_epoch == 10
    assert (done.status.checkpoint.last_time or "") >= (done.status.start_time or "")


async def test_a_job_made_anew_under_an_old_name_hears_nothing_of_its_predecessor(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sidecar = await started(lab, pool, sidecars)
    first = await lab.get()
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 3600.0)
    await sidecar.report(*epochs(0.1))
    await lab.until(at_epoch(1), "has the first epoch")
    await sidecar.report(*epochs(0.2, 0.3, first=2))
    await lab.cluster.delete(TRAINING_JOBS, lab.key("bert"), DeleteOptions(uid=first.metadata.uid))
    await lab.submit(**WATCHED)
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.0)
    await gone_or_other(lab, first.metadata.uid)
    (again,) = await sidecars.of(*await pool.running(1))
    await lab.until_state("Running")
    await again.report(*epochs(0.5))
    assert (await lab.until(lambda job: job.status.epochs, "hears its own")).status.current_epoch == 1
    assert (await sidecar.report(*epochs(0.4, first=9)))[0] in (409, 401, 503)


async def gone_or_other(lab: TrainingJobLab, uid: str) -> None:
    """The workers' Job of an earlier TrainingJob is gone."""

    def is_of_another(job: Any) -> bool:
        return all(owner.uid != uid for owner in job.metadata.owner_references)

    await until(lab.cluster, JOBS, lab.key("bert-training"), is_of_another, "is the new one")


async def test_a_job_without_a_sidecar_is_told_nothing(lab: TrainingJobLab, pool: Pool) -> None:
    await pool.add()
    await lab.submit(numWorkers=1, monitoring={"enabled": False})
    await lab.until_state("Running")
    config = await lab.cluster.get(CONFIG_MAPS, lab.key("bert-config"))
    assert "reports.json" not in config.data
