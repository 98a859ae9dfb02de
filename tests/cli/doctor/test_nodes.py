"""What is said of a node, from what is known of it."""

import inspect
from typing import Any

import msgspec
import pytest

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Pod
from holdfast.cli.doctor.findings import Finding, Level
from holdfast.cli.doctor.nodes import (
    CHECKS,
    NODE_FAULTS,
    ExaminedNode,
    NodeEvidence,
    agents_by_node,
    ended_runs,
    free_bytes,
)
from holdfast.node import faults, freeze

READY = [{"type": "Ready", "status": "True"}]


def node(
    *,
    kubelet: str = "v1.36.3",
    runtime: str = "containerd://2.2.9",
    conditions: list[dict[str, str]] | None = None,
    **metadata: Any,
) -> ExaminedNode:
    status = {
        "conditions": READY if conditions is None else conditions,
        "nodeInfo": {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime},
    }
    return msgspec.convert({"metadata": {"name": "n1", **metadata}, "status": status}, ExaminedNode)


def agent(*, ready: bool = True, node_name: str = "n1", name: str = "agent-1", phase: str = "Running") -> Pod:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    document = {
        "metadata": {"name": name, "namespace": "holdfast-node"},
        "spec": {"nodeName": node_name},
        "status": {"phase": phase, "conditions": conditions},
    }
    return msgspec.convert(document, Pod)


def backup(
    phase: str, *, reason: str = "", at: str = "2026-01-01T00:00:00Z", size: int = 0, mode: str = "container"
) -> CheckpointBackup:
    document = {
        "metadata": {"name": "nightly", "namespace": "team"},
        "spec": {
            "schedule": "immediately",
            "podRef": {"name": "p"},
            "registry": {"url": "r.example", "repository": "checkpoints"},
        },
        "status": {
            "phase": phase,
            "run": 1,
            "nodeName": "n1",
            "mode": mode,
            "bytes": size,
            "completionTime": at,
            "message": f"words of {reason}",
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": reason or "Completed",
                    "message": "",
                    "lastTransitionTime": at,
                }
            ],
        },
    }
    return msgspec.convert(document, CheckpointBackup)


def findings(examined: ExaminedNode, **evidence: Any) -> list[Finding]:
    return [finding for check in CHECKS for finding in check(examined, NodeEvidence(**evidence))]


def lines(found: list[Finding], level: Level) -> list[str]:
    return [f"{each.text} | {each.advice}" for each in found if each.level is level]


def test_a_node_where_everything_is_right_has_no_other_word_than_ok() -> None:
    labelled = node(labels={"holdfast.dev/restore": "true"}, annotations={"holdfast.dev/cpu-flags": "sse2"})
    found = findings(labelled, agent=agent(), backups=(backup("Completed", size=1 << 30),), free_bytes=4.0 * 2**30)
    assert [each.text for each in found] == [
        "holdfast's agent runs",
        "kubelet v1.36.3 has the checkpoint endpoint on by default",
        "containerd 2.2.9 can save containers, with CRIU",
        "CRIU works: containers were saved here",
        "pods may be restored here: containerd 2.2.9, label holdfast.dev/restore=true",
        "4.0 GiB are free for checkpoints",
    ]
    assert {each.level for each in found} == {Level.OK}


@pytest.mark.parametrize(
    ("examined", "says"),
    [
        (node(kubelet="v1.29.9"), "off by default | switch its feature gate ContainerCheckpoint on"),
        (node(kubelet="v1.24.0"), "kubelet v1.24.0 has no checkpoint endpoint | use 1.30 or newer"),
        (node(runtime="containerd://1.7.20"), "can't save containers | use containerd 2.0 or cri-o 1.25, or newer"),
        (node(runtime="docker://27.0.1"), "docker 27.0.1 can't save containers"),
        (node(conditions=[*READY, {"type": "DiskPressure", "status": "True"}]), "its disk is nearly full"),
    ],
)
def test_what_keeps_an_agent_from_its_work_is_a_problem_with_advice(examined: ExaminedNode, says: str) -> None:
    assert any(says in line for line in lines(findings(examined, agent=agent()), Level.PROBLEM))


@pytest.mark.parametrize("examined", [node(kubelet="v1.29.9"), node(runtime="containerd://1.7.20")])
def test_where_no_agent_runs_the_same_is_only_worth_a_note(examined: ExaminedNode) -> None:
    assert lines(findings(examined), Level.PROBLEM) == []
    assert lines(findings(examined), Level.NOTE) != []


def test_an_agent_that_is_not_ready_is_a_problem_and_names_its_pod() -> None:
    (line,) = lines(findings(node(), agent=agent(ready=False)), Level.PROBLEM)
    assert line == "holdfast's agent is not ready | kubectl -n holdfast-node describe pod agent-1"


@pytest.mark.parametrize(
    ("runtime", "labels", "level", "says"),
    [
        ("containerd://2.2.9", {}, Level.NOTE, "can, where it is switched on, and the node has no label"),
        ("containerd://2.2.6", {}, Level.NOTE, "no pod can be restored here with containerd 2.2.6"),
        ("containerd://2.4.0", {}, Level.NOTE, "create no containers from checkpoint images"),
        ("containerd://2.4.0", {"holdfast.dev/restore": "true"}, Level.PROBLEM, "promises what containerd 2.4.0 can't"),
        ("docker://27.0.1", {"holdfast.dev/restore": "true"}, Level.PROBLEM, "promises what docker 27.0.1 can't keep"),
        ("cri-o://1.36.6", {"holdfast.dev/restore": "true"}, Level.OK, "pods may be restored here: cri-o 1.36.6"),
        ("cri-o://1.36.6", {"holdfast.dev/restore": "true"}, Level.NOTE, "its CPU flags are not known"),
    ],
)
def test_the_label_is_held_against_what_the_runtime_can(
    runtime: str, labels: dict[str, str], level: Level, says: str
) -> None:
    assert any(says in line for line in lines(findings(node(runtime=runtime, labels=labels)), level))


def test_the_last_run_on_the_node_shows_whether_criu_works() -> None:
    old, new = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
    failed, saved = backup("Failed", reason="CriuMissing", at=new), backup("CompletedWithError", at=old)
    (line,) = lines(findings(node(), agent=agent(), backups=(failed, saved)), Level.PROBLEM)
    assert line == "the last container checkpoint failed (CriuMissing) | words of CriuMissing"
    later = backup("Completed", at="2026-01-03T00:00:00Z")
    assert lines(findings(node(), agent=agent(), backups=(failed, later)), Level.PROBLEM) == []
    assert any(
        "nothing was saved here yet" in note for note in lines(findings(node(), agent=agent(), backups=()), Level.NOTE)
    )


def test_a_failure_of_the_registry_or_the_pod_says_nothing_about_criu() -> None:
    saved = backup("Completed", at="2026-01-01T00:00:00Z")
    for reason in ("RegistryUnauthorized", "PodGone", "DeadlineExceeded"):
        failed = backup("Failed", reason=reason, at="2026-01-02T00:00:00Z")
        found = findings(node(), agent=agent(), backups=(saved, failed))
        assert lines(found, Level.PROBLEM) == []
        assert "CRIU works: containers were saved here | " in lines(found, Level.OK)


def test_the_faults_of_a_node_are_reasons_that_agents_write() -> None:
    source = inspect.getsource(faults) + inspect.getsource(freeze)
    assert [reason for reason in NODE_FAULTS if f'"{reason}"' not in source] == []


def test_only_ended_runs_of_mode_container_say_something_of_a_node() -> None:
    counted = backup("Failed")
    found = ended_runs([counted, backup("Checkpointing"), backup("Completed", mode="application")])
    assert found == {"n1": (counted,)}


def test_free_disk_is_held_against_three_times_the_largest_checkpoint() -> None:
    backups = (backup("Completed", size=2 << 30), backup("Completed", size=1 << 30))
    (line,) = lines(findings(node(), agent=agent(), backups=backups, free_bytes=5.0 * 2**30), Level.PROBLEM)
    assert "5.0 GiB are free for checkpoints, and the largest one needs about 6.0 GiB" in line
    assert lines(findings(node(), agent=agent(), backups=backups, free_bytes=6.0 * 2**30), Level.PROBLEM) == []


def test_an_agent_that_could_not_be_asked_leaves_the_disk_hidden() -> None:
    (line,) = lines(findings(node(), agent=agent(), backups=()), Level.HIDDEN)
    assert line.startswith("the free disk for checkpoints: you may not look | it takes the right to get pods/proxy")


def test_a_notice_and_a_node_that_is_not_ready_are_reported() -> None:
    noticed = {"type": "holdfast.dev/preempted", "status": "True", "message": "EC2 takes this node back at noon"}
    found = lines(findings(node(conditions=[noticed])), Level.NOTE)
    assert "the node is not ready | " in found
    assert "preemption notice: EC2 takes this node back at noon | " in found


@pytest.mark.parametrize(
    ("metrics", "size"),
    [
        ("# HELP x\nholdfast_node_checkpoints_free_bytes 1.5e+09\nother 3\n", 1.5e9),
        ("holdfast_node_checkpoints_free_bytes NaN\n", None),
        ("holdfast_node_checkpoints_free_bytes much\n", None),
        ("not_holdfast_node_checkpoints_free_bytes 3\n", None),
        ("", None),
    ],
)
def test_the_free_disk_is_read_from_the_agents_metrics(metrics: str, size: float | None) -> None:
    assert free_bytes(metrics) == size


def test_of_two_agents_on_a_node_the_one_that_is_ready_counts() -> None:
    pods = [
        agent(name="new"),
        agent(ready=False, name="old"),
        agent(node_name="n2", phase="Failed"),
        agent(node_name=""),
    ]
    assert {name: pod.metadata.name for name, pod in agents_by_node(pods).items()} == {"n1": "new"}
