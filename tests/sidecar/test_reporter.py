"""The way to the operator, with a real server on the other side."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.api.reports import ProgressReport, ReportReply, WorkerReport
from holdfast.sidecar.outbox import ReportOutbox
from holdfast.sidecar.reporter import OperatorClient, Reporter, ReportNotDelivered, ReportRejected
from holdfast.trainingjob.decide.snapshot import TIMING
from tests.runtime.virtual import now_s, virtual
from tests.sidecar.operators import OperatorDouble, until

EMPTY = WorkerReport(job="j", namespace="n", uid="u", attempt=1, index=0, run="r", sequence=1, sent_at=0.0)


@pytest.fixture
async def double(tmp_path: Path) -> AsyncIterator[OperatorDouble]:
    async with OperatorDouble(tmp_path).serving() as serving:
        yield serving


@asynccontextmanager
async def reporting(
    double: OperatorDouble, backlog: ReportOutbox, heard: Callable[[ReportReply], None], every_s: float = 3600.0
) -> AsyncIterator[Reporter]:
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        yield Reporter(backlog, operator, heard, every_s=every_s, wall=lambda: 100.0)


async def test_a_report_is_sent_with_the_token_that_the_file_holds_now(double: OperatorDouble) -> None:
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        assert await operator.report(EMPTY) == ReportReply(attempt=1, attempt_over=False)
        double.token_file.write_text("another\n")
        await operator.report(EMPTY)
    assert double.tokens == {"Bearer a-token", "Bearer another"}


async def test_the_gpu_utilization_is_in_every_report_and_is_no_news(double: OperatorDouble) -> None:
    known: list[float | None] = [30.0, None]
    backlog = ReportOutbox(EMPTY)
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        sender = Reporter(
            backlog, operator, lambda _: None, every_s=3600.0, wall=lambda: 100.0, gpu_percent=lambda: known.pop(0)
        )
        assert await sender.send()
        assert backlog.is_empty
        assert await sender.send()
    assert [batch.gpu_utilization_percent for batch in double.batches] == [30.0, None]


async def test_another_operator_is_found_when_it_leads(double: OperatorDouble, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = OperatorDouble(tmp_path / "second")
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        await operator.report(EMPTY)
        async with second.serving():
            double.reports_file.write_text(second.reports_file.read_text())
            await operator.report(EMPTY)
    assert (len(double.batches), len(second.batches)) == (1, 1)


async def test_a_server_with_another_certificate_gets_no_token(double: OperatorDouble, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    second = OperatorDouble(tmp_path / "second")
    async with second.serving(), OperatorClient(double.reports_file, double.token_file) as operator:
        ours, theirs = double.reports_file.read_text(), second.reports_file.read_text()
        port = theirs.split("127.0.0.1:")[1].split('"')[0]
        double.reports_file.write_text(ours.replace(ours.split("127.0.0.1:")[1].split('"')[0], port))
        with pytest.raises(ReportNotDelivered, match="does not answer"):
            await operator.report(EMPTY)
    assert second.tokens == set()


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        (None, "can't read where to report"),
        ("", "does not say where to report"),
        ("{}", "does not say where to report"),
        ('{"url": "http://127.0.0.1:1", "authority": ""}', "not https: no token is sent there"),
        ('{"url": "https://127.0.0.1:1", "authority": "none"}', "does not say where to report"),
        ('{"url": "https://127.0.0.1:1", "authority": ""}', "does not say where to report"),
    ],
)
async def test_an_address_that_can_t_be_used_is_named(double: OperatorDouble, reports: str | None, said: str) -> None:
    double.reports_file.unlink() if reports is None else double.reports_file.write_text(reports)
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        with pytest.raises(ReportNotDelivered, match=said):
            await operator.report(EMPTY)


@pytest.mark.parametrize("token", ["", "two\nlines", "\x00", "ä"])
async def test_a_token_that_is_none_is_not_sent(double: OperatorDouble, token: str) -> None:
    double.token_file.write_text(token)
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        with pytest.raises(ReportNotDelivered, match="holds no token"):
            await operator.report(EMPTY)
    assert double.tokens == set()


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503])
async def test_what_may_pass_is_sent_again(double: OperatorDouble, status: int) -> None:
    backlog = ReportOutbox(EMPTY)
    backlog.add_progress(ProgressReport(epoch=1, at=1.0))
    double.status = status
    async with reporting(double, backlog, lambda _: None) as sender:
        assert not await sender.send()
        double.status = 200
        assert await sender.send()
    assert [body.sequence for body in double.bodies] == [1, 1]
    assert sorted(double.epochs) == [1]


@pytest.mark.parametrize("status", [400, 413])
async def test_what_never_passes_does_not_hold_up_the_rest(double: OperatorDouble, status: int) -> None:
    backlog = ReportOutbox(EMPTY)
    backlog.add_progress(ProgressReport(epoch=1, at=1.0))
    double.status = status
    async with reporting(double, backlog, lambda _: None) as sender:
        assert not await sender.send()
        double.status = 200
        backlog.add_progress(ProgressReport(epoch=2, at=2.0))
        assert await sender.send()
    assert sorted(double.epochs) == [2]


async def test_a_refusal_is_told_with_the_operator_s_own_sentence(double: OperatorDouble) -> None:
    double.status = 400
    async with OperatorClient(double.reports_file, double.token_file) as operator:
        with pytest.raises(ReportRejected, match=r"HTTP 400\): not now"):
            await operator.report(EMPTY)


async def test_an_attempt_that_is_over_is_an_answer(double: OperatorDouble) -> None:
    double.over = True
    answers: list[ReportReply] = []
    async with reporting(double, ReportOutbox(EMPTY), answers.append) as sender:
        assert await sender.send()
    assert [answer.attempt_over for answer in answers] == [True]


async def test_the_end_of_an_epoch_does_not_wait_for_its_turn(double: OperatorDouble) -> None:
    backlog = ReportOutbox(EMPTY)
    async with reporting(double, backlog, lambda _: None) as sender:
        running = asyncio.create_task(sender.run())
        await until(lambda: len(double.batches) == 1)
        backlog.add_progress(ProgressReport(epoch=1, at=1.0))
        sender.send_now()
        await until(lambda: 1 in double.epochs)
        running.cancel()


async def test_what_is_left_of_a_backlog_does_not_wait_either(double: OperatorDouble) -> None:
    backlog = ReportOutbox(EMPTY)
    for epoch in range(300):
        backlog.add_progress(ProgressReport(epoch=epoch, at=1.0))
    async with reporting(double, backlog, lambda _: None) as sender:
        running = asyncio.create_task(sender.run())
        await until(lambda: len(double.epochs) == 300)
        running.cancel()


class Counting(OperatorClient):
    """Takes every report, and notes when it came."""

    def __init__(self) -> None:
        super().__init__(Path(), Path())
        self.at_s: list[float] = []

    async def report(self, batch: WorkerReport) -> ReportReply:
        self.at_s.append(now_s())
        return ReportReply(attempt=1, attempt_over=False)


@virtual
async def test_who_has_nothing_new_reports_half_as_often_and_is_never_taken_for_silent() -> None:
    backlog, operator = ReportOutbox(EMPTY), Counting()
    sender = Reporter(backlog, operator, lambda _: None, every_s=5.0, wall=now_s)
    began_s, running = now_s(), asyncio.create_task(sender.run())
    await asyncio.sleep(32.0)
    assert [at_s - began_s for at_s in operator.at_s] == [0.0, 10.0, 20.0, 30.0]
    assert TIMING.report_timeout_s > 10.0
    for step in (1, 2, 3):
        backlog.add_progress(ProgressReport(epoch=1, step=step, at=1.0))
        await asyncio.sleep(5.0)
    assert [at_s - began_s for at_s in operator.at_s[4:]] == [35.0, 40.0, 45.0]
    running.cancel()
