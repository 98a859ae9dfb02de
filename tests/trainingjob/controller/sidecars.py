"""The workers' sidecars, played: they find the operator and prove who they are as the real ones do."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from time import time
from typing import Any

import aiohttp
import msgspec

from holdfast.api import reports
from holdfast.api.core.objects import Lease, Pod
from holdfast.api.meta import Key
from holdfast.api.reports import ProgressReport, WorkerReport
from holdfast.cluster.errors import AlreadyExists, NotFound
from holdfast.cluster.resources import CONFIG_MAPS, LEASES
from holdfast.trainingjob.objects import names
from tests.contract.engine import Engine
from tests.contract.kinds import PODS
from tests.contract.waiting import until
from tests.control_plane.waiting import eventually
from tests.trainingjob.controller.lab import TrainingJobLab

NODE_LEASES = "kube-node-lease"
BEAT_S = 0.2


class Sidecar:
    """Of one pod. A report is sent on behalf of the pod's own worker, unless a test says otherwise."""

    def __init__(self, sidecars: "Sidecars", pod: Pod, token: str, uid: str) -> None:
        labels = pod.metadata.labels
        self.job = labels[names.JOB_LABEL]
        self.token = token
        self._sidecars = sidecars
        self._empty = WorkerReport(
            job=self.job,
            namespace=pod.metadata.namespace,
            uid=uid,
            attempt=int(labels[names.ATTEMPT_LABEL]),
            index=int(labels[names.INDEX_LABEL]),
            run=token_hex(8),
            sequence=1,
            sent_at=time(),
        )
        self._sequence = 0

    def batch(self, *progress: ProgressReport, **more: Any) -> WorkerReport:
        self._sequence += 1
        told = {"sequence": self._sequence, "sent_at": time(), "progress": progress, **more}
        return msgspec.structs.replace(self._empty, **told)

    async def report(self, *progress: ProgressReport, **more: Any) -> tuple[int, dict[str, Any]]:
        """The status and the answer."""
        return await self.send(msgspec.json.encode(self.batch(*progress, **more)))

    async def send(self, body: bytes, *, token: str | None = None) -> tuple[int, dict[str, Any]]:
        return await self._sidecars.post(self.job, body, self.token if token is None else token)

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """It lives inside the block, and has nothing to tell."""
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            await asyncio.wait([beating])

    async def _beat(self) -> None:
        while True:
            # Whatever the answer is: the attempt may end meanwhile, and an operator may be away.
            with suppress(aiohttp.ClientError):
                await self.report()
            await asyncio.sleep(BEAT_S)


class Sidecars:
    def __init__(self, lab: TrainingJobLab, engine: Engine, session: aiohttp.ClientSession) -> None:
        self._lab = lab
        self._engine = engine
        self._session = session
        self._leases: set[str] = set()

    @classmethod
    @asynccontextmanager
    async def playing(cls, lab: TrainingJobLab, engine: Engine) -> AsyncIterator["Sidecars"]:
        async with aiohttp.ClientSession() as session:
            sidecars = cls(lab, engine, session)
            yield sidecars
            for node in sidecars._leases:
                with suppress(NotFound):
                    await lab.cluster.delete(LEASES, Key(NODE_LEASES, node))

    async def of(self, *pods: Pod) -> tuple[Sidecar, ...]:
        return tuple([await self._of(pod) for pod in pods])

    async def _of(self, pod: Pod) -> Sidecar:
        job = await self._lab.get(pod.metadata.labels[names.JOB_LABEL])
        account = (await self._lab.cluster.get(PODS, pod.metadata.key)).spec.get("serviceAccountName", "default")
        token = await self._engine.token(pod, reports.AUDIENCE, account=account)
        sidecar = Sidecar(self, pod, token, job.metadata.uid)
        # The operator's caches may be a moment behind: a real sidecar tries again as well.
        await eventually(lambda: sidecar.send(b""), lambda told: told[0] == 400, what=f"{pod.metadata.name} is known")
        return sidecar

    async def post(self, job: str, body: bytes, token: str) -> tuple[int, dict[str, Any]]:
        place = await self.place(job)
        context = ssl.create_default_context(cadata=place.authority)
        headers = {"Authorization": f"Bearer {token}"}
        url = f"{place.url}{reports.PATH}"
        async with self._session.post(url, data=body, headers=headers, ssl=context) as answer:
            return answer.status, await answer.json()

    async def place(self, job: str) -> reports.Endpoint:
        """Where to report, as the file in the workers' pods says it."""
        key = self._lab.key(f"{job}-config")
        config = await until(
            self._lab.cluster, CONFIG_MAPS, key, lambda it: reports.FILE in it.data, "says where to report"
        )
        return reports.decode_endpoint(config.data[reports.FILE].encode())

    async def renew(self, node: str) -> Lease:
        """A sign of life of a node."""
        self._leases.add(node)
        body = {"metadata": {"name": node}, "spec": {"holderIdentity": node, "leaseDurationSeconds": 40}}
        with suppress(AlreadyExists):
            return await self._lab.cluster.create(LEASES, body, namespace=NODE_LEASES)
        # Another one than before, whatever the clock says.
        count = {"metadata": {"annotations": {"test.holdfast.dev/renewed": token_hex(4)}}}
        return await self._lab.cluster.patch(LEASES, Key(NODE_LEASES, node), count)
