"""What a machine's state means: its marks, its silence, and the pods on it."""

from datetime import timedelta

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Lease, LeaseSpec, Node, NodeCondition, Pod, PodCondition, find_condition
from holdfast.api.core.selectors import Taint
from holdfast.api.meta import ObjectMeta
from holdfast.cluster.protocol import JSON
from holdfast.local.controllers.nodes import (
    NOT_READY,
    UNREACHABLE,
    disrupted,
    eviction_time,
    heartbeat_of,
    not_ready,
    readiness,
    unknown_conditions,
    wanted_taints,
)
from tests.local.controllers.things import NOW, ago, node, node_condition, pod, pod_condition

CORDONED = "node.kubernetes.io/unschedulable"
FOREIGN = {"key": "holdfast.dev/preempted", "effect": "NoSchedule", "value": "soon"}


def saying(it: Node, *conditions: NodeCondition) -> Node:
    return structs.replace(it, status=structs.replace(it.status, conditions=conditions))


@pytest.mark.parametrize(
    ("machine", "evict", "expected"),
    [
        (node(), True, []),
        (node(ready="False"), True, [(NOT_READY, "NoExecute"), (NOT_READY, "NoSchedule")]),
        (node(ready="Unknown"), True, [(UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]),
        (node(ready="False"), False, [(NOT_READY, "NoSchedule")]),
        (node(ready=""), True, []),
        (node(unschedulable=True), True, [(CORDONED, "NoSchedule")]),
        (
            saying(
                node(),
                node_condition("Ready", "True"),
                node_condition("DiskPressure", "True"),
                node_condition("MemoryPressure", "False"),
            ),
            True,
            [("node.kubernetes.io/disk-pressure", "NoSchedule")],
        ),
        (node(taints=[FOREIGN]), True, [(FOREIGN["key"], "NoSchedule")]),
        (node(taints=[{"key": UNREACHABLE, "effect": "NoSchedule"}, FOREIGN]), True, [(FOREIGN["key"], "NoSchedule")]),
        (node(taints=[{"key": NOT_READY, "effect": "NoExecute"}], ready="False"), False, [(NOT_READY, "NoSchedule")]),
    ],
)
def test_a_machine_is_marked_by_its_state(machine: Node, evict: bool, expected: list[tuple[str, str]]) -> None:
    taints = wanted_taints(machine, evict=evict, now=NOW)
    assert [(taint.key, taint.effect) for taint in taints] == expected
    again = structs.replace(machine, spec=structs.replace(machine.spec, taints=taints))
    assert wanted_taints(again, evict=evict, now=NOW + timedelta(hours=1)) == taints, "a settled machine stays as it is"


def test_a_mark_keeps_the_time_at_which_it_was_set() -> None:
    marked = node(ready="False", taints=[{"key": NOT_READY, "effect": "NoExecute", "timeAdded": ago(60)}])
    old, new = wanted_taints(marked, evict=True, now=NOW)
    assert (old.time_added, new.time_added) == (ago(60), ago(0))


def test_a_node_that_changes_from_not_ready_to_silent_changes_its_taints() -> None:
    ill = node(ready="Unknown", taints=[{"key": NOT_READY, "effect": effect} for effect in ("NoExecute", "NoSchedule")])
    assert {taint.key for taint in wanted_taints(ill, evict=True, now=NOW)} == {UNREACHABLE}


def lease(renewed: str) -> Lease:
    return Lease(metadata=ObjectMeta(name="m"), spec=LeaseSpec(renew_time=renewed))


def test_any_change_of_lease_or_heartbeat_is_a_sign_of_life() -> None:
    beating = saying(node(), node_condition("Ready", "True", lastHeartbeatTime=ago(9)))
    signs = {
        heartbeat_of(beating, lease(ago(5))),
        heartbeat_of(beating, lease(ago(4))),
        heartbeat_of(beating, None),
        heartbeat_of(node(), lease(ago(5))),
        heartbeat_of(node(ready=""), None),
    }
    assert len(signs) == 5
    told_by_us = saying(beating, *unknown_conditions(beating, NOW))
    assert heartbeat_of(told_by_us, None) == heartbeat_of(beating, None), "what we write in its name is none"


def test_silence_makes_all_conditions_of_the_node_unknown_and_nothing_else() -> None:
    machine = saying(
        node(),
        node_condition("Ready", "True", lastHeartbeatTime=ago(90), reason="KubeletReady"),
        node_condition("MemoryPressure", "False"),
        node_condition("holdfast.dev/preempted", "True"),
    )
    ready, memory, preempted = unknown_conditions(machine, NOW)
    assert (ready.status, ready.reason, ready.last_transition_time) == ("Unknown", "NodeStatusUnknown", ago(0))
    assert ready.last_heartbeat_time == ago(90)
    assert memory.status == "Unknown"
    assert preempted == machine.status.conditions[2]
    again = saying(machine, ready, memory, preempted)
    assert unknown_conditions(again, NOW + timedelta(hours=1)) == (ready, memory, preempted)


def test_a_machine_that_never_said_anything_is_unknown_too() -> None:
    (ready,) = unknown_conditions(node(ready=""), NOW)
    assert (ready.type, ready.status, ready.reason) == ("Ready", "Unknown", "NodeStatusNeverUpdated")
    assert readiness(saying(node(ready=""), ready)) == "Unknown"


def taint(key: str, seconds_ago: float, effect: str = "NoExecute") -> Taint:
    return Taint(key=key, effect=effect, time_added=ago(seconds_ago))


def tolerating(*tolerations: JSON) -> Pod:
    return pod(tolerations=list(tolerations))


@pytest.mark.parametrize(
    ("leaving", "taints", "left_s"),
    [
        (tolerating(), (), None),
        (tolerating(), (taint("a", 5),), -5),
        (tolerating(), (taint("a", 5, "NoSchedule"),), None),
        (tolerating({"operator": "Exists"}), (taint("a", 5),), None),
        (tolerating({"key": "a", "operator": "Exists", "tolerationSeconds": 300}), (taint("a", 5),), 295),
        (tolerating({"key": "a", "operator": "Exists", "tolerationSeconds": 0}), (taint("a", 5),), -5),
        (tolerating({"key": "a", "operator": "Exists", "tolerationSeconds": -9}), (taint("a", 5),), -5),
        (tolerating({"key": "a", "operator": "Exists", "tolerationSeconds": 300}), (taint("a", 5), taint("b", 1)), -1),
        (
            tolerating({"operator": "Exists", "tolerationSeconds": 60}, {"key": "b", "operator": "Exists"}),
            (taint("a", 5), taint("b", 50)),
            10,
        ),
        (tolerating(), (Taint(key="a", effect="NoExecute"),), 0),
    ],
)
def test_a_pod_leaves_when_its_patience_with_a_mark_ends(
    leaving: Pod, taints: tuple[Taint, ...], left_s: float | None
) -> None:
    expected = None if left_s is None else NOW + timedelta(seconds=left_s)
    assert eviction_time(leaving, taints, NOW) == expected


def having(*conditions: PodCondition) -> Pod:
    it = pod()
    return structs.replace(it, status=structs.replace(it.status, conditions=conditions))


def test_a_disruption_is_noted_once_beside_what_is_there() -> None:
    scheduled = pod_condition("PodScheduled", "True")
    noted = disrupted(having(scheduled), "DeletionByPodGC", "why", NOW)
    assert noted[0] == scheduled
    assert msgspec.to_builtins(noted[1]) == {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByPodGC",
        "message": "why",
        "lastTransitionTime": ago(0),
    }
    assert disrupted(having(*noted), "DeletionByPodGC", "why", NOW + timedelta(hours=1)) == noted
    replaced = disrupted(having(*noted), "DeletionByTaintManager", "other", NOW)
    assert [each.reason for each in replaced] == ["", "DeletionByTaintManager"]


def test_a_pod_on_a_lost_machine_is_no_longer_ready() -> None:
    doubted = not_ready(having(pod_condition("Ready", "True"), pod_condition("ContainersReady", "True")), NOW)
    ready = find_condition(doubted, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "NodeNotReady")
    assert len(doubted) == 2
    assert not_ready(having(*doubted), NOW + timedelta(hours=1)) == doubted
    assert not_ready(having(), NOW) == ()
