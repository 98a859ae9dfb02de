"""One namespace with TrainingJobs, seen through what a user can see."""

from collections.abc import Mapping
from typing import Any

from holdfast.api.meta import Object
from holdfast.api.trainingjob import TrainingJobSpec
from holdfast.api.trainingjob_status import TrainingJobStatus, WorkerCounts
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import TRAINING_JOBS
from tests.contract.pods import POOL
from tests.controllers.lab import ControllerLab, seen_as


def two_workers(namespace: str, **spec: Any) -> JSON:
    """A spec of two CPU workers on the test's machines."""
    wishes = {"nodeSelector": {POOL: namespace}, **spec.pop("scheduling", {})}
    return {
        "model": "cnn",
        "dataset": "mnist",
        "numWorkers": 2,
        "gpusPerWorker": 0,
        "scheduling": wishes,
        "podTemplate": {"terminationGracePeriodSeconds": 1},
        **spec,
    }


class SeenTrainingJob(Object, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
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


SEEN = seen_as(SeenTrainingJob, TRAINING_JOBS)


class TrainingJobLab(ControllerLab[SeenTrainingJob]):
    def __init__(self, cluster: Cluster, namespace: str) -> None:
        super().__init__(cluster, namespace, SEEN, "bert")

    async def submit(self, name: str = "", *, labels: Mapping[str, str] | None = None, **spec: Any) -> SeenTrainingJob:
        return await self.create(two_workers(self.namespace, **spec), name, labels=labels)

    async def until_state(self, state: str, name: str = "", *, attempt: int | None = None) -> SeenTrainingJob:
        def there(job: SeenTrainingJob) -> bool:
            return job.status.state == state and attempt in (None, job.status.restart_count)

        return await self.until(there, f"is {state}", name)
