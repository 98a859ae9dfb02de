"""The metrics and Events of machines, from one status to the next."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from holdfast.api.provisionedinstance import ProvisionedInstanceStatus
from holdfast.machines.metrics import MachineMetrics, events_for
from tests.machines.observations import ASKED, ENDING, JOINED, LAUNCHED, SERVING, condition, instance


def status(fields: dict[str, Any] | None) -> ProvisionedInstanceStatus:
    return ProvisionedInstanceStatus(**(fields or {}))


def ended(kind: str, holds: str, reason: str, before: dict[str, Any] = LAUNCHED) -> dict[str, Any]:
    others = tuple(each for each in before["conditions"] if each.type != kind)
    return {**before, "phase": "End", "step": "Gone", "conditions": (*others, condition(kind, holds, reason))}


NOTICED = {**SERVING, "conditions": (*SERVING["conditions"], condition("Preempted", "True", "PreemptionNotice"))}
TAKEN = ended("Preempted", "True", "TakenBack", SERVING)


@pytest.mark.parametrize(
    ("before", "after", "name", "labels"),
    [
        (ASKED, LAUNCHED, "holdfast_machine_launches_total", {"result": "Accepted"}),
        (ASKED, ended("Launched", "False", "Stockout"), "holdfast_machine_launches_total", {"result": "Stockout"}),
        (LAUNCHED, JOINED, "holdfast_machine_join_seconds_count", {}),
        (SERVING, NOTICED, "holdfast_machine_preemptions_total", {"zone": "us-central1-a"}),
        (SERVING, TAKEN, "holdfast_machine_preemptions_total", {"zone": "us-central1-a"}),
        (
            LAUNCHED,
            ended("Joined", "False", "Login"),
            "holdfast_machine_failures_total",
            {"condition": "Joined", "reason": "Login"},
        ),
    ],
)
def test_a_transition_is_counted_once(
    before: dict[str, Any], after: dict[str, Any], name: str, labels: dict[str, str]
) -> None:
    registry = CollectorRegistry()
    metrics = MachineMetrics(registry, lambda: ())
    metrics.status_written(instance(before), status(after))
    assert registry.get_sample_value(name, labels) == 1
    metrics.status_written(instance(after), status(after))
    assert registry.get_sample_value(name, labels) == 1


def test_a_preemption_is_counted_at_its_notice_and_not_again() -> None:
    registry = CollectorRegistry()
    metrics = MachineMetrics(registry, lambda: ())
    metrics.status_written(instance(SERVING), status(NOTICED))
    metrics.status_written(instance(NOTICED), status(TAKEN))
    assert registry.get_sample_value("holdfast_machine_preemptions_total", {"zone": "us-central1-a"}) == 1


def test_the_time_to_join_counts_from_the_acceptance() -> None:
    registry = CollectorRegistry()
    MachineMetrics(registry, lambda: ()).status_written(instance(LAUNCHED), status(JOINED))
    assert registry.get_sample_value("holdfast_machine_join_seconds_sum") == 60


def test_machines_are_shown_by_state_and_zone_while_they_are_there() -> None:
    registry = CollectorRegistry()
    shown = [instance(SERVING), instance(SERVING), instance(ASKED), instance(None), instance(TAKEN)]
    MachineMetrics(registry, lambda: shown)
    labels = {"zone": "us-central1-a"}
    assert registry.get_sample_value("holdfast_machines", {"state": "RUNNING", **labels}) == 2
    assert registry.get_sample_value("holdfast_machines", {"state": "unknown", **labels}) == 1
    assert (
        sum(
            sample.value
            for family in registry.collect()
            if family.name == "holdfast_machines"
            for sample in family.samples
        )
        == 3
    )


def test_requests_are_counted_by_method_and_status() -> None:
    registry = CollectorRegistry()
    MachineMetrics(registry, lambda: ()).requested("instances.insert", 503)
    labels = {"method": "instances.insert", "code": "503"}
    assert registry.get_sample_value("holdfast_provider_requests_total", labels) == 1


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (None, ASKED, []),
        (ASKED, LAUNCHED, ["Launched"]),
        (LAUNCHED, JOINED, ["Joined"]),
        (JOINED, SERVING, ["GPUReady"]),
        (LAUNCHED, SERVING, ["Joined", "GPUReady"]),
        (SERVING, NOTICED, ["Preempted!"]),
        (NOTICED, TAKEN, []),
        (SERVING, TAKEN, ["Preempted!"]),
        (SERVING, ended("Preempted", "False", "MachineDeleted", SERVING), ["MachineDeleted!"]),
        (ASKED, ended("Launched", "False", "Stockout"), ["Stockout!"]),
        (LAUNCHED, ENDING, ["Login!"]),
        (ENDING, {**ENDING, "step": "Gone"}, []),
        (None, {**ASKED, "conditions": (condition("Launched", "False", "SecretMissing"),)}, ["SecretMissing!"]),
        (ASKED, {**ASKED, "conditions": (condition("Launched", "False", "Unauthorized"),)}, ["Unauthorized!"]),
    ],
)
def test_each_step_that_matters_is_one_event(
    before: dict[str, Any] | None, after: dict[str, Any], reasons: list[str]
) -> None:
    """With an exclamation mark: a warning."""
    found = [event.reason + "!" * event.warning for event in events_for(instance(before), status(after))]
    assert found == reasons
