"""Objects in, admitted objects or refusals out."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.api.kinds import KINDS, kind_of
from holdfast.api.manifests import documents
from holdfast.api.schema import validation as cel
from holdfast.api.schema.crd import object_schema
from holdfast.api.schema.validation import subject, validate_object
from holdfast.api.schema.violations import ValidationFailed
from tests.api.cases import CASES, CHANGES, STATUSES, Case, Change, Report, merged
from tests.api.cases.objects import JSON, backup, gpu_workload, spot_job, training_job


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_an_object_is_accepted_or_refused_at_the_field(case: Case) -> None:
    _expect(case.field, case.says, case.document)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.title)
def test_a_change_is_accepted_or_refused_at_the_field(change: Change) -> None:
    stored = {**validate_object(change.document), "status": change.status}
    _expect(change.field, change.says, merged(stored, change.patch), stored)


def _expect(field: str, says: str, document: JSON, old: JSON | None = None) -> None:
    if not field:
        validate_object(document, old)
        return
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(document, old)
    assert [cause for cause in refusal.value.causes if cause.field == field and says in cause.message], refusal.value


def test_every_manifest_that_we_promise_is_accepted_and_decodes(manifest: Path) -> None:
    for document in documents(manifest.read_text()):
        kind = kind_of(document["apiVersion"], document["kind"])
        assert kind is not None
        decoded = msgspec.convert(validate_object(document), kind.model)
        assert decoded.metadata.name == document["metadata"]["name"]


def test_every_rule_holds_in_one_case_and_breaks_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = defaultdict(set)
    program = cel._program

    class Recorded:
        def __init__(self, rule: str) -> None:
            self.rule = rule

        def eval(self, data: JSON) -> Any:
            value = program(self.rule).eval(data=data)
            verdicts[self.rule].add(value.value())
            return value

    monkeypatch.setattr(cel, "_program", Recorded)
    for case in CASES:
        _attempt(case.document)
    for change in CHANGES:
        stored = {**validate_object(change.document), "status": change.status}
        _attempt(merged(stored, change.patch), stored)
    rules = {rule["rule"] for kind in KINDS for rule in _rules(object_schema(kind))}
    assert {rule: verdicts[rule] for rule in rules if verdicts[rule] != {True, False}} == {}


def _attempt(document: JSON, old: JSON | None = None) -> None:
    try:
        validate_object(document, old)
    except ValidationFailed:
        return


def _rules(schema: Any) -> Iterator[JSON]:
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for child in schema.values():
            yield from _rules(child)


def test_rules_about_changes_are_at_the_root_where_the_status_can_be_seen() -> None:
    nested = [rule for kind in KINDS for rule in _rules(object_schema(kind)["properties"]) if "oldSelf" in rule["rule"]]
    assert nested == []


def test_defaults_are_filled_in_only_where_the_schema_has_them() -> None:
    spec = validate_object(training_job({"checkpoint": {}, "networking": {}, "failurePolicy": {}, "monitoring": {}}))[
        "spec"
    ]
    assert spec == {
        "model": "bert-base",
        "dataset": "wiki text",
        "numWorkers": 2,
        "framework": "pytorch",
        "checkpoint": {"enabled": True, "frequency": 1, "retention": 3},
        "networking": {"masterPort": 29500},
        "failurePolicy": {"restartPolicy": "OnFailure", "backoffLimit": 3},
        "monitoring": {"enabled": True, "metricsPort": 8080},
    }
    assert validate_object(gpu_workload({"retryPolicy": {}}))["spec"] == {
        "modelName": "llama",
        "gpuCount": 2,
        "priority": 0,
        "schedulingStrategy": "leastLoaded",
        "retryPolicy": {"maxRetries": 3, "backoffSeconds": 30},
    }
    assert validate_object(spot_job())["spec"]["replicas"] == 2


def test_the_submitted_object_is_left_as_it_was() -> None:
    document = training_job({"checkpoint": {}})
    before = msgspec.json.encode(document)
    admitted = validate_object(document)
    admitted["spec"]["checkpoint"]["frequency"] = 7
    assert msgspec.json.encode(document) == before


def test_what_a_job_template_holds_is_kept_unseen() -> None:
    template = {"suspend": None, "template": {"spec": {"containers": [{"name": "a", "x": [1, None]}], "y": {"z": 1.0}}}}
    document = spot_job()
    document["spec"]["jobTemplate"] = {"spec": template}
    admitted = validate_object(document)["spec"]["jobTemplate"]
    assert admitted == {"spec": template}


def test_unknown_fields_are_dropped_when_that_is_asked_for() -> None:
    document = merged(training_job(), {"spec": {"numWorker": 3, "checkpoint": {"kept": 1}}, "extra": {"a": 1}})
    admitted = validate_object(document, strict=False)
    assert "extra" not in admitted
    assert "numWorker" not in admitted["spec"]
    assert admitted["spec"]["checkpoint"] == {"enabled": True, "frequency": 1, "retention": 3}


def test_a_misspelt_field_is_answered_with_the_right_spelling() -> None:
    with pytest.raises(ValidationFailed, match="did you mean numWorkers"):
        validate_object(training_job({"numWorker": 2}))


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(
            training_job(
                {"numWorkers": 101, "checkpoint": {"storage": {"type": "s3"}}, "networking": {"backend": "mpi"}}
            )
        )
    assert {cause.field for cause in refusal.value.causes} == {
        "spec.numWorkers",
        "spec.checkpoint.storage.s3Bucket",
        "spec.networking.backend",
    }
    assert str(refusal.value).startswith("TrainingJob/bert is invalid: ")


def test_a_value_of_a_wrong_type_keeps_the_rules_from_being_asked() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(training_job({"numWorkers": "two", "networking": {"backend": "mpi"}}))
    assert [cause.field for cause in refusal.value.causes] == ["spec.numWorkers"]


def test_a_create_drops_the_status_and_an_update_keeps_the_old_one() -> None:
    written = {**training_job(), "status": {"state": "Completed"}}
    assert "status" not in validate_object(written)
    stored = {**validate_object(training_job()), "status": {"state": "Running", "startTime": "2026-01-01T00:00:00Z"}}
    assert validate_object(written, stored)["status"] == stored["status"]


def test_an_update_of_the_status_changes_nothing_else() -> None:
    stored = validate_object(training_job())
    update = {**merged(stored, {"spec": {"numWorkers": 9}}), "status": {"state": "Running", "workers": {"active": 2}}}
    admitted = validate_object(update, stored, status=True)
    assert admitted["spec"] == stored["spec"]
    assert admitted["status"] == update["status"]


@pytest.mark.parametrize("report", STATUSES, ids=lambda report: report.title)
def test_a_status_is_accepted_or_refused_at_the_field(report: Report) -> None:
    stored = validate_object(training_job())
    update = {**stored, "status": report.status}
    if not report.field:
        assert validate_object(update, stored, status=True)["status"] == report.status
        return
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(update, stored, status=True)
    assert report.field in {cause.field for cause in refusal.value.causes}


def test_what_was_wrong_before_and_did_not_change_does_not_stop_an_update() -> None:
    stored = training_job({"networking": {"backend": "mpi"}, "image": "two words", "model": ""})
    validate_object(merged(stored, {"metadata": {"finalizers": ["holdfast.dev/children"]}}), stored)
    with pytest.raises(ValidationFailed) as refusal:
        validate_object(merged(stored, {"spec": {"networking": {"masterPort": 8080}}}), stored)
    assert {cause.field for cause in refusal.value.causes} == {"spec.networking.backend", "spec.networking.masterPort"}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}},
        {"apiVersion": "ml.example.com/v2", "kind": "TrainingJob"},
        {"apiVersion": 1, "kind": ["TrainingJob"]},
    ],
)
def test_a_foreign_kind_is_refused_with_the_list_of_ours(document: JSON) -> None:
    with pytest.raises(ValidationFailed, match=r"there are TrainingJob \(ml\.example\.com/v1\), GPUWorkload"):
        validate_object(document)


@pytest.mark.parametrize("metadata", [None, {}, {"name": ""}, {"name": None}])
def test_an_object_without_a_name_is_refused(metadata: JSON | None) -> None:
    with pytest.raises(ValidationFailed, match=r"metadata\.name: Required value"):
        validate_object({**training_job(), "metadata": metadata})


@pytest.mark.parametrize(
    "metadata", ["bert", [1], {"name": 5}, {"name": "a", "labels": ["a"]}, {"name": "a", "labels": 3}]
)
def test_metadata_of_a_wrong_type_is_refused(metadata: Any) -> None:
    with pytest.raises(ValidationFailed, match="must be of type"):
        validate_object({**training_job(), "metadata": metadata})


def test_both_versions_of_a_backup_are_served_alike() -> None:
    assert validate_object(backup())["spec"] == validate_object(backup(version="v1alpha1"))["spec"]


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ({"kind": "TrainingJob", "metadata": {"name": "bert"}}, "TrainingJob/bert"),
        ({"kind": "TrainingJob", "metadata": {"generateName": "bert-"}}, "TrainingJob/bert-*"),
        ({"metadata": []}, "(no kind)/(no name)"),
    ],
)
def test_an_object_is_called_by_kind_and_name(document: JSON, name: str) -> None:
    assert subject(document) == name


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ("999m", "1"),
        ("1", "1001m"),
        ("1G", "1Gi"),
        ("1023Ki", "1Mi"),
        ("1e3", "1001"),
        ("1E", "1Ei"),
        ("900n", "1u"),
        (".5", "1"),
        ("-1", "0"),
        ("1T", "1P"),
        ("4e2", "5E2"),
    ],
)
def test_amounts_are_ordered_as_kubernetes_orders_them(smaller: str, larger: str) -> None:
    assert cel.quantity(smaller) < cel.quantity(larger)


@pytest.mark.parametrize(
    ("one", "other"), [("1000m", "1"), ("1024Mi", "1Gi"), ("1e3", "1k"), ("5.", "5"), ("1000u", "1m")]
)
def test_amounts_in_different_units_are_equal(one: str, other: str) -> None:
    assert cel.quantity(one) == cel.quantity(other)


def test_a_rule_that_can_not_be_evaluated_refuses_and_says_so() -> None:
    schema = {"type": "object", "x-kubernetes-validations": [{"rule": "self.absent == 1", "message": "be present"}]}
    (cause,) = cel.rule_violations({}, schema)
    assert "be present" in cause.message
    assert "could not be evaluated" in cause.message
