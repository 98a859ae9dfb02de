"""Observations of a machine, for tables: each is a good case with something changed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from holdfast.api.core.objects import (
    Container,
    Node,
    NodeCondition,
    NodeSpec,
    NodeStatus,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
)
from holdfast.api.core.pod import LocalObjectReference
from holdfast.api.core.selectors import Taint
from holdfast.api.meta import Condition, ObjectMeta, OwnerReference
from holdfast.api.provisionedinstance import (
    MACHINE_FINALIZER,
    ProvisionedInstance,
    ProvisionedInstanceSpec,
    ProvisionedInstanceStatus,
    machine_name,
)
from holdfast.api.spotinstancevm import GCP, GPU, SpotInstanceVM, SpotInstanceVMSpec
from holdfast.machines.decision import decide
from holdfast.machines.phases.step import Effect
from holdfast.machines.snapshot import MachineSnapshot, MachineTiming
from holdfast.machines.work import Failed, MachineTask, TaskRunning, Work
from holdfast.pods.failure import PREEMPTED
from holdfast.providers.protocol import Machine
from holdfast.times import format_time

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
UID = "1b4e28ba-2fa1-4d2b-883f-0016d3cca427"
NAME = machine_name(UID)
ZONE, PROJECT = "us-central1-a", "lab-project"
TIMING = MachineTiming()
MACHINE = Machine(
    name=NAME,
    zone=ZONE,
    id="7",
    state="RUNNING",
    internal_ip="10.0.0.7",
    external_ip="192.0.2.7",
    created_at=START,
    uid=UID,
)
TEMPLATE = SpotInstanceVM(
    metadata=ObjectMeta(name="t4", namespace="ml", uid="vm-uid", generation=1),
    spec=SpotInstanceVMSpec(
        vm_image="images/gpu",
        gpu=GPU(type="nvidia-tesla-t4", count=2),
        gcp=GCP(project=PROJECT, zone=ZONE, machine_type="n1-standard-4"),
    ),
)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def condition(kind: str, status: str, reason: str = "Reason", *, since_s: float = 0) -> Condition:
    return Condition(
        type=kind,
        status=status,
        reason=reason,
        message=f"{kind} is {status}",
        last_transition_time=format_time(at(since_s)),
    )


ASKED: dict[str, Any] = {
    "phase": "Launch",
    "step": "Insert",
    "step_start_time": format_time(START),
    "instance_name": NAME,
    "zone": ZONE,
    "project": PROJECT,
    "conditions": (condition("Launched", "False", "Insert"),),
}
LAUNCHED: dict[str, Any] = {
    **ASKED,
    "phase": "Join",
    "step": "HostKey",
    "instance_id": "7",
    "state": "RUNNING",
    "conditions": (condition("Launched", "True"), condition("Joined", "False", "HostKey")),
}
JOINED: dict[str, Any] = {
    **LAUNCHED,
    "phase": "GPUReady",
    "step": "NodeReady",
    "node_name": NAME,
    "joined_cluster": True,
    "conditions": (condition("Launched", "True"), condition("Joined", "True", since_s=60)),
}
SERVING: dict[str, Any] = {
    **JOINED,
    "phase": "Serve",
    "step": "Serving",
    "conditions": (*JOINED["conditions"], condition("GPUReady", "True")),
}
ENDING: dict[str, Any] = {
    **LAUNCHED,
    "phase": "End",
    "step": "Deleting",
    "conditions": (condition("Launched", "True"), condition("Joined", "False", "Login")),
}


def instance(
    status: dict[str, Any] | None = None,
    *,
    deleted: bool = False,
    finalizers: tuple[str, ...] = (MACHINE_FINALIZER,),
    **spec: Any,
) -> ProvisionedInstance:
    return ProvisionedInstance(
        metadata=ObjectMeta(
            name="bert-r0-0-m0",
            namespace="ml",
            uid=UID,
            resource_version="1",
            generation=1,
            deletion_timestamp=format_time(START) if deleted else "",
            finalizers=finalizers,
            owner_references=(
                OwnerReference(
                    api_version="training.training.dcnlab.com/v1alpha1", kind="SpotInstanceJob", name="bert", uid="job"
                ),
            ),
        ),
        spec=ProvisionedInstanceSpec(vm_ref=LocalObjectReference(name="t4"), **{"zone": ZONE, **spec}),
        status=ProvisionedInstanceStatus(**status) if status is not None else None,
    )


def seen(
    status: dict[str, Any] | None = None,
    *,
    work: Mapping[MachineTask, Work] | None = None,
    deleted: bool = False,
    finalizers: tuple[str, ...] = (MACHINE_FINALIZER,),
    **fields: Any,
) -> MachineSnapshot:
    observed = MachineSnapshot(
        instance=instance(status, deleted=deleted, finalizers=finalizers), template=TEMPLATE, work=work or {}
    )
    return structs.replace(observed, **fields)


def node(
    *,
    ready: bool = True,
    gpus: int | str = 2,
    labels: dict[str, str] | None = None,
    marked: str = "",
    since_s: float = 60,
) -> Node:
    conditions = [
        NodeCondition(type="Ready", status="True" if ready else "False", last_transition_time=format_time(at(since_s)))
    ]
    if marked:
        conditions.append(
            NodeCondition(type=PREEMPTED, status="True", message=marked, last_transition_time=format_time(at(99)))
        )
    return Node(
        metadata=ObjectMeta(name=NAME, uid="node-uid", resource_version="5", labels=labels or {}),
        spec=NodeSpec(taints=(Taint(key="a", effect="NoExecute"),)),
        status=NodeStatus(allocatable={"nvidia.com/gpu": gpus}, conditions=tuple(conditions)),
    )


def pod(name: str, *, owner: str = "DaemonSet", ready: bool = True, phase: str = "Running") -> Pod:
    controller = OwnerReference(api_version="apps/v1", kind=owner, name=owner, uid=owner, controller=True)
    conditions = (PodCondition(type="Ready", status="True"),) if ready else ()
    return Pod(
        metadata=ObjectMeta(name=name, namespace="ml", uid=name, owner_references=(controller,)),
        spec=PodSpec(node_name=NAME, containers=(Container(name="c"),)),
        status=PodStatus(phase=phase, conditions=conditions),
    )


def running(*, since_s: float = 0, cause: str = "") -> TaskRunning:
    return TaskRunning(since=at(since_s), cause=cause)


def failed(error: Exception, *, retry_s: float = 0, cause: str = "") -> Failed:
    return Failed(error=error, retry_at=at(retry_s), cause=cause)


class Decided:
    """What is decided in one pass, handy for assertions."""

    def __init__(self, observed: MachineSnapshot, now_s: float, timing: MachineTiming = TIMING) -> None:
        passes = decide(observed, at(now_s), timing)
        self.status: ProvisionedInstanceStatus = passes[-1].status
        self.effects: tuple[Effect, ...] = tuple(effect for each in passes for effect in each.effects)
        self.before_status = passes[0].effects
        self.rechecks_s = sorted((each - START).total_seconds() for each in passes[0].recheck_at)

    @property
    def where(self) -> tuple[str | None, str | None]:
        return self.status.phase, self.status.step

    @property
    def message(self) -> str:
        return self.status.message or ""

    def condition(self, kind: str) -> tuple[str, str]:
        """Its status and its reason."""
        return next(((each.status, each.reason) for each in self.status.conditions if each.type == kind), ("", ""))
