"""How a child that is there differs from the one that should be."""

from typing import Any

import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import Job, Service
from holdfast.api.meta import Object
from holdfast.api.trainingjob import TrainingJob
from holdfast.pods.template import Defaults
from holdfast.trainingjob.children import (
    Child,
    WorkerTemplates,
    belongs_to,
    is_of_another_form,
    patch_for,
    supporting_children,
    unwanted_children,
    workers_child,
)
from holdfast.trainingjob.objects.names import SPEC_DIGEST
from tests.trainingjobs import node, training_job

DEFAULTS = Defaults(image="holdfast:test", holdfast_image="holdfast:test")


def stored(child: Child, **changes: Any) -> Object:
    """The child as the API server gives it back, with these fields of spec, data or labels set otherwise."""
    body = msgspec.json.decode(msgspec.json.encode(child.body))
    body["metadata"]["resourceVersion"] = "42"
    for place, fields in changes.items():
        target = body["metadata"] if place in ("labels", "annotations", "ownerReferences") else body
        target[place] = {**target.get(place, {}), **fields} if isinstance(fields, dict) else fields
    model: type[Object] = child.resource.model
    return msgspec.convert(body, model)


def children(
    job: TrainingJob,
    *,
    suspended: bool = False,
    defaults: Defaults = DEFAULTS,
    reports: str | None = "{}",
    avoided: tuple[str, ...] = (),
    new_attempt: bool = False,
) -> list[Child]:
    template = WorkerTemplates(defaults, lambda _: avoided).of(job)
    made = workers_child(job, template, suspended=suspended)
    there = None if new_attempt else msgspec.convert(made.body, Job)
    return [*supporting_children(job, defaults, reports, there), made]


def queued(job: TrainingJob) -> TrainingJob:
    job.metadata.labels["kueue.x-k8s.io/queue-name"] = "gpus"
    return job


BOARD = {"monitoring": {"tensorboardEnabled": True}, "checkpoint": {"storage": {"type": "pvc"}}}
ELASTIC = {"command": ["torchrun", "--nnodes=1:2", "train.py"]}
CONFIG, HEADLESS, MASTER, ACCOUNT, BOARD_SERVICE, BOARD_DEPLOYMENT, WORKERS = children(training_job(BOARD))


@pytest.mark.parametrize(
    ("spec", "kinds"),
    [
        ({}, ["ConfigMap", "Service", "Service", "ServiceAccount", "Job"]),
        ({"podTemplate": {"serviceAccountName": "mine"}}, ["ConfigMap", "Service", "Service", "Job"]),
        (BOARD, ["ConfigMap", "Service", "Service", "ServiceAccount", "Service", "Deployment", "Job"]),
    ],
)
def test_the_workers_come_last_and_the_rest_as_the_spec_asks_for_it(spec: dict[str, Any], kinds: list[str]) -> None:
    made = children(training_job(spec))
    assert [child.resource.kind for child in made] == kinds
    assert made[-1].name == "bert-training"


def test_claim_and_monitor_are_made_with_each_attempt_and_then_left_alone() -> None:
    defaults = structs.replace(DEFAULTS, service_monitors=True)
    first, later = (children(training_job(BOARD), defaults=defaults, new_attempt=new) for new in (True, False))
    made_once = [child.resource.kind for child in first if child not in later]
    assert made_once == ["PersistentVolumeClaim", "ServiceMonitor"]
    assert first[-1].resource.kind == "Job"


def test_a_board_that_the_spec_does_not_ask_for_any_more_is_unwanted() -> None:
    assert list(unwanted_children(training_job(BOARD))) == []
    assert [(kind.kind, name) for kind, name in unwanted_children(training_job())] == [
        ("Deployment", "bert-tensorboard"),
        ("Service", "bert-tensorboard"),
    ]


def test_the_template_of_an_attempt_is_rendered_once() -> None:
    avoided: tuple[str, ...] = ()
    templates = WorkerTemplates(DEFAULTS, lambda _: avoided)
    job = training_job(status={"state": "Pending"})
    first = templates.of(job)
    assert templates.of(structs.replace(job, status=None)) is first
    assert templates.of(training_job(status={"restartCount": 1})) != first
    avoided = ("gpu-3",)
    assert templates.of(job).avoided == avoided
    changed = training_job()
    changed.metadata.annotations["holdfast.dev/working-directory"] = "/work"
    before = templates.of(job)
    assert templates.of(changed) is not before


def test_a_job_that_exists_is_compared_without_a_template() -> None:
    job = training_job()
    child = workers_child(job, None, suspended=False)
    assert "template" not in child.body["spec"]
    assert patch_for(job, child, stored(WORKERS), suspended=False) == {}
    assert patch_for(job, child, stored(WORKERS), suspended=True)["spec"] == {"suspend": True}


@pytest.mark.parametrize(
    "job",
    [
        training_job(),
        training_job({"suspend": True, "failurePolicy": {"activeDeadlineSeconds": 60, "backoffLimit": 0}}),
        training_job(BOARD, status={"restartCount": 4}),
        training_job(ELASTIC),
        queued(training_job()),
    ],
    ids=["plain", "limited", "with TensorBoard", "elastic", "queued"],
)
@pytest.mark.parametrize("suspended", [False, True])
def test_a_child_that_is_as_it_should_be_needs_no_write(job: TrainingJob, suspended: bool) -> None:
    for child in children(job, suspended=suspended):
        assert patch_for(job, child, stored(child), suspended=suspended) == {}


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
        (ACCOUNT, {"automountServiceAccountToken": True}, {"automountServiceAccountToken": False}),
        (ACCOUNT, {"automountServiceAccountToken": None}, {"automountServiceAccountToken": False}),
        (BOARD_SERVICE, {"spec": {"ports": []}}, {"spec": {"ports": BOARD_SERVICE.body["spec"]["ports"]}}),
    ],
)
def test_what_somebody_changed_is_mended_for_that_object_alone(
    child: Child, changes: dict[str, Any], patch: dict[str, Any]
) -> None:
    patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": "42"}}
    assert patch_for(training_job(BOARD), child, stored(child, **changes)) == patch


def test_a_deployment_is_replaced_when_it_was_made_for_something_else() -> None:
    digest = BOARD_DEPLOYMENT.body["metadata"]["annotations"][SPEC_DIGEST]
    mended = {
        "metadata": {"annotations": {SPEC_DIGEST: digest}, "resourceVersion": "42"},
        "spec": BOARD_DEPLOYMENT.body["spec"],
    }
    for annotations in ({SPEC_DIGEST: "another"}, {SPEC_DIGEST: ""}):
        there = stored(BOARD_DEPLOYMENT, annotations=annotations)
        assert patch_for(training_job(BOARD), BOARD_DEPLOYMENT, there) == mended


def test_a_new_image_for_tensorboard_is_seen_by_the_digest_alone() -> None:
    newer = Defaults(image="x", holdfast_image="x", tensorboard_image="tensorboard:new")
    wanted = next(
        child for child in children(training_job(BOARD), defaults=newer) if child.resource.kind == "Deployment"
    )
    patch = patch_for(training_job(BOARD), wanted, stored(BOARD_DEPLOYMENT))
    assert patch["spec"]["template"]["spec"]["containers"][0]["image"] == "tensorboard:new"


@pytest.mark.parametrize(("there", "wanted"), [(False, True), (True, False)])
def test_a_gang_is_held_back_and_let_go_by_its_suspend(there: bool, wanted: bool) -> None:
    patch = patch_for(training_job(), WORKERS, stored(WORKERS, spec={"suspend": there}), suspended=wanted)
    assert patch["spec"] == {"suspend": wanted}


def test_kueues_suspend_is_never_touched() -> None:
    job = queued(training_job())
    child = children(job)[-1]
    assert child.body["spec"]["suspend"] is True
    for suspend in (True, False):
        for suspended in (True, False):
            assert patch_for(job, child, stored(child, spec={"suspend": suspend}), suspended=suspended) == {}


@pytest.mark.parametrize(
    ("spec", "restarts", "limit"),
    [
        ({}, {}, 3),
        ({"failurePolicy": {"backoffLimit": 5}}, {}, 5),
        ({"failurePolicy": {"backoffLimit": 5}}, {"application": 1, "outOfMemory": 1, "preemption": 9}, 3),
        ({"failurePolicy": {"backoffLimit": 1}}, {"hang": 4}, 0),
        ({"failurePolicy": {"backoffLimit": 5, "restartPolicy": "Never"}}, {}, 0),
    ],
)
def test_an_elastic_job_follows_what_is_left_of_the_limit(
    spec: dict[str, Any], restarts: dict[str, int], limit: int
) -> None:
    job = training_job({**ELASTIC, **spec}, status={"restarts": restarts})
    child = children(job)[-1]
    assert patch_for(job, child, stored(child, spec={"backoffLimit": 99}))["spec"] == {"backoffLimit": limit}


def test_a_gangs_limit_is_none_of_the_jobs_business() -> None:
    job = training_job({"failurePolicy": {"backoffLimit": 9}})
    child = children(job)[-1]
    assert child.body["spec"]["backoffLimit"] == 0
    assert patch_for(job, child, stored(child, spec={"backoffLimit": 6})) == {}


def test_a_new_attempt_moves_the_services_to_its_own_workers() -> None:
    again = training_job(status={"restartCount": 1})
    for old, new in zip(children(training_job()), children(again), strict=True):
        if old.resource.kind == "Service":
            labels = patch_for(again, new, stored(old))["metadata"]["labels"]
            assert labels["holdfast.dev/attempt"] == "1"


def service_of(spec: dict[str, Any] | None = None, **options: Any) -> Child:
    """The Service in front of worker 0."""
    made = children(training_job(spec), defaults=structs.replace(DEFAULTS, **options), new_attempt=True)
    return next(child for child in made if child.name == "bert-master")


def headless_of(**options: Any) -> Child:
    made = children(training_job(), defaults=structs.replace(DEFAULTS, **options), new_attempt=True)
    return next(child for child in made if child.name == "bert-headless")


SCRAPED = {"monitoring": {"enabled": True}}


@pytest.mark.parametrize(
    ("there", "wanted", "is_other"),
    [
        (service_of(), service_of(), False),
        (service_of(SCRAPED), service_of(SCRAPED), False),
        (service_of(SCRAPED), service_of(), True),
        (service_of(), service_of(SCRAPED), True),
        (service_of(), service_of(discovery="namespace"), False),
        (headless_of(), headless_of(discovery="namespace"), True),
        (headless_of(discovery="namespace"), headless_of(), True),
        (CONFIG, CONFIG, False),
    ],
)
def test_a_service_of_another_form_can_only_be_made_anew(there: Child, wanted: Child, is_other: bool) -> None:
    assert is_of_another_form(wanted, stored(there)) is is_other


@pytest.mark.parametrize(
    ("there", "wanted"), [(service_of(SCRAPED), service_of()), (service_of(), service_of(SCRAPED))]
)
def test_a_service_of_another_type_stays_what_it_is(there: Child, wanted: Child) -> None:
    assert patch_for(training_job(), wanted, stored(there)) == {}


@pytest.mark.parametrize("child", [BOARD_SERVICE, service_of(SCRAPED)], ids=["TensorBoard", "master"])
@pytest.mark.parametrize("opened", ["NodePort", "LoadBalancer"])
def test_a_service_that_somebody_has_opened_stays_open_and_is_mended(child: Child, opened: str) -> None:
    assert not is_of_another_form(child, stored(child, spec={"type": opened}))
    assert patch_for(training_job(BOARD), child, stored(child, spec={"type": opened})) == {}
    broken = stored(child, spec={"type": opened, "ports": []})
    assert patch_for(training_job(BOARD), child, broken)["spec"] == {"ports": child.body["spec"]["ports"]}


def test_a_selector_that_somebody_took_away_comes_back() -> None:
    selector = headless_of().body["spec"]["selector"]
    bare = msgspec.convert({**headless_of(discovery="namespace").body}, Service)
    assert patch_for(training_job(), headless_of(), bare)["spec"] == {"selector": selector}


def test_a_new_attempt_gives_worker_0_its_second_name_in_one_patch() -> None:
    again = training_job(status={"restartCount": 1})
    moved = next(child for child in children(again) if child.name == "bert-master")
    assert patch_for(again, moved, stored(service_of()))["spec"] == {
        "externalName": "bert-training-1-0.bert-headless.ml.svc.cluster.local"
    }


@pytest.mark.parametrize("made_for", ["job", "namespace"])
@pytest.mark.parametrize("told", ["job", "namespace"])
def test_an_attempt_keeps_the_discovery_that_it_was_made_with(made_for: str, told: str) -> None:
    before = children(training_job(), defaults=structs.replace(DEFAULTS, discovery=made_for), new_attempt=True)
    there = stored(before[-1])
    assert isinstance(there, Job)
    now = supporting_children(training_job(), structs.replace(DEFAULTS, discovery=told), "{}", there)
    for old, new in zip(before, now, strict=False):
        assert (new.body, new.is_shared) == (old.body, old.is_shared)


def test_what_is_no_child_is_refused_loudly() -> None:
    with pytest.raises(TypeError, match="Node is no child of a TrainingJob"):
        patch_for(training_job(), CONFIG, node())


def test_labels_that_others_put_on_a_child_stay() -> None:
    assert patch_for(training_job(), CONFIG, stored(CONFIG, labels={"team": "vision"})) == {}


def test_a_child_belongs_to_the_job_of_that_uid_and_not_of_that_name() -> None:
    mine = stored(CONFIG)
    theirs = stored(CONFIG, ownerReferences=[{**CONFIG.body["metadata"]["ownerReferences"][0], "uid": "another"}])
    assert belongs_to(mine, training_job())
    assert not belongs_to(theirs, training_job())
    assert not belongs_to(stored(CONFIG, ownerReferences=[]), training_job())


@pytest.mark.parametrize(
    ("spec", "reports", "is_told"),
    [
        ({"monitoring": {"enabled": True}}, "{}", True),
        ({"monitoring": {"enabled": True}}, None, False),
        ({"checkpoint": {}}, "{}", True),
        ({"monitoring": {"enabled": False}}, "{}", False),
    ],
    ids=["watched", "nobody-listens", "saved", "without-a-sidecar"],
)
def test_who_has_a_sidecar_is_told_where_to_report(spec: dict[str, Any], reports: str | None, is_told: bool) -> None:
    config = children(training_job(spec), reports=reports)[0]
    assert config.body["data"].get("reports.json") == ("{}" if is_told else None)


def test_another_operator_that_leads_changes_nothing_but_the_address() -> None:
    job = training_job({"monitoring": {"enabled": True}})
    before, after = (children(job, reports=reports)[0] for reports in ("first", "second"))
    patch = patch_for(job, after, stored(before))
    assert patch["data"]["reports.json"] == "second"
    assert patch["data"]["config.json"] == before.body["data"]["config.json"]


def test_nodes_to_avoid_are_noted_on_the_job_and_a_running_one_is_left_alone() -> None:
    job = training_job()
    plain, ruled = (children(job, avoided=avoided)[-1] for avoided in ((), ("gpu-7",)))
    assert ruled.body["metadata"]["annotations"]["holdfast.dev/avoids"] == "gpu-7"
    assert "holdfast.dev/avoids" not in plain.body["metadata"]["annotations"]
    assert ruled.body["metadata"]["annotations"][SPEC_DIGEST] == plain.body["metadata"]["annotations"][SPEC_DIGEST]
    assert patch_for(job, ruled, stored(plain)) == {}
    assert patch_for(job, plain, stored(ruled)) == {}
