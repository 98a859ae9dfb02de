"""The words of a command line: kinds, names, goals and durations; and the tables that answer them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.cli.errors import UsageError
from holdfast.cli.get import Table, aligned, four_digits
from holdfast.cli.resource_args import find_kind, kind_of, parse_named_resources, parse_resources
from holdfast.cli.wait_conditions import parse_condition, parse_seconds, status_summary, unreachable_reason

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("tj", "TrainingJob"),
        ("TrainingJob", "TrainingJob"),
        ("trainingjobs.ml.example.com", "TrainingJob"),
        ("po", "Pod"),
        ("jobs.batch", "Job"),
        ("cb", "CheckpointBackup"),
        ("crds", "CustomResourceDefinition"),
    ],
)
def test_a_kind_goes_by_each_of_its_names(word: str, kind: str) -> None:
    assert find_kind(word).resource.kind == kind


@pytest.mark.parametrize("word", ["pods.batch", "", "holdfast", "podz"])
def test_what_is_no_kind_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="there is no kind"):
        find_kind(word)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tj"], [("TrainingJob", ())]),
        (["tj", "a", "b", "a"], [("TrainingJob", ("a", "b"))]),
        (["tj/a", "pod/b"], [("TrainingJob", ("a",)), ("Pod", ("b",))]),
        (["po,svc"], [("Pod", ()), ("Service", ())]),
    ],
)
def test_kinds_and_names_are_distinguished(arguments: list[str], expected: list[Any]) -> None:
    assert [(each.known.resource.kind, each.names) for each in parse_resources(arguments)] == expected


def test_a_category_stands_for_its_kinds() -> None:
    ours = [each.known.resource.kind for each in parse_resources(["holdfast"])]
    assert ours[0] == "TrainingJob"
    assert len(ours) == 6
    everything = [each.known.resource.kind for each in parse_resources(["all"])]
    assert everything == [*ours, "Pod", "Service", "Job", "Deployment"]


@pytest.mark.parametrize(
    "arguments", [[], ["tj/a", "b"], ["tj/"], ["/a"], ["tj/a/b"], ["holdfast", "a"], ["po,tj", "a"]]
)
def test_arguments_that_fit_no_form_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_resources(arguments)


def test_where_objects_must_be_named_a_kind_is_not_enough() -> None:
    with pytest.raises(UsageError, match="tj/NAME"):
        parse_named_resources(["tj"])


def test_a_manifest_s_kind_is_found_by_its_api_version() -> None:
    assert kind_of({"apiVersion": "batch/v1", "kind": "Job"}).title == "job.batch"
    old = kind_of({"apiVersion": "migration.dcnlab.com/v1alpha1", "kind": "CheckpointBackup"})
    assert old.resource.version == "v1alpha1"
    with pytest.raises(UsageError, match="write apiVersion: batch/v1"):
        kind_of({"apiVersion": "v1", "kind": "Job"})


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("7", 7), ("0", 0), ("1.5s", 1.5)]
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 s", "5d", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no duration"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2275489568570467, "0.2275"), (2.0, "2"), (1e-05, "1e-05"), (123.456, "123.5"), (123456.7, "123457")],
)
def test_a_measured_number_has_four_digits(value: float, text: str) -> None:
    assert four_digits(value) == text
    document = {"metadata": {"name": "a"}, "status": {"metrics": {"loss": value}}}
    assert text in Table(find_kind("tj"), wide=True).row(document, NOW)


def job(*conditions: dict[str, Any], generation: int = 1, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a", "generation": generation}, "status": {"conditions": list(conditions), **status}}


def held(kind: str, status: str = "True", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, **more}


@pytest.mark.parametrize(
    ("goal", "document", "met"),
    [
        ("condition=Running", job(held("Running")), True),
        ("condition=running", job(held("Running")), True),
        ("condition=Running", job(held("Running", "False")), False),
        ("condition=Running=false", job(held("Running", "False")), True),
        ("condition=Running=false", job(), False),
        ("condition=Running", job(held("Running", observedGeneration=1), generation=2), False),
        ("condition=Running", job(held("Running", observedGeneration=2), generation=2), True),
        ("jsonpath={.status.state}=Running", job(state="Running"), True),
        ("jsonpath={.status.state}=Running", job(state="Failed"), False),
        ("jsonpath=.status.state=Running", job(state="Running"), True),
        ("jsonpath={.status.count}=3", job(count=3), True),
        ("jsonpath={.status.on}=true", job(on=True), True),
        ("jsonpath={.status.state}", job(state="any"), True),
        ("jsonpath={.status.state}", job(), False),
        ('jsonpath={.status.conditions[?(@.type=="Running")].status}=True', job(held("Running")), True),
    ],
)
def test_a_goal_is_met_by_what_it_names(goal: str, document: dict[str, Any], met: bool) -> None:
    aim = parse_condition(goal)
    assert aim is not None
    assert aim.is_met(document) is met


@pytest.mark.parametrize("text", ["", "condition", "condition=", "jsonpath=", "jsonpath={.a", "create", "Delete"])
def test_what_is_no_goal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--for"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("kind", "goal", "document", "hopeless"),
    [
        ("TrainingJob", "condition=Succeeded", job(held("Failed")), True),
        ("TrainingJob", "condition=Succeeded", job(held("Failed", "False")), False),
        ("TrainingJob", "condition=Running", job(held("Succeeded")), True),
        ("TrainingJob", "jsonpath={.status.state}=Completed", job(held("Failed")), True),
        ("TrainingJob", "jsonpath={.status.duration}", job(held("Failed")), False),
        ("GPUWorkload", "condition=Succeeded", job(held("Failed")), True),
        ("Job", "condition=Complete", job(held("Failed")), True),
        ("Pod", "condition=Ready", job(held("Failed")), False),
    ],
)
def test_waiting_is_pointless_once_the_object_is_done(
    kind: str, goal: str, document: dict[str, Any], hopeless: bool
) -> None:
    aim = parse_condition(goal)
    assert aim is not None
    assert bool(unreachable_reason(kind, document, aim)) is hopeless


def test_how_an_object_stands_is_said_with_its_own_words() -> None:
    assert status_summary(job(state="Pending", message="no room")) == "Pending: no room"
    assert status_summary(job(phase="Running")) == "Running"
    assert status_summary({"metadata": {}}) == ""


def training_job(name: str, state: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "ml", "creationTimestamp": "2026-01-01T23:59:00Z"}
    return {"metadata": metadata, "status": {"state": state}}


def test_rows_that_come_later_stand_under_the_first() -> None:
    table = Table(find_kind("tj"), with_namespace=True, with_kind=True)
    first = table.lines([table.row(training_job("a-long-name", "Running"), NOW)])
    (later,) = table.lines([table.row(training_job("b", "Failed"), NOW)], headers=False)
    assert first[0].split() == ["NAMESPACE", "NAME", "STATE", "PROGRESS", "EPOCH", "AGE"]
    assert later.split() == ["ml", "trainingjob.ml.example.com/b", "Failed", "60s"]
    assert later.index("Failed") == first[0].index("STATE")


def test_a_state_is_coloured_and_what_would_command_a_terminal_is_shown_instead() -> None:
    coloured = Table(find_kind("tj"), coloured=True)
    (line,) = coloured.lines([coloured.row(training_job("a", "Failed"), NOW)], headers=False)
    assert "\x1b[31mFailed\x1b[0m" in line
    plain = Table(find_kind("tj"))
    (line,) = plain.lines([plain.row(training_job("a", "\x1b[31mbad"), NOW)], headers=False)
    assert "\x1b" not in line
    assert "\\x1b[31mbad" in line


def test_plain_columns_are_as_wide_as_their_widest_cell() -> None:
    assert aligned([["a", "b"], ["long", "c"]], "  ") == ["  a      b", "  long   c"]
    assert aligned([]) == []
