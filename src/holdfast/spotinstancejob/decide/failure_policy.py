"""What the template's podFailurePolicy says of a failed pod. Pure.

The Job's own backoffLimit is 0, so that its controller never retries: that a failure is to end the training is the
operator's to see. Rules are as in batch/v1: the first that matches decides.
"""

from collections.abc import Iterator
from typing import Any

from holdfast.api.core.objects import Pod
from holdfast.api.spotinstancejob import SpotInstanceJob


def is_final(job: SpotInstanceJob, pod: Pod) -> bool:
    """Whether no further attempt is wanted after this failure: a rule FailJob holds, or FailIndex for the one index."""
    policy = job.spec.job_template["spec"].get("podFailurePolicy") or {}
    matching = (rule for rule in policy.get("rules") or () if any(_matches(rule, pod)))
    return next((rule.get("action") for rule in matching), "") in ("FailJob", "FailIndex")


def _matches(rule: dict[str, Any], pod: Pod) -> Iterator[bool]:
    """For each container and condition that the rule is about whether it fits."""
    codes = rule.get("onExitCodes") or {}
    values, is_listed = codes.get("values") or (), codes.get("operator") == "In"
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses) if codes else ():
        end = status.state.terminated
        if end is not None and end.exit_code and codes.get("containerName") in (None, "", status.name):
            yield (end.exit_code in values) == is_listed
    for wanted in rule.get("onPodConditions") or ():
        for found in pod.status.conditions:
            yield (found.type, found.status) == (wanted.get("type"), wanted.get("status") or "True")
