"""One pod's life on this machine: volumes, init containers, sidecars, main containers, and its end."""

import asyncio
import traceback
from collections.abc import Callable

import structlog
from msgspec import structs

from holdfast.cluster.errors import BadRequest, ClusterError, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.local.kubelet import environment
from holdfast.local.kubelet.container import RETRY_S, ContainerRun, GracePeriod, background_task, wait_first
from holdfast.local.kubelet.context import HOST_IP, ContainerContext, Host
from holdfast.local.kubelet.devices import RESOURCE, NotEnoughGpus
from holdfast.local.kubelet.environment import PodContext
from holdfast.local.kubelet.errors import PodRejected, RetryLater
from holdfast.local.kubelet.objects import PODS, Container, Pod
from holdfast.local.kubelet.pod_status import PodResult, Snapshot, Terminated, outcome, pod_status
from holdfast.local.kubelet.volumes import prepare

# Writes a pod's status to the cluster: the newest one, when it changed, until it is there.

STATUS_RETRY_S = 1.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class PodStatusWriter:
    def __init__(self, cluster: Cluster, pod: Pod, snapshot: Callable[[], Snapshot], time: Callable[[], str]) -> None:
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
        """Until the newest status is written, or can't be."""
        self._dirty.set()
        while self._dirty.is_set() and not self.is_gone:
            self._dirty.clear()
            if not await self._attempt():
                self._dirty.set()

    async def _attempt(self) -> bool:
        """Whether there is nothing to try again."""
        key = self.pod.metadata.key
        try:
            await self._write()
        except Conflict:
            return await self._look_again()
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
        status = pod_status(self._snapshot(), self.pod.status.conditions, self._time())
        if status != self._written:
            # The version is named because the list of conditions is written whole: others write into it too.
            guard = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
            self.pod = await self._cluster.patch_status(PODS, metadata.key, {"metadata": guard, "status": status})
            self._written = status

    async def _look_again(self) -> bool:
        try:
            pod = await self._cluster.get(PODS, self.pod.metadata.key)
        except ClusterError as error:
            self.is_gone = isinstance(error, NotFound)
            return self.is_gone
        self.is_gone = pod.metadata.uid != self.pod.metadata.uid
        self.pod = self.pod if self.is_gone else pod
        return self.is_gone


class PodRun:
    def __init__(self, pod: Pod, host: Host) -> None:
        self.reporter = PodStatusWriter(host.cluster, pod, self.snapshot, host.time)
        self._host = host
        self._uid = pod.metadata.uid
        self._spec = pod.spec
        self._ip = ""
        self._start_time = host.time()
        self._grace = GracePeriod()
        self._verdict: PodResult | None = None
        self._reason_to_end: PodResult | None = None
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
    def pod(self) -> Pod:
        """As last seen in the cluster."""
        return self.reporter.pod

    def observe(self, pod: Pod) -> None:
        """News from the cluster: only its deletion changes what runs here."""
        self.reporter.pod = pod
        if pod.metadata.deletion_timestamp:
            grace_s = pod.metadata.deletion_grace_period_seconds
            self.terminate(self._spec.termination_grace_period_seconds if grace_s is None else grace_s)

    def terminate(self, grace_s: float, verdict: PodResult | None = None) -> None:
        """Stop within this time; `verdict` is what it is called, when how the containers end is not to decide."""
        if self._reason_to_end is None and not self._grace.began:
            self._reason_to_end = verdict
        self._grace.begin(grace_s)
        for container in (*self._init, *self._main):
            # A sidecar's turn comes when the main containers have ended.
            if container.is_stopping or not container.fact.is_sidecar:
                container.stop(grace_s)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            init=tuple(one.fact for one in self._init),
            main=tuple(one.fact for one in self._main),
            pod_ip=self._ip,
            host_ip=HOST_IP,
            start_time=self._start_time,
            verdict=self._verdict,
        )

    async def run(self) -> PodResult:
        """From the first volume to the last report."""
        async with background_task(self.reporter.run()):
            try:
                self._verdict = await self._live()
            except PodRejected as refusal:
                self._verdict = self._refused(refusal)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not leave the pod unfinished for ever
                # As text: a renderer that shows local variables would show a container's secrets.
                log.error("pod failed", pod=str(self.pod.metadata.key), traceback=traceback.format_exc())
                self._verdict = PodResult(phase="Failed", reason="RunnerError", message=f"the runner failed: {error!r}")
            finally:
                self._host.gpus.release(self._uid)
                self._host.addresses.release(self._uid)
        await self.reporter.flush()
        return self._verdict

    async def _live(self) -> PodResult:
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
            await self._sequence(devices)
        return self._reason_to_end or PodResult(phase=outcome(one.fact for one in self._main))

    async def _sequence(self, devices: dict[str, tuple[int, ...]]) -> None:
        """Every step passes at once when the pod is being stopped: only what runs is then waited for."""
        place = PodContext(pod=self.pod, pod_ip=self._ip, host_ip=HOST_IP, allocatable=self._host.allocatable)
        around = await self._volumes(place)
        if around is None:
            return
        sidecars: list[tuple[ContainerRun, asyncio.Task[None]]] = []
        try:
            if await self._initialize(around, devices, sidecars):
                async with asyncio.TaskGroup() as group:
                    for one in self._main:
                        group.create_task(one.run(self._with(around, devices, one)))
        finally:
            self._grace.begin(self._spec.termination_grace_period_seconds)
            for sidecar, task in reversed(sidecars):
                sidecar.stop(max(self._grace.left or 0, 0))
                await task

    async def _volumes(self, place: PodContext) -> ContainerContext | None:
        """Waits until all of them can be made; None when the pod was stopped meanwhile."""
        self._host.folder(self._uid).mkdir(parents=True, exist_ok=True, mode=0o700)
        while not self._grace.began:
            try:
                needs = environment.of_volumes(self._spec.volumes)
                found = await environment.fetch(self._host.cluster, place.pod.metadata.namespace, needs)
                folder = self._host.folder(self._uid) / "volumes"
                found = structs.replace(found, tokens=environment.tokens(place.pod, self._host.issue_token))
                volumes = prepare(place, found, folder=folder, claim=self._host.claim)
                return ContainerContext(host=self._host, place=place, volumes=volumes)
            except (RetryLater, ClusterError, OSError) as trouble:
                for one in (*self._init, *self._main):
                    one.set_waiting("ContainerCreating", str(trouble))
            await wait_first(self._grace.start(), asyncio.sleep(RETRY_S))
        return None

    async def _initialize(
        self,
        around: ContainerContext,
        devices: dict[str, tuple[int, ...]],
        sidecars: list[tuple[ContainerRun, "asyncio.Task[None]"]],
    ) -> bool:
        """In order; a sidecar has its turn until it has started. Whether the main containers may start."""
        for one in self._init:
            if self._grace.began:
                return False
            run = one.run(self._with(around, devices, one))
            if one.fact.is_sidecar:
                task = asyncio.create_task(run)
                sidecars.append((one, task))
                await wait_first(task, one.has_started.wait(), self._grace.start())
            else:
                await run
                if not (isinstance(one.fact.state, Terminated) and one.fact.state.exit_code == 0):
                    return False
        return not self._grace.began

    async def _deadline(self) -> None:
        if self._spec.active_deadline_seconds is not None:
            await asyncio.sleep(self._spec.active_deadline_seconds)
            message = f"the pod was active on the node longer than {self._spec.active_deadline_seconds} s"
            verdict = PodResult(phase="Failed", reason="DeadlineExceeded", message=message)
            self.terminate(self._spec.termination_grace_period_seconds, verdict)

    def _refused(self, refusal: PodRejected) -> PodResult:
        for one in self._main:
            one.set_rejected(str(refusal), self._host.time())
        return PodResult(phase="Failed", reason=refusal.reason, message=str(refusal))

    def _with(
        self, around: ContainerContext, devices: dict[str, tuple[int, ...]], one: ContainerRun
    ) -> ContainerContext:
        return ContainerContext(
            host=around.host, place=around.place, volumes=around.volumes, devices=devices.get(one.spec.name, ())
        )

    def _container(self, spec: Container, *, policy: str, is_init: bool) -> ContainerRun:
        grace_s = float(self._spec.termination_grace_period_seconds)
        return ContainerRun(
            spec, policy=policy, is_init=is_init, grace_s=grace_s, changed=lambda: self.reporter.changed()
        )
