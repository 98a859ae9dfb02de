"""The pods of a restore, with a kubelet that says what the test tells it: base images first, then node after node."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
from msgspec import structs

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cli.restore import pods
from holdfast.cli.restore.images import RestoreFailed
from holdfast.cli.restore.pods import PodRestorer
from holdfast.cli.session import Session, follow
from holdfast.cluster.errors import NotFound
from holdfast.cluster.protocol import Listing
from holdfast.cluster.resources import NAMESPACES, NODES, PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.pods.restore.nodes import RestorableImage, RestoreNode
from holdfast.pods.restore.template import RestorePlan
from holdfast.runtime.process import utc_now
from tests.control_plane.waiting import eventually
from tests.pods.restore.restores import BASE, IMAGE, node, terminated, waiting
from tests.pods.restore.test_failure import CRIU_FAILED, OFF

NAMESPACE = "trial"
TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "r.example/base:1"}]}}
RUNS: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
DONE = terminated("Completed", code=0)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(0))
    await cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    for name in ("n1", "n2", "n3"):
        await cluster.create(NODES, {"metadata": {"name": name}})
    yield cluster
    await cluster.close()


class Kubelets:
    """Put each new pod on the first node that it may go to, and say what `says` tells for that pod and node."""

    def __init__(self, cluster: EmbeddedCluster, says: Callable[[str, str], dict[str, Any]]) -> None:
        self.cluster = cluster
        self.says = says
        self.seen: list[tuple[str, str]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        known: set[str] = set()
        async for step in follow(self.cluster, PODS, namespace=NAMESPACE):
            for pod in step.items if isinstance(step, Listing) else [step.object]:
                if pod is not None and pod.metadata.uid not in known:
                    known.add(pod.metadata.uid)
                    await self._take_up(pod)

    async def _take_up(self, pod: Pod) -> None:
        terms = pod.spec.affinity.node_affinity.required_during_scheduling_ignored_during_execution
        assert terms is not None
        where = terms.node_selector_terms[0].match_expressions[-1].values[0].removesuffix(".example")
        self.seen.append((pod.metadata.name, where))
        state = self.says(pod.metadata.name, where)
        phase = "Running" if "running" in state else "Succeeded" if state == DONE else "Pending"
        statuses = [
            {"name": each.name, "image": BASE, "imageID": "", "ready": False, "restartCount": 0, "state": state}
            for each in pod.spec.containers
        ]
        with suppress(NotFound):
            await self.cluster.bind(pod.metadata.key, where)
            status = {"phase": phase, "containerStatuses": statuses}
            await self.cluster.patch_status(PODS, pod.metadata.key, {"status": status})


def plan(*nodes: RestoreNode, image: RestorableImage = IMAGE) -> RestorePlan:
    return RestorePlan(name="again", namespace=NAMESPACE, images=(image,), nodes=nodes)


async def restore(cluster: EmbeddedCluster, wanted: RestorePlan) -> Pod:
    session = Session(cluster=cluster, namespace=NAMESPACE, now=utc_now)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        return await PodRestorer(session, TEMPLATE, lambda _: None).restore(wanted)


async def names(cluster: EmbeddedCluster) -> list[str]:
    return [each.metadata.name for each in (await cluster.list(PODS, namespace=NAMESPACE)).items]


async def test_the_base_image_comes_first_and_the_pod_follows_it_to_its_node(cluster: EmbeddedCluster) -> None:
    kubelets = Kubelets(cluster, lambda name, _: DONE if name.endswith("base-image") else RUNS)
    async with kubelets.running():
        pod = await restore(cluster, plan(node("n1"), node("n2")))
    assert kubelets.seen == [("again-base-image", "n1"), ("again", "n1")]
    assert pod.spec.node_name == "n1"
    assert await names(cluster) == ["again"]


async def test_a_base_image_that_no_registry_has_needs_no_pod(cluster: EmbeddedCluster) -> None:
    kubelets = Kubelets(cluster, lambda _, __: RUNS)
    async with kubelets.running():
        image = structs.replace(IMAGE, base_image="sha256:12")
        await restore(cluster, plan(node("n1"), image=image))
    assert kubelets.seen == [("again", "n1")]


async def test_a_node_that_can_not_create_it_is_followed_by_the_next(cluster: EmbeddedCluster) -> None:
    def says(name: str, where: str) -> dict[str, Any]:
        if name.endswith("base-image"):
            return DONE
        return RUNS if where == "n2" else waiting("CreateContainerError", OFF)

    kubelets = Kubelets(cluster, says)
    async with kubelets.running():
        pod = await restore(cluster, plan(node("n1"), node("n2")))
    assert pod.spec.node_name == "n2"
    assert [where for name, where in kubelets.seen if name == "again"] == ["n1", "n2"]


async def test_after_two_nodes_in_vain_the_image_is_said_to_be_unusable_and_nothing_is_left(
    cluster: EmbeddedCluster,
) -> None:
    kubelets = Kubelets(
        cluster,
        lambda name, _: DONE if name.endswith("base-image") else waiting("RunContainerError", CRIU_FAILED),
    )
    async with kubelets.running():
        with pytest.raises(RestoreFailed, match=r"the image is unusable: it was tried in vain on n1, n2"):
            await restore(cluster, plan(node("n1"), node("n2"), node("n3")))
    assert {where for _, where in kubelets.seen} == {"n1", "n2"}
    assert await names(cluster) == []


async def test_where_there_is_no_other_node_the_failure_says_so(cluster: EmbeddedCluster) -> None:
    kubelets = Kubelets(
        cluster, lambda name, _: DONE if name.endswith("base-image") else waiting("CreateContainerError", OFF)
    )
    async with kubelets.running():
        with pytest.raises(RestoreFailed, match=r"disabled by configuration.*there is no other node to try"):
            await restore(cluster, plan(node("n1")))


async def test_a_base_image_that_can_not_be_fetched_ends_it(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods, "PULL_PATIENCE_S", 0.1)
    kubelets = Kubelets(cluster, lambda _, __: waiting("ErrImagePull", "no basic auth credentials"))
    async with kubelets.running():
        with pytest.raises(RestoreFailed, match=r"the base image can't be brought to n1"):
            await restore(cluster, plan(node("n1")))
    assert await names(cluster) == []


async def test_a_pull_that_succeeds_later_is_waited_for(cluster: EmbeddedCluster) -> None:
    """The kubelet of a new pod may not see its pull secret at first."""
    kubelets = Kubelets(cluster, lambda _, __: waiting("ErrImagePull", "no basic auth credentials"))
    image = structs.replace(IMAGE, base_image="sha256:12")
    key = Key(NAMESPACE, "again")
    async with kubelets.running():
        restoring = asyncio.create_task(restore(cluster, plan(node("n1"), image=image)))

        async def reason() -> str:
            with suppress(NotFound):
                for status in (await cluster.get(PODS, key)).status.container_statuses:
                    return status.state.waiting.reason if status.state.waiting else ""
            return ""

        await eventually(reason, lambda seen: seen == "ErrImagePull", what="the pull has failed")
        running = {"name": "trainer", "image": BASE, "imageID": "", "ready": True, "restartCount": 0, "state": RUNS}
        await cluster.patch_status(PODS, key, {"status": {"phase": "Running", "containerStatuses": [running]}})
        assert (await restoring).spec.node_name == "n1"


async def test_a_pod_of_that_name_is_left_alone(cluster: EmbeddedCluster) -> None:
    body = {"metadata": {"name": "again"}, "spec": TEMPLATE["spec"]}
    before = await cluster.create(PODS, body, namespace=NAMESPACE)
    image = structs.replace(IMAGE, base_image="sha256:12")
    with pytest.raises(RestoreFailed, match="choose another name with --name"):
        await restore(cluster, plan(node("n1"), image=image))
    found = await cluster.get(PODS, Key(NAMESPACE, "again"))
    assert found.metadata.uid == before.metadata.uid
