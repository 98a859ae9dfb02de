"""Looks for machines that no object stands for, and for Nodes whose machine is gone: nobody else would find them.

Nothing is concluded from what did not answer: neither from a zone, nor from a project, nor from the API server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import timedelta

import structlog
from msgspec import Struct

from holdfast.api.core.objects import Node
from holdfast.api.machine_ends import is_gone
from holdfast.api.meta import Key, Object
from holdfast.api.provisionedinstance import INSTANCE_LABEL, ProvisionedInstance, machine_name
from holdfast.cluster.errors import ClusterError, Conflict, NotFound, NotLeading
from holdfast.cluster.protocol import Cluster, DeleteOptions, Resource
from holdfast.cluster.resources import NODES, PROVISIONED_INSTANCES
from holdfast.machines.clouds import Account, CloudSource, CloudUnavailable
from holdfast.machines.metrics import MachineMetrics
from holdfast.machines.projects import MachineProject, MachineProjects
from holdfast.providers.errors import ProviderError
from holdfast.providers.protocol import Machine, MachineList, Provider
from holdfast.runtime.informer import Store
from holdfast.runtime.process import Now
from holdfast.times import parse_optional_time

INTERVAL_S = 300.0
YOUNGEST = timedelta(minutes=10)
MOST_DELETED = 20

# All that are written, whatever else is in them.
WRITTEN_INSTANCES = Resource(
    group=PROVISIONED_INSTANCES.group,
    version=PROVISIONED_INSTANCES.version,
    kind=PROVISIONED_INSTANCES.kind,
    plural=PROVISIONED_INSTANCES.plural,
    model=Object,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Swept(Struct, frozen=True):
    project: MachineProject
    provider: Provider
    listed: MachineList


class Sweep:
    """One pass every few minutes while this operator leads. What is found has to be found twice."""

    def __init__(
        self,
        cluster: Cluster,
        clouds: CloudSource,
        projects: MachineProjects,
        nodes: Store[Node],
        instances: Store[ProvisionedInstance],
        cluster_uid: Callable[[], Awaitable[str]],
        metrics: MachineMetrics,
        *,
        now: Now,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._cluster = cluster
        self._clouds = clouds
        self._projects = projects
        self._nodes = nodes
        self._instances = instances
        self._cluster_uid = cluster_uid
        self._metrics = metrics
        self._now = now
        self._interval_s = interval_s
        self._suspected: set[str] = set()
        """What the pass before this one has found: ids of machines, uids of Nodes."""
        self._empty: set[Account] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.sweep()
            except NotLeading:
                raise
            except (ClusterError, ProviderError) as error:
                log.warning("machines not swept", reason=str(error))
            except Exception:
                log.exception("machines not swept")

    async def sweep(self) -> None:
        projects = await self._known_projects()
        if not projects:
            return
        swept = await self._listed(projects)
        # Read after the lists: an object that is not there now was not there when its machine was listed.
        instances = {each.metadata.uid: each for each in (await self._cluster.list(PROVISIONED_INSTANCES)).items}
        suspected: set[str] = set()
        left, unread = MOST_DELETED, await self._unread(instances)
        for each in swept:
            leaked = [machine for machine in each.listed.machines if self._is_leaked(machine, instances)]
            leaked = [machine for machine in leaked if machine.uid not in unread]
            suspected |= {_mark(machine) for machine in leaked}
            for machine in leaked:
                self._metrics.suspected(machine.zone)
            doomed = [machine for machine in leaked if _mark(machine) in self._suspected][:left]
            left -= len(doomed)
            await asyncio.gather(*(self._delete(each.provider, machine) for machine in doomed))
            await self._forget_if_unused(each, instances)
        suspected |= await self._end_nodes(unread.union(instances), swept, is_complete=len(swept) == len(projects))
        self._suspected = suspected

    async def _unread(self, instances: Mapping[str, ProvisionedInstance]) -> set[str]:
        """The uids of objects that a list leaves out, since they do not fit their model, as after a downgrade."""
        return {each.metadata.uid for each in (await self._cluster.list(WRITTEN_INSTANCES)).items} - instances.keys()

    async def _known_projects(self) -> tuple[MachineProject, ...]:
        """Of past machines, and of those that have an object now."""
        found = [*await self._projects.all(), *filter(None, map(_project_of, self._instances))]
        return tuple({each.entry: each for each in found}.values())

    async def _listed(self, projects: Iterable[MachineProject]) -> list[_Swept]:
        """The machines of those that answer."""
        cluster_uid, swept = await self._cluster_uid(), []
        for project in projects:
            try:
                cloud = await self._clouds.open(project.namespace, project.project, project.secret)
                listed = await cloud.provider.list(cluster_uid)
            except (CloudUnavailable, ProviderError) as error:
                log.warning("a project is not swept", account=str(project.account), reason=str(error))
                continue
            swept.append(_Swept(project, cloud.provider, listed))
        return swept

    def _is_leaked(self, machine: Machine, instances: Mapping[str, ProvisionedInstance]) -> bool:
        if not machine.uid or machine.name != machine_name(machine.uid):
            return False
        instance = instances.get(machine.uid)
        if instance is not None and not is_gone(instance):
            return False
        return machine.created_at is not None and self._now() - machine.created_at >= YOUNGEST

    async def _delete(self, provider: Provider, machine: Machine) -> None:
        log.warning("a machine without an object is deleted", machine=machine.name, zone=machine.zone)
        self._metrics.leaked(machine.zone)
        try:
            await provider.delete(machine.zone, machine.name, machine.uid)
        except ProviderError as error:
            log.warning("a machine without an object is not deleted", machine=machine.name, reason=str(error))

    async def _end_nodes(self, instances: set[str], swept: Collection[_Swept], *, is_complete: bool) -> set[str]:
        """Nodes of machines that are gone and have no object that would see to it. Returns those found now."""
        known = instances.union(machine.uid for each in swept for machine in each.listed.machines)
        answered = {each.project.project for each in swept if not each.listed.unreachable}
        is_complete = is_complete and bool(swept) and not any(each.listed.unreachable for each in swept)
        found = {
            node.metadata.uid: node
            for node in self._nodes
            if (uid := _machine_of(node))
            and uid not in known
            # Where a Node does not tell its project, its machine may be in any of them.
            and (project in answered if (project := _project_of_node(node)) else is_complete)
            and self._is_lost(node)
        }
        for uid, node in found.items():
            if uid in self._suspected:
                log.warning("the Node of a machine that is gone is deleted", node=node.metadata.name)
                try:
                    await self._cluster.delete(NODES, Key("", node.metadata.name), DeleteOptions(uid=uid))
                except (NotFound, Conflict):
                    continue
        return set(found)

    def _is_lost(self, node: Node) -> bool:
        """A kubelet that reports has a machine under it, whatever the lists say."""
        created = parse_optional_time(node.metadata.creation_timestamp)
        return not node.is_ready and created is not None and self._now() - created >= YOUNGEST

    async def _forget_if_unused(self, swept: _Swept, instances: Mapping[str, ProvisionedInstance]) -> None:
        """Of a project without objects and machines, seen twice, nothing is to be remembered."""
        account, listed = swept.project.account, swept.listed
        # Also by who came while machines were deleted.
        projects = map(_project_of, (*instances.values(), *self._instances))
        is_used = any(each is None or each.account == account for each in projects)
        # The machine of such a Node may be anywhere.
        is_used = is_used or any((uid := _machine_of(node)) and uid not in instances for node in self._nodes)
        if is_used or listed.machines or listed.unreachable:
            self._empty.discard(account)
        elif account not in self._empty:
            self._empty.add(account)
        else:
            self._empty.discard(account)
            await self._projects.remove(swept.project)
            await self._clouds.forget(account)


def _project_of(instance: ProvisionedInstance) -> MachineProject | None:
    """None where the template alone says which project it is."""
    spec, status = instance.spec, instance.status
    project = (status.project if status is not None else None) or spec.project
    if project is None:
        return None
    return MachineProject(project=project, namespace=instance.metadata.namespace, secret=spec.credentials_secret_ref)


def _machine_of(node: Node) -> str:
    """The uid that a Node of ours carries, if it has the name of that machine."""
    uid = node.metadata.labels.get(INSTANCE_LABEL, "")
    return uid if uid and node.metadata.name == machine_name(uid) else ""


def _project_of_node(node: Node) -> str:
    """As the join has written it, gce://project/zone/name; "" where the machine joined by itself and does not tell."""
    cloud, _, rest = node.spec.provider_id.partition("://")
    return rest.partition("/")[0] if cloud == "gce" else ""


def _mark(machine: Machine) -> str:
    return f"{machine.zone}/{machine.name}/{machine.id}"
