"""Jobs: the generated selector, defaults, validation, and the immutable fields."""

from collections.abc import Iterator

from holdfast.api.schema.violations import Cause
from holdfast.cluster.protocol import JSON
from holdfast.local.apiserver.builtin.pods import complete_pod_spec, containers_of, pod_spec_problems
from holdfast.local.apiserver.kinds import KindHooks, ObjectReader, bad_value, missing
from holdfast.local.apiserver.objects import dns_label_problems

# Validation of a Job's podFailurePolicy.


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


UID_LABEL = "batch.kubernetes.io/controller-uid"
NAME_LABEL = "batch.kubernetes.io/job-name"
DEFAULT_BACKOFF_LIMIT = 6
UNLIMITED = 2**31 - 1
MOST_PARALLEL_INDEXES = 100_000

_IMMUTABLE = (
    "selector",
    "completionMode",
    "podFailurePolicy",
    "backoffLimitPerIndex",
    "managedBy",
    "successPolicy",
)


def _default_job(job: JSON) -> None:
    spec = job.get("spec", {})
    template = spec.get("template", {})
    complete_pod_spec(template.get("spec", {}))
    if "parallelism" not in spec:
        spec.setdefault("completions", 1)
        spec["parallelism"] = 1
    spec.setdefault("backoffLimit", UNLIMITED if "backoffLimitPerIndex" in spec else DEFAULT_BACKOFF_LIMIT)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")


def _prepare_job(job: JSON, _around: ObjectReader) -> None:
    spec, metadata = job["spec"], job["metadata"]
    if not spec.get("manualSelector"):
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        for name, value in ((NAME_LABEL, metadata.get("name", "")), (UID_LABEL, metadata["uid"])):
            # Older clients know the labels without their prefix.
            labels.setdefault(name.partition("/")[2], value)
            labels.setdefault(name, value)
        selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
        selector.setdefault(UID_LABEL, metadata["uid"])
    template_labels = spec["template"].get("metadata", {}).get("labels")
    if template_labels and not metadata.get("labels"):
        metadata["labels"] = dict(template_labels)
    metadata["generation"] = 1
    job["status"] = {}


def _validate_job(job: JSON, old: JSON | None) -> Iterator[Cause]:
    spec = job.get("spec", {})
    yield from _selector_problems(job)
    yield from _indexed_problems(job)
    template = spec.get("template", {}).get("spec", {})
    yield from pod_spec_problems(template, "spec.template.spec")
    yield from _restart_problems(spec, template.get("restartPolicy"))
    yield from failure_policy_problems(spec)
    if old is not None:
        yield from _update_problems(spec, old)


def _selector_problems(job: JSON) -> Iterator[Cause]:
    spec = job["spec"]
    if spec.get("manualSelector"):
        if not spec.get("selector"):
            yield missing("spec.selector")
        return
    labels = spec.get("template", {}).get("metadata", {}).get("labels", {})
    for name, value in ((UID_LABEL, job["metadata"]["uid"]), (NAME_LABEL, job["metadata"].get("name"))):
        if labels.get(name) != value:
            yield bad_value("spec.template.metadata.labels", labels.get(name, ""), f"must be '{value}'")
    if spec.get("selector", {}).get("matchLabels", {}) != {UID_LABEL: job["metadata"]["uid"]}:
        yield bad_value("spec.selector", spec.get("selector"), "`selector` not auto-generated")


def _indexed_problems(job: JSON) -> Iterator[Cause]:
    spec, name = job["spec"], job["metadata"].get("name", "")
    if spec.get("completionMode") != "Indexed":
        for field in ("backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"):
            if field in spec:
                yield bad_value(f"spec.{field}", spec[field], "requires indexed completion mode")
        return
    if "completions" not in spec:
        yield missing("spec.completions", "when completion mode is Indexed")
    elif spec["completions"] and dns_label_problems(last := f"{name}-{spec['completions'] - 1}"):
        yield bad_value("metadata.name", name, f"will not able to create pod with invalid DNS label: {last}")
    if spec.get("parallelism", 0) > MOST_PARALLEL_INDEXES:
        why = f"must be less than or equal to {MOST_PARALLEL_INDEXES} when completion mode is Indexed"
        yield bad_value("spec.parallelism", spec["parallelism"], why)
    if "maxFailedIndexes" in spec and "backoffLimitPerIndex" not in spec:
        yield missing("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")


def _restart_problems(spec: JSON, policy: str | None) -> Iterator[Cause]:
    field = "spec.template.spec.restartPolicy"
    if policy == "Always":
        yield missing(field, 'valid values: "OnFailure", "Never"')
    elif "podFailurePolicy" in spec and policy != "Never":
        yield bad_value(field, policy, 'only "Never" is supported when podFailurePolicy is specified')


def _update_problems(spec: JSON, old: JSON) -> Iterator[Cause]:
    before = old["spec"]
    for field in _IMMUTABLE:
        if spec.get(field) != before.get(field):
            yield bad_value(f"spec.{field}", spec.get(field), "field is immutable")
    if spec.get("completions") != before.get("completions"):
        if spec.get("completionMode") != "Indexed":
            yield bad_value("spec.completions", spec.get("completions"), "field is immutable")
        elif spec.get("completions") != spec.get("parallelism"):
            why = "can only be modified in tandem with spec.parallelism"
            yield bad_value("spec.completions", spec.get("completions"), why)
    if _immutable_template(spec["template"], old) != _immutable_template(before["template"], old):
        yield bad_value("spec.template", spec["template"], "field is immutable")


def _immutable_template(template: JSON, old: JSON) -> JSON:
    """The template without its mutable fields: the scheduling constraints of a suspended Job that never started."""
    if not old["spec"].get("suspend") or old.get("status", {}).get("startTime"):
        return template
    mutable = ("nodeSelector", "tolerations", "schedulingGates", "affinity")
    spec = {name: value for name, value in template["spec"].items() if name not in mutable}
    affinity = {name: value for name, value in template["spec"].get("affinity", {}).items() if name != "nodeAffinity"}
    return {"spec": {**spec, "affinity": affinity}}


JOBS = KindHooks(
    counts_generations=True,
    set_defaults=_default_job,
    prepare_create=_prepare_job,
    validate=_validate_job,
)
