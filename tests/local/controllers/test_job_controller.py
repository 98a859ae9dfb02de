"""The Job controller on caches that lag behind, fed by hand."""

from collections.abc import AsyncIterator
from random import Random

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import Conflict
from holdfast.cluster.resources import PODS
from holdfast.local.apiserver.server import EmbeddedCluster, open_cluster
from holdfast.local.controllers.jobs import BY_JOB, JobReconciler, job_of
from holdfast.local.controllers.objects import JOBS, TemplatedJob
from holdfast.runtime.informer import Informers, Store
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import utc_now
from holdfast.runtime.read_your_writes import WriteTracker
from tests.local.controllers.bench import NAMESPACE, indexed, pod_spec
from tests.local.controllers.kubelets import ended

KEY = Key(NAMESPACE, "one")


class JobReconcilerLab:
    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.jobs: Store[TemplatedJob] = Store()
        self.pods: Store[Pod] = Store({BY_JOB: lambda pod: map(str, job_of(pod))})
        informers = Informers(cluster, (), metrics=Metrics(), random=Random(0))
        self.controller = JobReconciler(self.jobs, self.pods, WriteTracker(cluster, informers), utc_now)

    async def begin(self) -> None:
        spec = indexed(1, backoffLimit=5, template={"spec": pod_spec()})
        await self.cluster.create(JOBS, {"metadata": {"name": "one"}, "spec": spec}, namespace=NAMESPACE)
        await self.see_job()
        await self.controller.reconcile(KEY)
        await self.see_job()
        await self.see_pods()

    async def job(self) -> TemplatedJob:
        return await self.cluster.get(JOBS, KEY)

    async def see_job(self) -> None:
        self.jobs.put(await self.job())

    async def see_pods(self) -> None:
        for pod in list(self.pods):
            self.pods.remove(pod.metadata.key)
        for pod in (await self.cluster.list(PODS)).items:
            self.pods.put(pod)

    async def fail_pod(self) -> None:
        (pod,) = self.pods
        await self.cluster.patch_status(PODS, pod.metadata.key, {"status": ended(pod, 1, utc_now())})
        await self.see_pods()


@pytest.fixture
async def desk() -> AsyncIterator[JobReconcilerLab]:
    cluster = await open_cluster(None, now=utc_now, rng=Random(3))
    desk = JobReconcilerLab(cluster)
    await desk.begin()
    yield desk
    await cluster.close()


async def test_a_pod_that_a_late_cache_shows_as_held_is_counted_once(desk: JobReconcilerLab) -> None:
    await desk.fail_pod()
    for _ in range(4):
        await desk.controller.reconcile(KEY)
        await desk.see_job()  # the cache of pods stays behind
    status = (await desk.job()).status
    assert (status.failed, status.uncounted_terminated_pods.failed) == (1, ())
    await desk.see_pods()
    await desk.controller.reconcile(KEY)
    assert (await desk.job()).status.failed == 1


async def test_a_late_cache_of_jobs_is_noticed_before_anything_is_counted(desk: JobReconcilerLab) -> None:
    await desk.fail_pod()
    await desk.cluster.patch(JOBS, KEY, {"metadata": {"labels": {"touched": "yes"}}})
    with pytest.raises(Conflict):
        await desk.controller.reconcile(KEY)
    (pod,) = (await desk.cluster.list(PODS)).items
    assert pod.is_tracked, "it is let go only when it is counted"
    assert (await desk.job()).status.uncounted_terminated_pods.failed == ()


async def test_a_settled_job_is_not_written(desk: JobReconcilerLab) -> None:
    before = (await desk.job()).metadata.resource_version
    for _ in range(3):
        await desk.controller.reconcile(KEY)
    assert (await desk.job()).metadata.resource_version == before
    assert len((await desk.cluster.list(PODS)).items) == 1


async def test_a_finished_job_is_left_alone(desk: JobReconcilerLab) -> None:
    done = {
        "type": "Complete",
        "status": "True",
        "reason": "Said",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await desk.cluster.patch_status(JOBS, KEY, {"status": {"conditions": [done]}})
    await desk.see_job()
    before = await desk.job()
    await desk.controller.reconcile(KEY)
    assert await desk.job() == before


async def test_a_pod_of_an_earlier_job_of_that_name_is_let_go_and_not_counted(desk: JobReconcilerLab) -> None:
    (pod,) = desk.pods
    earlier = [{"apiVersion": "batch/v1", "kind": "Job", "name": "one", "uid": "earlier", "controller": True}]
    await desk.cluster.patch(PODS, pod.metadata.key, {"metadata": {"ownerReferences": earlier}})
    await desk.see_pods()
    await desk.controller.reconcile(KEY)
    pods = (await desk.cluster.list(PODS)).items
    assert pod.metadata.uid not in {each.metadata.uid for each in pods if each.is_tracked}
    assert (await desk.job()).status.failed == 0
