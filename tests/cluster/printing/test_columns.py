"""What tables show of objects."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.api.kind import PrinterColumn
from holdfast.cluster.printing.columns import columns_of, printer_columns
from holdfast.cluster.resources import KNOWN

NOW = datetime(2026, 1, 2, tzinfo=UTC)
AN_HOUR_AGO = "2026-01-01T23:00:00Z"
METADATA = {"name": "one", "creationTimestamp": AN_HOUR_AGO}


def shown(resource: str, document: dict[str, Any], *, wide: bool = False) -> list[Any]:
    columns = [column for column in columns_of(resource) if wide or not column.wide]
    return [column.show({"metadata": METADATA, **document}, NOW) for column in columns]


def container(name: str = "main", **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ({"status": {"phase": "Pending"}}, "Pending"),
        ({"status": {"phase": "Failed", "reason": "Evicted"}}, "Evicted"),
        ({"status": {"phase": "Running", "containerStatuses": [container(running={})]}}, "Running"),
        (
            {"status": {"phase": "Pending", "containerStatuses": [container(waiting={"reason": "ErrImagePull"})]}},
            "ErrImagePull",
        ),
        (
            {"status": {"phase": "Failed", "containerStatuses": [container(terminated={"reason": "OOMKilled"})]}},
            "OOMKilled",
        ),
        ({"status": {"phase": "Failed", "containerStatuses": [container(terminated={"exitCode": 3})]}}, "ExitCode:3"),
        ({"status": {"phase": "Failed", "containerStatuses": [container(terminated={"signal": 9})]}}, "Signal:9"),
        (
            {
                "spec": {"initContainers": [{"name": "a"}, {"name": "b"}]},
                "status": {"phase": "Pending", "initContainerStatuses": [container("a", running={})]},
            },
            "Init:0/2",
        ),
        (
            {
                "spec": {"initContainers": [{"name": "a"}]},
                "status": {"initContainerStatuses": [container("a", terminated={"exitCode": 1, "reason": "Error"})]},
            },
            "Init:Error",
        ),
        (
            {
                "spec": {"initContainers": [{"name": "a", "restartPolicy": "Always"}]},
                "status": {
                    "phase": "Running",
                    "initContainerStatuses": [{**container("a", running={}), "started": True}],
                },
            },
            "Running",
        ),
        ({"metadata": {**METADATA, "deletionTimestamp": AN_HOUR_AGO}, "status": {"phase": "Running"}}, "Terminating"),
    ],
)
def test_a_pod_s_status_is_the_word_that_says_most(pod: dict[str, Any], expected: str) -> None:
    assert shown("pods", pod)[2] == expected


def test_a_pod_counts_its_ready_containers_and_restarts() -> None:
    ended = {"terminated": {"finishedAt": "2026-01-01T23:58:00Z"}}
    statuses = [{"ready": True, "restartCount": 2, "lastState": ended}, {"ready": False}]
    pod = {
        "spec": {"containers": [{}, {}], "nodeName": "n"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    assert shown("pods", pod, wide=True) == ["one", "1/2", "Running", "2 (2m ago)", "60m", "<none>", "n"]


@pytest.mark.parametrize(
    ("resource", "document", "expected"),
    [
        (
            "jobs.batch",
            {"spec": {"completions": 4}, "status": {"succeeded": 1, "startTime": "2026-01-01T23:59:00Z"}},
            ["one", "Running", "1/4", "60s", "60m"],
        ),
        (
            "jobs.batch",
            {"status": {"conditions": [{"type": "Failed", "status": "True"}]}},
            ["one", "Failed", "0/1", "", "60m"],
        ),
        (
            "deployments.apps",
            {"spec": {"replicas": 2}, "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}},
            ["one", "1/2", 2, 1, "60m"],
        ),
        ("deployments.apps", {}, ["one", "0/1", 0, 0, "60m"]),
        (
            "services",
            {"spec": {"clusterIP": "None", "ports": [{"port": 80}, {"port": 53, "protocol": "UDP"}]}},
            ["one", "ClusterIP", "None", "<none>", "80/TCP,53/UDP", "60m"],
        ),
        (
            "nodes",
            {
                "spec": {"unschedulable": True},
                "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1"}},
            },
            ["one", "Ready,SchedulingDisabled", "<none>", "60m", "v1"],
        ),
        ("nodes", {}, ["one", "Unknown", "<none>", "60m", ""]),
        (
            "events",
            {
                "type": "Normal",
                "reason": "Started",
                "message": "a\nb",
                "involvedObject": {"kind": "Pod", "name": "p"},
                "lastTimestamp": "2026-01-01T23:59:50Z",
            },
            ["10s", "Normal", "Started", "pod/p", "a b"],
        ),
        ("configmaps", {"data": {"a": "1"}, "binaryData": {"b": ""}}, ["one", 2, "60m"]),
        ("secrets", {"type": "Opaque"}, ["one", "Opaque", 0, "60m"]),
        ("namespaces", {"status": {"phase": "Active"}}, ["one", "Active", "60m"]),
        ("serviceaccounts", {}, ["one", "60m"]),
    ],
)
def test_kubernetes_own_kinds_are_shown_as_kubectl_shows_them(
    resource: str, document: dict[str, Any], expected: list[Any]
) -> None:
    assert shown(resource, document) == expected


def test_every_column_copes_with_an_object_that_has_nothing_but_its_metadata() -> None:
    for known in KNOWN:
        for column in known.columns:
            column.show({"metadata": METADATA}, NOW)


def test_the_columns_of_a_custom_kind_are_its_printer_columns() -> None:
    columns = printer_columns(
        [
            PrinterColumn(name="AGE", path=".metadata.creationTimestamp", type="date", description=""),
            PrinterColumn(name="SIZE", path=".spec.size", type="integer", description=""),
            PrinterColumn(name="PARTS", path=".spec.parts[*]", wide=True, description=""),
            PrinterColumn(name="MAP", path=".spec.map", description=""),
        ]
    )
    assert [(column.name, column.type, column.wide) for column in columns] == [
        ("NAME", "string", False),
        ("AGE", "string", False),
        ("SIZE", "integer", False),
        ("PARTS", "string", True),
        ("MAP", "string", False),
    ]
    document = {"metadata": METADATA, "spec": {"size": 3, "parts": ["a", "b"], "map": {"x": 1}}}
    assert [column.show(document, NOW) for column in columns] == ["one", "60m", 3, "a,b", "{'x': 1}"]
    assert [column.name for column in printer_columns([])] == ["NAME", "AGE"]
