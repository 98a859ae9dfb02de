"""Jobs and Deployments with their pod templates and policies, which only the controllers of these kinds read."""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from holdfast.api.core.objects import Deployment, Job, JobSpec
from holdfast.api.meta import ApiStruct, Object
from holdfast.cluster.protocol import JSON, Resource


class DeploymentSpec(ApiStruct, frozen=True, kw_only=True):
    replicas: int = 1
    template: JSON = {}


class DeploymentCondition(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class DeploymentStatus(ApiStruct, frozen=True, kw_only=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    conditions: tuple[DeploymentCondition, ...] = ()


class TemplatedDeployment(Deployment, frozen=True, kw_only=True):
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ExitCodes(ApiStruct, frozen=True, kw_only=True):
    operator: str
    values: tuple[int, ...] = ()
    container_name: str = ""


class PodConditionPattern(ApiStruct, frozen=True, kw_only=True):
    type: str
    status: str = "True"


class PodFailurePolicyRule(ApiStruct, frozen=True, kw_only=True):
    action: str
    on_exit_codes: ExitCodes | None = None
    on_pod_conditions: tuple[PodConditionPattern, ...] = ()


class PodFailurePolicy(ApiStruct, frozen=True, kw_only=True):
    rules: tuple[PodFailurePolicyRule, ...] = ()


class JobSuccessPolicyRule(ApiStruct, frozen=True, kw_only=True):
    succeeded_indexes: str = ""
    succeeded_count: int | None = None


class JobSuccessPolicy(ApiStruct, frozen=True, kw_only=True):
    rules: tuple[JobSuccessPolicyRule, ...] = ()


class TemplatedJobSpec(JobSpec, frozen=True, kw_only=True):
    completion_mode: str = "NonIndexed"
    backoff_limit: int = 6
    backoff_limit_per_index: int | None = None
    max_failed_indexes: int | None = None
    ttl_seconds_after_finished: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    success_policy: JobSuccessPolicy | None = None
    pod_replacement_policy: str = "TerminatingOrFailed"
    managed_by: str = ""
    template: JSON = {}


class TemplatedJob(Job, frozen=True, kw_only=True):
    spec: TemplatedJobSpec = TemplatedJobSpec()

    @property
    def is_indexed(self) -> bool:
        return self.spec.completion_mode == "Indexed"

    @property
    def replaces_only_failed(self) -> bool:
        """Whether a terminating pod is replaced only after it has really ended (KEP-3939)."""
        return self.spec.pod_replacement_policy == "Failed" or self.spec.pod_failure_policy is not None

    @property
    def finished_at(self) -> str:
        """When the Job became Complete or Failed; empty before."""
        final = (c for c in self.status.conditions if c.type in ("Complete", "Failed") and c.status == "True")
        return next((condition.last_transition_time for condition in final), "")


DEPLOYMENTS = Resource(group="apps", version="v1", kind="Deployment", plural="deployments", model=TemplatedDeployment)
JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", model=TemplatedJob)


def resource_version_precondition(obj: Object) -> dict[str, Any]:
    """The metadata that makes a patch apply only to the version that was read."""
    return {"resourceVersion": obj.metadata.resource_version}


# Concurrent writes.


T = TypeVar("T")


async def gather_all(steps: Iterable[Awaitable[T]]) -> list[T]:
    """Run all steps to the end, even when one fails; then raise the first error."""
    results = await asyncio.gather(*steps, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
