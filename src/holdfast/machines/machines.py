"""All that the operator runs for machines: two controllers, and what works beside them while the operator leads."""

from collections.abc import Callable
from random import Random

from msgspec import Struct

from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import NODES, PODS, PROVISIONED_INSTANCES, SPOT_INSTANCE_VMS
from holdfast.machines.apply import MachineApplier
from holdfast.machines.background import Background
from holdfast.machines.clouds import CloudSource
from holdfast.machines.controller import ProvisionedInstanceReconciler
from holdfast.machines.joining import Joiner
from holdfast.machines.metrics import MachineMetrics
from holdfast.machines.observe import MachineCaches
from holdfast.machines.poller import Poller
from holdfast.machines.projects import MachineProjects
from holdfast.machines.snapshot import TIMING, MachineTiming
from holdfast.machines.sweep import Sweep
from holdfast.machines.tasks import ClusterUid, MachineTasks
from holdfast.machines.vm_controller import SpotInstanceVMMetrics, SpotInstanceVMReconciler, template_key
from holdfast.runtime.controller import Controller, Watch
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import Now
from holdfast.runtime.reconciler import InstrumentedReconciler
from holdfast.scheduling.machine_pools import MachinePools

# Called with each request to a cloud: method and HTTP status.
Observe = Callable[[str, int], None]


class Machines(Struct, frozen=True, kw_only=True):
    """The controllers are added to the operator that they were made for, and the sweep may be run by hand."""

    instances: Controller[ProvisionedInstance]
    templates: Controller[SpotInstanceVM]
    sweep: Sweep
    poller: Poller
    background: Background

    def add_to(self, operator: Operator) -> None:
        operator.add(self.instances)
        operator.add(self.templates)
        for work in (self.background.run, self.poller.run, self.sweep.run):
            operator.add_leader_task(work)


def machines(
    operator: Operator,
    cluster: Cluster,
    clouds: Callable[[Observe], CloudSource],
    joiner: Joiner,
    pools: MachinePools,
    *,
    namespace: str,
    now: Now,
    random: Random,
    timing: MachineTiming = TIMING,
) -> Machines:
    """On the operator's stores. `pools` is shared with those who order machines; `namespace` is the operator's own."""
    caches, writer = MachineCaches.of(operator), operator.writer()
    metrics = MachineMetrics(operator.registry, operator.shown(caches.instances.list))
    source, cluster_uid = clouds(metrics.requested), ClusterUid(cluster)
    background = Background(now=now, random=random)
    poller = Poller(source, cluster_uid, metrics, now=now)
    projects = MachineProjects(cluster, namespace)
    tasks = MachineTasks(background, source, joiner, projects, cluster_uid, now=now, timing=timing)
    reconciler = ProvisionedInstanceReconciler(
        caches,
        source,
        background,
        poller,
        MachineApplier(tasks, pools),
        pools,
        writer,
        operator.recorder,
        metrics,
        now=now,
        timing=timing,
    )
    return Machines(
        instances=Controller(
            name="provisionedinstance",
            resource=PROVISIONED_INSTANCES,
            reconciler=InstrumentedReconciler(reconciler, metrics),
            writer=writer,
            watches=(
                Watch(NODES, caches.keys_of_node),
                Watch(PODS, caches.keys_of_pod),
                Watch(SPOT_INSTANCE_VMS, caches.keys_of_template),
                background,
                poller,
            ),
        ),
        templates=_template_controller(operator, caches, now),
        sweep=Sweep(cluster, source, projects, caches.nodes, caches.instances, cluster_uid, metrics, now=now),
        poller=poller,
        background=background,
    )


def _template_controller(operator: Operator, caches: MachineCaches, now: Now) -> Controller[SpotInstanceVM]:
    writer, metrics = operator.writer(), SpotInstanceVMMetrics(operator.registry)
    reconciler = SpotInstanceVMReconciler(caches, writer, operator.recorder, metrics, now=now)
    return Controller(
        name="spotinstancevm",
        resource=SPOT_INSTANCE_VMS,
        reconciler=InstrumentedReconciler(reconciler, metrics),
        writer=writer,
        watches=(Watch(PROVISIONED_INSTANCES, template_key),),
    )
