"""The kubelet of the local cluster: it runs the pods that are bound to this node."""

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
from holdfast.cluster.errors import BadRequest, ClusterError, Conflict, NotFound
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.errors import HoldfastError
from holdfast.local.kubelet import logs, processes, volumes
from holdfast.local.kubelet.bound_pods import BoundPods
from holdfast.local.kubelet.context import CommandResolver, Host, Now, PodAddresses, SharedHost
from holdfast.local.kubelet.devices import RESOURCE, Cgroups, GpuAllocator
from holdfast.local.kubelet.environment import IssueToken
from holdfast.local.kubelet.node import PLAIN_NODE, NodeAgent, NodeDetails
from holdfast.local.kubelet.objects import PODS, RunnablePod
from holdfast.local.kubelet.pod import PodRun, PodStatusWriter
from holdfast.local.kubelet.pod_status import ContainerSnapshot, PodResult, PodSnapshot, Terminated, pod_status
from holdfast.local.kubelet.processes import KILLED

RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Time after the grace period for the last status writes to reach the cluster.
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

# Called with a pod that has ended, its last status, and a function that reads the log of one of its containers.
ReadLog: TypeAlias = Callable[[str], Awaitable[bytes]]
Ended: TypeAlias = Callable[[RunnablePod, JSON, ReadLog], Awaitable[None]]


class NotLinux(HoldfastError):
    """Process supervision needs Linux."""


class ReclaimFailed(HoldfastError):
    """The folder of a deleted claim still exists: a new claim must not reuse the name."""


def identity_of(data: Path) -> str:
    """An id that distinguishes the processes of this data folder from those of other data folders."""
    return hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:12]


class Kubelet:
    """Runs pods as processes. The kubelet needs exclusive use of the folder `data`.

    `ended` is awaited for every pod that has ended, while the logs of the pod still exist. Several nodes on this
    computer share the addresses of pods and the folders of claims: the kubelets after the first get its `shared`.
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
        details: NodeDetails = PLAIN_NODE,
        shared: SharedHost | None = None,
    ) -> None:
        data = data.resolve()
        identity = identity_of(data)
        self.shared = shared or SharedHost(addresses=PodAddresses(identity), volumes=data / "volumes")
        self._cluster = cluster
        self._name = name
        self._ended = ended
        self._http = aiohttp.ClientSession()
        self._host = Host(
            cluster=cluster,
            identity=identity,
            data=data,
            allocatable=resources,
            addresses=self.shared.addresses,
            volumes=self.shared.volumes,
            gpus=GpuAllocator(int(parse_quantity(resources.get(RESOURCE, "0")))),
            commands=CommandResolver(default_image, default_command),
            http=self._http,
            now=now,
            cgroups=cgroups,
            issue_token=issue_token,
        )
        self._agent = NodeAgent(cluster, name, resources, now, details)
        self._assignments = BoundPods(cluster, name, seen=self._on_pod_changed, gone=self._on_pod_deleted)
        self._runs: dict[str, PodRun] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._lost: set[str] = set()
        self._finished: set[str] = set()  # pods that ran here: late events must not start them again
        self._is_stopping = False

    async def start(self) -> None:
        """End processes of an earlier run, report their pods as lost, and start to run pods."""
        if sys.platform != "linux":
            raise NotLinux("running pods as processes needs Linux; use a Kubernetes cluster on this machine")
        for folder in (self._host.pods, self._host.volumes):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)  # independent of the umask and of the parent folder's mode
        if ended := await processes.end_orphans(self._host.pods, self._host.identity):
            log.warning("ended processes of an earlier run", count=ended)
        self._lost = {folder.name for folder in self._host.pods.iterdir() if processes.started(folder)}
        await self._agent.register()
        listing = await self._cluster.list(PODS, fields=f"spec.nodeName={self._name}")
        self._lost |= {pod.metadata.uid for pod in listing.items if pod.status.phase == "Running"}
        await self._remove_folders_except({pod.metadata.uid for pod in listing.items})
        await self._assignments.sync()
        self._loops = [asyncio.create_task(self._assignments.run()), asyncio.create_task(self._agent.run())]

    async def stop(self) -> None:
        """End all pods, each within its own grace period, as a deletion does; the next start replaces the pods."""
        self._is_stopping = True
        graces = {run: run.pod.spec.termination_grace_period_seconds for run in self._runs.values()}
        for run, grace_s in graces.items():
            run.terminate(grace_s, STOPPED)
        if self._work:
            _, unfinished = await asyncio.wait(self._work, timeout=max(graces.values(), default=0) + PATIENCE_S)
            for task in unfinished:  # the status can't be written; the next start reports the pod as lost
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self._close()

    async def kill(self) -> None:
        """End all pods at once, as a loss of power does: no signal to save on, and nothing is reported."""
        self._is_stopping, self._ended = True, None
        for loop in self._loops:
            loop.cancel()
        for run in self._runs.values():
            run.reporter.is_gone = True
            run.terminate(0)  # no container starts again; the signals that follow find no process
        await processes.end_orphans(self._host.pods, self._host.identity)
        if self._work:
            _, unfinished = await asyncio.wait(self._work, timeout=PATIENCE_S)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
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
        """Same contract as `Cluster.pod_log`, so that a cluster engine can serve logs from here."""
        pod = await self._cluster.get(PODS, key)
        path = logs.newest(self._host.logs(pod.metadata.uid), self._container(pod, container))
        return await asyncio.to_thread(logs.read_log, path, tail_lines=tail_lines, limit_bytes=limit_bytes)

    async def follow_log(self, key: Key, *, container: str = "", tail_lines: int | None = None) -> AsyncIterator[bytes]:
        """The log and everything that is appended until the pod has ended."""
        pod = await self._cluster.get(PODS, key)
        uid, name = pod.metadata.uid, self._container(pod, container)
        path = logs.newest(self._host.logs(uid), name) or logs.log_file(self._host.logs(uid), name, 0)
        async for chunk in logs.follow_log(path, lambda: uid not in self._runs, tail_lines=tail_lines):
            yield chunk

    async def reclaim(self, claim: Key) -> None:
        """Delete the folder of a claim that no pod uses any more. Raises `ReclaimFailed`."""
        folder = self._host.claim(claim)
        await volumes.remove(folder)
        if await asyncio.to_thread(folder.exists):
            raise ReclaimFailed(f"{folder}, the folder of claim {claim}, can't be removed: remove it by hand")

    @staticmethod
    def _container(pod: RunnablePod, name: str) -> str:
        names = [one.name for one in (*pod.spec.containers, *pod.spec.init_containers)]
        if name and name not in names:
            raise BadRequest(f"container {name} is not valid for pod {pod.metadata.name}: it has {', '.join(names)}")
        return name or names[0]

    def _on_pod_changed(self, pod: RunnablePod) -> None:
        uid = pod.metadata.uid
        if run := self._runs.get(uid):
            run.observe(pod)
        elif pod.is_finished or uid in self._finished:
            if _to_be_removed(pod):
                self._spawn(self._remove(pod))
        elif uid in self._lost:
            self._finished.add(uid)
            self._spawn(self._report_lost(pod))
        elif not self._is_stopping:
            self._runs[uid] = run = PodRun(pod, self._host)
            run.observe(pod)
            self._spawn(self._run(run))

    def _on_pod_deleted(self, pod: RunnablePod) -> None:
        """A pod that was force-deleted must not run any longer."""
        self._finished.discard(pod.metadata.uid)
        if run := self._runs.pop(pod.metadata.uid, None):
            run.reporter.is_gone = True
            run.terminate(0)
        else:
            self._spawn(volumes.remove(self._host.folder(pod.metadata.uid)))

    async def _run(self, run: PodRun) -> None:
        uid = run.pod.metadata.uid
        result = await run.run()
        log.info("pod ended", pod=str(run.pod.metadata.key), phase=result.phase, reason=result.reason)
        await self._notify_ended(run.pod, run.snapshot())
        await volumes.remove_all_but_logs(self._host.folder(uid))
        if self._runs.pop(uid, None):
            self._finished.add(uid)
        if run.reporter.is_gone:
            await volumes.remove(self._host.folder(uid))
        elif _to_be_removed(run.pod):
            await self._remove(run.pod)

    async def _notify_ended(self, pod: RunnablePod, snapshot: PodSnapshot) -> None:
        if self._ended is None:
            return
        folder = self._host.logs(pod.metadata.uid)

        async def read(container: str) -> bytes:
            return await asyncio.to_thread(logs.read_log, logs.newest(folder, container))

        try:
            await self._ended(pod, pod_status(snapshot, (), self._host.time()), read)
        except Exception:  # noqa: BLE001 - whatever the callback raises, the pod has to be removed
            log.error("end of a pod not taken in", pod=str(pod.metadata.key), traceback=traceback.format_exc())

    async def _report_lost(self, pod: RunnablePod) -> None:
        end = Terminated(
            exit_code=KILLED, reason="ContainerStatusUnknown", message=LOST.message, finished_at=self._host.time()
        )
        main = tuple(ContainerSnapshot(name=one.name, image=one.image, state=end) for one in pod.spec.containers)
        lost = PodSnapshot(init=(), main=main, start_time=pod.status.start_time, result=LOST)
        reporter = PodStatusWriter(self._cluster, pod, lambda: lost, self._host.time)
        await reporter.flush()
        log.warning("pod lost", pod=str(pod.metadata.key))
        await self._notify_ended(pod, lost)
        await volumes.remove_all_but_logs(self._host.folder(pod.metadata.uid))
        if _to_be_removed(reporter.pod):
            await self._remove(reporter.pod)

    async def _remove(self, pod: RunnablePod) -> None:
        """Confirm a deletion: no process of the pod runs any more. The logs stay while a finalizer holds the object."""
        metadata = pod.metadata
        while True:
            try:
                return await self._cluster.delete(PODS, metadata.key, DeleteOptions(uid=metadata.uid, grace_period_s=0))
            except (NotFound, Conflict):
                return None
            except ClusterError as error:
                log.warning("pod not removed yet", pod=str(metadata.key), reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def _remove_folders_except(self, uids: set[str]) -> None:
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


def _to_be_removed(pod: RunnablePod) -> bool:
    """Whether the pod is deleted and the kubelet has not confirmed the deletion yet."""
    metadata = pod.metadata
    return bool(metadata.deletion_timestamp) and metadata.deletion_grace_period_seconds != 0
