"""What is said of the API server, the definitions and the operator; and how lines are put together."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast import __version__
from holdfast.api.core.objects import Lease
from holdfast.api.meta import Key
from holdfast.cli.doctor.control_plane import (
    contains,
    deployment_findings,
    image_version,
    lease_finding,
    version_finding,
)
from holdfast.cli.doctor.findings import Level, Section, by_finding, hidden, note, ok, printed, problem

NOW = datetime(2026, 1, 1, 12, 0, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("v1.32.9", Level.PROBLEM),
        ("v1.33.0", Level.OK),
        ("v1.36.3", Level.OK),
        ("v1.40.1-gke.5", Level.OK),
        ("v2.0.0", Level.OK),
        ("", Level.OK),
    ],
)
def test_a_cluster_that_is_too_old_is_a_problem(version: str, level: Level) -> None:
    assert version_finding(version).level is level


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [
        ({"a": 1, "added": True}, {"a": 1}, True),
        ({"a": 2}, {"a": 1}, False),
        ({}, {"a": None}, True),
        ({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1}]}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": "xy"}, {"a": ["x", "y"]}, False),
        (None, {"a": 1}, False),
    ],
)
def test_what_the_api_server_adds_makes_no_difference(found: object, wanted: object, fits: bool) -> None:
    assert contains(found, wanted) is fits


def lease(**spec: Any) -> Lease:
    return msgspec.convert({"metadata": {"name": "holdfast-operator", "namespace": "ops"}, "spec": spec}, Lease)


@pytest.mark.parametrize(
    ("spec", "level", "says"),
    [
        ({"renewTime": "2026-01-01T12:00:10.000000Z"}, Level.OK, "op-1 leads (Lease ops/holdfast-operator)"),
        ({"renewTime": "2026-01-01T11:00:00Z"}, Level.PROBLEM, "op-1 renewed Lease ops/holdfast-operator last 60m ago"),
        ({}, Level.PROBLEM, "nobody leads"),
        ({"holderIdentity": "", "renewTime": "2026-01-01T12:00:19Z"}, Level.PROBLEM, "was given back"),
    ],
)
def test_a_lease_shows_whether_an_operator_leads(spec: dict[str, Any], level: Level, says: str) -> None:
    finding = lease_finding(lease(**{"holderIdentity": "op-1", "leaseDurationSeconds": 15, **spec}), NOW)
    assert finding.level is level
    assert says in finding.text


def deployment(ready: int, image: str) -> dict[str, Any]:
    return {
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"readyReplicas": ready},
    }


def test_a_deployment_is_fine_when_all_replicas_are_ready_and_of_this_version() -> None:
    key, image = Key("ops", "holdfast-operator"), f"registry.example/holdfast:{__version__}"
    assert [each.level for each in deployment_findings(key, deployment(2, image))] == [Level.OK]
    assert [each.level for each in deployment_findings(key, deployment(1, image))] == [Level.PROBLEM]
    _, other = deployment_findings(key, deployment(2, "registry.example/holdfast:9.9.9"))
    assert other.level is Level.NOTE
    assert "runs registry.example/holdfast:9.9.9" in other.text


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("holdfast:0.1.0", "0.1.0"),
        ("r:5000/h:v1.2.3", "1.2.3"),
        ("r:5000/h", ""),
        ("h:latest", ""),
        ("h@sha256:ab", ""),
    ],
)
def test_only_a_tag_that_is_a_version_is_compared(image: str, version: str) -> None:
    assert image_version(image) == version


def test_nodes_of_which_the_same_is_said_share_a_line() -> None:
    same, other = ok("fine"), problem("broken", "mend it")
    pairs = [("n2", same), ("n1", same), ("n3", other)]
    assert [each.text for each in by_finding(pairs, 3)] == ["n1, n2: fine", "n3: broken"]
    many = [(f"n{number}", same) for number in range(1, 9)]
    assert [each.text for each in by_finding(many, 9)] == ["n1, n2, n3, n4, n5 and 3 more: fine"]
    assert [each.text for each in by_finding(many, 8)] == ["all 8 nodes: fine"]


def test_the_report_ends_with_how_many_problems_there_are() -> None:
    sections = [
        Section(title="Cluster", findings=(ok("fine"), problem("broken", "mend it"))),
        Section(title="Nodes", findings=(note("so so"), hidden("leases", "list leases"))),
    ]
    assert list(printed(sections)) == [
        "Cluster",
        "  ok       fine",
        "  problem  broken",
        "           → mend it",
        "Nodes",
        "  note     so so",
        "  hidden   leases: you may not look",
        "           → it takes the right to list leases",
        "1 problem found; what is hidden from you (1) was not examined",
    ]
    assert list(printed([]))[-1] == "no problems found"
