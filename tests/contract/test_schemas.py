"""What a kind's schema and rules refuse, and where they say the fault is."""

from typing import Any

import pytest

from holdfast.cluster.errors import Invalid
from holdfast.cluster.protocol import Cluster

from .kinds import GADGETS, JOBS, SERVICES, gadget, key_of
from .pods import indexed, job


@pytest.mark.parametrize(
    ("spec", "field", "says"),
    [
        ({"size": -1}, "spec.size", "greater than or equal to 0"),
        ({"size": 101}, "spec.size", "less than or equal to 100"),
        ({"size": 1.5}, "spec.size", "integer"),
        ({"size": True}, "spec.size", "integer"),
        ({"color": "blue"}, "spec.color", '"red", "green"'),
        ({"code": "A1"}, "spec.code", "^[a-z]+$"),
        ({"code": "a" * 21}, "spec.code", "20"),
        ({"parts": [{"name": "a"}, {}]}, "spec.parts[1].name", "Required"),
        ({"parts": [{"name": "a"}] * 6}, "spec.parts", "at most 5 items"),
        ({"parts": {}}, "spec.parts", "array"),
    ],
)
async def test_a_value_outside_its_schema_is_refused_with_its_path(
    cluster: Cluster, namespace: str, spec: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, gadget("one", spec=spec), namespace=namespace)
    assert field in {cause.field for cause in refused.value.causes}
    assert says in str(refused.value)
    assert (await cluster.list(GADGETS, namespace=namespace)).items == ()


async def test_a_missing_part_that_is_required_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, {"metadata": {"name": "one"}}, namespace=namespace)
    assert "spec" in {cause.field for cause in refused.value.causes}


async def test_every_fault_is_listed_at_once(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, gadget("one", spec={"size": -1, "color": "blue"}), namespace=namespace)
    assert {"spec.size", "spec.color"} <= {cause.field for cause in refused.value.causes}


@pytest.mark.every_engine
async def test_a_rule_across_fields_answers_with_its_message_and_path(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, gadget("one", spec={"size": 9, "limit": 5}), namespace=namespace)
    (cause,) = refused.value.causes
    assert cause.field == "spec.size"
    assert "size must not exceed limit" in cause.message


async def test_a_rule_sees_defaults(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Invalid, match="size must not exceed limit"):
        await cluster.create(GADGETS, gadget("one", spec={"limit": 0}), namespace=namespace)


async def test_rules_are_tried_on_values_out_of_bounds_and_not_on_those_of_a_wrong_type(
    cluster: Cluster, namespace: str
) -> None:
    with pytest.raises(Invalid, match="size must not exceed limit"):
        await cluster.create(GADGETS, gadget("one", spec={"size": 101, "limit": 5}), namespace=namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.create(GADGETS, gadget("one", spec={"size": 6, "limit": 5, "color": 7}), namespace=namespace)
    assert "size must not exceed limit" not in str(refused.value)


async def test_rules_hold_for_patches_too(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", spec={"size": 5}), namespace=namespace)
    with pytest.raises(Invalid, match="size must not exceed limit"):
        await cluster.patch(GADGETS, key_of(made), {"spec": {"limit": 4}})
    assert await cluster.get(GADGETS, key_of(made)) == made


@pytest.mark.every_engine
async def test_a_transition_rule_guards_changes_and_not_the_first_value(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    given = await cluster.patch(GADGETS, key_of(made), {"spec": {"code": "abc"}})
    assert given.spec["code"] == "abc"
    with pytest.raises(Invalid) as refused:
        await cluster.patch(GADGETS, key_of(made), {"spec": {"code": "def"}})
    (cause,) = refused.value.causes
    assert cause.field == "spec.code"
    assert "code is fixed once it is given" in cause.message
    grown = await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 2}})
    assert grown.spec["code"] == "abc"


async def test_a_status_is_held_to_its_schema(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.patch_status(GADGETS, key_of(made), {"status": {"count": -1}})
    assert "status.count" in {cause.field for cause in refused.value.causes}


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"completionMode": "NonIndexed"}, "spec.completionMode"),
        ({"completions": 3}, "spec.completions"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector"),
        ({"podFailurePolicy": {"rules": []}}, "spec.podFailurePolicy"),
        ({"template": {"spec": {"restartPolicy": "OnFailure"}}}, "spec.template"),
        ({"backoffLimit": -1}, "spec.backoffLimit"),
        ({"parallelism": -1}, "spec.parallelism"),
    ],
)
async def test_a_jobs_fixed_fields_cannot_be_changed(
    cluster: Cluster, namespace: str, patch: dict[str, Any], field: str
) -> None:
    made = await cluster.create(JOBS, indexed("one", "none", 2), namespace=namespace)
    with pytest.raises(Invalid) as refused:
        await cluster.patch(JOBS, key_of(made), {"spec": patch})
    assert field in {cause.field for cause in refused.value.causes}


@pytest.mark.every_engine
async def test_a_suspended_job_that_never_ran_may_move_to_other_nodes(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, indexed("one", "none", 2, suspend=True), namespace=namespace)
    moved = {"template": {"spec": {"nodeSelector": {"zone": "b"}, "tolerations": [{"operator": "Exists"}]}}}
    patched = await cluster.patch(JOBS, key_of(made), {"spec": moved})
    assert patched.spec["template"]["spec"]["nodeSelector"]["zone"] == "b"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"completionMode": "Indexed", "parallelism": 2}, "spec.completions"),
        ({"completionMode": "Sometimes"}, "spec.completionMode"),
        ({"activeDeadlineSeconds": -1}, "spec.activeDeadlineSeconds"),
        ({"ttlSecondsAfterFinished": -1}, "spec.ttlSecondsAfterFinished"),
        ({"podFailurePolicy": {"rules": [{"action": "FailJob"}]}}, "spec.podFailurePolicy.rules[0]"),
    ],
)
async def test_a_job_that_makes_no_sense_is_refused_with_its_path(
    cluster: Cluster, namespace: str, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(JOBS, job("one", **spec), namespace=namespace)
    assert any(cause.field.startswith(field) for cause in refused.value.causes)


async def test_a_job_that_restarts_always_is_refused(cluster: Cluster, namespace: str) -> None:
    body = job("one")
    body["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(Invalid) as refused:
        await cluster.create(JOBS, body, namespace=namespace)
    assert "spec.template.spec.restartPolicy" in {cause.field for cause in refused.value.causes}


async def test_a_service_name_is_a_dns_label(cluster: Cluster, namespace: str) -> None:
    for name in ("one.two", "One", "a" * 64):
        body = {"metadata": {"name": name}, "spec": {"clusterIP": "None"}}
        with pytest.raises(Invalid) as refused:
            await cluster.create(SERVICES, body, namespace=namespace)
        assert {cause.field for cause in refused.value.causes} == {"metadata.name"}
