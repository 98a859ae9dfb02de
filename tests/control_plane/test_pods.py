"""Fake pods run on fake nodes, and end how and when a test says."""

from functools import partial

import pytest

from tests.control_plane.api import JSON, Refused
from tests.control_plane.manifests import indexed_job, pod
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually


@pytest.fixture(autouse=True)
async def node(nodes: Nodes) -> str:
    (name,) = await nodes.add()
    return name


class Cluster:
    """One namespace, as these tests look at it."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self.pods = plane.pods
        self.namespace = namespace
        self._plane = plane
        self.kubectl = partial(plane.kubectl, f"--namespace={namespace}")

    def apply(self, manifest: str) -> None:
        self.kubectl("apply", "-f", "-", input=manifest)

    async def status(self, name: str) -> JSON:
        status: JSON = (await self._plane.api.request("GET", self._path(name)))["status"]
        return status

    async def reaches(self, name: str, phase: str) -> JSON:
        what = f"{name} {phase}"
        return await eventually(partial(self.status, name), lambda seen: seen["phase"] == phase, what=what)

    async def goes(self, name: str) -> None:
        async def is_gone() -> bool:
            try:
                await self._plane.api.request("GET", self._path(name))
            except Refused as refused:
                return refused.code == 404
            return False

        await eventually(is_gone, bool, what=f"{name} gone")

    async def job(self, name: str, condition: str) -> JSON:
        """Wait until a Job has a condition, and return its status."""

        async def look() -> JSON:
            path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/{name}"
            status: JSON = (await self._plane.api.request("GET", path))["status"]
            return status

        def has(status: JSON) -> bool:
            return condition in [each["type"] for each in status.get("conditions", ())]

        return await eventually(look, has, what=f"Job {name} {condition}")

    def _path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"


@pytest.fixture
def cluster(control_plane: ControlPlane, namespace: str) -> Cluster:
    return Cluster(control_plane, namespace)


def ended(status: JSON) -> JSON:
    """How the first container ended."""
    terminated: JSON = status["containerStatuses"][0]["state"]["terminated"]
    return terminated


def ready(status: JSON) -> str:
    return str(next(each["status"] for each in status["conditions"] if each["type"] == "Ready"))


async def test_a_pod_without_annotations_runs_and_is_ready(cluster: Cluster, node: str) -> None:
    cluster.apply(pod("worker", spec=f"  nodeSelector: {{kubernetes.io/hostname: {node}}}"))
    assert await cluster.pods.running(cluster.namespace) == ["worker"]
    status = await cluster.status("worker")
    assert ready(status) == "True"
    assert status["podIP"].startswith("10.")
    assert [each["ready"] for each in status["containerStatuses"]] == [True]
    prepare, sidecar = status["initContainerStatuses"]
    assert prepare["state"]["terminated"]["exitCode"] == 0
    assert "running" in sidecar["state"]
    (listed,) = await cluster.pods.all(cluster.namespace)
    assert listed["spec"]["nodeName"] == node


async def test_a_pod_succeeds_when_its_annotations_say_so(cluster: Cluster) -> None:
    cluster.apply(pod("worker"))
    await cluster.pods.running(cluster.namespace)
    await cluster.pods.end(cluster.namespace, "worker", message='{"epoch": 3}')
    status = await cluster.status("worker")
    assert status["phase"] == "Succeeded"
    assert ready(status) == "False"
    assert (ended(status)["exitCode"], ended(status)["reason"]) == (0, "Completed")
    assert ended(status)["message"] == '{"epoch": 3}'
    assert [each["state"]["terminated"]["exitCode"] for each in status["initContainerStatuses"]] == [0, 0]


async def test_a_pod_fails_as_its_annotations_say(cluster: Cluster) -> None:
    cluster.apply(pod("worker"))
    await cluster.pods.running(cluster.namespace)
    await cluster.pods.end(cluster.namespace, "worker", 137, reason="OOMKilled", signal=9, message="too big")
    status = await cluster.status("worker")
    assert status["phase"] == "Failed"
    killed = ended(status)
    assert (killed["exitCode"], killed["reason"], killed["signal"]) == (137, "OOMKilled", 9)
    assert killed["message"] == "too big"
    assert await cluster.pods.running(cluster.namespace, 0) == []


async def test_a_pod_is_evicted(cluster: Cluster) -> None:
    cluster.apply(pod("worker"))
    await cluster.pods.running(cluster.namespace)
    await cluster.pods.evict(cluster.namespace, "worker", "the node was low on memory")
    status = await cluster.status("worker")
    assert (status["phase"], status["reason"]) == ("Failed", "Evicted")
    disrupted = [each["reason"] for each in status["conditions"] if each["type"] == "DisruptionTarget"]
    assert disrupted == ["TerminationByKubelet"]


async def test_a_pod_ends_by_itself_after_the_time_that_it_is_given(cluster: Cluster) -> None:
    cluster.apply(pod("worker", run_for="50ms"))
    status = await cluster.reaches("worker", "Succeeded")
    assert (ended(status)["exitCode"], ended(status)["reason"]) == (0, "Completed")
    assert ready(status) == "False"


async def test_a_pod_ends_by_itself_with_the_exit_code_reason_and_message_that_it_is_given(cluster: Cluster) -> None:
    cluster.apply(pod("worker", run_for="50ms", exit_code="3", reason="OOMKilled", message='said "no": twice'))
    status = await cluster.reaches("worker", "Failed")
    assert (ended(status)["exitCode"], ended(status)["reason"]) == (3, "OOMKilled")
    assert ended(status)["message"] == 'said "no": twice'


async def test_a_pod_with_an_exit_code_but_no_time_runs_until_the_test_ends_it(cluster: Cluster) -> None:
    cluster.apply(pod("patient", exit_code="3"))
    cluster.apply(pod("hasty", run_for="1ms"))
    await cluster.reaches("hasty", "Succeeded")
    assert await cluster.pods.running(cluster.namespace) == ["patient"]


async def test_a_pod_starts_no_earlier_than_its_annotation_says(cluster: Cluster) -> None:
    cluster.apply(pod("late", start_after="1h"))
    cluster.apply(pod("early"))
    assert await cluster.pods.running(cluster.namespace) == ["early"]
    assert (await cluster.status("late"))["phase"] == "Pending"
    cluster.kubectl("delete", "pod", "late", "--wait=false")
    await cluster.goes("late")


async def test_a_deleted_pod_goes_at_once_or_after_its_annotated_time(cluster: Cluster) -> None:
    cluster.apply(pod("quick"))
    cluster.apply(pod("slow", stop_after="1h"))
    await cluster.pods.running(cluster.namespace, 2)
    cluster.kubectl("delete", "pod", "slow", "quick", "--wait=false")
    await cluster.goes("quick")
    (left,) = await cluster.pods.all(cluster.namespace)
    assert left["metadata"]["name"] == "slow"
    assert "deletionTimestamp" in left["metadata"]
    assert await cluster.pods.running(cluster.namespace, 0) == []
    await cluster.pods.end(cluster.namespace, "slow", 143)
    await cluster.goes("slow")


async def test_every_container_has_said_three_lines(cluster: Cluster) -> None:
    cluster.apply(pod("worker"))
    await cluster.pods.running(cluster.namespace)
    assert cluster.kubectl("logs", "worker", "--container=trainer") == "line 1\nline 2\nline 3\n"
    assert cluster.kubectl("logs", "worker", "--container=trainer", "--tail=1") == "line 3\n"


async def test_an_indexed_job_whose_pods_end_by_themselves_completes(cluster: Cluster) -> None:
    cluster.apply(indexed_job("trains", run_for="20ms"))
    status = await cluster.job("trains", "Complete")
    assert (status["succeeded"], status["completedIndexes"]) == (3, "0-2")


async def test_an_indexed_job_follows_each_of_its_pods(cluster: Cluster) -> None:
    cluster.apply(indexed_job("trains"))
    first, second, third = await cluster.pods.running(cluster.namespace, 3, labels="job-name=trains")
    assert [name.split("-")[1] for name in (first, second, third)] == ["0", "1", "2"]
    await cluster.pods.end(cluster.namespace, first)
    await cluster.pods.end(cluster.namespace, third)
    assert await cluster.pods.running(cluster.namespace) == [second]
    await cluster.pods.end(cluster.namespace, second, 1)
    status = await cluster.job("trains", "Failed")
    assert (status["succeeded"], status["failed"]) == (2, 1)


async def test_a_job_that_replaces_only_failed_pods_replaces_a_deleted_one(cluster: Cluster) -> None:
    cluster.apply(indexed_job("trains", completions=1).replace("backoffLimit: 0", "podReplacementPolicy: Failed"))
    (first,) = await cluster.pods.running(cluster.namespace)
    cluster.kubectl("delete", "pod", first, "--wait=false")
    await cluster.goes(first)
    (second,) = await cluster.pods.running(cluster.namespace)
    assert second != first


async def test_waiting_in_vain_says_what_was_seen(cluster: Cluster) -> None:
    cluster.apply(pod("late", start_after="1h"))
    with pytest.raises(AssertionError, match=r"1 pods running in test-\w+ .*last seen: {'late': 'Pending'}"):
        await cluster.pods.running(cluster.namespace, within_s=0.2)
