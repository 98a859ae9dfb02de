"""Fake nodes have what a test gives them, and the scheduler minds it."""

from functools import partial

from tests.control_plane.api import JSON
from tests.control_plane.manifests import pod
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually

GPU = "nvidia.com/gpu"


async def node(plane: ControlPlane, name: str) -> JSON:
    return await plane.api.request("GET", f"/api/v1/nodes/{name}")


async def refused_by_scheduler(plane: ControlPlane, namespace: str, name: str) -> str:
    """Wait until the scheduler has found no place for a pod, and return its words."""

    async def words() -> list[str]:
        found = await plane.api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")
        conditions = found["status"].get("conditions", ())
        return [each["message"] for each in conditions if each.get("reason") == "Unschedulable"]

    return (await eventually(words, bool, what=f"{name} unschedulable"))[0]


def wanting_gpus(name: str, gpus: int, label: str) -> str:
    resources = f"resources: {{limits: {{{GPU}: {gpus}}}}}"
    manifest = pod(name, spec=f"  nodeSelector: {{batch: {label}}}")
    return manifest.replace("image: trainer", f"image: trainer, {resources}")


async def test_nodes_have_the_names_resources_labels_and_taints_that_they_are_given(
    control_plane: ControlPlane, nodes: Nodes
) -> None:
    taint = {"key": "spot", "value": "yes", "effect": "NoSchedule"}
    names = await nodes.add(2, prefix="gpu", gpus=8, cpu="16", labels={"zone": "a"}, taints=[taint])
    assert len(set(names)) == 2
    for name in names:
        seen = await node(control_plane, name)
        assert name.startswith("gpu-")
        assert (seen["status"]["allocatable"][GPU], seen["status"]["capacity"]["cpu"]) == ("8", "16")
        assert seen["metadata"]["labels"]["zone"] == "a"
        assert seen["metadata"]["labels"]["kubernetes.io/hostname"] == name
        assert taint in seen["spec"]["taints"]


async def test_a_node_without_gpus_does_not_speak_of_them(control_plane: ControlPlane, nodes: Nodes) -> None:
    (name,) = await nodes.add()
    assert GPU not in (await node(control_plane, name))["status"]["allocatable"]


async def test_pods_share_the_gpus_of_a_node_until_none_is_left(
    control_plane: ControlPlane, nodes: Nodes, namespace: str
) -> None:
    await nodes.add(gpus=4, labels={"batch": namespace})
    apply = partial(control_plane.kubectl, "apply", f"--namespace={namespace}", "-f", "-")
    apply(input=wanting_gpus("first", 3, namespace))
    assert await control_plane.pods.running(namespace) == ["first"]
    apply(input=wanting_gpus("second", 2, namespace))
    assert f"Insufficient {GPU}" in await refused_by_scheduler(control_plane, namespace, "second")
    await control_plane.pods.end(namespace, "first")
    assert await control_plane.pods.running(namespace) == ["second"]


async def test_a_tainted_node_takes_only_pods_that_tolerate_it(
    control_plane: ControlPlane, nodes: Nodes, namespace: str
) -> None:
    await nodes.add(labels={"batch": namespace}, taints=[{"key": "spot", "effect": "NoSchedule"}])
    apply = partial(control_plane.kubectl, "apply", f"--namespace={namespace}", "-f", "-")
    selector = f"  nodeSelector: {{batch: {namespace}}}\n"
    apply(input=pod("tolerant", spec=selector + "  tolerations: [{key: spot, operator: Exists}]"))
    apply(input=pod("intolerant", spec=selector))
    assert await control_plane.pods.running(namespace) == ["tolerant"]
    assert "untolerated taint" in await refused_by_scheduler(control_plane, namespace, "intolerant")


async def test_removed_nodes_are_gone_and_a_node_that_a_test_deleted_is_no_error(
    control_plane: ControlPlane, nodes: Nodes
) -> None:
    first, second, third = await nodes.add(3)
    control_plane.kubectl("delete", "node", first)
    await nodes.remove(second)
    left = control_plane.kubectl("get", "nodes", "-o", "name").split()
    assert f"node/{third}" in left
    assert f"node/{second}" not in left
    await nodes.remove()
    assert f"node/{third}" not in control_plane.kubectl("get", "nodes", "-o", "name").split()
