"""The lifecycle of one pod on this node: volumes, init containers, sidecars, main containers, termination."""

import asyncio
import traceback
from collections.abc import Callable

import msgspec
import structlog
from msgspec import structs

from holdfast.cluster.errors import BadRequest, ClusterError, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.local.kubelet import environment
from holdfast.local.kubelet.container import RETRY_S, ContainerRun, GracePeriod, background_task, wait_first
from holdfast.local.kubelet.context import HOST_IP, ContainerContext, Host
from holdfast.local.kubelet.devices import RESOURCE, NotEnoughGpus
from holdfast.local.kubelet.environment import PodContext
from holdfast.local.kubelet.objects import PODS, PodRejected, RetryLater, RunnableContainer, RunnablePod
from holdfast.local.kubelet.pod_status import PodResult, PodSnapshot, Terminated, outcome, pod_status
from holdfast.local.kubelet.volumes import prepare

STATUS_RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PodStatusWriter:
    """Writes the newest status of a pod to the cluster after every change, and retries until the write succeeds."""

    def __init__(
        self, cluster: Cluster, pod: RunnablePod, snapshot: Callable[[], PodSnapshot], time: Callable[[], str]
    ) -> None:
        self.pod = pod
        self._cluster = cluster
        self._snapshot = snapshot
        self._time = time
        self._dirty = asyncio.Event()
        self._written: JSON = {}
        self.is_gone = False

    def changed(self) -> None:
        self._dirty.set()

    async def run(self) -> None:
        while not self.is_gone:
            await self._dirty.wait()
            await self.flush()

    async def flush(self) -> None:
        """Retry until the newest status is written or the cluster rejects the status for good."""
        self._dirty.set()
        while self._dirty.is_set() and not self.is_gone:
            self._dirty.clear()
            if not await self._attempt():
                self._dirty.set()

    async def _attempt(self) -> bool:
        """Try to write the status; returns False when a retry is needed."""
        key = self.pod.metadata.key
        try:
            await self._write()
        except Conflict:
            return await self._refetch()
        except NotFound:
            self.is_gone = True
        except (Invalid, BadRequest, Forbidden) as error:
            log.error("pod status refused", pod=str(key), reason=str(error))
        except ClusterError as error:
            log.warning("pod status not written yet", pod=str(key), reason=str(error))
            await asyncio.sleep(STATUS_RETRY_S)
            return False
        return True

    async def _write(self) -> None:
        metadata = self.pod.metadata
        status = pod_status(self._snapshot(), msgspec.to_builtins(self.pod.status.conditions), self._time())
        if status != self._written:
            # The patch replaces the whole list of conditions, and others write into the list too: guard by version.
            guard = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
            self.pod = await self._cluster.patch_status(PODS, metadata.key, {"metadata": guard, "status": status})
            self._written = status

    async def _refetch(self) -> bool:
        try:
            pod = await self._cluster.get(PODS, self.pod.metadata.key)
        except ClusterError as error:
            self.is_gone |= isinstance(error, NotFound)
            return self.is_gone
        self.is_gone |= pod.metadata.uid != self.pod.metadata.uid
        self.pod = self.pod if self.is_gone else pod
        return self.is_gone


class PodRun:
    def __init__(self, pod: RunnablePod, host: Host) -> None:
        self.reporter = PodStatusWriter(host.cluster, pod, self.snapshot, host.time)
        self._host = host
        self._uid = pod.metadata.uid
        self._spec = pod.spec
        self._ip = ""
        self._start_time = host.time()
        self._grace = GracePeriod()
        self._result: PodResult | None = None
        self._termination_result: PodResult | None = None
        policy = self._spec.restart_policy
        init_policy = "OnFailure" if policy == "Always" else policy
        self._init = [
            self._container(one, policy=one.restart_policy or init_policy, is_init=True)
            for one in self._spec.init_containers
        ]
        self._main = [self._container(one, policy=policy, is_init=False) for one in self._spec.containers]
        for one in (*self._init, *self._main):
            one.set_waiting("PodInitializing" if self._init else "ContainerCreating")

    @property
    def pod(self) -> RunnablePod:
        """The newest version of the pod from the cluster."""
        return self.reporter.pod

    def observe(self, pod: RunnablePod) -> None:
        """Process a new version of the pod: only a deletion changes what runs here."""
        self.reporter.pod = pod
        if pod.metadata.deletion_timestamp:
            grace_s = pod.metadata.deletion_grace_period_seconds
            self.terminate(self._spec.termination_grace_period_seconds if grace_s is None else grace_s)

    def terminate(self, grace_s: float, result: PodResult | None = None) -> None:
        """Stop within `grace_s`; `result` overrides the result that the exit codes of the containers would give."""
        if self._termination_result is None and not self._grace.began:
            self._termination_result = result
        self._grace.begin(grace_s)
        for container in (*self._init, *self._main):
            # Sidecars stop after the main containers have ended.
            if container.is_stopping or not container.snapshot.is_sidecar:
                container.stop(grace_s)

    def snapshot(self) -> PodSnapshot:
        return PodSnapshot(
            init=tuple(one.snapshot for one in self._init),
            main=tuple(one.snapshot for one in self._main),
            pod_ip=self._ip,
            host_ip=HOST_IP,
            start_time=self._start_time,
            result=self._result,
        )

    async def run(self) -> PodResult:
        """Run the pod, from preparing the volumes to writing the last status."""
        async with background_task(self.reporter.run()):
            try:
                self._result = await self._run_containers()
            except PodRejected as rejection:
                self._result = self._rejected(rejection)
            except Exception as error:  # noqa: BLE001 - a bug of the kubelet must not leave the pod without a result
                # As text: a renderer that shows local variables would show a container's secrets.
                log.error("pod failed", pod=str(self.pod.metadata.key), traceback=traceback.format_exc())
                self._result = PodResult(phase="Failed", reason="RunnerError", message=f"the runner failed: {error!r}")
            finally:
                self._host.gpus.release(self._uid)
                self._host.addresses.release(self._uid)
        await self.reporter.flush()
        return self._result

    async def _run_containers(self) -> PodResult:
        self._host.commands.check(self._spec)
        try:
            devices = self._host.gpus.take(self._uid, self._spec)
        except NotEnoughGpus as error:
            raise PodRejected(str(error), reason=f"OutOf{RESOURCE}") from None
        metadata = self.pod.metadata
        self._ip = self._host.addresses.of_pod(
            self._uid,
            namespace=metadata.namespace,
            hostname=self._spec.hostname or metadata.name,
            subdomain=self._spec.subdomain,
        )
        self.reporter.changed()
        async with background_task(self._deadline()):
            await self._run_in_order(devices)
        return self._termination_result or PodResult(phase=outcome(one.snapshot for one in self._main))

    async def _run_in_order(self, devices: dict[str, tuple[int, ...]]) -> None:
        """Run the containers in order. When the pod is stopped, wait only for the containers that run already."""
        pod_context = PodContext(pod=self.pod, pod_ip=self._ip, host_ip=HOST_IP, allocatable=self._host.allocatable)
        context = await self._volumes(pod_context)
        if context is None:
            return
        sidecars: list[tuple[ContainerRun, asyncio.Task[None]]] = []
        try:
            if await self._initialize(context, devices, sidecars):
                async with asyncio.TaskGroup() as group:
                    for one in self._main:
                        group.create_task(one.run(self._container_context(context, devices, one)))
        finally:
            self._grace.begin(self._spec.termination_grace_period_seconds)
            for sidecar, task in reversed(sidecars):
                sidecar.stop(max(self._grace.left or 0, 0))
                await task

    async def _volumes(self, pod_context: PodContext) -> ContainerContext | None:
        """Wait until all volumes can be prepared; None when the pod was stopped meanwhile."""
        self._host.folder(self._uid).mkdir(parents=True, exist_ok=True, mode=0o700)
        while not self._grace.began:
            try:
                needs = environment.of_volumes(self._spec.volumes)
                found = await environment.fetch(self._host.cluster, pod_context.pod.metadata.namespace, needs)
                folder = self._host.folder(self._uid) / "volumes"
                found = structs.replace(found, tokens=environment.tokens(pod_context.pod, self._host.issue_token))
                volumes = prepare(pod_context, found, folder=folder, claim=self._host.claim)
                return ContainerContext(host=self._host, pod_context=pod_context, volumes=volumes)
            except (RetryLater, ClusterError, OSError) as problem:
                for one in (*self._init, *self._main):
                    one.set_waiting("ContainerCreating", str(problem))
            await wait_first(self._grace.wait_begun(), asyncio.sleep(RETRY_S))
        return None

    async def _initialize(
        self,
        context: ContainerContext,
        devices: dict[str, tuple[int, ...]],
        sidecars: list[tuple[ContainerRun, "asyncio.Task[None]"]],
    ) -> bool:
        """Run the init containers in order; a sidecar only has to start. True when the main containers may start."""
        for one in self._init:
            if self._grace.began:
                return False
            run = one.run(self._container_context(context, devices, one))
            if one.snapshot.is_sidecar:
                task = asyncio.create_task(run)
                sidecars.append((one, task))
                await wait_first(task, one.has_started.wait(), self._grace.wait_begun())
            else:
                await run
                if not (isinstance(one.snapshot.state, Terminated) and one.snapshot.state.exit_code == 0):
                    return False
        return not self._grace.began

    async def _deadline(self) -> None:
        if self._spec.active_deadline_seconds is not None:
            await asyncio.sleep(self._spec.active_deadline_seconds)
            message = f"the pod was active on the node longer than {self._spec.active_deadline_seconds} s"
            result = PodResult(phase="Failed", reason="DeadlineExceeded", message=message)
            self.terminate(self._spec.termination_grace_period_seconds, result)

    def _rejected(self, rejection: PodRejected) -> PodResult:
        for one in self._main:
            one.set_rejected(str(rejection), self._host.time())
        return PodResult(phase="Failed", reason=rejection.reason, message=str(rejection))

    def _container_context(
        self, context: ContainerContext, devices: dict[str, tuple[int, ...]], one: ContainerRun
    ) -> ContainerContext:
        return ContainerContext(
            host=context.host,
            pod_context=context.pod_context,
            volumes=context.volumes,
            devices=devices.get(one.spec.name, ()),
        )

    def _container(self, spec: RunnableContainer, *, policy: str, is_init: bool) -> ContainerRun:
        grace_s = float(self._spec.termination_grace_period_seconds)
        return ContainerRun(
            spec, policy=policy, is_init=is_init, grace_s=grace_s, changed=lambda: self.reporter.changed()
        )
