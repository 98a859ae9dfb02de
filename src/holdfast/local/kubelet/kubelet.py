"""This machine as a node: it runs the pods that are bound to it."""

import asyncio
import contextlib
import hashlib
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import structlog

from holdfast.api.meta import Key
from holdfast.api.scalars import parse_quantity
from holdfast.cluster.errors import BadRequest, ClusterError, Conflict, Expired, NotFound
from holdfast.cluster.protocol import JSON, Change, Cluster
from holdfast.errors import HoldfastError
from holdfast.local.kubelet import logs, processes, volumes
from holdfast.local.kubelet.context import CommandResolver, Host, Now, PodAddresses
from holdfast.local.kubelet.devices import RESOURCE, Cgroups, Gpus
from holdfast.local.kubelet.environment import IssueToken
from holdfast.local.kubelet.node import NodeAgent
from holdfast.local.kubelet.objects import PODS, Pod
from holdfast.local.kubelet.pod import PodRun, PodStatusWriter
from holdfast.local.kubelet.pod_status import ContainerSnapshot, PodResult, Snapshot, Terminated, pod_status
from holdfast.local.kubelet.processes import KILLED

# The pods that are bound to this node, as they come, change and go.

RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class BoundPods:
    """`seen` hears of every state of every pod, `gone` of every pod that is no more; each is told once."""

    def __init__(
        self, cluster: Cluster, node: str, *, seen: Callable[[Pod], None], gone: Callable[[Pod], None]
    ) -> None:
        self._cluster = cluster
        self._fields = f"spec.nodeName={node}"
        self._seen = seen
        self._gone = gone
        self._pods: dict[Key, Pod] = {}
        self._version = ""

    async def sync(self) -> tuple[Pod, ...]:
        """The pods that are there now; what differs from before is told."""
        listing = await self._cluster.list(PODS, fields=self._fields)
        keys = {pod.metadata.key for pod in listing.items}
        for key in self._pods.keys() - keys:
            self._gone(self._pods.pop(key))
        for pod in listing.items:
            self._put(pod)
        self._version = listing.resource_version
        return listing.items

    async def run(self) -> None:
        while True:
            try:
                if not self._version:
                    await self.sync()
                if await self._watch():
                    continue
            except Expired:
                self._version = ""
            except ClusterError as error:
                log.warning("pods of this node not seen", reason=str(error))
            except Exception:  # noqa: BLE001 - one strange pod must not take the news of the others away
                log.error("news of a pod not taken in", traceback=traceback.format_exc())
                self._version = ""
            await asyncio.sleep(RETRY_S)

    async def _watch(self) -> bool:
        """Until the stream ends; whether it brought anything."""
        before = self._version
        async with self._cluster.watch(PODS, resource_version=self._version, fields=self._fields) as events:
            async for event in events:
                if event.object is not None and event.change is Change.DELETED:
                    self._pods.pop(event.object.metadata.key, None)
                    self._gone(event.object)
                elif event.object is not None:
                    self._put(event.object)
                self._version = event.resource_version
        return self._version != before

    def _put(self, pod: Pod) -> None:
        old = self._pods.get(pod.metadata.key)
        if old is not None and old.metadata.uid != pod.metadata.uid:
            self._gone(old)
        if old is None or old.metadata.resource_version != pod.metadata.resource_version:
            self._pods[pod.metadata.key] = pod
            self._seen(pod)


# Beyond the grace period: the cluster is given this long to take the last reports.
PATIENCE_S = 15.0
REFERENCE_TRAINER = (sys.executable, "-m", "holdfast.trainer")
LOST = PodResult(
    phase="Failed",
    reason="NodeLost",
    message="holdfast was killed on this machine while the pod ran; its processes have been ended",
    disrupted=True,
)
STOPPED = PodResult(
    phase="Failed",
    reason="Terminated",
    message="holdfast was stopped on this machine while the pod ran",
    disrupted=True,
)

# A pod that has ended, its last status, and how the log of one of its containers is read.
ReadLog: TypeAlias = Callable[[str], Awaitable[bytes]]
Ended: TypeAlias = Callable[[Pod, JSON, ReadLog], Awaitable[None]]


class NotLinux(HoldfastError):
    """Processes can't be kept together here."""


class ReclaimFailed(HoldfastError):
    """What a claim leaves is still there: its name must not be given to another."""


def identity_of(data: Path) -> str:
    """What tells this machine's processes from those of another data folder."""
    return hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:12]


class Kubelet:
    """`data` is the folder of everything that it writes; nobody else may use it meanwhile.

    `ended` is awaited for every pod that has ended, while its logs are there.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        name: str,
        data: Path,
        resources: Mapping[str, str],
        now: Now,
        default_image: str = "",
        default_command: Sequence[str] = REFERENCE_TRAINER,
        cgroups: Cgroups | None = None,
        issue_token: IssueToken | None = None,
        ended: Ended | None = None,
    ) -> None:
        data = data.resolve()
        identity = identity_of(data)
        self._cluster = cluster
        self._name = name
        self._ended = ended
        self._http = aiohttp.ClientSession()
        self._host = Host(
            cluster=cluster,
            identity=identity,
            data=data,
            allocatable=resources,
            addresses=PodAddresses(identity),
            gpus=Gpus(int(parse_quantity(resources.get(RESOURCE, "0")))),
            commands=CommandResolver(default_image, default_command),
            http=self._http,
            now=now,
            cgroups=cgroups,
            issue_token=issue_token,
        )
        self._agent = NodeAgent(cluster, name, resources, now)
        self._assignments = BoundPods(cluster, name, seen=self._on_pod_changed, gone=self._on_pod_deleted)
        self._runs: dict[str, PodRun] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._lost: set[str] = set()
        self._over: set[str] = set()  # pods that have been here: late news of them must not start them again
        self._is_stopping = False

    async def start(self) -> None:
        """End what an earlier run left behind, say so, and take up work."""
        if sys.platform != "linux":
            raise NotLinux("running pods as processes needs Linux; use a Kubernetes cluster on this machine")
        for private in (self._host.pods, self._host.volumes):
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            private.chmod(0o700)  # whatever it was made with, and whatever the folder around it allows
        if ended := await processes.end_left_behind(self._host.pods, self._host.identity):
            log.warning("ended processes of an earlier run", count=ended)
        self._lost = {folder.name for folder in self._host.pods.iterdir() if processes.started(folder)}
        await self._agent.register()
        listing = await self._cluster.list(PODS, fields=f"spec.nodeName={self._name}")
        self._lost |= {pod.metadata.uid for pod in listing.items if pod.status.phase == "Running"}
        await self._forget_folders_but({pod.metadata.uid for pod in listing.items})
        await self._assignments.sync()
        self._loops = [asyncio.create_task(self._assignments.run()), asyncio.create_task(self._agent.run())]

    async def stop(self) -> None:
        """End all pods, each within its own grace period, as a deletion does; they are replaced at the next start."""
        self._is_stopping = True
        graces = {run: run.pod.spec.termination_grace_period_seconds for run in self._runs.values()}
        for run, grace_s in graces.items():
            run.terminate(grace_s, STOPPED)
        if self._work:
            _, late = await asyncio.wait(self._work, timeout=max(graces.values(), default=0) + PATIENCE_S)
            for task in late:  # the cluster can't be told; the next start will tell it
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._http.close()
        if self._host.cgroups:
            self._host.cgroups.remove()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Kubelet"]:
        try:
            await self.start()
            yield self
        finally:
            await self.stop()

    async def pod_log(
        self, key: Key, *, container: str = "", tail_lines: int | None = None, limit_bytes: int | None = None
    ) -> bytes:
        """As the cluster's own: it may be given to an engine as its source of logs."""
        pod = await self._cluster.get(PODS, key)
        path = logs.newest(self._host.logs(pod.metadata.uid), self._container(pod, container))
        return await asyncio.to_thread(logs.read_log, path, tail_lines=tail_lines, limit_bytes=limit_bytes)

    async def follow_log(self, key: Key, *, container: str = "", tail_lines: int | None = None) -> AsyncIterator[bytes]:
        """The log, and what is added to it until the container's pod has ended."""
        pod = await self._cluster.get(PODS, key)
        uid, name = pod.metadata.uid, self._container(pod, container)
        path = logs.newest(self._host.logs(uid), name) or logs.log_file(self._host.logs(uid), name, 0)
        async for chunk in logs.follow_log(path, lambda: uid not in self._runs, tail_lines=tail_lines):
            yield chunk

    async def reclaim(self, claim: Key) -> None:
        """Remove what is stored for a claim, which nothing here may use any more. Raises `NotReclaimed`."""
        folder = self._host.claim(claim)
        await volumes.remove(folder)
        if await asyncio.to_thread(folder.exists):
            raise ReclaimFailed(f"{folder}, the folder of claim {claim}, can't be removed: remove it by hand")

    @staticmethod
    def _container(pod: Pod, name: str) -> str:
        names = [one.name for one in (*pod.spec.containers, *pod.spec.init_containers)]
        if name and name not in names:
            raise BadRequest(f"container {name} is not valid for pod {pod.metadata.name}: it has {', '.join(names)}")
        return name or names[0]

    def _on_pod_changed(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if run := self._runs.get(uid):
            run.observe(pod)
        elif pod.has_ended or uid in self._over:
            if _to_be_removed(pod):
                self._spawn(self._remove(pod))
        elif uid in self._lost:
            self._over.add(uid)
            self._spawn(self._report_lost(pod))
        elif not self._is_stopping:
            self._runs[uid] = run = PodRun(pod, self._host)
            run.observe(pod)
            self._spawn(self._run(run))

    def _on_pod_deleted(self, pod: Pod) -> None:
        """If it was deleted without waiting for us, it must not run any longer."""
        self._over.discard(pod.metadata.uid)
        if run := self._runs.pop(pod.metadata.uid, None):
            run.reporter.is_gone = True
            run.terminate(0)
        else:
            self._spawn(volumes.remove(self._host.folder(pod.metadata.uid)))

    async def _run(self, run: PodRun) -> None:
        uid = run.pod.metadata.uid
        verdict = await run.run()
        log.info("pod ended", pod=str(run.pod.metadata.key), phase=verdict.phase, reason=verdict.reason)
        await self._tell_ended(run.pod, run.snapshot())
        await volumes.remove_all_but_logs(self._host.folder(uid))
        if self._runs.pop(uid, None):
            self._over.add(uid)
        if run.reporter.is_gone:
            await volumes.remove(self._host.folder(uid))
        elif _to_be_removed(run.pod):
            await self._remove(run.pod)

    async def _tell_ended(self, pod: Pod, snapshot: Snapshot) -> None:
        if self._ended is None:
            return
        folder = self._host.logs(pod.metadata.uid)

        async def read(container: str) -> bytes:
            return await asyncio.to_thread(logs.read_log, logs.newest(folder, container))

        try:
            await self._ended(pod, pod_status(snapshot, (), self._host.time()), read)
        except Exception:  # noqa: BLE001 - whatever it is, the pod has to be removed
            log.error("end of a pod not taken in", pod=str(pod.metadata.key), traceback=traceback.format_exc())

    async def _report_lost(self, pod: Pod) -> None:
        end = Terminated(
            exit_code=KILLED, reason="ContainerStatusUnknown", message=LOST.message, finished_at=self._host.time()
        )
        main = tuple(ContainerSnapshot(name=one.name, image=one.image, state=end) for one in pod.spec.containers)
        lost = Snapshot(init=(), main=main, start_time=pod.status.start_time, verdict=LOST)
        reporter = PodStatusWriter(self._cluster, pod, lambda: lost, self._host.time)
        await reporter.flush()
        log.warning("pod lost", pod=str(pod.metadata.key))
        await self._tell_ended(pod, lost)
        await volumes.remove_all_but_logs(self._host.folder(pod.metadata.uid))
        if _to_be_removed(reporter.pod):
            await self._remove(reporter.pod)

    async def _remove(self, pod: Pod) -> None:
        """Confirm a deletion: nothing of the pod runs any more. Its logs stay while a finalizer keeps the object."""
        metadata = pod.metadata
        while True:
            try:
                return await self._cluster.delete(PODS, metadata.key, uid=metadata.uid, grace_period_s=0)
            except (NotFound, Conflict):
                return None
            except ClusterError as error:
                log.warning("pod not removed yet", pod=str(metadata.key), reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def _forget_folders_but(self, uids: set[str]) -> None:
        for folder in self._host.pods.iterdir():
            if folder.name not in uids:
                await volumes.remove(folder)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()):
            # As text: a renderer that shows local variables would show a container's secrets.
            log.error("work on a pod failed", traceback="".join(traceback.format_exception(error)))


def _to_be_removed(pod: Pod) -> bool:
    """Deleted, and not confirmed yet."""
    metadata = pod.metadata
    return bool(metadata.deletion_timestamp) and metadata.deletion_grace_period_seconds != 0
