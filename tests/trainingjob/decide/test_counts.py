"""When a status may wait: nothing but counts in it differs."""

from typing import Any

import msgspec
import pytest

from holdfast.api.trainingjob_status import TrainingJobStatus
from holdfast.pods.start_problems import NOT_TAKEN_UP, UNSCHEDULED
from holdfast.trainingjob.decide.status import differs_in_counts_only
from tests.trainingjob.decide.statuses import after, seen, shown
from tests.trainingjobs import running, stamp, workers


def status(**fields: Any) -> TrainingJobStatus:
    return msgspec.convert(fields, TrainingJobStatus)


STARTING = {"state": "Initializing", "message": "waiting for 4 of 4 workers to start"}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"workers": {"desired": 4}}, {"workers": {"desired": 4, "active": 3}}),
        ({"workers": {"desired": 4, "active": 4}}, {"workers": {"desired": 4, "active": 3, "succeeded": 1}}),
        ({"resources": {"workers": 2, "gpus": 2}}, {"resources": {"workers": 3, "gpus": 3}}),
        ({}, {"startTime": stamp(0)}),
        (STARTING, {**STARTING, "message": "waiting for 1 of 4 workers to start"}),
        (STARTING, {**STARTING, "message": f"waiting for 4 of 4 workers: {UNSCHEDULED}"}),
        ({**STARTING, "message": f"waiting for 4 of 4 workers: the kubelet of a {NOT_TAKEN_UP}"}, STARTING),
    ],
)
def test_counts_may_wait(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert differs_in_counts_only(status(**before), status(**now))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (STARTING, {**STARTING, "state": "Running"}),
        (STARTING, {**STARTING, "message": 'waiting for 1 of 4 workers: image "a" can\'t be pulled'}),
        (STARTING, {**STARTING, "message": "waiting for 4 of 4 workers: container trainer failed to start"}),
        (STARTING, {**STARTING, "message": "every worker is running or has succeeded"}),
        ({"observedGeneration": 1}, {"observedGeneration": 2}),
        ({}, {"restartCount": 1}),
        ({}, {"currentEpoch": 3}),
        ({}, {"metrics": {"loss": 0.1}}),
        ({}, {"duration": "1m"}),
        ({"startTime": stamp(0)}, {"startTime": stamp(9)}),
        ({"startTime": stamp(0)}, {}),
    ],
)
def test_whatever_else_has_changed_may_not(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert not differs_in_counts_only(status(**before), status(**now))


def test_a_worker_that_starts_may_wait_with_the_conditions_that_say_so() -> None:
    first = shown(seen(current_job=workers(status={"active": 2})))
    later = after(first, seen(current_job=workers(status={"active": 2, "ready": 1}), pods=(running(0),)))
    assert first.conditions != later.conditions
    assert differs_in_counts_only(first, later)
    assert not differs_in_counts_only(first, after(first, seen(current_job=workers(status={"active": 2, "ready": 2}))))
