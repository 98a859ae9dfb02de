"""The checker finds what Google would refuse, and nothing else."""

import copy
from typing import Any

import msgspec
import pytest

from holdfast.providers.gcp.instance import MachineType, insert_body
from tests.providers.compute_engine.checker import answer_problems, request_problems
from tests.providers.compute_engine.description import Description, Found
from tests.providers.gcp.lab import UID, spec

INSERT = "projects/my-gcp-project/zones/us-central1-a/instances"
FULL = spec(
    network_tags=("gpu",),
    service_account="robot@my-gcp-project.iam.gserviceaccount.com",
    preemption_notice_s=120,
    max_run_duration_s=3600,
)


def insert_request() -> dict[str, Any]:
    """The body that holdfast sends, as it is on the wire."""
    body = insert_body(FULL, "my-gcp-project", MachineType())
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(body))
    return found


def found(contract: Description, verb: str = "POST", path: str = INSERT) -> Found:
    it = contract.find(verb, path)
    assert it is not None
    return it


def problems(contract: Description, body: object, **query: str) -> list[str]:
    return list(request_problems(contract, found(contract), query, body))


def changed(path: str, value: object) -> dict[str, Any]:
    """The request with one field set; path: as in disks.0.boot."""
    body: Any = copy.deepcopy(insert_request())
    *way, last = path.split(".")
    at = body
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[last] = value
    return body  # type: ignore[no-any-return]


def test_our_own_insert_is_understood(contract: Description) -> None:
    assert problems(contract, insert_request(), requestId=UID) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("machinetype", "n1", "machinetype: there is no such field"),
        ("scheduling.preemptable", True, "scheduling.preemptable: there is no such field"),
        ("disks.0.initializeParams.sourceimage", "x", "disks[0].initializeParams.sourceimage: there is no such field"),
        ("disks.0.autodelete", True, "disks[0].autodelete: there is no such field"),
    ],
)
def test_a_misspelt_field_is_found(contract: Description, path: str, value: object, said: str) -> None:
    assert problems(contract, changed(path, value)) == [said]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("scheduling.provisioningModel", "CHEAP", "scheduling.provisioningModel: 'CHEAP' is none of "),
        ("scheduling.instanceTerminationAction", "delete", "instanceTerminationAction: 'delete' is none of DELETE, "),
        ("scheduling.onHostMaintenance", "STOP", "scheduling.onHostMaintenance: 'STOP' is none of "),
        ("networkInterfaces.0.accessConfigs.0.type", "NAT", "accessConfigs[0].type: 'NAT' is none of "),
    ],
)
def test_a_wrong_enum_is_found(contract: Description, path: str, value: object, said: str) -> None:
    (problem,) = problems(contract, changed(path, value))
    assert said in problem


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("disks.0.initializeParams.diskSizeGb", 100, "diskSizeGb: 100 is not a number in a string"),
        ("disks.0.initializeParams.diskSizeGb", "100GB", "diskSizeGb: '100GB' is no int64"),
        ("scheduling.maxRunDuration", {"seconds": 60}, "maxRunDuration.seconds: 60 is not a number in a string"),
        (
            "scheduling.preemptionNoticeDuration",
            {"seconds": "1m"},
            "preemptionNoticeDuration.seconds: '1m' is no int64",
        ),
    ],
)
def test_a_number_where_int64_wants_a_string_is_found(
    contract: Description, path: str, value: object, said: str
) -> None:
    (problem,) = problems(contract, changed(path, value))
    assert said in problem


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status", "RUNNING"),
        ("id", "123"),
        ("creationTimestamp", "2026-03-01T00:00:00Z"),
        ("selfLink", "https://x"),
        ("zone", "us-central1-a"),
        ("kind", "compute#instance"),
        ("disks.0.index", 0),
        ("networkInterfaces.0.name", "nic0"),
    ],
)
def test_an_output_only_field_is_found(contract: Description, path: str, value: object) -> None:
    (problem,) = problems(contract, changed(path, value))
    assert problem.endswith(": is output only")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("name", 5, "name: 5 is not a string"),
        ("name", "Not-A-Name", "name: 'Not-A-Name' does not match "),
        ("scheduling.automaticRestart", "false", "automaticRestart: 'false' is neither true nor false"),
        ("guestAccelerators.0.acceleratorCount", "1", "acceleratorCount: '1' is no int32"),
        ("guestAccelerators.0.acceleratorCount", 1.5, "acceleratorCount: 1.5 is no int32"),
        ("guestAccelerators.0.acceleratorCount", True, "acceleratorCount: True is no int32"),
        ("guestAccelerators.0.acceleratorCount", 2**31, "is no int32"),
        ("disks", {}, "disks: {} is no list"),
        ("labels", ["a"], "labels: ['a'] is no object"),
        ("labels", {"a": 1}, "labels.a: 1 is not a string"),
        ("metadata", None, "metadata: None is no object"),
        ("tags.items", "gpu", "tags.items: 'gpu' is no list"),
    ],
)
def test_a_wrong_type_is_found(contract: Description, path: str, value: object, said: str) -> None:
    (problem,) = problems(contract, changed(path, value))
    assert said in problem


def test_what_is_missing_is_found(contract: Description) -> None:
    body = insert_request()
    del body["name"]
    assert problems(contract, body) == ["name: is missing"]
    assert problems(contract, None) == ["instances.insert needs a body"]


def test_several_problems_are_all_listed(contract: Description) -> None:
    body = changed("status", "RUNNING")
    body["nmae"] = "m"
    assert len(problems(contract, body)) == 2


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"requestid": UID}, "?requestid: instances.insert has no such parameter"),
        ({"zone": "us-central1-a"}, "?zone: instances.insert has no such parameter"),
        ({"fields": "name", "prettyPrint": "maybe"}, "?prettyPrint: 'maybe' is neither true nor false"),
    ],
)
def test_wrong_parameters_are_found(contract: Description, query: dict[str, str], said: str) -> None:
    assert problems(contract, insert_request(), **query) == [said]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"maxResults": "500", "returnPartialSuccess": "true", "filter": "x = y", "pageToken": "1"}, []),
        ({"maxResults": "many"}, ["?maxResults: 'many' is no number from 0 to "]),
        ({"maxResults": "-1"}, ["?maxResults: '-1' is no number from 0 to "]),
        ({"returnPartialSuccess": "yes"}, ["?returnPartialSuccess: 'yes' is neither true nor false"]),
    ],
)
def test_parameters_of_lists(contract: Description, query: dict[str, str], said: list[str]) -> None:
    it = found(contract, "GET", "projects/my-gcp-project/aggregated/instances")
    told = list(request_problems(contract, it, query, None))
    assert len(told) == len(said)
    assert all(one.startswith(two) for one, two in zip(told, said, strict=True))


def test_a_wrong_path_is_found(contract: Description) -> None:
    assert contract.find("POST", "projects/p/zone/z/instances") is None
    assert contract.find("PUT", "projects/p/zones/z/instances") is None
    it = found(contract, "GET", "projects/My_Project/zones/us-central1-a/instances/m")
    (problem,) = request_problems(contract, it, {}, None)
    assert problem.startswith("{project}: 'My_Project' does not match ")
    assert list(request_problems(contract, it, {}, {}))[1] == "instances.get takes no body"


def test_answers_are_held_to_it_too(contract: Description) -> None:
    it = found(contract, "GET", f"{INSERT}/m")
    assert list(answer_problems(contract, it, {"name": "m", "status": "RUNNING", "id": "1"})) == []
    assert len(list(answer_problems(contract, it, {"status": "LEVITATING", "id": 1, "x": 2}))) == 3
