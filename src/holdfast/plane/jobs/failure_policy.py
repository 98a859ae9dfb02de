"""What a Job's podFailurePolicy says about a failed pod."""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.plane.objects import ExitCodes, FailurePolicy, FailureRule, Job, Pod, condition

COUNT, IGNORE, FAIL_JOB, FAIL_INDEX = "Count", "Ignore", "FailJob", "FailIndex"


class PolicyMatch(NamedTuple):
    action: str
    message: str = ""

    @property
    def counts(self) -> bool:
        return self.action != IGNORE


def match_policy(job: Job, pod: Pod) -> PolicyMatch:
    """The first rule that matches decides; without one the failure counts."""
    policy = job.spec.pod_failure_policy or FailurePolicy()
    for number, rule in enumerate(policy.rules):
        if rule.action == FAIL_INDEX and job.spec.backoff_limit_per_index is None:
            continue
        for match in _matches(rule, pod):
            return PolicyMatch(rule.action, f"{match} matching {rule.action} rule at index {number}")
    return PolicyMatch(COUNT)


def _matches(rule: FailureRule, pod: Pod) -> Iterator[str]:
    if rule.on_exit_codes is not None:
        yield from _exit_codes(rule.on_exit_codes, pod)
    for pattern in rule.on_pod_conditions:
        found = condition(pod.status.conditions, pattern.type)
        if found is not None and found.status == pattern.status:
            yield f"Pod {pod.metadata.key} has condition {pattern.type}"


def _exit_codes(wanted: ExitCodes, pod: Pod) -> Iterator[str]:
    for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
        ended = status.state.terminated
        if ended is None or ended.exit_code == 0 or wanted.container_name not in ("", status.name):
            continue
        if (ended.exit_code in wanted.values) == (wanted.operator == "In"):
            yield f"Container {status.name} for pod {pod.metadata.key} failed with exit code {ended.exit_code}"
