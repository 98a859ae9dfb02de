"""Reports over TLS that are refused: tokens, bodies, rates, and errors of the operator's own."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast.api import reports
from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Unreachable
from holdfast.cluster.protocol import Identity
from holdfast.cluster.resources import PODS
from holdfast.runtime import authentication
from holdfast.runtime import report_server as server
from holdfast.trainingjob.reports.inbox import InboxFull
from tests.contract.pods import pod_spec
from tests.runtime.report_server import JOB, ReportServerLab, lab, running
from tests.runtime.things import until
from tests.trainingjob.reports.reports import batch, ended

__all__ = ["lab"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer  "},
        {"Authorization": "Basic dTpw"},
    ],
)
async def test_a_report_without_a_token_is_refused(lab: ReportServerLab, headers: dict[str, str]) -> None:
    assert await lab.post(batch(), **headers) == (401, {"error": "no bearer token came with the request"})


async def test_a_token_that_is_made_up_or_for_others_is_refused(lab: ReportServerLab) -> None:
    refused = {"error": "the token is not valid for the audience holdfast.dev/reports"}
    for token in ("made.up.token", await lab.worker(audience="api")):
        assert await lab.post(batch(), token) == (401, refused)
    assert lab.taken == []


@pytest.mark.parametrize("foreign", [{"job": "other"}, {"namespace": "prod"}, {"index": 1}, {"attempt": 1}])
async def test_a_worker_may_not_report_for_another(lab: ReportServerLab, foreign: dict[str, Any]) -> None:
    status, answer = await lab.post(batch(ended(9), **foreign), await lab.worker())
    assert status == 403
    assert "may report nothing else" in answer["error"]
    assert lab.taken == []


async def test_a_pod_that_is_no_worker_may_not_report(lab: ReportServerLab) -> None:
    pod = await lab.cluster.create(PODS, {"metadata": {"name": "p"}, "spec": pod_spec("none")}, namespace="ml")
    lab.pods.put(pod)
    token = lab.cluster.issue_token(
        pod.metadata.key, uid=pod.metadata.uid, account="default", audience=reports.AUDIENCE
    )
    assert await lab.post(batch(), token) == (403, {"error": "pod ml/p is not a worker of a TrainingJob"})


async def test_a_foreign_pod_with_a_workers_labels_may_not_report(lab: ReportServerLab) -> None:
    status, answer = await lab.post(batch(ended(9)), await lab.worker(owned=False))
    assert (status, lab.taken) == (403, [])
    assert answer["error"].endswith("is not a worker of a TrainingJob")


async def test_what_the_caches_do_not_show_yet_may_be_tried_again(lab: ReportServerLab) -> None:
    token = await lab.worker(attempt=1)
    status, answer = await lab.post(batch(attempt=1), token)
    assert status == 503
    assert "attempt 1 of ml/bert is not known here" in answer["error"]
    lab.set_status(restartCount=1)
    assert (await lab.post(batch(attempt=1), token))[0] == 200
    for pod in list(lab.pods):
        lab.pods.remove(pod.metadata.key)
    assert (await lab.post(batch(attempt=1), token))[0] == 503


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"job": "hunter2"}', b"[" * 60_000])
async def test_a_report_that_can_not_be_read_is_refused_without_repeating_it(lab: ReportServerLab, body: bytes) -> None:
    status, answer = await lab.post(body, await lab.worker())
    assert status == 400
    assert answer["error"].startswith("the report can't be read")
    assert "hunter2" not in answer["error"]


async def test_a_report_that_is_too_large_is_refused(lab: ReportServerLab) -> None:
    status, answer = await lab.post(b" " * (reports.LARGEST_BODY + 1), await lab.worker())
    assert (status, answer) == (413, {"error": "the body is larger than 65536 bytes"})
    assert (await lab.post(b" " * reports.LARGEST_BODY, await lab.worker()))[0] == 400


async def test_a_report_that_does_not_arrive_is_given_up(lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_WITHIN_S", 0.05)
    token = await lab.worker()
    arrives = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await arrives.wait()

    async with lab.session() as session:
        headers = {"Authorization": f"Bearer {token}"}
        async with session.post(reports.PATH, data=slowly(), headers=headers) as answer:
            assert answer.status == 408
            arrives.set()


async def test_a_worker_that_reports_too_often_is_slowed_down(
    lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, other = await lab.worker(), await lab.worker(1)
    monkeypatch.setattr(server, "clock_s", lambda: 50.0)
    answers = [(await lab.post(batch(sequence=n), token))[0] for n in range(1, server.BURST + 4)]
    assert answers == [200] * server.BURST + [429] * 3
    assert (await lab.post(batch(index=1), other))[0] == 200
    monkeypatch.setattr(server, "clock_s", lambda: 50.0 + server.REFILL_S)
    assert (await lab.post(batch(sequence=99), token))[0] == 200


async def test_an_address_may_not_have_any_number_of_tokens_reviewed(
    lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await lab.worker()
    monkeypatch.setattr(authentication, "clock_s", lambda: 50.0)
    assert (await lab.post(batch(), token))[0] == 200
    answers = [(await lab.post(batch(), f"guess-{n}"))[0] for n in range(authentication.UNKNOWN_TOKEN_BURST + 2)]
    assert answers == [401] * (authentication.UNKNOWN_TOKEN_BURST - 1) + [429] * 3
    # Who is known already is heard as before.
    assert (await lab.post(batch(sequence=3), token))[0] == 200


async def test_a_report_that_comes_twice_is_taken_once(lab: ReportServerLab) -> None:
    token = await lab.worker()
    for report in (batch(ended(1), sequence=1), batch(ended(1), sequence=1), batch(ended(2), sequence=2)):
        assert (await lab.post(report, token))[0] == 200
    assert (await lab.post(batch(ended(1), sequence=1), token))[0] == 200
    assert [taken.sequence for _, taken in lab.taken] == [1, 2]


async def test_a_sidecar_that_starts_anew_counts_anew(lab: ReportServerLab) -> None:
    token = await lab.worker()
    for report in (batch(run="a", sequence=7), batch(run="b", sequence=1)):
        await lab.post(report, token)
    assert [(taken.run, taken.sequence) for _, taken in lab.taken] == [("a", 7), ("b", 1)]


async def test_a_standby_takes_nothing(lab: ReportServerLab) -> None:
    lab.is_leading = False
    status, answer = await lab.post(batch(), await lab.worker())
    assert status == 503
    assert "does not lead" in answer["error"]
    assert lab.taken == []


async def test_while_no_token_can_be_reviewed_no_report_is_accepted(
    lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(token: str, audience: str) -> Identity | None:
        raise Unreachable("review a token: no answer from the server")

    token = await lab.worker()
    monkeypatch.setattr(lab.cluster, "review_token", away)
    lab.seconds = 130.0
    status, answer = await lab.post(batch(), token)
    assert (status, answer) == (503, {"error": "the cluster can't be asked about it at the moment: try again later"})
    assert lab.uptime.since_s(JOB) == 130.0


async def test_a_report_beyond_the_capacity_may_be_sent_again(lab: ReportServerLab) -> None:
    token = await lab.worker()
    lab.error = InboxFull("64 reports of ml/bert wait to be written: send this one again later")
    assert (await lab.post(batch(sequence=1), token))[0] == 503
    assert lab.uptime.since_s(JOB) == 100.0
    lab.error = None
    assert (await lab.post(batch(sequence=1), token))[0] == 200
    assert len(lab.taken) == 1


async def test_an_error_of_ours_is_an_answer_without_details(lab: ReportServerLab) -> None:
    token = await lab.worker()
    lab.error, lab.seconds = RuntimeError("secret"), 140.0
    status, answer = await lab.post(batch(), token)
    assert (status, answer) == (500, {"error": "an error in holdfast: the operator's log says more"})
    assert (lab.uptime.since_s(JOB), lab.uptime.since_s(Key("ml", "other"))) == (140.0, 100.0)


# What a request says after its first line; the token is that of a worker.
BAD_REQUESTS = {
    "a token that is not ASCII": (401, b"Authorization: Bearer gr\xc3\xbc\xc3\x9f\r\nContent-Length: 2\r\n\r\n{}"),
    "a token that is not UTF-8": (401, b"Authorization: Bearer \xff\xfe\r\nContent-Length: 2\r\n\r\n{}"),
    "a token with a tab": (401, b"Authorization: Bearer a\tb\r\nContent-Length: 2\r\n\r\n{}"),
    "a chunk without a size": (400, b"Authorization: Bearer TOKEN\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
    "a false Content-Encoding": (
        400,
        b"Authorization: Bearer TOKEN\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
    ),
    "a compressed body that is far larger": (
        400,
        b"Authorization: Bearer TOKEN\r\nContent-Encoding: deflate\r\nContent-Length: %d\r\n\r\n%b"
        % (len(zlib.compress(bytes(10**7))), zlib.compress(bytes(10**7))),
    ),
    "a charset that nobody knows": (
        400,
        b"Authorization: Bearer TOKEN\r\nContent-Type: application/json; charset=\xff\r\nContent-Length: 1\r\n\r\n{",
    ),
    "deep nesting": (400, b"Authorization: Bearer TOKEN\r\nContent-Length: 50000\r\n\r\n" + b"[" * 50_000),
    "a length that is no number": (400, b"Authorization: Bearer TOKEN\r\nContent-Length: many\r\n\r\n{}"),
    "a header that is far too long": (400, b"Authorization: Bearer TOKEN\r\nX: " + b"x" * 70_000 + b"\r\n\r\n"),
    "no HTTP": (400, b"\x00\x01\x02\r\n\r\n"),
}


@pytest.mark.parametrize("which", BAD_REQUESTS)
async def test_a_bad_request_is_refused_and_interrupts_nothing(lab: ReportServerLab, which: str) -> None:
    expected, text = BAD_REQUESTS[which]
    text = text.replace(b"TOKEN", (await lab.worker()).encode())
    lab.seconds = 130.0
    status, answer = await lab.raw(b"POST /v1/report HTTP/1.1\r\nHost: x\r\n" + text)
    assert (status, b"an error in holdfast" in answer) == (expected, False)
    assert lab.uptime.since_s(JOB) == 100.0
    assert (await lab.post(batch(), await lab.worker()))[0] == 200


@pytest.mark.parametrize("begun", ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n64\r\n{"])
async def test_a_body_that_is_cut_short_interrupts_nothing(lab: ReportServerLab, begun: str) -> None:
    head = f"POST {reports.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {await lab.worker()}\r\n"
    lab.seconds = 130.0
    with capture_logs() as lines:
        async with lab.connection() as (_, writer):
            writer.write((head + begun).encode())
            await writer.drain()
        await until(lambda: lines, "the server has noticed")
    assert [(line["event"], line["status"]) for line in lines] == [("report refused", 400)]
    assert lab.uptime.since_s(JOB) == 100.0


async def test_what_a_strangers_token_leads_to_interrupts_nothing(
    lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, expected in ((BadRequest("review a token: too odd"), 503), (RuntimeError("a bug"), 500)):

        async def fails(token: str, audience: str, error: Exception = error) -> Identity | None:
            raise error

        lab.seconds = 130.0
        monkeypatch.setattr(lab.cluster, "review_token", fails)
        assert (await lab.post(batch(), "odd"))[0] == expected
        assert lab.uptime.since_s(JOB) == 100.0


async def test_an_error_about_one_worker_interrupts_the_uptime_of_its_job_alone(
    lab: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await lab.worker()
    assert (await lab.post(batch(sequence=1), token))[0] == 200
    monkeypatch.setattr(lab.reviews, "is_cached", lambda token: False)

    async def away(token: str) -> Identity | None:
        raise Unreachable("review a token: no answer from the server")

    monkeypatch.setattr(lab.reviews, "identity", away)
    lab.seconds = 150.0
    assert (await lab.post(batch(sequence=3), token))[0] == 503
    assert (lab.uptime.since_s(JOB), lab.uptime.since_s(Key("ml", "other"))) == (150.0, 100.0)
    lab.uptime.forget(JOB)
    assert lab.uptime.since_s(JOB) == 100.0


async def test_only_reports_are_served(lab: ReportServerLab) -> None:
    async with lab.session() as session:
        async with session.get(reports.PATH) as answer:
            assert answer.status == 405
        async with session.get("/") as answer:
            assert answer.status == 404


async def test_no_word_is_spoken_in_the_clear(lab: ReportServerLab) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(lab.endpoint.url.replace("https", "http") + reports.PATH, data=b"{}")


async def test_another_operators_certificate_is_not_trusted(lab: ReportServerLab) -> None:
    async with running() as other:
        lab.endpoint = structs.replace(lab.endpoint, authority=other.endpoint.authority)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await lab.post(batch(), "token")
    assert lab.taken == []


async def test_an_answer_to_come_back_says_when(lab: ReportServerLab) -> None:
    lab.is_leading = False
    async with lab.session() as session, session.post(reports.PATH, data=b"{}") as answer:
        assert answer.headers["Retry-After"] == "5"
    lab.is_leading = True
    async with lab.session() as session, session.post(reports.PATH, data=b"{}") as answer:
        assert answer.headers["WWW-Authenticate"] == "Bearer"
