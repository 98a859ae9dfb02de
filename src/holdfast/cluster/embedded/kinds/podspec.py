"""The part that pods and pod templates share."""

from collections.abc import Iterator
from typing import Any

from holdfast.api.cel import quantity
from holdfast.cluster.embedded.names import dns_label_problems
from holdfast.cluster.embedded.refusals import bad_value, missing
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

CONTAINERS = ("initContainers", "containers")


def containers_of(spec: JSON) -> Iterator[tuple[str, JSON]]:
    """Every container with its path below the spec, those that come first first."""
    for field in CONTAINERS:
        for index, container in enumerate(spec.get(field, [])):
            yield f"{field}[{index}]", container


def complete_pod_spec(spec: JSON) -> None:
    """The defaults that depend on other fields."""
    for _, container in containers_of(spec):
        if isinstance(container.get("image"), str):
            container.setdefault("imagePullPolicy", _pull_policy(container["image"]))
    for volume in spec.get("volumes", []):
        if set(volume) <= {"name"}:
            volume["emptyDir"] = {}
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if spec.get("serviceAccountName"):
        # The old name of the field is kept in step.
        spec["serviceAccount"] = spec["serviceAccountName"]


def _pull_policy(image: str) -> str:
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"


def pod_spec_problems(spec: JSON, path: str) -> Iterator[Cause]:
    names = [volume.get("name", "") for volume in spec.get("volumes", [])]
    yield from _duplicates([(f"{path}.volumes[{index}]", name) for index, name in enumerate(names)])
    yield from _duplicates([(f"{path}.{where}", each.get("name", "")) for where, each in containers_of(spec)])
    for where, container in containers_of(spec):
        yield from _container_problems(container, f"{path}.{where}", set(names))
    for field in ("hostname", "subdomain"):
        if name := spec.get(field):
            yield from (bad_value(f"{path}.{field}", name, problem) for problem in dns_label_problems(name))
    for index, toleration in enumerate(spec.get("tolerations", [])):
        if not toleration.get("key") and toleration.get("operator") != "Exists":
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield bad_value(f"{path}.tolerations[{index}].operator", toleration.get("operator", ""), why)
    yield from _expression_problems(spec.get("affinity", {}), f"{path}.affinity")


def _duplicates(named: list[tuple[str, str]]) -> Iterator[Cause]:
    seen = set()
    for path, name in named:
        if name in seen:
            yield Cause(f"{path}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
        seen.add(name)


def _container_problems(container: JSON, path: str, volumes: set[str]) -> Iterator[Cause]:
    name = container.get("name", "")
    yield from (bad_value(f"{path}.name", name, problem) for problem in dns_label_problems(name))
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if mount.get("name") not in volumes:
            field = f"{path}.volumeMounts[{index}].name"
            yield Cause(field, f'Not found: "{mount.get("name")}"', "FieldValueNotFound")
    yield from _resource_problems(container.get("resources", {}), f"{path}.resources")


def _resource_problems(resources: JSON, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for name, amount in requests.items():
        if name not in limits:
            if is_extended(name):
                yield missing(f"{path}.limits", "Limit must be set for non overcommitable resources")
        elif is_extended(name) and quantity(amount) != quantity(limits[name]):
            yield bad_value(f"{path}.requests", amount, f"must be equal to {name} limit of {limits[name]}")
        elif quantity(amount) > quantity(limits[name]):
            yield bad_value(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limits[name]}")
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if quantity(amount) < 0:
                yield bad_value(f"{path}.{part}[{name}]", amount, "must be greater than or equal to 0")
            elif is_extended(name) and not quantity(amount).is_integer():
                yield bad_value(f"{path}.{part}[{name}]", amount, "must be an integer")


def _expression_problems(value: Any, path: str) -> Iterator[Cause]:
    """Every expression that compares must say with what."""
    if isinstance(value, list):
        for index, element in enumerate(value):
            yield from _expression_problems(element, f"{path}[{index}]")
    elif isinstance(value, dict):
        if value.get("operator") in ("In", "NotIn") and not value.get("values"):
            yield missing(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        for name, child in value.items():
            yield from _expression_problems(child, f"{path}.{name}")


def is_extended(resource: str) -> bool:
    """Whether it is a device that is counted whole and never shared, such as nvidia.com/gpu."""
    return "/" in resource and "kubernetes.io/" not in resource
