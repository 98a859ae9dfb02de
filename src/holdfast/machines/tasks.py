"""The tasks that run in the background for one machine: what is asked of the cloud, and of the machine itself."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from holdfast.api.meta import Key
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NAMESPACES
from holdfast.machines.background import Background
from holdfast.machines.clouds import Cloud, CloudSource
from holdfast.machines.joining import CannotJoin, Joiner, JoinProgress, JoinRequest
from holdfast.machines.machine_spec import join_progress, join_target, machine_spec
from holdfast.machines.projects import MachineProject, MachineProjects
from holdfast.machines.snapshot import STOPPED_STATES, Absent, Listed, MachineSnapshot, MachineTiming
from holdfast.machines.work import Gone, MachineTask, Value
from holdfast.providers.errors import CloudUnauthorized, MachineNotFound
from holdfast.providers.protocol import Machine, Provider
from holdfast.runtime.process import Now
from holdfast.runtime.secrets import SecretUnavailable
from holdfast.times import parse_optional_time

T = TypeVar("T")

# Nothing boots faster.
QUICKEST_BOOT = timedelta(seconds=10)
NAMED_AFTER = Key("", "kube-system")


class ClusterUid:
    """The name of this cluster for clouds, which no other cluster has: the uid of the namespace kube-system."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._uid = ""

    async def __call__(self) -> str:
        if not self._uid:
            self._uid = (await self._cluster.get(NAMESPACES, NAMED_AFTER)).metadata.uid
        return self._uid


class _HostKeys:
    """The keys that a machine tells at its boot: the cloud is not asked before it can have booted."""

    def __init__(self, provider: Provider, seen: MachineSnapshot, now: Now) -> None:
        self._provider = provider
        self._made_at = parse_optional_time(seen.status.creation_time)
        self._now = now

    async def host_keys(self, zone: str, name: str) -> tuple[str, ...]:
        if self._made_at is not None and self._now() < self._made_at + QUICKEST_BOOT:
            return ()
        return await self._provider.host_keys(zone, name)


class MachineTasks:
    """Begins tasks in the background."""

    def __init__(
        self,
        background: Background,
        clouds: CloudSource,
        joiner: Joiner,
        projects: MachineProjects,
        cluster_uid: Callable[[], Awaitable[str]],
        *,
        now: Now,
        timing: MachineTiming,
    ) -> None:
        self._now = now
        self._background = background
        self._clouds = clouds
        self._joiner = joiner
        self._projects = projects
        self._cluster_uid = cluster_uid
        self._timing = timing

    def start(self, task: MachineTask, cause: str, seen: MachineSnapshot) -> None:
        does = {
            MachineTask.LAUNCH: self._launch,
            MachineTask.JOIN: self._join,
            MachineTask.CHECK: self._check,
            MachineTask.DELETE: self._delete,
        }

        async def work() -> Value:
            cloud = await self._open(seen)
            try:
                return await does[task](seen, cloud.provider)
            except CloudUnauthorized:
                self._clouds.rejected(cloud.account)
                raise

        self._background.start(seen.instance.metadata.key, seen.uid, task, work, cause=cause)

    def cancel(self, task: MachineTask, seen: MachineSnapshot, *, if_queued: bool = False) -> None:
        self._background.cancel(seen.uid, task, if_queued=if_queued)

    async def revoke(self, seen: MachineSnapshot) -> None:
        await self._joiner.revoke(seen.uid)

    async def _open(self, seen: MachineSnapshot) -> Cloud:
        spec, namespace = seen.instance.spec, seen.instance.metadata.namespace
        return await self._clouds.open(namespace, seen.project, spec.credentials_secret_ref)

    async def _launch(self, seen: MachineSnapshot, provider: Provider) -> Machine:
        template, meta, spec = seen.template, seen.instance.metadata, seen.instance.spec
        if template is None:
            raise CannotJoin("Template", f"there is no SpotInstanceVM {spec.vm_ref.name} to make a machine from")
        try:
            metadata = await self._joiner.metadata(join_target(seen, template))
        except SecretUnavailable as error:
            raise CannotJoin(error.reason, str(error)) from None
        # From here on the sweep finds what is made there, whatever becomes of the object.
        await self._projects.add(
            MachineProject(project=seen.project, namespace=meta.namespace, secret=spec.credentials_secret_ref)
        )
        return await provider.launch(machine_spec(seen, template, await self._cluster_uid(), metadata))

    async def _join(self, seen: MachineSnapshot, provider: Provider) -> None:
        status = seen.status
        # Where a cluster and its machines share a network, firewalls let the internal address through.
        addresses = (status.internal_ip or "", status.external_ip or "")
        if not any(addresses):
            machine = await provider.get(seen.zone, seen.machine)
            addresses = (machine.internal_ip, machine.external_ip)
        request = JoinRequest(
            target=join_target(seen, seen.template),
            addresses=tuple(filter(None, addresses)),
            resumed=join_progress(seen, self._timing),
        )
        key, uid = seen.instance.metadata.key, seen.uid

        def report(progress: JoinProgress) -> None:
            self._background.report(key, uid, MachineTask.JOIN, progress)

        await self._joiner.join(request, _HostKeys(provider, seen, self._now), report)

    async def _check(self, seen: MachineSnapshot, provider: Provider) -> Value:
        """What the list has shown already is not asked for a second time."""
        if isinstance(seen.listed, Absent) and await self._is_preempted(seen, provider):
            return Gone(preempted=True)
        if isinstance(seen.listed, Listed) and seen.listed.machine.state in STOPPED_STATES:
            return Gone(preempted=await self._is_preempted(seen, provider), exists=True)
        try:
            machine = await provider.get(seen.zone, seen.machine)
        except MachineNotFound:
            return Gone(preempted=await self._is_preempted(seen, provider))
        if machine.state in STOPPED_STATES:
            return Gone(preempted=await self._is_preempted(seen, provider), exists=True)
        return machine

    async def _is_preempted(self, seen: MachineSnapshot, provider: Provider) -> bool:
        return await provider.is_preempted(seen.zone, seen.machine, seen.status.instance_id or "")

    async def _delete(self, seen: MachineSnapshot, provider: Provider) -> None:
        await provider.delete(seen.zone, seen.machine, seen.uid)
