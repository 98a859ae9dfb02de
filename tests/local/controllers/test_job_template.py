import msgspec
import pytest

from holdfast.api.core.objects import JOB_TRACKING
from holdfast.local.controllers.job_pods import FAILURES, IGNORED_FAILURES, INDEX
from holdfast.local.controllers.job_policies import NewPod
from holdfast.local.controllers.jobs import pod_body
from holdfast.local.controllers.objects import TemplatedJob
from tests.local.controllers.things import indexed_job, job

TEMPLATE = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"note": "y"}},
    "spec": {
        "hostname": "taken",
        "initContainers": [{"name": "before"}],
        "containers": [
            {"name": "main", "env": [{"name": "A", "value": "1"}]},
            {"name": "own", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "mine"}]},
        ],
    },
}


def test_a_pod_is_its_template_held_and_owned() -> None:
    body = pod_body(job(template=TEMPLATE), NewPod())
    assert body["spec"] == TEMPLATE["spec"]
    assert body["metadata"] == {
        "generateName": "one-",
        "labels": {"app": "x"},
        "annotations": {"note": "y"},
        "finalizers": [JOB_TRACKING],
        "ownerReferences": [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": "one",
                "uid": "job-uid",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }


def test_an_indexed_pod_knows_its_number() -> None:
    body = pod_body(indexed_job(3, template=TEMPLATE), NewPod(2))
    metadata, spec = body["metadata"], body["spec"]
    assert metadata["generateName"] == "one-2-"
    assert metadata["labels"] == {"app": "x", INDEX: "2"}
    assert metadata["annotations"] == {"note": "y", INDEX: "2"}
    assert spec["hostname"] == "one-2"
    told = {"name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}
    assert spec["initContainers"] == [{"name": "before", "env": [told]}]
    main, own = spec["containers"]
    assert main["env"] == [{"name": "A", "value": "1"}, told]
    assert own == TEMPLATE["spec"]["containers"][1]  # type: ignore[index]  # a table of plain JSON


def test_the_template_itself_stays_as_it_is() -> None:
    wanted = indexed_job(3, template=TEMPLATE)
    before = repr(wanted.spec.template)
    pod_body(wanted, NewPod(0))
    assert repr(wanted.spec.template) == before


@pytest.mark.parametrize(
    ("replica", "marks"),
    [
        (NewPod(0), {}),
        (NewPod(0, 0), {FAILURES: "0"}),
        (NewPod(0, 2), {FAILURES: "2"}),
        (NewPod(0, 2, 1), {FAILURES: "2", IGNORED_FAILURES: "1"}),
    ],
)
def test_an_index_hands_its_failures_down(replica: NewPod, marks: dict[str, str]) -> None:
    assert pod_body(indexed_job(1), replica)["metadata"]["annotations"] == {INDEX: "0", **marks}


def test_a_long_name_is_cut_for_the_suffix_that_the_server_adds() -> None:
    long = msgspec.convert({"metadata": {"name": "n" * 63, "uid": "u"}}, TemplatedJob)
    prefix = pod_body(long, NewPod())["metadata"]["generateName"]
    assert len(prefix) == 58
    assert prefix.endswith("n-")
