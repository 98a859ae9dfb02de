"""The account of the machines made from a SpotInstanceVM: those that are there, and how long others lasted. Pure."""

from collections.abc import Iterable
from datetime import datetime

from holdfast.api.machine_ends import is_gone, status_of
from holdfast.api.meta import Condition, is_true, merge_conditions
from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancevm import InstanceReport, SpotInstanceVM, SpotInstanceVMStatus, ZoneLifetime
from holdfast.times import format_time, parse_optional_time

MOST_MACHINES = 1000


def account(vm: SpotInstanceVM, instances: Iterable[ProvisionedInstance], now: datetime) -> SpotInstanceVMStatus:
    """The status with the present machines. A machine that was taken back is counted in the write that says so of it.

    So it is counted once, whatever happens in between.
    """
    old = vm.status or SpotInstanceVMStatus()
    counted = {each.name for each in old.provisioned_instances if each.preempted}
    present = sorted(instances, key=lambda each: each.metadata.name)
    reports = tuple(_report(each) for each in present if not is_gone(each) or _is_preempted(each))[:MOST_MACHINES]
    taken = [each for each in present if _is_preempted(each) and each.metadata.name not in counted]
    there = sum(not is_gone(each) for each in present)
    ready = Condition(
        type="Ready",
        status="True",
        reason="Accounted",
        message=f"machines made from it that are there: {there}" if there else "no machine is made from it now",
        last_transition_time=format_time(now),
        observed_generation=vm.metadata.generation,
    )
    return SpotInstanceVMStatus(
        observed_generation=vm.metadata.generation,
        conditions=merge_conditions(old.conditions, [ready]),
        provisioned_instances=reports,
        lifetimes=_with_lifetimes(old.lifetimes, taken, now),
    )


def _report(instance: ProvisionedInstance) -> InstanceReport:
    status = status_of(instance)
    return InstanceReport(
        name=instance.metadata.name,
        instance_id=status.instance_id,
        internal_ip=status.internal_ip,
        external_ip=status.external_ip,
        state=status.state,
        joined_cluster=status.joined_cluster,
        node_name=status.node_name,
        creation_time=status.creation_time,
        preempted=_is_preempted(instance),
    )


def _is_preempted(instance: ProvisionedInstance) -> bool:
    return is_true(status_of(instance).conditions, "Preempted")


def _with_lifetimes(
    old: tuple[ZoneLifetime, ...], taken: Iterable[ProvisionedInstance], now: datetime
) -> tuple[ZoneLifetime, ...]:
    by_zone = {each.zone: each for each in old}
    for instance in taken:
        zone = status_of(instance).zone
        if not zone:
            continue
        before = by_zone.get(zone, ZoneLifetime(zone=zone))
        by_zone[zone] = ZoneLifetime(
            zone=zone,
            preemptions=before.preemptions + 1,
            seconds=before.seconds + round(_lifetime_s(instance, now)),
        )
    return tuple(by_zone.values())


def _lifetime_s(instance: ProvisionedInstance, now: datetime) -> float:
    """From its creation until it was known to be taken back."""
    status = status_of(instance)
    found = next((each.last_transition_time for each in status.conditions if each.type == "Preempted"), None)
    began, ended = parse_optional_time(status.creation_time), parse_optional_time(found)
    return max(0.0, ((ended or now) - began).total_seconds()) if began is not None else 0.0
