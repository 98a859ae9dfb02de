"""How a child that is there differs from the one that should be."""

from typing import Any

import msgspec
import pytest

from holdfast.api.meta import Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.controllers.trainingjob.children import Child, around_workers, belongs_to, difference, workers_of
from tests.trainingjobs import training_job


def stored(child: Child, **changes: Any) -> Object:
    """The child as the API server gives it back, with these fields of spec, data or labels set otherwise."""
    body = msgspec.json.decode(msgspec.json.encode(child.body))
    body["metadata"]["resourceVersion"] = "42"
    for place, fields in changes.items():
        target = body["metadata"] if place in ("labels", "ownerReferences") else body
        target[place] = {**target.get(place, {}), **fields} if isinstance(fields, dict) else fields
    model: type[Object] = child.resource.model
    return msgspec.convert(body, model)


def children(job: TrainingJob) -> list[Child]:
    return [*around_workers(job), workers_of(job, "holdfast:test")]


CONFIG, HEADLESS, MASTER, WORKERS = children(training_job())
FULL = training_job({"suspend": True, "failurePolicy": {"activeDeadlineSeconds": 60, "backoffLimit": 0}})


@pytest.mark.parametrize("job", [training_job(), FULL], ids=["plain", "with a deadline"])
def test_a_child_that_is_as_it_should_be_needs_no_write(job: TrainingJob) -> None:
    for child in children(job):
        assert difference(job, child, stored(child)) == {}


SELECTOR = MASTER.body["spec"]["selector"]
LABELS = HEADLESS.body["metadata"]["labels"]


@pytest.mark.parametrize(
    ("child", "changes", "patch"),
    [
        (CONFIG, {"data": {"config.json": "{}"}}, {"data": CONFIG.body["data"]}),
        (CONFIG, {"data": {"more": "x"}}, {"data": {"more": None, **CONFIG.body["data"]}}),
        (MASTER, {"spec": {"selector": {"app": "x"}}}, {"spec": {"selector": {"app": None, **SELECTOR}}}),
        (MASTER, {"spec": {"ports": []}}, {"spec": {"ports": MASTER.body["spec"]["ports"]}}),
        (HEADLESS, {"labels": {"holdfast.dev/attempt": "1"}}, {"metadata": {"labels": LABELS}}),
        (WORKERS, {"spec": {"suspend": True}}, {"spec": {"suspend": False}}),
        (WORKERS, {"spec": {"backoffLimit": 6}}, {"spec": {"backoffLimit": 3}}),
        (WORKERS, {"spec": {"activeDeadlineSeconds": 5}}, {"spec": {"activeDeadlineSeconds": None}}),
    ],
)
def test_what_somebody_changed_is_mended_for_that_object_alone(
    child: Child, changes: dict[str, Any], patch: dict[str, Any]
) -> None:
    patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": "42"}}
    assert difference(training_job(), child, stored(child, **changes)) == patch


def test_labels_that_others_put_on_a_child_stay() -> None:
    assert difference(training_job(), CONFIG, stored(CONFIG, labels={"team": "vision"})) == {}


def test_a_child_belongs_to_the_job_of_that_uid_and_not_of_that_name() -> None:
    mine = stored(CONFIG)
    theirs = stored(CONFIG, ownerReferences=[{**CONFIG.body["metadata"]["ownerReferences"][0], "uid": "another"}])
    assert belongs_to(mine, training_job())
    assert not belongs_to(theirs, training_job())
    assert not belongs_to(stored(CONFIG, ownerReferences=[]), training_job())
