"""Conditions: what holds, since when."""

from collections.abc import Iterable

from msgspec import structs

from holdfast.api.meta import Condition


def merge_conditions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[Condition, ...]:
    """The new conditions in the old order; one whose status did not change keeps its time of transition."""
    merged = {condition.type: condition for condition in old}
    for condition in new:
        before = merged.get(condition.type)
        if before is not None and before.status == condition.status:
            condition = structs.replace(condition, last_transition_time=before.last_transition_time)
        merged[condition.type] = condition
    return tuple(merged.values())


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    return any(condition.type == kind and condition.status == "True" for condition in conditions)
