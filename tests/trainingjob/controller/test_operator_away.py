"""An operator that is away for a day: what it missed is told when it is back, on every engine."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time

import pytest

from holdfast.api import reports
from holdfast.api.reports import CheckpointReport, ProgressReport, ReportReply
from holdfast.cluster.protocol import Cluster
from holdfast.runtime.process import utc_now
from holdfast.sidecar.outbox import ReportOutbox
from holdfast.sidecar.reporter import OperatorClient as Way
from holdfast.sidecar.reporter import Reporter
from holdfast.trainingjob.decide import progress
from holdfast.trainingjob.reports.receiver import ReportReceiver
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import TrainingJobLab
from tests.trainingjob.controller.operating import operating
from tests.trainingjob.controller.sidecars import Sidecar, Sidecars

# More than one report holds: they are told in several, none before those that it builds on is written.
BEST, PATIENCE, TRAINED = 600, 5, 700
STORAGE = {"type": "nfs", "nfsServer": "files.invalid", "nfsPath": "/runs"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "WRITE_EVERY_S", 0.0)


class Telling:
    """The part of a real sidecar that tells the operator; the test plays the kubelet that brings its files."""

    def __init__(self, sidecar: Sidecar, folder: Path, place: reports.Endpoint) -> None:
        self._reports_file, self._token_file = folder / reports.FILE, folder / "token"
        self._token_file.write_text(sidecar.token)
        self._answer = ReportReply(attempt=0, attempt_over=False)
        self.backlog = ReportOutbox(sidecar.batch())
        self.bring(place)

    def bring(self, place: reports.Endpoint) -> None:
        self._reports_file.write_text(reports.encode_endpoint(place))

    async def last_answer(self) -> ReportReply:
        return self._answer

    def _heard(self, answer: ReportReply) -> None:
        self._answer = answer

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[Reporter]:
        async with Way(self._reports_file, self._token_file) as way:
            reporting = Reporter(self.backlog, way, self._heard, every_s=1.0, wall=time)
            running = asyncio.create_task(reporting.run())
            try:
                yield reporting
            finally:
                running.cancel()
                await asyncio.wait([running])


def train(backlog: ReportOutbox, epochs: range) -> None:
    """The loss gets better until the best epoch."""
    for epoch in epochs:
        metrics = {"loss": 1.0 - min(epoch, BEST) / 1000 + (0.1 if epoch > BEST else 0.0)}
        # As long ago as if each had taken two minutes.
        at = time() - 120 * (TRAINED - epoch)
        backlog.add_progress(ProgressReport(epoch=epoch, total_epochs=1000, metrics=metrics, at=at))


def saved(epoch: int) -> CheckpointReport:
    return CheckpointReport(
        path=f"attempt-0/checkpoint-epoch-{epoch}", epoch=epoch, outcome="completed", valid_count=3, at=time()
    )


async def test_a_job_goes_on_without_its_operator_and_ends_at_the_exact_epoch(
    lab: TrainingJobLab, pool: Pool, sidecars: Sidecars, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    await pool.add()
    async with operating(cluster, namespace, office=ReportReceiver(now=utc_now)):
        policy = {"earlyStoppingPatience": PATIENCE}
        await lab.submit(numWorkers=1, successPolicy=policy, checkpoint={"storage": STORAGE})
        (pod,) = await pool.running(1)
        await lab.until_state("Running")
        (sidecar,) = await sidecars.of(pod)
        away = await sidecars.place("bert")
        told = Telling(sidecar, tmp_path, away)
        train(told.backlog, range(1, 3))
        async with told.telling():
            await lab.until(lambda job: job.status.current_epoch == 2, "has heard the first epochs")
    async with told.telling() as reporting:
        train(told.backlog, range(3, TRAINED + 1))
        told.backlog.add_checkpoint(saved(BEST))
        assert not await reporting.send()
        assert (await lab.get()).status.current_epoch == 2
        async with operating(cluster, namespace, office=ReportReceiver(now=utc_now)):
            back = await eventually(lambda: sidecars.place("bert"), lambda now: now != away, what="is told of")
            told.bring(back)
            await eventually(told.last_answer, lambda answer: bool(answer.stop), what="the training is to stop")
            assert (await lab.get()).status.state == "Running"
            told.backlog.add_checkpoint(saved(BEST + PATIENCE))
            done = await lab.until_state("Completed")
            await pool.running(0)
    assert (done.reason("Succeeded"), done.status.current_epoch) == ("EarlyStopped", BEST + PATIENCE)
    assert (done.status.restart_count, told.backlog.dropped_epochs) == (0, 0)
    assert done.status.checkpoint is not None
    assert (done.status.checkpoint.last_epoch, done.status.checkpoint.count) == (BEST + PATIENCE, 3)
