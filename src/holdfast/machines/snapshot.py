"""The observation of a ProvisionedInstance at one moment, as its phases read it."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from msgspec import Struct, structs

from holdfast.api.core.objects import Node, Pod
from holdfast.api.machine_ends import is_gone
from holdfast.api.meta import Condition
from holdfast.api.provisionedinstance import (
    MACHINE_FINALIZER,
    ProvisionedInstance,
    ProvisionedInstanceStatus,
    machine_name,
)
from holdfast.api.spotinstancevm import SpotInstanceVM
from holdfast.decisions import Snapshot
from holdfast.machines.work import Failed, Gone, MachineTask, Succeeded, TaskRunning, Work
from holdfast.providers.protocol import Machine
from holdfast.times import parse_optional_time

STOPPED_STATES = ("STOPPING", "TERMINATED")


class MachineTiming(Struct, frozen=True, kw_only=True):
    launch_s: float = 600.0
    join_step_s: float = 300.0
    gpu_ready_s: float = 600.0
    resumed_s: float = 30.0
    """An operator that was away gets at least so long to see how far the machine has come meanwhile."""
    fade_s: float = 180.0
    """For the cloud to delete what it has taken back: after that it is asked to."""
    settle_s: float = 10.0
    """A step that is over sooner is not written."""


TIMING = MachineTiming()


class CloudProblem(Struct, frozen=True):
    """Why the cloud can't be asked with the credential of this object: a word for programs, a sentence for people."""

    reason: str
    message: str


class Listed(Struct, frozen=True):
    """The cloud lists the machine."""

    machine: Machine
    listing: int


class Absent(Struct, frozen=True):
    """The cloud lists machines of the zone, and not this one, in a list that was asked for after it was launched."""

    listing: int


class MachineSnapshot(Snapshot, frozen=True, kw_only=True):
    instance: ProvisionedInstance
    template: SpotInstanceVM | None = None
    node: Node | None = None
    pods: tuple[Pod, ...] = ()
    """On the node."""
    problem: CloudProblem | None = None
    silent_cloud: str = ""
    """Since when the cloud has not listed machines, and what it says instead."""
    listed: Listed | Absent | None = None
    """None while no list tells anything about the machine."""
    work: Mapping[MachineTask, Work] = {}

    @property
    def status(self) -> ProvisionedInstanceStatus:
        return self.instance.status or ProvisionedInstanceStatus()

    @property
    def finished(self) -> bool:
        return is_gone(self.instance)

    @property
    def uid(self) -> str:
        return self.instance.metadata.uid

    @property
    def machine(self) -> str:
        """The machine's name, which is its Node's, too."""
        return machine_name(self.uid)

    @property
    def is_deleted(self) -> bool:
        return bool(self.instance.metadata.deletion_timestamp)

    @property
    def has_finalizer(self) -> bool:
        return MACHINE_FINALIZER in self.instance.metadata.finalizers

    @property
    def is_begun(self) -> bool:
        """Whether the cloud may have been asked for the machine."""
        return self.status.instance_name is not None

    @property
    def is_launched(self) -> bool:
        return self.holds("Launched")

    @property
    def is_ending(self) -> bool:
        return self.status.phase == "End"

    @property
    def project(self) -> str:
        """ "" when only the template could tell, and it is gone."""
        spec, template = self.instance.spec, self.template
        return self.status.project or spec.project or (template.spec.gcp.project if template is not None else "")

    @property
    def zone(self) -> str:
        spec, template = self.instance.spec, self.template
        return self.status.zone or spec.zone or (template.spec.gcp.zone if template is not None else "")

    @property
    def where(self) -> str:
        """The machine, for messages: whoever reads them may have to delete it by hand."""
        return f"machine {self.machine} in zone {self.zone or '?'} of project {self.project or '?'}"

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions if each.type == kind), None)

    def holds(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"

    def since(self, kind: str) -> datetime | None:
        """Since when the condition has its status."""
        found = self.condition(kind)
        return parse_optional_time(found.last_transition_time) if found is not None else None

    def step_over_at(self, limit_s: float, now: datetime) -> datetime:
        """When the time of the present step is over."""
        began = parse_optional_time(self.status.step_start_time) or now
        return began + timedelta(seconds=limit_s)


def with_instance(seen: MachineSnapshot, instance: ProvisionedInstance) -> MachineSnapshot:
    return structs.replace(seen, instance=instance)


def with_status(seen: MachineSnapshot, status: ProvisionedInstanceStatus) -> MachineSnapshot:
    return with_instance(seen, structs.replace(seen.instance, status=status))


# Whether the machine is still there.


def found_gone(seen: MachineSnapshot) -> Gone | None:
    """What the cloud has said when it was asked about this very machine."""
    check = seen.work.get(MachineTask.CHECK)
    return check.value if isinstance(check, Succeeded) and isinstance(check.value, Gone) else None


def is_due(work: Work | None, now: datetime) -> bool:
    """Whether the task is to be begun (again) now."""
    if isinstance(work, TaskRunning):
        return False
    if not isinstance(work, Failed):
        return True
    # A clock that was put back says nothing of how long the failure was ago.
    return now >= work.retry_at or (work.since is not None and now < work.since)
