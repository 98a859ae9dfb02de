"""The metrics of machines, and the Events of a ProvisionedInstance."""

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.api.machine_ends import STEPS, end_reason, is_gone, status_of
from holdfast.api.meta import Condition
from holdfast.api.provisionedinstance import ProvisionedInstance, ProvisionedInstanceStatus
from holdfast.machines.phases.launch import INSERT, RETRYING, TEMPLATE
from holdfast.providers.protocol import Machine
from holdfast.runtime.metrics import ReconcileDurations
from holdfast.runtime.reconciler import EventMessage
from holdfast.times import parse_optional_time

JOIN_S = (5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600)
UNKNOWN = "unknown"

Instances: TypeAlias = Callable[[], Iterable[ProvisionedInstance]]


class MachinesByState:
    """Read from the objects when Prometheus asks."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "holdfast_machines", "Machines that are not gone, by state and zone.", labels=("state", "zone")
        )
        tally = Tally(
            (status.state or UNKNOWN, status.zone or UNKNOWN)
            for instance in self._instances()
            if (status := status_of(instance)).instance_name and not is_gone(instance)
        )
        for (state, zone), count in sorted(tally.items()):
            family.add_metric((state, zone), count)
        yield family


class MachineMetrics(ReconcileDurations):
    """Also the `KindMetrics` of the kind: transitions are counted when their status is written."""

    def __init__(self, registry: CollectorRegistry, instances: Instances) -> None:
        registry.register(MachinesByState(instances))
        self._launches = Counter(
            "holdfast_machine_launches",
            "Machines that were asked for, by result: Accepted, or why the cloud made none.",
            ("result",),
            registry=registry,
        )
        self._preemptions = Counter(
            "holdfast_machine_preemptions", "Machines that the cloud has taken back.", ("zone",), registry=registry
        )
        self._failures = Counter(
            "holdfast_machine_failures",
            "Machines that were made and did not become a Node that can be used, by condition and reason.",
            ("condition", "reason"),
            registry=registry,
        )
        self._join = Histogram(
            "holdfast_machine_join_seconds",
            "From the acceptance of a machine to its Node.",
            buckets=JOIN_S,
            registry=registry,
        )
        self._seconds = Counter(
            "holdfast_machine_seconds", "Seconds that machines were there.", ("zone",), registry=registry
        )
        self._leaked = Counter(
            "holdfast_leaked_machines",
            "Machines that were found without an object, and deleted.",
            ("zone",),
            registry=registry,
        )
        self._requests = Counter(
            "holdfast_provider_requests",
            "Requests to clouds by HTTP status; code 0 means no answer.",
            ("method", "code"),
            registry=registry,
        )
        super().__init__(registry, "provisionedinstance")
        self._launches.labels("Accepted")

    def status_written(self, instance: ProvisionedInstance, status: ProvisionedInstanceStatus) -> None:
        old, zone = status_of(instance), status.zone or UNKNOWN
        if _became(old, status, "Launched"):
            self._launches.labels("Accepted").inc()
        if _became(old, status, "Preempted"):
            self._preemptions.labels(zone).inc()
        joined, launched = _became(old, status, "Joined"), _condition(status, "Launched")
        if joined is not None and launched is not None:
            self._join.observe(_seconds_between(launched, joined))
        why = _why_it_ends_now(instance, status)
        if why is not None and why.type == "Launched":
            self._launches.labels(why.reason).inc()
        elif why is not None and why.type in STEPS:
            self._failures.labels(why.type, why.reason).inc()

    def listed(self, machines: Iterable[Machine], seconds: float) -> None:
        """These machines were there for so long since the last list."""
        for machine in machines:
            self._seconds.labels(machine.zone).inc(seconds)
            self._preemptions.labels(machine.zone)

    def suspected(self, zone: str) -> None:
        """A machine there may be leaked. The count starts at zero: `increase` does not see one that starts at one."""
        self._leaked.labels(zone)

    def leaked(self, zone: str) -> None:
        self._leaked.labels(zone).inc()

    def requested(self, method: str, code: int) -> None:
        self._requests.labels(method, str(code)).inc()


def _condition(status: ProvisionedInstanceStatus, kind: str) -> Condition | None:
    return next((each for each in status.conditions if each.type == kind), None)


def _became(old: ProvisionedInstanceStatus, new: ProvisionedInstanceStatus, kind: str) -> Condition | None:
    """The condition, if it holds since this status."""
    before, after = _condition(old, kind), _condition(new, kind)
    if after is None or after.status != "True" or (before is not None and before.status == "True"):
        return None
    return after


def _seconds_between(earlier: Condition, later: Condition) -> float:
    began, ended = parse_optional_time(earlier.last_transition_time), parse_optional_time(later.last_transition_time)
    return max(0.0, (ended - began).total_seconds()) if began is not None and ended is not None else 0.0


def _why_it_ends_now(instance: ProvisionedInstance, status: ProvisionedInstanceStatus) -> Condition | None:
    if status.phase != "End" or status_of(instance).phase == "End":
        return None
    return end_reason(ProvisionedInstance(metadata=instance.metadata, spec=instance.spec, status=status))


# The Events of a ProvisionedInstance: one for each step that matters to the owner of the job.


def events_for(instance: ProvisionedInstance, status: ProvisionedInstanceStatus) -> Iterator[EventMessage]:
    old = status_of(instance)
    for kind in STEPS:
        reached = _became(old, status, kind)
        if reached is not None:
            yield EventMessage(kind, reached.message)
    preempted = _became(old, status, "Preempted")
    if preempted is not None:
        yield EventMessage("Preempted", preempted.message, warning=True)
    why = _why_it_ends_now(instance, status)
    if why is not None and why is not preempted:
        if not (why.type == "Preempted" and why.status == "True"):  # said when its notice came
            yield EventMessage(why.reason, why.message, warning=True)
        return
    before, after = _condition(old, "Launched"), _condition(status, "Launched")
    if after is not None and after.status == "False" and _is_new_obstacle(before, after):
        yield EventMessage(after.reason, after.message, warning=True)


def _is_new_obstacle(before: Condition | None, after: Condition) -> bool:
    """Something that a person has to mend keeps the machine from being made."""
    return after.reason not in (INSERT, RETRYING, TEMPLATE) and (before is None or before.reason != after.reason)
