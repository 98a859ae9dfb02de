"""A Job's podFailurePolicy: what its rules must say."""

from collections.abc import Iterator

from holdfast.cluster.embedded.kinds.podspec import containers_of
from holdfast.cluster.embedded.refusals import bad_value
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON


def failure_policy_problems(spec: JSON) -> Iterator[Cause]:
    names = {container.get("name") for _, container in containers_of(spec.get("template", {}).get("spec", {}))}
    for index, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
        path = f"spec.podFailurePolicy.rules[{index}]"
        if rule.get("action") == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield bad_value(f"{path}.action", "FailIndex", "requires the backoffLimitPerIndex to be set")
        if len({"onExitCodes", "onPodConditions"} & set(rule)) != 1:
            why = "specifying one of OnExitCodes and OnPodConditions is required, and not both"
            yield bad_value(path, rule.get("action"), why)
        yield from _exit_code_problems(rule.get("onExitCodes"), names, f"{path}.onExitCodes")


def _exit_code_problems(condition: JSON | None, names: set[str | None], path: str) -> Iterator[Cause]:
    if condition is None:
        return
    values = condition.get("values", [])
    if "containerName" in condition and condition["containerName"] not in names:
        why = "must be one of the container or initContainer names in the pod template"
        yield bad_value(f"{path}.containerName", condition["containerName"], why)
    if not values:
        yield bad_value(f"{path}.values", values, "at least one value is required")
    if condition.get("operator") == "In" and 0 in values:
        yield bad_value(f"{path}.values[{values.index(0)}]", 0, "must not be 0 for the In operator")
    if values != sorted(set(values)):
        yield bad_value(f"{path}.values", values, "must be ordered, each value once")
