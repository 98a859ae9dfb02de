"""A GPUWorkload as a user handles it, with an operator that has the rights of its manifests and no others."""

import json
from pathlib import Path

from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.conftest import StartOperator
from tests.operator.user import apply, kubectl

RBAC = Path(__file__).parents[2] / "manifests" / "operator" / "rbac.yaml"
ACCOUNT = "holdfast-operator"


async def test_a_workload_lives_and_goes_with_the_rights_of_the_manifests(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    label = {"test": namespace}
    (node,) = await nodes.add(1, gpus=2, labels=label)
    login = await logged_in(plane, namespace)
    start_operator(plane, f"--namespace={namespace}", f"--lease-namespace={namespace}", kubeconfig=login)
    await apply(plane, namespace, workload("eval", 2, label))
    (pod,) = await plane.pods.running(namespace, 1)
    await kubectl(plane, "wait", "--for=condition=Running", "gpuw/eval", "-n", namespace, "--timeout=100s")
    await apply(plane, namespace, workload("waits", 2, label))
    await kubectl(plane, "wait", "--for=condition=Scheduled=False", "gpuw/waits", "-n", namespace, "--timeout=100s")
    header, *rows = (await kubectl(plane, "get", "gpuw", "-n", namespace)).splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "GPUS", "STRATEGY", "RETRIES", "AGE"]
    assert rows[0].split()[:5] == ["eval", "Running", node, "2", "leastLoaded"]
    assert rows[1].split()[:2] == ["waits", "Pending"]
    assert "1st in line" in await kubectl(plane, "describe", "gpuw/waits", "-n", namespace)
    await plane.pods.end(namespace, pod)
    await kubectl(plane, "wait", "--for=condition=Succeeded", "gpuw/eval", "-n", namespace, "--timeout=100s")
    await kubectl(plane, "wait", "--for=condition=Running", "gpuw/waits", "-n", namespace, "--timeout=100s")
    await kubectl(plane, "delete", "gpuw", "--all", "-n", namespace, "--timeout=100s")
    # What has ended may still be listed for a moment; it holds no GPU.
    assert {pod["status"]["phase"] for pod in await plane.pods.all(namespace)} <= {"Succeeded", "Failed"}
    user = f"system:serviceaccount:{namespace}:{namespace}"
    assert [one for one in plane.audit(user=user) if one.answer.code == 403] == []


async def test_a_quota_that_refuses_the_pod_is_named(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator
) -> None:
    label = {"test": namespace}
    await nodes.add(1, gpus=2, labels=label)
    await kubectl(plane, "create", "quota", "gpus", "--hard=requests.nvidia.com/gpu=1", "-n", namespace)
    # A quota counts from when its controller has looked at it.
    used = "jsonpath={.status.hard}"
    await kubectl(plane, "wait", "quota/gpus", "-n", namespace, f"--for={used}", "--timeout=100s")
    start_operator(plane, f"--namespace={namespace}", "--no-leader-elect")
    await apply(plane, namespace, workload("eval", 2, label))

    async def message() -> str:
        return await kubectl(plane, "get", "gpuw/eval", "-n", namespace, "-o", "jsonpath={.status.message}")

    told = await eventually(message, lambda it: "exceeded quota: gpus" in it, what="the quota is named")
    assert "it is refused: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2" in told


async def logged_in(plane: ControlPlane, namespace: str) -> Path:
    """The manifests' account under the namespace's name, so that tests do not share it."""
    manifest = RBAC.read_text().replace("holdfast-system", namespace).replace(f"name: {ACCOUNT}", f"name: {namespace}")
    manifest = manifest.replace(f"resourceNames: [{namespace}]", f"resourceNames: [{ACCOUNT}]")
    await kubectl(plane, "apply", "-f", "-", input=manifest)  # some of it is for other namespaces
    token = (await kubectl(plane, "create", "token", namespace, "-n", namespace)).strip()
    kubeconfig = plane.folder / f"{namespace}.kubeconfig"
    kubeconfig.write_text(plane.kubeconfig.read_text().replace(plane.admin_token, token))
    kubeconfig.chmod(0o600)
    return kubeconfig


def workload(name: str, gpus: int, selector: dict[str, str]) -> str:
    spec = {"modelName": "mlp", "gpuCount": gpus, "nodeSelector": selector}
    body = {"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "metadata": {"name": name}, "spec": spec}
    return json.dumps(body)
