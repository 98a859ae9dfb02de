"""Pods: what the server adds, refuses and keeps."""

from typing import Any

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.server import EmbeddedCluster
from tests.contract.kinds import PODS, PRIORITY_CLASSES, SERVICE_ACCOUNTS, Document, key_of

from .bodies import CONTAINER, pod
from .clock import Clock

ONE = Key("default", "one")
REQUIRED_NODES = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
LOST_NODE = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]


async def made(cluster: EmbeddedCluster, **spec: Any) -> Document:
    return await cluster.create(PODS, pod(**spec), namespace="default")


async def causes(cluster: EmbeddedCluster, body: JSON) -> set[str]:
    with pytest.raises(Invalid) as refused:
        await cluster.create(PODS, body, namespace="default")
    return {cause.field for cause in refused.value.causes}


async def test_a_pod_gets_the_defaults_of_the_server(cluster: EmbeddedCluster) -> None:
    one = await made(cluster)
    assert one.spec == {
        "containers": [
            {
                **CONTAINER,
                "imagePullPolicy": "IfNotPresent",
                "resources": {},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300} for key in LOST_NODE
        ],
    }
    assert one.status == {"phase": "Pending", "qosClass": "BestEffort"}
    assert one.metadata.generation == 1


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1", "IfNotPresent"),
        ("registry.invalid:5000/busybox", "Always"),
        ("registry.invalid:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:0123", "IfNotPresent"),
    ],
)
async def test_the_pull_policy_follows_the_tag(cluster: EmbeddedCluster, image: str, policy: str) -> None:
    one = await made(cluster, containers=[{"name": "main", "image": image}])
    assert one.spec["containers"][0]["imagePullPolicy"] == policy


async def test_limits_are_requested_where_nothing_else_is(cluster: EmbeddedCluster) -> None:
    resources = {"limits": {"cpu": 2, "nvidia.com/gpu": 1}, "requests": {"cpu": "500m"}}
    one = await made(cluster, containers=[{**CONTAINER, "resources": resources}])
    assert one.spec["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "nvidia.com/gpu": "1"},
        "requests": {"cpu": "500m", "nvidia.com/gpu": "1"},
    }


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
    ],
)
async def test_the_quality_class_follows_the_resources(cluster: EmbeddedCluster, resources: JSON, quality: str) -> None:
    one = await made(cluster, containers=[{**CONTAINER, "resources": resources}])
    assert one.status["qosClass"] == quality


async def test_a_toleration_of_its_own_is_not_doubled(cluster: EmbeddedCluster) -> None:
    own = {"key": LOST_NODE[0], "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    one = await made(cluster, tolerations=[own])
    assert [each["tolerationSeconds"] for each in one.spec["tolerations"]] == [5, 300]
    everything = await cluster.create(PODS, pod("two", tolerations=[{"operator": "Exists"}]), namespace="default")
    assert everything.spec["tolerations"] == [{"operator": "Exists"}]


async def test_priority_comes_from_the_class(cluster: EmbeddedCluster) -> None:
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "high"}, "value": 7, "preemptionPolicy": "Never"})
    one = await made(cluster, priorityClassName="high")
    assert (one.spec["priority"], one.spec["preemptionPolicy"]) == (7, "Never")
    with pytest.raises(Forbidden, match="no PriorityClass with name low was found"):
        await cluster.create(PODS, pod("two", priorityClassName="low"), namespace="default")


async def test_without_a_class_the_clusters_default_counts(cluster: EmbeddedCluster) -> None:
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "usual"}, "value": 3, "globalDefault": True})
    one = await made(cluster)
    assert (one.spec["priority"], one.spec["priorityClassName"]) == (3, "usual")


async def test_of_two_default_classes_the_lesser_counts(cluster: EmbeddedCluster) -> None:
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "usual"}, "value": 3, "globalDefault": True})
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "humble"}, "value": -3})
    await cluster.patch(PRIORITY_CLASSES, Key("", "humble"), {"globalDefault": True})
    assert (await made(cluster)).spec["priorityClassName"] == "humble"


async def test_a_class_is_not_made_a_second_default(cluster: EmbeddedCluster) -> None:
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "usual"}, "value": 3, "globalDefault": True})
    with pytest.raises(Forbidden, match="PriorityClass usual is already marked as default"):
        await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": "other"}, "value": 4, "globalDefault": True})
    with pytest.raises(NotFound):
        await cluster.get(PRIORITY_CLASSES, Key("", "other"))


async def test_a_refused_priority_names_the_pod_and_what_was_computed(cluster: EmbeddedCluster) -> None:
    with pytest.raises(Forbidden) as refused:
        await made(cluster, priority=5)
    assert str(refused.value) == (
        'pods "one" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority '
        "admission controller computed 0 from the given PriorityClass name"
    )


async def test_an_account_must_be_there(cluster: EmbeddedCluster) -> None:
    with pytest.raises(Forbidden, match='serviceaccount "trainer" not found'):
        await made(cluster, serviceAccountName="trainer")
    await cluster.create(SERVICE_ACCOUNTS, {"metadata": {"name": "trainer"}}, namespace="default")
    assert (await made(cluster, serviceAccountName="trainer")).spec["serviceAccount"] == "trainer"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "main"}]}, "spec.containers[0].image"),
        ({"containers": [{**CONTAINER, "name": "Main"}]}, "spec.containers[0].name"),
        ({"initContainers": [CONTAINER]}, "spec.containers[0].name"),
        ({"containers": [{**CONTAINER, "env": [{"value": "x"}]}]}, "spec.containers[0].env[0].name"),
        ({"containers": [{**CONTAINER, "ports": [{"containerPort": 0}]}]}, "spec.containers[0].ports[0].containerPort"),
        (
            {"containers": [{**CONTAINER, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            "spec.containers[0].volumeMounts[0].name",
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"requests": {"nvidia.com/gpu": 1}}}]},
            "spec.containers[0].resources.limits",
        ),
        (
            {
                "containers": [
                    {**CONTAINER, "resources": {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 2}}}
                ]
            },
            "spec.containers[0].resources.requests",
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}}]},
            "spec.containers[0].resources.requests",
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"limits": {"cpu": "-1"}}}]},
            "spec.containers[0].resources.limits[cpu]",
        ),
        (
            {"containers": [{**CONTAINER, "resources": {"limits": {"nvidia.com/gpu": "500m"}}}]},
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
        ),
        ({"volumes": [{"name": "v"}, {"name": "v"}]}, "spec.volumes[1].name"),
        ({"restartPolicy": "Sometimes"}, "spec.restartPolicy"),
        ({"hostname": "Not_a_label"}, "spec.hostname"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "spec.tolerations[0].effect"),
        ({"tolerations": [{"effect": "NoExecute"}]}, "spec.tolerations[0].operator"),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In"}]}]
                        }
                    }
                }
            },
            f"spec.{REQUIRED_NODES}.nodeSelectorTerms[0].matchExpressions[0].values",
        ),
    ],
)
async def test_a_pod_that_makes_no_sense_is_refused_with_its_path(
    cluster: EmbeddedCluster, spec: JSON, field: str
) -> None:
    assert field in await causes(cluster, pod(**spec))


@pytest.mark.parametrize("amount", ["much", "1Q", "", True, {"cpu": 1}])
async def test_an_amount_that_is_none_cannot_be_read(cluster: EmbeddedCluster, amount: object) -> None:
    resources = {"limits": {"cpu": amount}}
    with pytest.raises(BadRequest):
        await made(cluster, containers=[{**CONTAINER, "resources": resources}])


async def test_a_volume_without_a_source_is_an_empty_folder(cluster: EmbeddedCluster) -> None:
    one = await made(cluster, volumes=[{"name": "v"}, {"name": "c", "configMap": {"name": "x"}}])
    assert one.spec["volumes"] == [
        {"name": "v", "emptyDir": {}},
        {"name": "c", "configMap": {"name": "x", "defaultMode": 0o644}},
    ]


async def test_what_runs_can_not_be_changed_but_for_a_few_fields(cluster: EmbeddedCluster) -> None:
    one = await made(cluster)
    for patch in ({"nodeName": "node"}, {"priority": 9}, {"containers": [{**CONTAINER, "command": ["sh"]}]}):
        with pytest.raises(Invalid, match="pod updates may not change fields other than"):
            await cluster.patch(PODS, ONE, {"spec": patch})
    assert await cluster.get(PODS, ONE) == one
    changed = await cluster.patch(
        PODS, ONE, {"spec": {"activeDeadlineSeconds": 9, "containers": [{**CONTAINER, "image": "main:2"}]}}
    )
    assert changed.metadata.generation == 2
    tolerations = [*one.spec["tolerations"], {"key": "more", "operator": "Exists"}]
    assert (await cluster.patch(PODS, ONE, {"spec": {"tolerations": tolerations}})).spec["tolerations"] == tolerations


async def test_a_status_takes_labels_along_but_neither_spec_nor_owners(cluster: EmbeddedCluster) -> None:
    await made(cluster)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
    patched = await cluster.patch_status(
        PODS,
        ONE,
        {
            "metadata": {"labels": {"a": "b"}, "ownerReferences": [owner]},
            "spec": {"nodeName": "node"},
            "status": {"phase": "Running", "qosClass": None},
        },
    )
    assert patched.metadata.labels == {"a": "b"}
    assert patched.metadata.owner_references == ()
    assert "nodeName" not in patched.spec
    assert patched.status == {"phase": "Running", "qosClass": "BestEffort"}


async def test_a_pod_is_bound_once(cluster: EmbeddedCluster, clock: Clock) -> None:
    one = await made(cluster)
    await cluster.bind(ONE, "node", uid=one.metadata.uid)
    bound = await cluster.get(PODS, ONE)
    assert bound.spec["nodeName"] == "node"
    assert bound.status["conditions"] == [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}
    ]
    with pytest.raises(Conflict, match='already assigned to node "node"'):
        await cluster.bind(ONE, "other")
    assert await cluster.get(PODS, ONE) == bound


async def test_only_the_pod_that_was_looked_at_is_bound_and_only_while_it_is_wanted(cluster: EmbeddedCluster) -> None:
    body = pod()
    body["metadata"]["finalizers"] = ["holdfast.dev/held"]
    one = await cluster.create(PODS, body, namespace="default")
    with pytest.raises(Conflict, match="UID in precondition"):
        await cluster.bind(ONE, "node", uid="another")
    await cluster.delete(PODS, key_of(one))
    with pytest.raises(Conflict, match="is being deleted"):
        await cluster.bind(ONE, "node")
    with pytest.raises(NotFound):
        await cluster.bind(Key("default", "missing"), "node")
