"""A report server in the process of a test, with caches of workers and tokens that an API server has issued."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import structs

from holdfast.api import reports
from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key, OwnerReference
from holdfast.api.reports import Endpoint, WorkerReport
from holdfast.api.trainingjob import TrainingJob
from holdfast.cluster.resources import NAMESPACES, PODS, TRAINING_JOBS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.runtime.authentication import TokenReviewCache
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.deleted_objects import DeletedObjects
from holdfast.runtime.informer import Store
from holdfast.runtime.process import utc_now
from holdfast.runtime.report_server import ReportHandler, ReportingKind, serve_reports
from holdfast.trainingjob.reports.authorization import BY_ATTEMPT, attempt_of
from holdfast.trainingjob.reports.inbox import ReceiverUptime
from holdfast.trainingjob.reports.receiver import TrainingJobReports
from tests.contract.pods import pod_spec
from tests.trainingjobs import training_job

JOB = Key("ml", "bert")
LOCAL = "127.0.0.1"


class ReportServerLab:
    """A report server, the stores that it reads, and the reports that it has accepted."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.pods: Store[Pod] = Store({BY_ATTEMPT: attempt_of})
        self.nodes: Store[Node] = Store()
        self.jobs: Store[TrainingJob] = Store()
        self.reviews = TokenReviewCache(cluster, reports.AUDIENCE, now=utc_now)
        self.seconds = 100.0
        self.uptime = ReceiverUptime(lambda: self.seconds)
        self.is_leading = True
        self.taken: list[tuple[Key, WorkerReport]] = []
        self.error: Exception | None = None
        self.endpoint = Endpoint(url="", authority="")
        self.backups = BackupRequests()
        workers = TrainingJobReports(
            pods=self.pods,
            nodes=self.nodes,
            jobs=self.jobs,
            deleted_jobs=DeletedObjects(cluster, TRAINING_JOBS),
            uptime=self.uptime,
            sink=self._sink,
        )
        self.kinds: list[ReportingKind] = [workers]
        self.handler = ReportHandler(
            kinds=self.kinds,
            pods=self.pods,
            reviews=self.reviews,
            leading=lambda: self.is_leading,
            backups=self.backups,
            now=utc_now,
        )
        self.set_status()

    def _sink(self, job: Key, report: WorkerReport) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append((job, report))

    def set_status(self, **status: Any) -> None:
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
async def lab() -> AsyncIterator[ReportServerLab]:
    async with running() as lab:
        yield lab


@asynccontextmanager
async def running() -> AsyncIterator[ReportServerLab]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    await cluster.create(NAMESPACES, {"metadata": {"name": "ml"}})
    try:
        lab = ReportServerLab(cluster)
        async with serve_reports(lab.handler, address=LOCAL, port=0, host=LOCAL) as lab.endpoint:
            yield lab
    finally:
        await cluster.close()
