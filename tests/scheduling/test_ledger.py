"""The ledger is what a naive count of all nodes and pods would be, whatever happened on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.api.core.objects import Node, Pod
from holdfast.scheduling.ledger import GPU, GPU_COUNT_LABEL, Ledger
from holdfast.scheduling.resources import NANO, parse_nanos_or_zero
from tests.scheduling.nodes import ledger, node, pod


def gpus(kept: Ledger, name: str = "gpu-1") -> float:
    return kept.free(name).get(GPU, 0) / NANO


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (node(gpus="8"), 8),
        (node(gpus=8), 8),
        (node(), 0),
        (node(capacity={GPU: "4"}), 4),
        (node(labels={GPU_COUNT_LABEL: "2"}), 2),
        (node(capacity={GPU: "4"}, labels={GPU_COUNT_LABEL: "2"}), 4),
        (node(gpus="0", capacity={GPU: "4"}, labels={GPU_COUNT_LABEL: "2"}), 0),
        (node(gpus="8", capacity={GPU: "4"}), 4),
        (node(gpus="3", capacity={GPU: "4"}), 3),
        (node(gpus="-1"), 0),
        (node(gpus="many"), 0),
        (node(gpus="many", capacity={GPU: "4"}), 0),
        (node(gpus="2", capacity={GPU: "many"}), 0),
        (node(labels={GPU_COUNT_LABEL: "two"}), 0),
        (node(labels={GPU_COUNT_LABEL: "-2"}), 0),
        (node(gpus="4611686018427387904"), 2**62),
        (node(gpus="9223372036854775808"), 0),
        (node(gpus="1e30", capacity={GPU: "1e30"}), 0),
        (node(labels={GPU_COUNT_LABEL: "1e30"}), 0),
    ],
)
def test_the_gpus_of_a_machine_are_what_it_offers_else_what_it_has_else_what_its_label_says(
    machine: Node, expected: int
) -> None:
    assert gpus(ledger(machine)) == expected


def test_a_machine_that_says_nothing_of_what_it_offers_offers_what_it_has() -> None:
    bare = node(capacity={"cpu": "4", "pods": "9"})
    bare = structs.replace(bare, status=structs.replace(bare.status, allocatable={}))
    assert ledger(bare).free("gpu-1") == {"cpu": 4 * NANO, "pods": 9 * NANO}


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (pod(gpu="2"), 6),
        (pod(gpu="2", phase="Pending"), 6),
        (pod(gpu="2", phase="Succeeded"), 8),
        (pod(gpu="2", phase="Failed"), 8),
        (pod(gpu="2", deleted="2026-01-01T00:00:00Z"), 6),
        (pod(gpu="2", on=""), 8),
        (pod(gpu="2", on="other"), 8),
        (pod(gpu="12"), -4),
        (pod(cpu="2"), 8),
    ],
)
def test_a_pod_takes_capacity_from_its_binding_to_its_end(holder: Pod, expected: int) -> None:
    assert gpus(ledger(node(gpus="8"), holder)) == expected


def test_pods_may_be_seen_before_their_machine_and_after_it() -> None:
    kept = ledger(pod(gpu="2"), node(gpus="8"))
    assert gpus(kept) == 6
    kept.node_changed(node(gpus="8"), None)
    assert kept.nodes == {}
    kept.node_changed(None, node(gpus="8"))
    assert gpus(kept) == 6


def test_machines_that_come_and_go_for_ever_leave_nothing_behind() -> None:
    kept = Ledger()
    for number in range(3):
        one, other = node(f"spot-{number}", gpus="1"), pod("p", f"spot-{number}", gpu="1")
        kept.node_changed(None, one)
        kept.pod_changed(None, other)
        assert gpus(kept, f"spot-{number}") == 0
        kept.node_changed(one, None)
        kept.pod_changed(other, None)
    assert (kept.nodes, kept._taken, kept._free) == ({}, {}, {})


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (node(gpus="8"), node(gpus="8"), False),
        (node(gpus="8"), node(gpus="7"), True),
        (node(), node(ready=False), True),
        (node(), node(unschedulable=True), True),
        (node(), node(labels={"zone": "a"}), True),
        (node(), node(taints=[{"key": "k", "effect": "NoSchedule"}]), True),
    ],
)
def test_only_what_is_looked_at_makes_a_new_version(before: Node, after: Node, counts: bool) -> None:
    kept = ledger(before)
    version = kept.version
    heartbeat = structs.replace(after, metadata=structs.replace(after.metadata, resource_version="2"))
    kept.node_changed(before, heartbeat)
    assert (kept.version != version) is counts


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (pod(phase="Pending"), pod(phase="Running"), False),
        (pod(), pod(deleted="2026-01-01T00:00:00Z"), False),
        (pod(on=""), pod(on="gpu-1"), True),
        (pod(on=""), pod(on="", phase="Failed"), False),
        (pod(), pod(phase="Failed"), True),
        (pod(gpu="1"), pod(gpu="2"), True),
    ],
)
def test_only_a_pod_that_takes_or_frees_capacity_makes_a_new_version(before: Pod, after: Pod, counts: bool) -> None:
    kept = ledger(node(), before)
    version = kept.version
    kept.pod_changed(before, after)
    assert (kept.version != version) is counts


NAMES = ("a", "b", "c")
NODES = st.builds(
    lambda name, gpus, capacity, ready: node(name, gpus=gpus, capacity=capacity, ready=ready),
    st.sampled_from(NAMES),
    st.sampled_from([None, "0", "4", 8, "-1", "junk"]),
    st.sampled_from([{}, {GPU: "4"}, {GPU: "junk", "cpu": "4"}]),
    st.booleans(),
)
PODS = st.builds(
    lambda name, on, phase, gpu, cpu: pod(name, on, phase=phase, gpu=gpu, cpu=cpu),
    st.sampled_from(("p", "q", "r")),
    st.sampled_from(("", *NAMES)),
    st.sampled_from(("Pending", "Running", "Succeeded", "Failed")),
    st.sampled_from(("0", "1", "3", "junk")),
    st.sampled_from(("250m", "2")),
)
GONE = st.sampled_from((*NAMES, "p", "q", "r"))


def naive(nodes: dict[str, Node], pods: dict[str, Pod]) -> dict[str, dict[str, int]]:
    """Counted anew, for the resources that are asked for here."""
    found = {}
    for name, each in nodes.items():
        offered = ledger(each).nodes[name].offered
        held = [p for p in pods.values() if p.spec.node_name == name and p.status.phase in ("Pending", "Running")]
        asked = [p.spec.containers[0].resources.requests for p in held]
        found[name] = {
            resource: offered.get(resource, 0) - sum(parse_nanos_or_zero(request.get(resource, 0)) for request in asked)
            for resource in (GPU, "cpu")
        } | {"pods": offered["pods"] - len(held) * NANO}
    return found


@given(st.lists(st.one_of(NODES, PODS, GONE), max_size=30))
def test_after_any_events_it_is_what_a_new_count_would_be(events: list[Node | Pod | str]) -> None:
    nodes: dict[str, Node] = {}
    pods: dict[str, Pod] = {}
    kept = Ledger()
    for event in events:
        if isinstance(event, Node):
            kept.node_changed(nodes.get(event.metadata.name), event)
            nodes[event.metadata.name] = event
        elif isinstance(event, Pod):
            kept.pod_changed(pods.get(event.metadata.name), event)
            pods[event.metadata.name] = event
        elif event in nodes:
            kept.node_changed(nodes.pop(event), None)
        elif event in pods:
            kept.pod_changed(pods.pop(event), None)
        # Looked at after each step: what is remembered between two looks must not be old.
        assert {
            name: {resource: kept.free(name).get(resource, 0) for resource in (GPU, "cpu", "pods")}
            for name in kept.nodes
        } == naive(nodes, pods)
