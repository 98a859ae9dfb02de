"""Why workers do not start, as Events tell it: on both engines."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.api.core.objects import CoreEvent, Job, Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import Forbidden, Unreachable
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import EVENTS, JOBS
from holdfast.pods.start_problems import why_waiting
from holdfast.trainingjob.start_problems import MOST_LISTS, EventExplanations, start_problems_from_events
from tests.contract.engine import Engine
from tests.contract.pods import indexed
from tests.contract.waiting import until
from tests.control_plane.waiting import eventually
from tests.recorded import names, recorded
from tests.runtime.scripted import ScriptedCluster
from tests.trainingjobs import unschedulable, worker, workers

CREATING = {
    "phase": "Pending",
    "containerStatuses": [
        {"name": "trainer", "image": "bert:1", "state": {"waiting": {"reason": "ContainerCreating"}}}
    ],
}
PULLING = 'image "bert:1" is being pulled, or volumes are being mounted'


def creating(index: int) -> Pod:
    """A pod that has a node and says nothing more."""
    pod = worker(index, CREATING, node="gpu-0")
    return replace(pod, metadata=replace(pod.metadata, uid=f"uid-{index}"))


def gang(count: int) -> Job:
    job = workers()
    return replace(job, spec=replace(job.spec, parallelism=count))


class Counting(ScriptedCluster):
    """Keeps the selectors of the lists, which the scripted cluster does not look at."""

    def __init__(self) -> None:
        super().__init__()
        self.fields: list[str] = []

    async def list(self, resource: Any, *, namespace: str = "", labels: str = "", fields: str = "") -> Any:
        self.fields.append(fields)
        return await super().list(resource, namespace=namespace, labels=labels, fields=fields)


@pytest.mark.parametrize("name", names(with_events=True))
@pytest.mark.every_engine
async def test_events_name_the_exact_cause(name: str, cluster: Cluster, namespace: str) -> None:
    scene = recorded(name)
    job, pods = scene.seen(namespace)
    for body in scene.bodies(namespace):
        await cluster.create(EVENTS, body, namespace=namespace)
    explained = await start_problems_from_events(cluster, job, pods)
    assert why_waiting(pods, scene.workers, scene.workers, explained.pods, explained.job) == scene.says


@pytest.mark.every_engine
async def test_events_about_others_tell_nothing(cluster: Cluster, namespace: str) -> None:
    scene = recorded("mount-missing-secret")
    job, pods = scene.seen(namespace)
    (body,) = scene.bodies(namespace)
    body["involvedObject"]["uid"] = "somebody-else"
    await cluster.create(EVENTS, body, namespace=namespace)
    assert "secret" not in str(await start_problems_from_events(cluster, job, pods))


@pytest.mark.parametrize("opening", ["kubernetes"], indirect=True)
@pytest.mark.every_engine
async def test_a_real_job_controllers_refused_pods_are_explained(
    cluster: Cluster, namespace: str, engine: Engine
) -> None:
    body = indexed("bert-training", "none", 2)
    body["spec"]["template"]["spec"]["serviceAccountName"] = "trainer"
    await cluster.create(JOBS, body, namespace=namespace)
    job = await until(cluster, JOBS, Key(namespace, "bert-training"), bool, "is there")
    explained = await eventually(
        lambda: start_problems_from_events(cluster, job, ()), lambda it: bool(it.job), what="the refusal is told"
    )
    assert why_waiting((), 2, 2, about_job=explained.job) == (
        "waiting for 2 of 2 workers: their pods are refused: "
        f'error looking up service account {namespace}/trainer: serviceaccount "trainer" not found'
    )


async def test_what_explains_itself_is_not_asked_about() -> None:
    cluster = Counting()
    pods = [unschedulable(0, "full"), worker(1, {"phase": "Running"}, node="gpu-1")]
    assert await start_problems_from_events(cluster, gang(2), pods) == EventExplanations()
    assert cluster.fields == []


async def test_a_pod_without_a_node_is_not_asked_about_since_only_the_scheduler_could_tell() -> None:
    cluster = Counting()
    pod = worker(0, {"phase": "Pending"})
    explained = await start_problems_from_events(cluster, gang(1), [pod])
    assert explained == EventExplanations(pods={pod.metadata.uid: "the scheduler has not looked at them yet"})
    assert cluster.fields == []


async def test_only_a_few_lists_are_made_however_large_the_gang() -> None:
    cluster = Counting()
    explained = await start_problems_from_events(cluster, gang(20), [creating(index) for index in range(10)])
    assert cluster.fields == [
        "involvedObject.uid=uid-of-bert-training,reason=FailedCreate",
        "involvedObject.uid=uid-0",
        "involvedObject.uid=uid-1",
    ]
    assert len(cluster.fields) == MOST_LISTS
    assert explained.pods == {f"uid-{index}": PULLING for index in range(10)}


async def test_a_suspended_job_makes_no_pods_and_is_not_asked_why() -> None:
    cluster = Counting()
    job = gang(2)
    job = replace(job, spec=replace(job.spec, suspend=True))
    assert await start_problems_from_events(cluster, job, ()) == EventExplanations()
    assert cluster.fields == []


@pytest.mark.parametrize("error", [Forbidden("events: no"), Unreachable("cut off")])
async def test_events_that_cannot_be_read_stop_nothing(error: Exception) -> None:
    cluster = Counting()
    cluster.errors["list"].append(error)
    assert await start_problems_from_events(cluster, gang(1), [creating(0)]) == EventExplanations(
        pods={"uid-0": PULLING}
    )


async def test_one_list_that_fails_does_not_silence_the_others() -> None:
    cluster = Counting()
    cluster.put(EVENTS, warning("FailedMount", "no such volume", at="2026-03-02T09:15:00Z"), namespace="ml")
    cluster.errors["list"].append(Unreachable("cut off"))
    explained = await start_problems_from_events(cluster, gang(2), [creating(0), creating(1)])
    assert explained == EventExplanations(pods={"uid-1": "no such volume"})


def warning(reason: str, message: str, *, at: str | None, name: str = "told") -> CoreEvent:
    body = {"metadata": {"name": name}, "type": "Warning", "reason": reason, "message": message, "lastTimestamp": at}
    return msgspec.convert(body, CoreEvent)


async def test_the_newest_event_is_told_and_of_two_at_once_always_the_same() -> None:
    cluster = Counting()
    for name, message, at in (
        ("a", "second", "2026-03-02T09:15:02Z"),
        ("b", "also second", "2026-03-02T09:15:02.000000Z"),
        ("c", "first", "2026-03-02T09:15:01Z"),
        ("d", "undated", None),
    ):
        cluster.put(EVENTS, warning("FailedMount", message, at=at, name=name), namespace="ml")
    assert (await start_problems_from_events(cluster, gang(1), [creating(0)])).pods == {"uid-0": "second"}


async def test_events_of_the_newer_api_are_ordered_by_their_own_time() -> None:
    cluster = Counting()
    newer = warning("FailedAttachVolume", "newer", at=None, name="a")
    cluster.put(EVENTS, replace(newer, event_time="2026-03-02T09:15:02.500000Z"), namespace="ml")
    cluster.put(EVENTS, warning("FailedMount", "older", at="2026-03-02T09:15:02Z", name="b"), namespace="ml")
    assert (await start_problems_from_events(cluster, gang(1), [creating(0)])).pods == {"uid-0": "newer"}


async def test_a_kubelets_first_warning_is_told_though_the_scheduler_counts_fractions_of_a_second() -> None:
    cluster = Counting()
    for name, reason, at in (
        ("a", "Scheduled", "2026-03-02T09:15:01.500000Z"),
        ("b", "FailedMount", "2026-03-02T09:15:01Z"),
    ):
        cluster.put(EVENTS, warning(reason, f"{reason} it is", at=at, name=name), namespace="ml")
    assert (await start_problems_from_events(cluster, gang(1), [creating(0)])).pods == {"uid-0": "FailedMount it is"}
