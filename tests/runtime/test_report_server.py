"""Reports over TLS: who is let in, what is taken, and what each caller is told."""

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs

from holdfast.api import reports
from holdfast.api.core.objects import Node, Pod, PodStatus
from holdfast.api.meta import Key, OwnerReference
from holdfast.api.reports import Endpoint, ReportReply, WorkerReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.errors import BadRequest, Unreachable
from holdfast.cluster.protocol import Identity
from holdfast.cluster.resources import NAMESPACES, PODS, TRAINING_JOBS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime import authentication
from holdfast.runtime import report_server as server
from holdfast.runtime.authentication import TokenReviewCache
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.process import utc_now
from holdfast.runtime.report_server import ReportHandler, ReportingKind, serve_reports
from holdfast.trainingjob.reports.authorization import BY_ATTEMPT, attempt_of
from holdfast.trainingjob.reports.inbox import InboxFull, ReceiverUptime
from holdfast.trainingjob.reports.receiver import TrainingJobReports
from tests.contract.pods import pod_spec
from tests.runtime.things import until
from tests.trainingjob.reports.reports import batch, ended
from tests.trainingjobs import INDEX, deleted, node, stamp, training_job

JOB = Key("ml", "bert")
LOCAL = "127.0.0.1"


class ReportServerLab:
    """A desk that is open, the stores that it reads, and what was handed in."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.pods: Store[Pod] = Store({BY_ATTEMPT: attempt_of})
        self.nodes: Store[Node] = Store()
        self.jobs: Store[TrainingJob] = Store()
        self.reviews = TokenReviewCache(cluster, reports.AUDIENCE, now=utc_now)
        self.seconds = 100.0
        self.hearing = ReceiverUptime(lambda: self.seconds)
        self.is_leading = True
        self.taken: list[tuple[Key, WorkerReport]] = []
        self.trouble: Exception | None = None
        self.endpoint = Endpoint(url="", authority="")
        self.backups = BackupRequests()
        workers = TrainingJobReports(
            pods=self.pods,
            nodes=self.nodes,
            jobs=self.jobs,
            deleted_jobs=DeletedObjects(cluster, TRAINING_JOBS),
            uptime=self.hearing,
            sink=self._sink,
        )
        self.kinds: list[ReportingKind] = [workers]
        self.desk = ReportHandler(
            kinds=self.kinds,
            pods=self.pods,
            reviews=self.reviews,
            leading=lambda: self.is_leading,
            backups=self.backups,
            now=utc_now,
        )
        self.stand()

    def _sink(self, job: Key, told: WorkerReport) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.taken.append((job, told))

    def stand(self, **status: Any) -> None:
        """How the job stands, as the caches show it."""
        self.jobs.put(training_job(status={"state": "Running", **status}))

    async def worker(
        self,
        index: int = 0,
        *,
        attempt: int = 0,
        job: str = "bert",
        audience: str = reports.AUDIENCE,
        on: str = "",
        owned: bool = True,
    ) -> str:
        """A worker's pod; its token."""
        labels = {
            "training-job": job,
            "app.kubernetes.io/managed-by": "holdfast",
            "holdfast.dev/attempt": str(attempt),
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        body = {"metadata": {"generateName": "bert-", "labels": labels}, "spec": pod_spec("none")}
        pod = await self.cluster.create(PODS, body, namespace="ml")
        # Its Job is not in this cluster, where the garbage collector would delete the pod without it.
        made_by = f"{job}-training-{attempt}" if attempt else f"{job}-training"
        owner = OwnerReference(api_version="batch/v1", kind="Job", name=made_by, uid="u", controller=True)
        metadata = structs.replace(pod.metadata, owner_references=(owner,) if owned else ())
        self.pods.put(structs.replace(pod, metadata=metadata, spec=structs.replace(pod.spec, node_name=on)))
        return self.cluster.issue_token(pod.metadata.key, uid=pod.metadata.uid, account="default", audience=audience)

    async def post(
        self, body: bytes | WorkerReport, token: str | None = None, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session() as session, session.post(reports.PATH, data=data, headers=headers) as answer:
            return answer.status, await answer.json()

    async def raw(self, request: bytes) -> tuple[int, bytes]:
        """What is answered to a request that no client library would send; it ends where the bytes end."""
        async with self.connection() as (reader, writer):
            writer.write(request)
            await writer.drain()
            answer = await reader.read()
        return int(answer.split()[1]), answer

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        _, _, port = self.endpoint.url.rpartition(":")
        reader, writer = await asyncio.open_connection(LOCAL, int(port), ssl=self.context())
        try:
            yield reader, writer
        finally:
            writer.close()

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.endpoint.authority)

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self.endpoint.url, connector=aiohttp.TCPConnector(ssl=self.context()))


@pytest.fixture
async def office() -> AsyncIterator[ReportServerLab]:
    async with opened() as office:
        yield office


@asynccontextmanager
async def opened() -> AsyncIterator[ReportServerLab]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    try:
        office = ReportServerLab(cluster)
        async with serve_reports(office.desk, address=LOCAL, port=0, host=LOCAL) as office.endpoint:
            yield office
    finally:
        await cluster.close()


def told(answer: ReportReply) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(answer)
    return found


async def test_a_workers_report_is_taken_and_answered(office: ReportServerLab) -> None:
    report = batch(ended(3, of=10, loss=0.4))
    assert await office.post(report, await office.worker()) == (200, told(ReportReply(attempt=0, attempt_over=False)))
    assert office.taken == [(JOB, report)]


async def test_the_answer_has_what_is_recorded_and_that_the_worker_is_to_stop(office: ReportServerLab) -> None:
    office.stand(epochs={"attempt": 0, "done": 4, "goal": "EarlyStopped"})
    answer = ReportReply(attempt=0, attempt_over=False, stop="EarlyStopped", recorded_epoch=4)
    assert await office.post(batch(), await office.worker()) == (200, told(answer))


@pytest.mark.parametrize(("code", "well"), [(0, True), (1, False), (None, False)])
async def test_the_answer_says_how_the_training_ended(office: ReportServerLab, code: int | None, well: bool) -> None:
    token = await office.worker()
    (pod,) = office.pods.list()
    state = {"terminated": {"exitCode": code}} if code is not None else {}
    status = msgspec.convert({"containerStatuses": [{"name": "trainer", "state": state}]}, PodStatus)
    office.pods.put(structs.replace(pod, status=status))
    assert (await office.post(batch(), token))[1]["endedWell"] is well


async def test_the_answer_asks_all_workers_to_save_when_the_machine_of_one_is_taken_back(
    office: ReportServerLab,
) -> None:
    first, _ = await office.worker(), await office.worker(1, on="spot-1")
    assert (await office.post(batch(), first))[1]["save"] == ""
    office.nodes.put(node("spot-1"))
    assert (await office.post(batch(sequence=3), first))[1]["save"] == ""
    office.nodes.put(node("spot-1", taint="holdfast.dev/preempted"))
    assert (await office.post(batch(sequence=4), first))[1]["save"] == "node spot-1 is about to be taken back"
    await office.worker(1, attempt=1, on="spot-2")
    office.nodes.put(node("spot-2", taint="holdfast.dev/preempted"))
    assert (await office.post(batch(sequence=5), first))[1]["save"] == "node spot-1 is about to be taken back"


async def test_the_answer_to_a_worker_of_an_old_attempt_says_that_it_is_over(office: ReportServerLab) -> None:
    token = await office.worker(attempt=1)
    office.stand(restartCount=2)
    assert await office.post(batch(ended(9), attempt=1), token) == (
        409,
        told(ReportReply(attempt=2, attempt_over=True)),
    )
    assert office.taken == []


async def test_the_answer_to_a_worker_that_makes_way_for_another_spec_says_that_its_checkpoint_counts(
    office: ReportServerLab,
) -> None:
    token = await office.worker(attempt=1)
    changed = {
        "type": "Restarting",
        "status": "True",
        "reason": "SpecChanged",
        "message": "",
        "lastTransitionTime": stamp(0),
    }
    office.stand(state="Restarting", restartCount=2, conditions=[changed])
    answer = ReportReply(attempt=2, attempt_over=True, is_graceful=True)
    assert await office.post(batch(attempt=1), token) == (409, told(answer))
    office.stand(state="Restarting", restartCount=3, conditions=[changed])
    assert await office.post(batch(attempt=1), token) == (409, told(ReportReply(attempt=3, attempt_over=True)))


async def test_the_answer_asks_the_others_to_save_when_a_worker_is_deleted(office: ReportServerLab) -> None:
    first, second = await office.worker(), await office.worker(1)
    leaving = next(pod for pod in office.pods.list() if pod.metadata.labels[INDEX] == "1")
    office.pods.put(deleted(leaving, asked=0))
    assert (await office.post(batch(), first))[1]["save"] == "worker 1 is about to be stopped"
    assert (await office.post(batch(index=1), second))[1]["save"] == ""  # its own pod asks it


async def test_the_answer_to_a_report_for_a_job_that_was_made_anew_says_that_it_is_over(
    office: ReportServerLab,
) -> None:
    status, answer = await office.post(batch(uid="of its predecessor"), await office.worker())
    assert (status, answer["over"]) == (409, True)


async def test_a_cache_that_lags_stops_no_training(office: ReportServerLab, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = {"model": "m", "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0}
    body = {"metadata": {"name": JOB.name}, "spec": spec}
    made = await office.cluster.create(TRAINING_JOBS, body, namespace=JOB.namespace)
    report, token = batch(uid=made.metadata.uid), await office.worker()
    for _ in range(2):  # with its predecessor in the cache, and with none
        status, answer = await office.post(report, token)
        assert (status, answer) == (503, {"error": "ml/bert is not known here: try again in a moment"})
        office.jobs.remove(JOB)
    await office.cluster.delete(TRAINING_JOBS, JOB)

    async def away(resource: Any, key: Key) -> Any:
        raise Unreachable("get ml/bert: no answer from the server")

    with monkeypatch.context() as outage:
        outage.setattr(office.cluster, "get", away)
        assert (await office.post(report, token))[0] == 503
    # Its workers are to save what they have.
    assert await office.post(report, token) == (409, told(ReportReply(attempt=0, attempt_over=True, is_graceful=True)))
    assert office.taken == []


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
async def test_without_a_token_nobody_is_let_in(office: ReportServerLab, headers: dict[str, str]) -> None:
    assert await office.post(batch(), **headers) == (401, {"error": "no bearer token came with the request"})


async def test_a_token_that_is_made_up_or_for_others_is_refused(office: ReportServerLab) -> None:
    refused = {"error": "the token is not valid for the audience holdfast.dev/reports"}
    for token in ("made.up.token", await office.worker(audience="api")):
        assert await office.post(batch(), token) == (401, refused)
    assert office.taken == []


@pytest.mark.parametrize("foreign", [{"job": "other"}, {"namespace": "prod"}, {"index": 1}, {"attempt": 1}])
async def test_a_worker_may_not_report_for_another(office: ReportServerLab, foreign: dict[str, Any]) -> None:
    status, answer = await office.post(batch(ended(9), **foreign), await office.worker())
    assert status == 403
    assert "may report nothing else" in answer["error"]
    assert office.taken == []


async def test_a_pod_that_is_no_worker_may_not_report(office: ReportServerLab) -> None:
    pod = await office.cluster.create(PODS, {"metadata": {"name": "p"}, "spec": pod_spec("none")}, namespace="ml")
    office.pods.put(pod)
    token = office.cluster.issue_token(
        pod.metadata.key, uid=pod.metadata.uid, account="default", audience=reports.AUDIENCE
    )
    assert await office.post(batch(), token) == (403, {"error": "pod ml/p is not a worker of a TrainingJob"})


async def test_a_foreign_pod_with_a_workers_labels_may_not_report(office: ReportServerLab) -> None:
    status, answer = await office.post(batch(ended(9)), await office.worker(owned=False))
    assert (status, office.taken) == (403, [])
    assert answer["error"].endswith("is not a worker of a TrainingJob")


async def test_what_the_caches_do_not_show_yet_may_be_tried_again(office: ReportServerLab) -> None:
    token = await office.worker(attempt=1)
    status, answer = await office.post(batch(attempt=1), token)
    assert status == 503
    assert "attempt 1 of ml/bert is not known here" in answer["error"]
    office.stand(restartCount=1)
    assert (await office.post(batch(attempt=1), token))[0] == 200
    for pod in list(office.pods):
        office.pods.remove(pod.metadata.key)
    assert (await office.post(batch(attempt=1), token))[0] == 503


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"job": "hunter2"}', b"[" * 60_000])
async def test_a_report_that_can_not_be_read_is_refused_without_repeating_it(
    office: ReportServerLab, body: bytes
) -> None:
    status, answer = await office.post(body, await office.worker())
    assert status == 400
    assert answer["error"].startswith("the report can't be read")
    assert "hunter2" not in answer["error"]


async def test_a_report_that_is_too_large_is_refused(office: ReportServerLab) -> None:
    status, answer = await office.post(b" " * (reports.LARGEST_BODY + 1), await office.worker())
    assert (status, answer) == (413, {"error": "the body is larger than 65536 bytes"})
    assert (await office.post(b" " * reports.LARGEST_BODY, await office.worker()))[0] == 400


async def test_a_report_that_does_not_arrive_is_given_up(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_WITHIN_S", 0.05)
    token = await office.worker()
    arrives = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await arrives.wait()

    async with office.session() as session:
        headers = {"Authorization": f"Bearer {token}"}
        async with session.post(reports.PATH, data=slowly(), headers=headers) as answer:
            assert answer.status == 408
            arrives.set()


async def test_a_worker_that_reports_too_often_is_slowed_down(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, other = await office.worker(), await office.worker(1)
    monkeypatch.setattr(server, "clock_s", lambda: 50.0)
    answers = [(await office.post(batch(sequence=n), token))[0] for n in range(1, server.BURST + 4)]
    assert answers == [200] * server.BURST + [429] * 3
    assert (await office.post(batch(index=1), other))[0] == 200
    monkeypatch.setattr(server, "clock_s", lambda: 50.0 + server.REFILL_S)
    assert (await office.post(batch(sequence=99), token))[0] == 200


async def test_an_address_may_not_have_any_number_of_tokens_reviewed(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await office.worker()
    monkeypatch.setattr(authentication, "clock_s", lambda: 50.0)
    assert (await office.post(batch(), token))[0] == 200
    answers = [(await office.post(batch(), f"guess-{n}"))[0] for n in range(authentication.UNKNOWN_TOKEN_BURST + 2)]
    assert answers == [401] * (authentication.UNKNOWN_TOKEN_BURST - 1) + [429] * 3
    # Who is known already is heard as before.
    assert (await office.post(batch(sequence=3), token))[0] == 200


async def test_a_report_that_comes_twice_is_taken_once(office: ReportServerLab) -> None:
    token = await office.worker()
    for report in (batch(ended(1), sequence=1), batch(ended(1), sequence=1), batch(ended(2), sequence=2)):
        assert (await office.post(report, token))[0] == 200
    assert (await office.post(batch(ended(1), sequence=1), token))[0] == 200
    assert [taken.sequence for _, taken in office.taken] == [1, 2]


async def test_a_sidecar_that_starts_anew_counts_anew(office: ReportServerLab) -> None:
    token = await office.worker()
    for report in (batch(run="a", sequence=7), batch(run="b", sequence=1)):
        await office.post(report, token)
    assert [(taken.run, taken.sequence) for _, taken in office.taken] == [("a", 7), ("b", 1)]


async def test_a_standby_takes_nothing(office: ReportServerLab) -> None:
    office.is_leading = False
    status, answer = await office.post(batch(), await office.worker())
    assert status == 503
    assert "does not lead" in answer["error"]
    assert office.taken == []


async def test_while_no_token_can_be_reviewed_no_report_is_accepted(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(token: str, audience: str) -> Identity | None:
        raise Unreachable("review a token: no answer from the server")

    token = await office.worker()
    monkeypatch.setattr(office.cluster, "review_token", away)
    office.seconds = 130.0
    status, answer = await office.post(batch(), token)
    assert (status, answer) == (503, {"error": "the cluster can't be asked about it at the moment: try again later"})
    assert office.hearing.since_s(JOB) == 130.0


async def test_a_report_beyond_the_capacity_may_be_sent_again(office: ReportServerLab) -> None:
    token = await office.worker()
    office.trouble = InboxFull("64 reports of ml/bert wait to be written: send this one again later")
    assert (await office.post(batch(sequence=1), token))[0] == 503
    assert office.hearing.since_s(JOB) == 100.0
    office.trouble = None
    assert (await office.post(batch(sequence=1), token))[0] == 200
    assert len(office.taken) == 1


async def test_an_error_of_ours_is_an_answer_without_details(office: ReportServerLab) -> None:
    token = await office.worker()
    office.trouble, office.seconds = RuntimeError("secret"), 140.0
    status, answer = await office.post(batch(), token)
    assert (status, answer) == (500, {"error": "an error in holdfast: the operator's log says more"})
    assert (office.hearing.since_s(JOB), office.hearing.since_s(Key("ml", "other"))) == (140.0, 100.0)


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
async def test_a_bad_request_is_refused_and_interrupts_nothing(office: ReportServerLab, which: str) -> None:
    expected, text = BAD_REQUESTS[which]
    text = text.replace(b"TOKEN", (await office.worker()).encode())
    office.seconds = 130.0
    status, answer = await office.raw(b"POST /v1/report HTTP/1.1\r\nHost: x\r\n" + text)
    assert (status, b"an error in holdfast" in answer) == (expected, False)
    assert office.hearing.since_s(JOB) == 100.0
    assert (await office.post(batch(), await office.worker()))[0] == 200


@pytest.mark.parametrize("begun", ["Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n64\r\n{"])
async def test_a_body_that_is_cut_short_interrupts_nothing(office: ReportServerLab, begun: str) -> None:
    head = f"POST {reports.PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {await office.worker()}\r\n"
    office.seconds = 130.0
    with capture_logs() as lines:
        async with office.connection() as (_, writer):
            writer.write((head + begun).encode())
            await writer.drain()
        await until(lambda: lines, "the server has noticed")
    assert [(line["event"], line["status"]) for line in lines] == [("report refused", 400)]
    assert office.hearing.since_s(JOB) == 100.0


async def test_what_a_strangers_token_leads_to_interrupts_nothing(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, expected in ((BadRequest("review a token: too odd"), 503), (RuntimeError("a bug"), 500)):

        async def fails(token: str, audience: str, error: Exception = error) -> Identity | None:
            raise error

        office.seconds = 130.0
        monkeypatch.setattr(office.cluster, "review_token", fails)
        assert (await office.post(batch(), "odd"))[0] == expected
        assert office.hearing.since_s(JOB) == 100.0


async def test_an_error_about_one_worker_interrupts_the_hearing_of_its_job_alone(
    office: ReportServerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await office.worker()
    assert (await office.post(batch(sequence=1), token))[0] == 200
    monkeypatch.setattr(office.reviews, "is_cached", lambda token: False)

    async def away(token: str) -> Identity | None:
        raise Unreachable("review a token: no answer from the server")

    monkeypatch.setattr(office.reviews, "identity", away)
    office.seconds = 150.0
    assert (await office.post(batch(sequence=3), token))[0] == 503
    assert (office.hearing.since_s(JOB), office.hearing.since_s(Key("ml", "other"))) == (150.0, 100.0)
    office.hearing.forget(JOB)
    assert office.hearing.since_s(JOB) == 100.0


async def test_only_reports_are_served(office: ReportServerLab) -> None:
    async with office.session() as session:
        async with session.get(reports.PATH) as answer:
            assert answer.status == 405
        async with session.get("/") as answer:
            assert answer.status == 404


async def test_no_word_is_spoken_in_the_clear(office: ReportServerLab) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(office.endpoint.url.replace("https", "http") + reports.PATH, data=b"{}")


async def test_another_operators_certificate_is_not_trusted(office: ReportServerLab) -> None:
    async with opened() as other:
        office.endpoint = structs.replace(office.endpoint, authority=other.endpoint.authority)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await office.post(batch(), "token")
    assert office.taken == []


async def test_an_answer_to_come_back_says_when(office: ReportServerLab) -> None:
    office.is_leading = False
    async with office.session() as session, session.post(reports.PATH, data=b"{}") as answer:
        assert answer.headers["Retry-After"] == "5"
    office.is_leading = True
    async with office.session() as session, session.post(reports.PATH, data=b"{}") as answer:
        assert answer.headers["WWW-Authenticate"] == "Bearer"
