"""When the indexes that have succeeded are enough for the whole Job."""

from holdfast.plane.jobs import indexes
from holdfast.plane.objects import Job, SuccessPolicy, SuccessRule


def satisfied_rule(job: Job, completed: frozenset[int]) -> int | None:
    """The number of the first rule that holds."""
    policy = job.spec.success_policy or SuccessPolicy()
    limit = job.spec.completions or 0
    return next((number for number, rule in enumerate(policy.rules) if _holds(rule, completed, limit)), None)


def _holds(rule: SuccessRule, completed: frozenset[int], limit: int) -> bool:
    wanted = indexes.parse_indexes(rule.succeeded_indexes, limit)
    counted = completed & wanted if rule.succeeded_indexes else completed
    if rule.succeeded_count is not None:
        return len(counted) >= rule.succeeded_count
    return bool(wanted) and counted == wanted
