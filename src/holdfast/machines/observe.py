"""Reads a ProvisionedInstance, its template, its Node and the pods there from the caches."""

from collections.abc import Iterable

from msgspec import Struct

from holdfast.api.core.objects import Node, Pod
from holdfast.api.machine_ends import status_of
from holdfast.api.meta import Key
from holdfast.api.provisionedinstance import ProvisionedInstance, machine_name
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.cluster.resources import NODES, PODS, PROVISIONED_INSTANCES, SPOT_INSTANCE_VMS
from holdfast.machines.snapshot import MachineSnapshot
from holdfast.runtime.children import BY_NODE, node_of
from holdfast.runtime.informer import Store
from holdfast.runtime.operator import Operator

BY_MACHINE = "machine"
BY_TEMPLATE = "template"


def machine_of(instance: ProvisionedInstance) -> Iterable[str]:
    return (machine_name(instance.metadata.uid),)


def template_of(instance: ProvisionedInstance) -> Iterable[str]:
    return (str(Key(instance.metadata.namespace, instance.spec.vm_ref.name)),)


class MachineCaches(Struct, frozen=True):
    """The stores that the controllers of machines read; those of pods and nodes are shared with the other kinds."""

    instances: Store[ProvisionedInstance]
    templates: Store[SpotInstanceVM]
    nodes: Store[Node]
    pods: Store[Pod]

    @classmethod
    def of(cls, operator: Operator) -> "MachineCaches":
        return cls(
            instances=operator.store(PROVISIONED_INSTANCES, {BY_MACHINE: machine_of, BY_TEMPLATE: template_of}),
            templates=operator.store(SPOT_INSTANCE_VMS),
            nodes=operator.store(NODES),
            pods=operator.store(PODS, {BY_NODE: node_of}),
        )

    def snapshot(self, instance: ProvisionedInstance) -> MachineSnapshot:
        meta = instance.metadata
        name = machine_name(meta.uid)
        return MachineSnapshot(
            instance=instance,
            template=self.templates.get(Key(meta.namespace, instance.spec.vm_ref.name)),
            node=self.nodes.get(Key("", name)),
            pods=tuple(self.pods.by(BY_NODE, name)),
        )

    # Which machines a change concerns.

    def keys_of_node(self, node: Node) -> Iterable[Key]:
        return [instance.metadata.key for instance in self.instances.by(BY_MACHINE, node.metadata.name)]

    def keys_of_pod(self, pod: Pod) -> Iterable[Key]:
        """What runs on a machine that serves is its job's business."""
        found = self.instances.by(BY_MACHINE, pod.spec.node_name) if pod.spec.node_name else []
        return [instance.metadata.key for instance in found if status_of(instance).phase != "Serve"]

    def keys_of_template(self, template: SpotInstanceVM) -> Iterable[Key]:
        """Once a machine is asked for, its template is of no interest any more."""
        found = self.instances.by(BY_TEMPLATE, str(template.metadata.key))
        return [instance.metadata.key for instance in found if status_of(instance).instance_name is None]
