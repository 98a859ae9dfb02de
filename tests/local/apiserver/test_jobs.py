"""Jobs where the shared contract does not look."""

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import Invalid
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.server import EmbeddedCluster
from tests.contract.kinds import JOBS

from .bodies import CONTAINER, job

ONE = Key("default", "one")
INDEXED: JSON = {"completionMode": "Indexed", "completions": 2, "parallelism": 2}


async def refused(cluster: EmbeddedCluster, body: JSON) -> set[str]:
    with pytest.raises(Invalid) as refusal:
        await cluster.create(JOBS, body, namespace="default")
    return {cause.field for cause in refusal.value.causes}


@pytest.mark.parametrize(
    ("spec", "counts"),
    [({}, (1, 1)), ({"parallelism": 3}, (3, None)), ({"completions": 4}, (1, 4)), (INDEXED, (2, 2))],
)
async def test_counts_that_are_not_given_follow_from_the_others(
    cluster: EmbeddedCluster, spec: JSON, counts: tuple[int, int | None]
) -> None:
    one = await cluster.create(JOBS, job(**spec), namespace="default")
    assert (one.spec["parallelism"], one.spec.get("completions")) == counts


async def test_the_selector_and_the_labels_that_match_it_are_made(cluster: EmbeddedCluster) -> None:
    one = await cluster.create(JOBS, job(labels={"a": "b"}), namespace="default")
    uid = one.metadata.uid
    assert one.spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert one.spec["template"]["metadata"]["labels"] == {
        "a": "b",
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "one",
        "controller-uid": uid,
        "job-name": "one",
    }
    assert one.metadata.labels == one.spec["template"]["metadata"]["labels"]


async def test_a_generated_name_is_in_the_labels_too(cluster: EmbeddedCluster) -> None:
    one = await cluster.create(JOBS, {**job(), "metadata": {"generateName": "run-"}}, namespace="default")
    assert one.spec["template"]["metadata"]["labels"]["job-name"] == one.metadata.name


async def test_the_policies_follow_from_each_other(cluster: EmbeddedCluster) -> None:
    plain = await cluster.create(JOBS, job(), namespace="default")
    assert (plain.spec["backoffLimit"], plain.spec["podReplacementPolicy"]) == (6, "TerminatingOrFailed")
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    strict = await cluster.create(JOBS, job("two", podFailurePolicy={"rules": rules}), namespace="default")
    assert strict.spec["podReplacementPolicy"] == "Failed"
    assert strict.spec["podFailurePolicy"]["rules"][0]["onPodConditions"][0]["status"] == "True"
    each = await cluster.create(JOBS, job("three", backoffLimitPerIndex=1, **INDEXED), namespace="default")
    assert each.spec["backoffLimit"] == 2**31 - 1


def exit_codes(*values: int, operator: str = "In", **more: object) -> JSON:
    rule = {"action": "FailJob", "onExitCodes": {"operator": operator, "values": list(values), **more}}
    return {"podFailurePolicy": {"rules": [rule]}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"metadata": {"name": "one"}}, "spec.template.spec.containers"),
        ({"metadata": {"name": "one"}, "spec": {"template": {}}}, "spec.template.spec.containers"),
        (job(pods={"restartPolicy": "Always"}), "spec.template.spec.restartPolicy"),
        (job(pods={"containers": [CONTAINER, CONTAINER]}), "spec.template.spec.containers[1].name"),
        (job(pods={"restartPolicy": "OnFailure"}, **exit_codes(1)), "spec.template.spec.restartPolicy"),
        (job(**exit_codes()), "spec.podFailurePolicy.rules[0].onExitCodes.values"),
        (job(**exit_codes(2, 1)), "spec.podFailurePolicy.rules[0].onExitCodes.values"),
        (job(**exit_codes(0, 1)), "spec.podFailurePolicy.rules[0].onExitCodes.values[0]"),
        (job(**exit_codes(1, containerName="x")), "spec.podFailurePolicy.rules[0].onExitCodes.containerName"),
        (job(**exit_codes(1, operator="Near")), "spec.podFailurePolicy.rules[0].onExitCodes.operator"),
        (job(podFailurePolicy={"rules": [{"action": "FailJob"}]}), "spec.podFailurePolicy.rules[0]"),
        (
            job(podFailurePolicy={"rules": [{"action": "FailIndex", "onPodConditions": [{"type": "x"}]}]}),
            "spec.podFailurePolicy.rules[0].action",
        ),
        (job(completionMode="Indexed", parallelism=1), "spec.completions"),
        (job(**{**INDEXED, "parallelism": 100_001}), "spec.parallelism"),
        (job(maxFailedIndexes=1, **INDEXED), "spec.backoffLimitPerIndex"),
        (job(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex"),
        (job("j" * 62, **INDEXED), "metadata.name"),
        (job(selector={"matchLabels": {"a": "b"}}), "spec.selector"),
        (job(labels={"batch.kubernetes.io/job-name": "other"}), "spec.template.metadata.labels"),
        (job(manualSelector=True), "spec.selector"),
        (job(backoffLimit=-1), "spec.backoffLimit"),
    ],
)
async def test_a_job_that_makes_no_sense_is_refused_with_its_path(
    cluster: EmbeddedCluster, body: JSON, field: str
) -> None:
    assert field in await refused(cluster, body)


async def test_a_selector_of_ones_own_is_taken_as_it_is(cluster: EmbeddedCluster) -> None:
    selector = {"matchLabels": {"a": "b"}}
    one = await cluster.create(
        JOBS, job(manualSelector=True, selector=selector, labels={"a": "b"}), namespace="default"
    )
    assert one.spec["selector"] == selector
    assert one.spec["template"]["metadata"]["labels"] == {"a": "b"}


SCHEDULING = {"nodeSelector": {"zone": "east"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}


async def test_where_pods_may_run_can_change_while_a_job_never_started(cluster: EmbeddedCluster) -> None:
    await cluster.create(JOBS, job(suspend=True), namespace="default")
    patched = await cluster.patch(JOBS, ONE, {"spec": {"template": {"spec": SCHEDULING}}})
    assert patched.spec["template"]["spec"]["nodeSelector"] == {"zone": "east"}
    with pytest.raises(Invalid, match="field is immutable"):
        await cluster.patch(JOBS, ONE, {"spec": {"template": {"spec": {"containers": [{**CONTAINER, "image": "b"}]}}}})


@pytest.mark.parametrize("started", [True, False])
async def test_where_pods_may_run_is_fixed_once_a_job_runs_or_ran(cluster: EmbeddedCluster, started: bool) -> None:
    await cluster.create(JOBS, job(suspend=started), namespace="default")
    if started:
        await cluster.patch_status(JOBS, ONE, {"status": {"startTime": "2026-01-02T03:04:05Z"}})
    with pytest.raises(Invalid) as refusal:
        await cluster.patch(JOBS, ONE, {"spec": {"template": {"spec": SCHEDULING}}})
    assert [cause.field for cause in refusal.value.causes] == ["spec.template"]


async def test_a_refusal_does_not_show_what_the_template_holds(cluster: EmbeddedCluster) -> None:
    env = [{"name": "TOKEN", "value": "hunter2"}]
    await cluster.create(JOBS, job(pods={"containers": [{**CONTAINER, "env": env}]}), namespace="default")
    with pytest.raises(Invalid) as refusal:
        await cluster.patch(JOBS, ONE, {"spec": {"template": {"spec": {"hostNetwork": True}}}})
    assert "hunter2" not in f"{refusal.value} {refusal.value.causes}"
