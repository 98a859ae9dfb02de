"""What the rights that the chart gives are good for: the operator's in some namespaces alone, and people's."""

import asyncio
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from tests.charts.program import NAMESPACE, Helm, find, install, objects
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.operator.deployed import may, operator_login
from tests.operator.manifests import training_job
from tests.operator.process import OperatorProcess

TRAININGS = (
    "trainingjobs.ml.example.com",
    "gpuworkloads.gpu.warp.dev",
    "spotinstancejobs.training.training.dcnlab.com",
)
BACKUPS = "checkpointbackups.migration.dcnlab.com"
MACHINES = "provisionedinstances.training.training.dcnlab.com"
TEMPLATES = "spotinstancevms.training.training.dcnlab.com"
CHANGES = ("create", "update", "patch", "delete")


async def test_in_namespaces_alone_its_roles_are_all_that_a_training_takes(
    chart_plane: ControlPlane, installing: Helm, tmp_path: Path
) -> None:
    plane = chart_plane
    nodes = Nodes(plane.api)
    async with plane.namespace() as mine, plane.namespace() as others:
        await asyncio.to_thread(partial(install, installing, operator={"namespaces": [mine]}))
        await nodes.add(1)
        login = operator_login(plane)
        options = (f"--namespace={mine}", f"--lease-namespace={NAMESPACE}", "--reports-address=127.0.0.1")
        with OperatorProcess(plane, tmp_path, *options, kubeconfig=login).running() as operator:
            plane.kubectl("apply", "-n", mine, "-f", "-", input=training_job("bert", run_for="100ms"))
            plane.kubectl("wait", "-n", mine, "tj/bert", "--for=condition=Succeeded", "--timeout=200s")
            metrics = f"http://{plane.address}:{operator.metrics_port}/metrics"
            command = _test_command(installing, metrics)
            done = await asyncio.create_subprocess_exec(*command)
            assert await done.wait() == 0, "what `helm test` runs"
            found = await eventually(
                partial(_config_maps, plane), lambda names: "holdfast-node-endpoint" in names, what="the endpoint"
            )
            assert found
            refused = [line for line in operator.said() if "forbidden" in str(line).lower()]
            assert refused == []
            assert 'code="403"' not in await asyncio.to_thread(_read, metrics)
        account = f"system:serviceaccount:{NAMESPACE}:holdfast-operator"
        assert may(plane, account, "create", "jobs.batch", "-n", mine)
        for verb, resource in (("create", "jobs.batch"), ("get", "pods"), ("list", "trainingjobs.ml.example.com")):
            assert not may(plane, account, verb, resource, "-n", others)
        plane.kubectl("delete", "tj", "--all", "-n", mine)
        await nodes.remove()


def _test_command(helm: Helm, url: str) -> list[str]:
    """The command of `helm test`, with this Python and at another address."""
    (container,) = find(objects(helm("get", "hooks", "holdfast", f"--namespace={NAMESPACE}")), "Pod")["spec"][
        "containers"
    ]
    _, option = container["command"]
    script, _ = container["args"]
    return [sys.executable, option, script, url]


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        said: bytes = answer.read()
    return said.decode()


async def _config_maps(plane: ControlPlane) -> list[str]:
    found = await plane.api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps")
    return [each["metadata"]["name"] for each in found["items"]]


async def test_people_may_do_what_kubernetes_own_roles_say(chart_plane: ControlPlane, installing: Helm) -> None:
    await asyncio.to_thread(install, installing)
    async with chart_plane.namespace() as namespace:
        for role in ("view", "edit", "admin"):
            chart_plane.kubectl(
                "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}r", "-n", namespace
            )

        async def allowed(user: str, kind: str, verbs: tuple[str, ...] = ("get", *CHANGES)) -> list[str]:
            return [verb for verb in verbs if await _may(chart_plane, user, verb, kind, namespace)]

        together = partial(allowed, "adminr", MACHINES)
        await eventually(together, lambda verbs: "delete" in verbs, what="a controller has put the roles together")
        for kind in (*TRAININGS, BACKUPS):
            assert await allowed("viewr", kind) == ["get"], kind
            assert await allowed("editr", kind) == await allowed("adminr", kind) == ["get", *CHANGES], kind
        assert await allowed("editr", MACHINES) == ["get"]
        assert await allowed("adminr", MACHINES) == ["get", "delete"]
        assert await allowed("adminr", TEMPLATES) == ["get"], "its script is root on a node"
        assert await allowed("editr", f"{TRAININGS[0]}/scale", ("patch",)) == ["patch"]
        assert await allowed("adminr", f"{TRAININGS[0]}/status", CHANGES) == []


async def _may(plane: ControlPlane, user: str, verb: str, kind: str, namespace: str) -> bool:
    """Whether the API server's authorizers allow it; kind: as kubectl writes it, with or without a subresource."""
    resource, _, group = kind.partition(".")
    group, _, subresource = group.partition("/")
    about = {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource}
    body = {"kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": about}}
    answer = await plane.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize("role", ["holdfast-view", "holdfast-edit", "holdfast-admin"])
def test_each_role_has_what_the_one_before_it_has(helm: Helm, role: str) -> None:
    """So that each can be bound by its own name."""
    order = ["holdfast-view", "holdfast-edit", "holdfast-admin"]
    rendered = helm.rendered()

    def rights(name: str) -> set[tuple[str, str]]:
        rules = find(rendered, "ClusterRole", name)["rules"]
        return {(kind, verb) for rule in rules for kind in rule["resources"] for verb in rule["verbs"]}

    before = order[: order.index(role)]
    assert all(rights(name) < rights(role) for name in before)
