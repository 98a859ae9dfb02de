"""A Deployment: what is stored of it, what is refused, and the pods that it keeps alive.

On a cluster the pods belong to a ReplicaSet between them and the Deployment, on one machine to the Deployment itself:
only the pods are compared.
"""

from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Invalid
from holdfast.cluster.protocol import JSON, Cluster, DeleteOptions
from holdfast.cluster.resources import PODS

from .engine import Engine
from .kinds import DEPLOYMENTS, Document, key_of
from .pods import pod_spec
from .pool import Pool
from .waiting import gone, listed, until

# One machine lets a pod that has ended rest for a while before it is replaced.
LONG_AGO = "2020-01-01T00:00:00Z"


def deployment(name: str, pool: str, **spec: Any) -> JSON:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(pool, restartPolicy="Always")}
    return {"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template, **spec}}


async def test_a_deployment_gets_its_defaults(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(DEPLOYMENTS, deployment("one", "none"), namespace=namespace)
    expected = {
        "replicas": 1,
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
    }
    assert {field: made.spec.get(field) for field in expected} == expected
    assert made.spec["template"]["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert (made.metadata.generation, made.metadata.labels, made.status) == (1, {}, {})


async def test_a_deployment_that_recreates_its_pods_has_nothing_to_roll(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(
        DEPLOYMENTS, deployment("one", "none", strategy={"type": "Recreate"}), namespace=namespace
    )
    assert made.spec["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"replicas": -1}, "spec.replicas"),
        ({"selector": {}}, "spec.selector"),
        ({"selector": {"matchLabels": {"app": "another"}}}, "spec.template.metadata.labels"),
        ({"strategy": {"type": "Sometimes"}}, "spec.strategy"),
        ({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}, "spec.strategy.rollingUpdate"),
    ],
)
async def test_a_deployment_that_makes_no_sense_is_refused_with_its_path(
    cluster: Cluster, namespace: str, spec: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(DEPLOYMENTS, deployment("one", "none", **spec), namespace=namespace)
    assert any(cause.field.startswith(field) for cause in refused.value.causes)


@pytest.mark.parametrize(
    ("pods", "field"),
    [
        ({"restartPolicy": "Never"}, "spec.template.spec.restartPolicy"),
        ({"activeDeadlineSeconds": 5}, "spec.template.spec.activeDeadlineSeconds"),
        ({"containers": []}, "spec.template.spec.containers"),
    ],
)
async def test_a_deployment_of_impossible_pods_is_refused_with_their_path(
    cluster: Cluster, namespace: str, pods: dict[str, Any], field: str
) -> None:
    body = deployment("one", "none")
    body["spec"]["template"]["spec"] |= pods
    with pytest.raises(Invalid) as refused:
        await cluster.create(DEPLOYMENTS, body, namespace=namespace)
    assert field in {cause.field for cause in refused.value.causes}


async def test_a_misspelt_field_of_a_deployment_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'unknown field "spec\.replica"'):
        await cluster.create(DEPLOYMENTS, deployment("one", "none", replica=2), namespace=namespace)


async def test_the_selector_of_a_deployment_stays(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(DEPLOYMENTS, deployment("one", "none", replicas=0), namespace=namespace)
    labels = {"app": "two"}
    change = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    with pytest.raises(Invalid, match=r"spec\.selector: .*field is immutable"):
        await cluster.patch(DEPLOYMENTS, key_of(made), {"spec": change})
    scaled = await cluster.patch(DEPLOYMENTS, key_of(made), {"spec": {"replicas": 2}})
    assert (scaled.spec["replicas"], scaled.metadata.generation) == (2, 2)


async def deploy(pool: Pool, **spec: Any) -> Key:
    return (
        await pool.cluster.create(DEPLOYMENTS, deployment("one", pool.name, **spec), namespace=pool.name)
    ).metadata.key


def available(it: Document) -> str:
    return next((c["status"] for c in it.status.get("conditions", ()) if c["type"] == "Available"), "")


@pytest.mark.every_engine
async def test_a_deployment_runs_its_pods_and_says_that_they_are_there(pool: Pool) -> None:
    await pool.add()
    key = await deploy(pool, replicas=2)
    pods = await pool.running(2)
    for pod in pods:
        assert pod.metadata.name.startswith("one-")
        assert pod.metadata.labels["app"] == "one"
    told = await until(pool.cluster, DEPLOYMENTS, key, lambda it: available(it) == "True", "is available")
    assert told.status["observedGeneration"] == told.metadata.generation
    counts = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
    assert [told.status[name] for name in counts] == [2, 2, 2, 2]
    assert told.status.get("unavailableReplicas", 0) == 0


async def test_a_deployment_without_its_pods_says_so(pool: Pool) -> None:
    key = await deploy(pool, replicas=1)
    told = await until(pool.cluster, DEPLOYMENTS, key, lambda it: it.status.get("replicas") == 1, "has made its pod")
    assert (available(told), told.status.get("readyReplicas", 0), told.status["unavailableReplicas"]) == ("False", 0, 1)
    node = await pool.add()
    (pod,) = await pool.running(1)
    assert pod.spec.node_name == node
    await until(pool.cluster, DEPLOYMENTS, key, lambda it: available(it) == "True", "is available")


@pytest.mark.parametrize("end", ["deleted", "failed"])
async def test_a_lost_pod_of_a_deployment_is_replaced(pool: Pool, end: str) -> None:
    await pool.add()
    await deploy(pool, replicas=2)
    first, second = await pool.running(2)
    if end == "deleted":
        await pool.cluster.delete(PODS, first.metadata.key)
    else:
        await pool.end(first, exit_code=1, ended=LONG_AGO)
    left = await pool.running(2)
    uids = {pod.metadata.uid for pod in left}
    assert second.metadata.uid in uids
    assert first.metadata.uid not in uids


async def test_a_deployment_follows_its_number_of_replicas(pool: Pool) -> None:
    await pool.add()
    key = await deploy(pool, replicas=1)
    (first,) = await pool.running(1)
    await pool.cluster.patch(DEPLOYMENTS, key, {"spec": {"replicas": 3}})
    assert first.metadata.uid in {pod.metadata.uid for pod in await pool.running(3)}
    await pool.cluster.patch(DEPLOYMENTS, key, {"spec": {"replicas": 0}})
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "its pods are gone")


async def test_a_changed_template_ends_the_old_pods_before_it_makes_new_ones(engine: Engine, pool: Pool) -> None:
    slow = await pool.add("slow")
    key = await deploy(pool, replicas=2, strategy={"type": "Recreate"})
    before = await pool.running(2)
    await engine.break_node(slow)
    await pool.add("sound")
    await pool.cluster.patch(DEPLOYMENTS, key, {"spec": {"template": {"metadata": {"annotations": {"new": "yes"}}}}})
    await listed(pool.cluster, PODS, pool.name, lambda pods: all(p.is_terminating for p in pods), "the old pods leave")
    await until(
        pool.cluster,
        DEPLOYMENTS,
        key,
        lambda it: not it.status.get("replicas") and it.status["observedGeneration"] == 2,
        "has no pods",
    )
    assert {p.metadata.uid for p in (await pool.cluster.list(PODS, namespace=pool.name)).items} == {
        pod.metadata.uid for pod in before
    }
    await pool.end(*before, exit_code=143)
    for pod in before:
        await pool.cluster.delete(PODS, pod.metadata.key, DeleteOptions(grace_period_s=0))
    assert {pod.metadata.annotations["new"] for pod in await pool.running(2)} == {"yes"}


async def test_the_pods_of_a_deployment_go_with_it(pool: Pool) -> None:
    await pool.add()
    key = await deploy(pool)
    await pool.running(1)
    await pool.cluster.delete(DEPLOYMENTS, key)
    await gone(pool.cluster, DEPLOYMENTS, key)
    await listed(pool.cluster, PODS, pool.name, lambda pods: not pods, "its pods are gone")
