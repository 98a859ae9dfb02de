"""The judges of placements find what is wrong, and nothing else."""

from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.gpuworkload import GPUWorkload
from tests.chaos.placements import broken_rules, overpromised
from tests.control_plane.changes import Change

FREE = {"big": 8, "cheap": 6, "small": 4}


def workload(name: str, strategy: str = "leastLoaded", gpus: int = 4, priority: int = 0, **status: Any) -> GPUWorkload:
    spec = {"modelName": "m", "gpuCount": gpus, "priority": priority, "schedulingStrategy": strategy}
    metadata = {"name": name, "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, GPUWorkload)


@pytest.mark.parametrize(
    ("sent", "strategy", "is_right"),
    [
        ("big", "leastLoaded", True),
        ("small", "leastLoaded", False),
        (None, "leastLoaded", False),
        ("cheap", "costOptimized", True),
        ("big", "costOptimized", False),
        ("small", "random", True),
        (None, "random", False),
    ],
)
def test_a_strategy_is_held_to_its_rule(sent: str | None, strategy: str, is_right: bool) -> None:
    where = {"w": sent} if sent is not None else {}
    assert (broken_rules([workload("w", strategy)], where, {"cheap"}, FREE) == []) is is_right


def test_random_is_not_sent_where_too_little_is_free() -> None:
    assert broken_rules([workload("w", "random", gpus=5)], {"w": "small"}, set(), FREE)


def test_one_of_higher_priority_does_not_wait_behind_another() -> None:
    there = [workload("first", gpus=8, priority=1), workload("second", gpus=8)]
    assert broken_rules(there, {"first": "big"}, set(), FREE) == []
    assert broken_rules(there, {"second": "big"}, set(), FREE)


def promise(version: int, name: str, phase: str = "Scheduling") -> Change[Any]:
    return Change(version, workload(name, gpus=6, phase=phase, assignedNode="big"), gone=False)


def pod_of(version: int, name: str, phase: str) -> Change[Any]:
    metadata = {"name": f"{name}-job-x", "namespace": "default", "labels": {"gpu-workload": name}}
    return Change(version, msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, Pod), gone=False)


def test_a_node_is_promised_again_only_after_the_pod_there_has_ended() -> None:
    ended = [promise(1, "a"), pod_of(2, "a", "Running"), pod_of(3, "a", "Succeeded"), promise(4, "b")]
    assert list(overpromised(ended, 8)) == []
    too_early = [promise(1, "a"), pod_of(2, "a", "Running"), promise(3, "b"), pod_of(4, "a", "Succeeded")]
    assert len(list(overpromised(too_early, 8))) == 1


def test_a_status_that_says_more_of_the_same_promises_nothing_anew() -> None:
    assert list(overpromised([promise(1, "a"), promise(2, "a", "Running")], 8)) == []
