"""The nodes of machines on this computer: each is a kubelet with a folder of its own, beside `up`'s own node.

The GPUs of such a node are pretended: pods get numbers of devices, whatever is behind them.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import aiohttp
import structlog
from msgspec import Struct
from prometheus_client import CollectorRegistry

from holdfast.api.provisionedinstance import INSTANCE_LABEL, SPOT_NODE_LABEL
from holdfast.cluster.protocol import Cluster
from holdfast.errors import HoldfastError
from holdfast.local.kubelet import processes, volumes
from holdfast.local.kubelet.devices import RESOURCE, find
from holdfast.local.kubelet.kubelet import Kubelet, identity_of
from holdfast.local.kubelet.node import PLAIN_NODE, NodeDetails
from holdfast.node.notice.mark import NodeMarker
from holdfast.node.notice.metadata import PreemptionNotice
from holdfast.node.notice.metrics import NoticeMetrics
from holdfast.node.notice.sidecars import SidecarNotifier
from holdfast.node.notice.watch import NoticeWatch
from holdfast.providers.local.runner import LocalNodeSpec

PRETENDED_GPUS = "holdfast.dev/pretended-gpus"
ZONE_LABEL, REGION_LABEL = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
TYPE_LABEL = "node.kubernetes.io/instance-type"

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# A kubelet for a folder, with the resources and details of its node.
MakeKubelet = Callable[[str, Path, Mapping[str, str], NodeDetails], Kubelet]


class NodeNotStarted(HoldfastError):
    """The node of a machine can't start on this computer."""


class MachineFolderRemains(HoldfastError):
    """The disk of a machine that is gone can't be removed."""


class AnnouncedNotice:
    """The notices of one machine, as a `NoticeSource`: a question is held until there is something new."""

    cloud = "holdfast up"
    provider = "local"
    notice_s = 0.0
    interval_s = 0.0

    def __init__(self) -> None:
        self._deadline: datetime | None = None
        self._changed = asyncio.Event()
        self._changed.set()  # the first question is answered at once

    def announce(self, deadline: datetime) -> None:
        self._deadline = deadline
        self._changed.set()

    async def is_here(self) -> bool:
        return True

    async def current_notice(self) -> PreemptionNotice | None:
        await self._changed.wait()
        self._changed.clear()
        return None if self._deadline is None else PreemptionNotice(cloud=self.cloud, deadline=self._deadline)


class _Running(Struct, frozen=True):
    kubelet: Kubelet
    watch: "asyncio.Task[None]"


class LocalMachines:
    """`NodeRunner` for this computer; the nodes' folders are below `folder`."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        folder: Path,
        resources: Mapping[str, str],
        make_kubelet: MakeKubelet,
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._resources = resources
        self._make_kubelet = make_kubelet
        self._now = now
        self._notices: dict[str, AnnouncedNotice] = {}
        self._running: dict[str, _Running] = {}
        self._metrics = NoticeMetrics(CollectorRegistry())
        self._http = aiohttp.ClientSession(trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

    def kubelet(self, node: str) -> Kubelet | None:
        """The kubelet of that node, while the machine is there."""
        running = self._running.get(node)
        return running.kubelet if running is not None else None

    async def start(self, node: LocalNodeSpec) -> None:
        if node.name in self._running:
            return
        kubelet = self._make_kubelet(node.name, self._folder / node.name, self._offered(node), node_details(node))
        try:
            await kubelet.start()
        except BaseException as error:
            await kubelet.kill()
            if isinstance(error, OSError):
                raise NodeNotStarted(str(error)) from error
            raise
        watch = asyncio.create_task(self._watch_notices(node.name), name=f"notices of {node.name}")
        self._running[node.name] = _Running(kubelet, watch)
        log.info("machine is up", machine=node.name, zone=node.zone, pretended_gpus=node.gpu_count)

    def announce(self, name: str, deadline: datetime) -> None:
        self._notice(name).announce(deadline)

    async def kill(self, name: str) -> None:
        folder = self._folder / name
        running = self._running.get(name)
        if running is not None:
            running.watch.cancel()
            await running.kubelet.kill()
        else:
            await _end_remains(folder)
        if await asyncio.to_thread(folder.exists):
            await volumes.remove(folder)
            if await asyncio.to_thread(folder.exists):
                raise MachineFolderRemains(f"{folder}, the disk of machine {name}, can't be removed: remove it by hand")
        self._running.pop(name, None)
        self._notices.pop(name, None)

    async def stop(self) -> None:
        """Stop all nodes in order, each pod within its grace period; the machines stay."""
        found, self._running = list(self._running.values()), {}
        for each in found:
            each.watch.cancel()
        await asyncio.gather(*(each.watch for each in found), return_exceptions=True)
        await asyncio.gather(*(each.kubelet.stop() for each in found))
        await self._http.close()

    def _offered(self, node: LocalNodeSpec) -> dict[str, str]:
        """CPUs and memory are those of this computer: machines share them."""
        own = {name: amount for name, amount in self._resources.items() if name != RESOURCE}
        return {**own, RESOURCE: str(node.gpu_count)} if node.gpu_count else own

    def _notice(self, name: str) -> AnnouncedNotice:
        return self._notices.setdefault(name, AnnouncedNotice())

    async def _watch_notices(self, name: str) -> None:
        """What the agent does on a cloud's machine: it marks the Node and calls the sidecars."""
        watch = NoticeWatch(
            NodeMarker(self._cluster, name, instance=f"holdfast-node-{name}"),
            SidecarNotifier(self._cluster, name, self._http, on_call=self._metrics.called),
            self._metrics,
            now=self._now,
        )
        await watch.follow(self._notice(name))


def node_details(node: LocalNodeSpec) -> NodeDetails:
    """What a cloud's controllers and kubeadm write, and that the GPUs are pretended."""
    labels = {
        SPOT_NODE_LABEL: "true" if node.preemptible else "",  # a loss of one with it counts as a preemption
        INSTANCE_LABEL: node.uid,
        ZONE_LABEL: node.zone,
        REGION_LABEL: node.zone.rpartition("-")[0],
        TYPE_LABEL: node.machine_type,
    }
    gpus = f"; its GPUs are pretended: {node.gpu_count} × {node.gpu_type or 'GPU'}" if node.gpu_count else ""
    return NodeDetails(
        labels={name: value for name, value in labels.items() if value},
        annotations={PRETENDED_GPUS: str(node.gpu_count)},
        provider_id=f"local://{node.zone}/{node.name}",
        message=f"{PLAIN_NODE.message}{gpus}",
    )


async def _end_remains(folder: Path) -> None:
    """What an earlier run of holdfast has left of a machine."""
    identity = identity_of(folder)
    await processes.end_orphans(folder / "pods", identity)
    if cgroups := find(identity):
        cgroups.remove()
