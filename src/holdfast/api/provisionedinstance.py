"""ProvisionedInstance: one virtual machine, one object."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from holdfast.api.core.pod import LocalObjectReference, ObjectReference
from holdfast.api.kind import AGE, Kind, PrinterColumn
from holdfast.api.meta import ApiStruct, Conditions, Object, ObservedGeneration
from holdfast.api.scalars import Count, Timestamp
from holdfast.api.schema.rules import Reason, Rule
from holdfast.api.spotinstancevm import InstanceState, Project, Zone

Phase = Literal["Launch", "Join", "GPUReady", "Serve", "End"]

# Keeps the object until the provider says that the machine is gone.
MACHINE_FINALIZER = "training.dcnlab.com/machine"
# Labels of the Node that a machine has become.
SPOT_NODE_LABEL = "holdfast.dev/spot"
INSTANCE_LABEL = "holdfast.dev/instance"  # its value: uid of the ProvisionedInstance
# Taint of that Node, with the job's uid as its value: other pods stay away.
RESERVED_TAINT = "holdfast.dev/reserved"

# Asks `holdfast up` to take the machine back; its value: how long after the notice, or "" for the template's word.
PREEMPT_ANNOTATION = "holdfast.dev/preempt"


def machine_name(uid: str) -> str:
    """The provider's name of the machine of the ProvisionedInstance with that uid, and the name of its Node."""
    return f"holdfast-{uid}"


class ProvisionedInstanceSpec(ApiStruct, frozen=True, kw_only=True):
    vm_ref: Annotated[LocalObjectReference, Meta(description="The SpotInstanceVM that the machine is made from.")]
    project: Annotated[Project, Meta(description="Project of the machine; the template's without it.")] | None = None
    credentials_secret_ref: Annotated[
        ObjectReference | None,
        Meta(
            description="Secret whose key credentials.json holds the service account that makes and deletes the "
            "machine. Without it, the operator's own cloud identity, in namespaces that it may be used in."
        ),
    ] = None
    job_ref: Annotated[
        LocalObjectReference | None, Meta(description="The SpotInstanceJob that the machine was ordered for.")
    ] = None
    replica: Annotated[Count, Meta(description="The replica of that job.")] | None = None
    zone: Annotated[Zone, Meta(description="Zone of the machine; the template's first without it.")] | None = None
    preemptible: Annotated[bool, Meta(description="Whether it is a spot machine; true by default.")] = True


class ProvisionedInstanceStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: ObservedGeneration = 0
    phase: Annotated[
        Phase | None,
        Meta(
            description="How far the machine is. Launch: it is being made. Join: it becomes a Node. GPUReady: its "
            "DaemonSets and GPUs get ready. Serve: it is at its job's disposal. End: it is given back."
        ),
    ] = None
    step: (
        Annotated[
            str, Meta(description="What is waited for in this phase, in one word such as Kubeadm.", max_length=64)
        ]
        | None
    ) = None
    step_start_time: (
        Annotated[Timestamp, Meta(description="Since when: the deadline of the step counts from here.")] | None
    ) = None
    message: (
        Annotated[
            str, Meta(description="What is waited for, or why the machine ends, in a sentence.", max_length=32768)
        ]
        | None
    ) = None
    project: Annotated[str, Meta(description="Project that the machine was ordered in.", max_length=63)] | None = None
    zone: Annotated[str, Meta(description="Zone that it was ordered in.", max_length=63)] | None = None
    instance_id: Annotated[str, Meta(description="The provider's number of the machine.", max_length=64)] | None = (
        field(name="instanceID", default=None)
    )
    instance_name: Annotated[str, Meta(description="The provider's name of the machine.", max_length=253)] | None = None
    internal_ip: Annotated[str, Meta(description="Address in the network.", max_length=64)] | None = field(
        name="internalIP", default=None
    )
    external_ip: Annotated[str, Meta(description="Public address, if any.", max_length=64)] | None = field(
        name="externalIP", default=None
    )
    state: Annotated[InstanceState | None, Meta(description="The provider's state of the machine.")] = None
    node_name: Annotated[str, Meta(description="The node that it has become.", max_length=253)] | None = None
    joined_cluster: Annotated[bool, Meta(description="Whether it has become a node.")] = False
    creation_time: Annotated[Timestamp, Meta(description="When the machine was made.")] | None = None
    preemption_notice: (
        Annotated[Timestamp, Meta(description="When the provider said that it takes the machine away.")] | None
    ) = None
    conditions: Annotated[
        Conditions,
        Meta(
            description="For kubectl wait. Launched: the provider has accepted the machine. Joined: it is a Node of "
            "this cluster. GPUReady: its GPUs can be used. Preempted: the provider took it back. A False one names the "
            "step, its deadline and what was said last."
        ),
    ] = ()


class ProvisionedInstance(Object, frozen=True, kw_only=True):
    """One machine. It is written down here before it is made, and stays until the provider says that it is gone."""

    RULES: ClassVar = (
        Rule(
            rule="self.spec == oldSelf.spec",
            message="a machine can't be changed once it was ordered: delete this object, and another is ordered "
            "at need",
            field=".spec",
            reason=Reason.FORBIDDEN,
        ),
    )

    spec: Annotated[ProvisionedInstanceSpec, Meta(description="Which machine, and for whom.")]
    status: Annotated[
        ProvisionedInstanceStatus | None,
        Meta(description="What the operator has found. Written by the operator alone."),
    ] = None


KIND = Kind(
    group="training.training.dcnlab.com",
    versions=("v1alpha1",),
    kind="ProvisionedInstance",
    plural="provisionedinstances",
    short_name="pi",
    model=ProvisionedInstance,
    columns=(
        PrinterColumn(name="PHASE", path=".status.phase", description="How far the machine is."),
        PrinterColumn(name="STATE", path=".status.state", description="The provider's state of the machine."),
        PrinterColumn(name="NODE", path=".status.nodeName", description="The node that it has become."),
        PrinterColumn(name="JOB", path=".spec.jobRef.name", description="The job that it was ordered for."),
        PrinterColumn(name="ZONE", path=".spec.zone", description="Zone of the machine."),
        AGE,
        PrinterColumn(name="VM", path=".spec.vmRef.name", wide=True, description="Template of the machine."),
        PrinterColumn(
            name="SPOT", path=".spec.preemptible", type="boolean", wide=True, description="Spot or on demand."
        ),
        PrinterColumn(name="INSTANCE", path=".status.instanceName", wide=True, description="The provider's name."),
        PrinterColumn(name="INTERNAL-IP", path=".status.internalIP", wide=True, description="Address in the network."),
        PrinterColumn(name="EXTERNAL-IP", path=".status.externalIP", wide=True, description="Public address."),
        PrinterColumn(name="MESSAGE", path=".status.message", wide=True, description="What is waited for."),
    ),
)
