"""Deployments: pods of one template, kept alive."""

from collections.abc import Iterator

from holdfast.cluster.embedded.kind import KindHooks, ObjectReader
from holdfast.cluster.embedded.kinds.podspec import complete_pod_spec, pod_spec_problems
from holdfast.cluster.embedded.refusals import bad_value, forbidden
from holdfast.cluster.errors import Cause
from holdfast.cluster.protocol import JSON

ROLLING = {"maxSurge": "25%", "maxUnavailable": "25%"}


def _default_deployment(deployment: JSON) -> None:
    spec = deployment.get("spec", {})
    complete_pod_spec(spec.get("template", {}).get("spec", {}))
    strategy = spec.get("strategy", {})
    if strategy.get("type") == "RollingUpdate":
        strategy["rollingUpdate"] = ROLLING | strategy.get("rollingUpdate", {})


def _prepare_deployment(deployment: JSON, _around: ObjectReader) -> None:
    deployment["metadata"]["generation"] = 1
    deployment["status"] = {}


def _validate_deployment(deployment: JSON, old: JSON | None) -> Iterator[Cause]:
    spec = deployment["spec"]
    template = spec["template"]
    yield from _selector_problems(spec.get("selector", {}), template.get("metadata", {}).get("labels", {}))
    yield from pod_spec_problems(template.get("spec", {}), "spec.template.spec")
    policy = template.get("spec", {}).get("restartPolicy")
    if policy != "Always":
        why = f'Unsupported value: "{policy}": supported values: "Always"'
        yield Cause("spec.template.spec.restartPolicy", why, "FieldValueNotSupported")
    if "activeDeadlineSeconds" in template.get("spec", {}):
        yield forbidden(
            "spec.template.spec.activeDeadlineSeconds", "activeDeadlineSeconds in ReplicaSet is not Supported"
        )
    strategy = spec.get("strategy", {})
    if strategy.get("type") == "Recreate" and "rollingUpdate" in strategy:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden("spec.strategy.rollingUpdate", why)
    if old is not None and spec.get("selector") != old["spec"].get("selector"):
        yield bad_value("spec.selector", spec.get("selector"), "field is immutable")


def _selector_problems(selector: JSON, labels: dict[str, str]) -> Iterator[Cause]:
    """Only the plain part is compared with the labels: a selector by expressions is taken at its word."""
    wanted = selector.get("matchLabels", {})
    if not wanted and not selector.get("matchExpressions"):
        yield bad_value("spec.selector", selector, "empty selector is invalid for deployment")
    elif any(labels.get(name) != value for name, value in wanted.items()):
        yield bad_value("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")


DEPLOYMENTS = KindHooks(
    counts_generations=True,
    set_defaults=_default_deployment,
    prepare_create=_prepare_deployment,
    validate=_validate_deployment,
)
