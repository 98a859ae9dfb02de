"""The Job of a GPUWorkload: the golden files, and what each field of the spec changes."""

from typing import Any

import msgspec
import pytest
import yaml

from holdfast.api.core.objects import PodSpec
from holdfast.api.gpuworkload import GPUWorkloadSpec
from holdfast.gpuworkload import job
from holdfast.gpuworkload.job import pod_template, workload_job
from holdfast.scheduling.constraints import matches_node
from holdfast.scheduling.ledger import RESERVATION_LABEL
from holdfast.scheduling.resources import NANO, pod_requests
from tests.gpuworkload.objects.golden import EXAMPLES, example, golden, made
from tests.gpuworkloads import CHOSEN, workload
from tests.trainingjob.objects.family import DEFAULTS, GONE, differences, fields
from tests.trainingjobs import UID

JSON = dict[str, Any]

POD = "Job eval-job spec.template.spec"
CONTAINER = f"{POD}.containers[workload]"
GPUS = {f"{CONTAINER}.resources.{side}.nvidia.com/gpu": "4" for side in ("requests", "limits")}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gets_just_this_job(name: str) -> None:
    (expected,) = yaml.safe_load_all(golden(name).read_text())
    assert differences(fields([expected]), fields([made(example(name))])) == {}
    assert made(example(name)) == expected


def changed(spec: JSON) -> JSON:
    """What differs because `spec` is written."""
    before, after = (fields([made(workload(each, CHOSEN))]) for each in ({}, spec))
    return {path: new for path, (_, new) in differences(before, after).items()}


FIELDS: list[tuple[str, JSON, JSON]] = [
    ("modelName", {"modelName": "a $(B)"}, {f"{CONTAINER}.env[MODEL].value": "a $$(B)"}),
    ("gpuCount", {"gpuCount": 4}, GPUS),
    ("priority", {"priority": 9}, {}),
    ("schedulingStrategy", {"schedulingStrategy": "random"}, {}),
    ("retryPolicy", {"retryPolicy": {"maxRetries": 9}}, {}),
    ("image", {"image": "torch:2"}, {f"{CONTAINER}.image": "torch:2"}),
    ("command", {"command": ["run"]}, {f"{CONTAINER}.command": ["run"]}),
    ("args", {"args": ["-v"]}, {f"{CONTAINER}.args": ["-v"]}),
    (
        "env",
        {"env": [{"name": "A", "value": "1"}]},
        {f"{CONTAINER}.env[A].name": "A", f"{CONTAINER}.env[A].value": "1"},
    ),
    ("env", {"env": [{"name": "MODEL", "value": "mine"}]}, {f"{CONTAINER}.env[MODEL].value": "mine"}),
    (
        "resources",
        {"resources": {"requests": {"cpu": "4", "nvidia.com/gpu": 2}, "limits": {"memory": "1Gi"}}},
        {f"{CONTAINER}.resources.requests.cpu": "4", f"{CONTAINER}.resources.limits.memory": "1Gi"},
    ),
    (
        "tolerations",
        {"tolerations": [{"key": "spot", "operator": "Exists"}]},
        {f"{POD}.tolerations[0].key": "spot"},
    ),
    (
        "tolerations",
        {"tolerations": []},
        {f"{POD}.tolerations[0].key": GONE, f"{POD}.tolerations[0].operator": GONE},
    ),
    ("nodeSelector", {"nodeSelector": {"zone": "a"}}, {f"{POD}.nodeSelector.zone": "a"}),
    ("ttlSecondsAfterFinished", {"ttlSecondsAfterFinished": 60}, {}),
    ("suspend", {"suspend": True}, {}),
]


@pytest.mark.parametrize(("spec", "expected"), [case[1:] for case in FIELDS], ids=[case[0] for case in FIELDS])
def test_a_field_of_the_spec_changes_exactly_this(spec: JSON, expected: JSON) -> None:
    assert changed(spec) == expected


def test_every_field_of_the_spec_is_tried() -> None:
    assert {name for name, _, _ in FIELDS} == {each.encode_name for each in msgspec.structs.fields(GPUWorkloadSpec)}


def test_the_job_is_named_and_pinned_as_status_says() -> None:
    chosen = {**CHOSEN, "assignedNode": "gpu-7", "jobName": "eval-job-4"}
    body = workload_job(workload(status=chosen), DEFAULTS, "somewhere")
    template = body["spec"]["template"]
    assert body["metadata"]["name"] == "eval-job-4"
    assert template["metadata"]["labels"][RESERVATION_LABEL] == "somewhere"
    pod = msgspec.convert(template["spec"], PodSpec)
    assert [name for name in ("gpu-3", "gpu-7", "gpu-70") if matches_node(pod, {}, name)] == ["gpu-7"]
    assert "nodeName" not in template["spec"]  # the scheduler still has to find that there is room


def test_a_job_made_twice_is_the_same() -> None:
    first, second = (workload_job(workload(status=CHOSEN), DEFAULTS, "x") for _ in range(2))
    assert first == second


@pytest.mark.parametrize("status", [None, {}, {**CHOSEN, "assignedNode": None}, {**CHOSEN, "jobName": None}])
def test_there_is_no_job_before_a_node_is_chosen(status: JSON | None) -> None:
    with pytest.raises(AssertionError):
        workload_job(workload(status=status), DEFAULTS, "x")


def test_it_goes_with_its_workload_and_never_replaces_its_pod() -> None:
    body = made(workload(status=CHOSEN))
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"], owner["controller"]) == ("GPUWorkload", "eval", UID, True)
    assert (body["spec"]["backoffLimit"], body["spec"]["template"]["spec"]["restartPolicy"]) == (0, "Never")


def test_the_ledger_knows_the_pod_by_its_label_and_counts_its_gpus() -> None:
    assert job.RESERVATION_LABEL == RESERVATION_LABEL
    pod = msgspec.convert(pod_template(workload({"gpuCount": 4}), DEFAULTS)["spec"], PodSpec)
    assert pod_requests(pod) == {"nvidia.com/gpu": 4 * NANO, "pods": NANO}
