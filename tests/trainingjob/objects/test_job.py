"""The workers' Job: what is fixed for an attempt, and what follows the TrainingJob."""

from typing import Any

import pytest
from msgspec import structs

from holdfast.api.trainingjob import TrainingJob
from holdfast.trainingjob.objects.job import mutable_fields, pod_template, spec_digest, workers_job
from tests.trainingjob.objects.family import DEFAULTS
from tests.trainingjobs import training_job

ELASTIC = {"command": ["torchrun", "--nnodes=1:2"]}
CHARGED = {"outOfMemory": 1, "hang": 1, "application": 1}
FREE = {"preemption": 5, "infrastructure": 5}


def job_spec(job: TrainingJob, *, suspended: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = workers_job(job, pod_template(job, DEFAULTS), suspended=suspended)["spec"]
    return spec


def queued(job: TrainingJob) -> TrainingJob:
    return structs.replace(job, metadata=structs.replace(job.metadata, labels={"kueue.x-k8s.io/queue-name": "q"}))


def test_there_is_a_worker_for_each_index() -> None:
    spec = job_spec(training_job({"numWorkers": 8}))
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 8, 8)
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["subdomain"] == "bert-headless"


@pytest.mark.parametrize(
    "policy", [{}, {"backoffLimit": 5}, {"restartPolicy": "ExitCode"}, {"activeDeadlineSeconds": 60}]
)
def test_a_gang_ends_with_the_first_worker_that_is_lost(policy: dict[str, Any]) -> None:
    spec = job_spec(training_job({"failurePolicy": policy}))
    assert spec.keys() == {
        "completionMode",
        "completions",
        "parallelism",
        "podReplacementPolicy",
        "backoffLimit",
        "suspend",
        "template",
    }
    assert (spec["backoffLimit"], spec["podReplacementPolicy"]) == (0, "Failed")


@pytest.mark.parametrize(
    ("policy", "restarts", "left"),
    [
        (None, None, 3),
        ({"backoffLimit": 0}, None, 0),
        ({"restartPolicy": "Never", "backoffLimit": 5}, None, 0),
        ({"restartPolicy": "Always"}, None, 3),
        ({"backoffLimit": 5}, {**CHARGED, **FREE}, 2),
        ({"backoffLimit": 2}, CHARGED, 0),
        (None, FREE, 3),
    ],
)
def test_an_elastic_training_replaces_workers_while_failures_are_left(
    policy: dict[str, Any] | None, restarts: dict[str, int] | None, left: int
) -> None:
    written = {**ELASTIC, **({"failurePolicy": policy} if policy else {})}
    job = training_job(written, status={"restarts": restarts} if restarts else None)
    assert job_spec(job)["backoffLimit"] == left


def test_an_elastic_trainings_lost_machines_are_free() -> None:
    spec = job_spec(training_job(ELASTIC))
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]


def test_an_elastic_trainings_own_exit_codes_are_final_when_it_says_so() -> None:
    rules = job_spec(training_job({**ELASTIC, "failurePolicy": {"restartPolicy": "ExitCode"}}))["podFailurePolicy"][
        "rules"
    ]
    assert [rule["action"] for rule in rules] == ["Ignore", "FailJob"]
    assert rules[1]["onExitCodes"] == {"containerName": "trainer", "operator": "In", "values": list(range(1, 128))}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, {"suspend": True}), (ELASTIC, {"suspend": True, "backoffLimit": 3})],
)
def test_a_running_job_follows_these(spec: dict[str, Any], expected: dict[str, Any]) -> None:
    assert mutable_fields(training_job(spec), suspended=True) == expected
    assert job_spec(training_job(spec), suspended=True).items() >= expected.items()


def test_a_new_attempt_starts_as_it_is_told() -> None:
    assert job_spec(training_job(), suspended=True)["suspend"] is True
    assert job_spec(training_job(), suspended=False)["suspend"] is False


@pytest.mark.parametrize("suspended", [True, False])
def test_a_queued_job_starts_suspended_and_only_kueue_changes_that(suspended: bool) -> None:
    job = queued(training_job())
    assert job_spec(job, suspended=suspended)["suspend"] is True
    assert mutable_fields(job, suspended=suspended) == {}
    assert mutable_fields(queued(training_job(ELASTIC)), suspended=suspended) == {"backoffLimit": 3}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"suspend": True}, True),
        ({"ttlSecondsAfterFinished": 5}, True),
        ({"failurePolicy": {"backoffLimit": 9, "activeDeadlineSeconds": 60}}, True),
        ({"checkpoint": {"retention": 9}}, False),
        ({"numWorkers": 3}, False),
        ({"image": "other"}, False),
        ({"failurePolicy": {"restartPolicy": "ExitCode"}}, False),
        ({"hyperparameters": {"epochs": 4}}, False),
        ({"scheduling": {"tolerations": []}}, False),
        ({"progressDeadlineSeconds": 60}, True),
        ({"successPolicy": {"targetAccuracy": 0.9}}, True),
    ],
)
def test_a_change_makes_a_new_attempt_only_if_it_alters_the_training(change: dict[str, Any], same: bool) -> None:
    assert (spec_digest(training_job(change).spec) == spec_digest(training_job().spec)) is same


@pytest.mark.parametrize(
    ("written", "same"),
    [({"monitoring": {"enabled": False}}, False), ({"monitoring": {"enabled": False}, "checkpoint": {}}, True)],
)
@pytest.mark.parametrize("policy", [{"progressDeadlineSeconds": 60}, {"successPolicy": {"targetAccuracy": 0.9}}])
def test_a_policy_that_needs_the_first_sidecar_makes_a_new_attempt(
    written: dict[str, Any], same: bool, policy: dict[str, Any]
) -> None:
    before, after = training_job(written), training_job({**written, **policy})
    assert (spec_digest(before.spec) == spec_digest(after.spec)) is same


def test_how_many_checkpoints_are_kept_alters_no_training() -> None:
    few, many = (training_job({"checkpoint": {"frequency": 2, "retention": count}}) for count in (1, 9))
    assert spec_digest(few.spec) == spec_digest(many.spec)


@pytest.mark.parametrize("watched", [{"monitoring": {}}, {"checkpoint": {}}])
@pytest.mark.parametrize("policy", [{"progressDeadlineSeconds": 60}, {"successPolicy": {"targetAccuracy": 0.9}}])
def test_what_acts_on_progress_alters_no_training_that_has_a_sidecar(
    watched: dict[str, Any], policy: dict[str, Any]
) -> None:
    before, after = training_job(watched), training_job({**watched, **policy})
    assert spec_digest(before.spec) == spec_digest(after.spec)


def test_a_policy_is_changed_for_another_without_a_new_attempt() -> None:
    before, after = (
        training_job({"progressDeadlineSeconds": 60}),
        training_job({"successPolicy": {"targetAccuracy": 1}}),
    )
    assert spec_digest(before.spec) == spec_digest(after.spec)


def test_the_job_carries_the_digest_of_what_it_was_made_for() -> None:
    job = training_job({"numWorkers": 3})
    annotations = workers_job(job, pod_template(job, DEFAULTS), suspended=False)["metadata"]["annotations"]
    assert annotations == {"holdfast.dev/spec-digest": spec_digest(job.spec)}
