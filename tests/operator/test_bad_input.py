"""What a user gets wrong, on the real API server: the status names the cause, and the job goes on when it is mended."""

import json
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from holdfast.times import format_time
from tests.control_plane.api import STRATEGIC
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.manifests import training_job
from tests.operator.user import apply, kubectl, status, until_state
from tests.recorded import Recorded, recorded

JSON = dict[str, Any]

HELD = "kwok.holdfast.dev/start-after"
IMAGE = "registry.example.com/ml/bert:2.1"
# What only a kubelet can find out, and the spec that makes it so.
KUBELETS: dict[str, JSON] = {
    "image-pull-back-off": {},
    "missing-secret": {
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "token"}}}]
    },
    "mount-missing-secret": {
        "podTemplate": {
            "volumes": [{"name": "tokens", "secret": {"secretName": "kaggle"}}],
            "volumeMounts": [{"name": "tokens", "mountPath": "/tokens"}],
        }
    },
}


async def until_message(plane: ControlPlane, namespace: str, message: str, *, state: str) -> None:
    seen = await eventually(
        partial(status, plane, namespace, "bert"), lambda seen: message in seen.get("message", ""), what=message
    )
    assert seen["state"] == state


@pytest.mark.parametrize("name", KUBELETS)
async def test_a_problem_that_a_kubelet_finds_is_shown_until_it_is_mended(
    operated: ControlPlane, namespace: str, nodes: Nodes, name: str
) -> None:
    await nodes.add(1)
    spec = KUBELETS[name]
    template = {**spec.get("podTemplate", {}), "annotations": {HELD: "1h"}}
    await apply(
        operated, namespace, training_job("bert", numWorkers=1, image=IMAGE, **{**spec, "podTemplate": template})
    )
    pod = await bound_pod(operated, namespace)
    scene = recorded(name)
    await play(operated, scene, pod)
    await until_message(operated, namespace, scene.says, state="Initializing")
    await kubectl(operated, "annotate", "--overwrite", "pods", "--all", f"{HELD}=0s", "-n", namespace)
    await until_state(operated, namespace, "Running", "bert")
    assert (await status(operated, namespace, "bert")).get("restartCount", 0) == 0


async def bound_pod(plane: ControlPlane, namespace: str) -> JSON:
    def bound(pods: list[JSON]) -> bool:
        return len(pods) == 1 and "nodeName" in pods[0]["spec"]

    (pod,) = await eventually(partial(plane.pods.all, namespace), bound, what="a pod on its node")
    return pod


async def play(plane: ControlPlane, scene: Recorded, pod: JSON) -> None:
    """Write about the pod what a kubelet has written about the recorded one."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    now = format_time(datetime.now(UTC))
    about = {"kind": "Pod", "namespace": namespace, "name": name, "uid": pod["metadata"]["uid"]}
    (body,) = scene.pods
    found = {"containerStatuses": body["status"]["containerStatuses"]}
    async with plane.api.session() as session:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        await session.request("PATCH", path, {"status": found}, content_type=STRATEGIC)
        for event in scene.events:
            told = {key: value for key, value in event.items() if key != "about"} | {"lastTimestamp": now}
            told |= {"metadata": {"generateName": "told."}, "involvedObject": about}
            await session.request("POST", f"/api/v1/namespaces/{namespace}/events", told)


async def test_a_selector_that_matches_nothing_waits_for_a_label(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    node, _ = await nodes.add(2)
    await apply(operated, namespace, training_job("bert", scheduling={"nodeSelector": {"test": namespace}}))
    cause = f"no node matches nodeSelector test={namespace} (of 2 nodes)"
    await until_message(operated, namespace, cause, state="Pending")
    await kubectl(operated, "label", f"node/{node}", f"test={namespace}")
    await until_state(operated, namespace, "Running", "bert")


async def test_requests_that_no_node_could_fulfil_wait_for_a_larger_node(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(2, gpus=4)
    await apply(operated, namespace, training_job("bert", gpusPerWorker=8))
    cause = "needs 8 GPUs per worker; the largest node has 4: lower gpusPerWorker or add a node"
    await until_message(operated, namespace, cause, state="Pending")
    await nodes.add(2, gpus=8)
    await until_state(operated, namespace, "Running", "bert")


async def test_more_workers_than_fit_wait_for_one_more_node(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(2, gpus=4)
    await apply(operated, namespace, training_job("bert", numWorkers=3, gpusPerWorker=4))
    cause = "needs 3 × 4 GPUs; 2 nodes have 4 free; even on empty nodes only 2 fit: lower numWorkers or add nodes"
    await until_message(operated, namespace, cause, state="Pending")
    assert await operated.pods.all(namespace) == []
    await nodes.add(1, gpus=4)
    await until_state(operated, namespace, "Running", "bert")


async def test_a_priority_class_that_does_not_exist_is_waited_for(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(1)
    await apply(operated, namespace, training_job("bert", scheduling={"priority": namespace}))
    cause = f"PriorityClass {namespace} does not exist: create it, or remove scheduling.priority"
    await until_message(operated, namespace, cause, state="Pending")
    await kubectl(operated, "create", "priorityclass", namespace, "--value=7")
    try:
        await until_state(operated, namespace, "Running", "bert")
        assert [pod["spec"]["priority"] for pod in await operated.pods.all(namespace)] == [7, 7]
    finally:
        await kubectl(operated, "delete", "priorityclass", namespace)


async def test_a_quota_that_is_used_up_is_named_until_it_is_raised(
    operated: ControlPlane, namespace: str, nodes: Nodes
) -> None:
    await nodes.add(1)
    await kubectl(operated, "create", "quota", "few", "--hard=pods=1", "-n", namespace)
    await eventually(partial(hard_limits, operated, namespace), bool, what="the quota counts")
    await apply(operated, namespace, training_job("bert"))
    cause = "their pods are refused: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    await until_message(operated, namespace, cause, state="Initializing")
    raised = '{"spec":{"hard":{"pods":"2"}}}'
    await kubectl(operated, "patch", "quota/few", "-n", namespace, "--type=merge", "-p", raised)
    await until_state(operated, namespace, "Running", "bert")


async def hard_limits(plane: ControlPlane, namespace: str) -> JSON:
    quota = json.loads(await kubectl(plane, "get", "quota/few", "-n", namespace, "-o", "json"))
    limits: JSON = quota.get("status", {}).get("hard", {})
    return limits


async def test_a_claim_that_does_not_bind_is_named_until_there_is_a_volume(
    operated: ControlPlane, namespace: str, nodes: Nodes, volume: str
) -> None:
    await nodes.add(1)
    await apply(operated, namespace, training_job("bert", checkpoint={}))
    cause = "pod has unbound immediate PersistentVolumeClaims"
    await until_message(operated, namespace, cause, state="Initializing")
    await kubectl(operated, "create", "-f", "-", input=volume)
    await until_state(operated, namespace, "Running", "bert")
