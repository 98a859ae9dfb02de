"""The account of a template: the machines that are there, and how long those lasted that were taken back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.provisionedinstance import ProvisionedInstance
from holdfast.api.spotinstancevm import SpotInstanceVM, SpotInstanceVMStatus
from holdfast.machines.lifetimes import account
from tests.machines.observations import ENDING, SERVING, TEMPLATE, at, condition, instance

PREEMPTED: dict[str, Any] = {
    **SERVING,
    "creation_time": "2026-03-01T12:00:00Z",
    "conditions": (*SERVING["conditions"], condition("Preempted", "True", since_s=3600)),
}
GONE = {**PREEMPTED, "phase": "End", "step": "Gone", "state": "TERMINATED"}


def machine(name: str, status: dict[str, Any]) -> ProvisionedInstance:
    made = instance(status)
    return structs.replace(made, metadata=structs.replace(made.metadata, name=name))


def with_account(template: SpotInstanceVM, *instances: ProvisionedInstance, now_s: float = 4000) -> SpotInstanceVM:
    return structs.replace(template, status=account(template, instances, at(now_s)))


def status_of(template: SpotInstanceVM) -> SpotInstanceVMStatus:
    assert template.status is not None
    return template.status


def lifetimes(template: SpotInstanceVM) -> list[tuple[str, int, int]]:
    return [(each.zone, each.preemptions, each.seconds) for each in status_of(template).lifetimes]


def names(template: SpotInstanceVM) -> list[str]:
    return [each.name for each in status_of(template).provisioned_instances]


def test_the_machines_that_are_there_are_listed_with_what_is_known_of_them() -> None:
    (report,) = status_of(with_account(TEMPLATE, machine("m", SERVING))).provisioned_instances
    assert (report.name, report.instance_id, report.state) == ("m", "7", "RUNNING")
    assert (report.joined_cluster, report.node_name, report.preempted) == (True, SERVING["node_name"], False)


def test_a_machine_that_is_gone_is_not_listed() -> None:
    ended = machine("b", {**ENDING, "step": "Gone"})
    assert names(with_account(TEMPLATE, machine("a", SERVING), ended)) == ["a"]


def test_a_machine_that_was_taken_back_is_counted_with_its_lifetime_and_only_once() -> None:
    once = with_account(TEMPLATE, machine("m", PREEMPTED))
    assert lifetimes(once) == [("us-central1-a", 1, 3600)]
    twice = with_account(once, machine("m", GONE), now_s=9000)
    assert lifetimes(twice) == lifetimes(once)
    assert names(twice) == ["m"], "until its object is deleted"
    gone = with_account(twice)
    assert (names(gone), lifetimes(gone)) == ([], lifetimes(once))


def test_a_machine_that_was_taken_back_unseen_is_counted_when_it_is_seen() -> None:
    assert lifetimes(with_account(TEMPLATE, machine("m", GONE))) == [("us-central1-a", 1, 3600)]


def test_lifetimes_are_of_their_zones() -> None:
    other = machine("n", {**PREEMPTED, "zone": "us-central1-b"})
    both = with_account(TEMPLATE, machine("m", PREEMPTED), other)
    assert lifetimes(both) == [("us-central1-a", 1, 3600), ("us-central1-b", 1, 3600)]
    more = with_account(both, machine("m", PREEMPTED), other, machine("o", PREEMPTED))
    assert lifetimes(more)[0] == ("us-central1-a", 2, 7200)


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ((), "no machine is made from it now"),
        ((machine("m", SERVING),), "machines made from it that are there: 1"),
    ],
)
def test_the_condition_says_how_many(instances: tuple[ProvisionedInstance, ...], text: str) -> None:
    (ready,) = status_of(with_account(TEMPLATE, *instances)).conditions
    assert (ready.type, ready.status, ready.message) == ("Ready", "True", text)


def test_an_account_that_is_up_to_date_does_not_change() -> None:
    first = with_account(TEMPLATE, machine("m", PREEMPTED))
    assert with_account(first, machine("m", PREEMPTED), now_s=99_999) == first


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), unique=True), min_size=1, max_size=6))
def test_whenever_it_is_brought_up_to_date_each_machine_counts_once_while_its_object_is_there(
    looks: list[list[str]],
) -> None:
    """Each look sees the machines that were taken back so far; none of their objects is deleted meanwhile."""
    template, seen_so_far = TEMPLATE, set[str]()
    for look in looks:
        seen_so_far |= set(look)
        template = with_account(template, *(machine(name, PREEMPTED) for name in sorted(seen_so_far)))
    counted = sum(preemptions for _, preemptions, _ in lifetimes(template))
    assert counted == len(seen_so_far)
