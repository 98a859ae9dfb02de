"""One namespace with TrainingJobs, seen through what a user can see."""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.api.core.objects import Job
from holdfast.api.meta import Key, Object
from holdfast.api.trainingjob import TrainingJobSpec
from holdfast.api.trainingjob_status import TrainingJobStatus, WorkerCounts
from holdfast.cluster.protocol import JSON, Cluster, Resource
from holdfast.cluster.resources import EVENTS, JOBS, TRAINING_JOBS
from tests.contract.pods import POOL
from tests.contract.waiting import until
from tests.control_plane.waiting import eventually


def manifest(name: str, namespace: str, **spec: Any) -> JSON:
    """Two CPU workers on the test's machines."""
    wishes = {"nodeSelector": {POOL: namespace}, **spec.pop("scheduling", {})}
    return {
        "metadata": {"name": name},
        "spec": {
            "model": "cnn",
            "dataset": "mnist",
            "numWorkers": 2,
            "gpusPerWorker": 0,
            "scheduling": wishes,
            "podTemplate": {"terminationGracePeriodSeconds": 1},
            **spec,
        },
    }


class Seen(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A TrainingJob as tests look at it: its status is there, if only empty."""

    spec: TrainingJobSpec
    status: TrainingJobStatus = TrainingJobStatus()

    @property
    def message(self) -> str:
        return self.status.message or ""

    @property
    def failure(self) -> str:
        return self.status.failure_reason or ""

    @property
    def workers(self) -> WorkerCounts:
        return self.status.workers or WorkerCounts()

    def reason(self, kind: str) -> str:
        """Of the condition of that type, while it holds."""
        held = (each.reason for each in self.status.conditions if each.type == kind and each.status == "True")
        return next(held, "")


SEEN = Resource(
    group=TRAINING_JOBS.group,
    version=TRAINING_JOBS.version,
    kind=TRAINING_JOBS.kind,
    plural=TRAINING_JOBS.plural,
    model=Seen,
)


class Lab:
    """One namespace, seen through what a user can see."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def key(self, name: str) -> Key:
        return Key(self.namespace, name)

    async def submit(self, name: str = "bert", *, labels: Mapping[str, str] | None = None, **spec: Any) -> Seen:
        body = manifest(name, self.namespace, **spec)
        body["metadata"]["labels"] = dict(labels or {})
        return await self.cluster.create(SEEN, body, namespace=self.namespace)

    async def until(self, holds: Callable[[Seen], object], what: str, name: str = "bert") -> Seen:
        return await until(self.cluster, SEEN, self.key(name), holds, what)

    async def until_state(self, state: str, name: str = "bert", *, attempt: int | None = None) -> Seen:
        def there(job: Seen) -> bool:
            return job.status.state == state and attempt in (None, job.status.restart_count)

        return await self.until(there, f"is {state}", name)

    async def look(self, name: str = "bert") -> Seen:
        return await self.cluster.get(SEEN, self.key(name))

    async def change(self, spec: Mapping[str, Any], name: str = "bert") -> None:
        await self.cluster.patch(TRAINING_JOBS, self.key(name), {"spec": spec})

    async def job(self, name: str = "bert-training") -> Job:
        return await until(self.cluster, JOBS, self.key(name), bool, "is there")

    async def told(self, reason: str, name: str = "bert", *, containing: str = "") -> str:
        """The message of the event of that reason about the job."""
        about = f"involvedObject.name={name},reason={reason}"

        async def look() -> list[str]:
            events = await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)
            return [event.message for event in events.items if containing in event.message]

        return (await eventually(look, bool, what=f"event {reason} of {name}"))[0]

    async def reasons(self, name: str = "bert") -> set[str]:
        """Of all events about the job, once there are some."""
        about = f"involvedObject.name={name}"

        async def look() -> set[str]:
            events = await self.cluster.list(EVENTS, namespace=self.namespace, fields=about)
            return {event.reason for event in events.items}

        return await eventually(look, bool, what=f"events of {name}")
