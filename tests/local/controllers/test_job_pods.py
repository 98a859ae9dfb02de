import msgspec
import pytest
from msgspec import structs

from holdfast.api.core.objects import ContainerState, ContainerStateTerminated, ContainerStatus, Pod
from holdfast.local.controllers.job_pods import failures_before, finished_at, has_failed, index_of, is_active, is_ready
from holdfast.times import parse_time
from tests.local.controllers.things import NOW, ago, indexed_job, pod_condition, worker


@pytest.mark.parametrize(
    ("phase", "deleted", "policy", "failed"),
    [
        ("Failed", False, "TerminatingOrFailed", True),
        ("Succeeded", False, "TerminatingOrFailed", False),
        ("Succeeded", True, "TerminatingOrFailed", False),
        ("Running", False, "TerminatingOrFailed", False),
        ("Running", True, "TerminatingOrFailed", True),
        ("Pending", True, "TerminatingOrFailed", True),
        ("Running", True, "Failed", False),
        ("Failed", True, "Failed", True),
    ],
)
def test_a_pod_has_failed(phase: str, deleted: bool, policy: str, failed: bool) -> None:
    pod = worker(phase, index=0, deleted=ago(0) if deleted else "")
    assert has_failed(pod, indexed_job(1, podReplacementPolicy=policy)) is failed


def test_a_failure_policy_makes_a_job_wait_for_the_end_of_a_pod() -> None:
    pod = worker(index=0, deleted=ago(0))
    assert not has_failed(pod, indexed_job(1, podFailurePolicy={"rules": []}))


@pytest.mark.parametrize(
    ("phase", "deleted", "active"),
    [("Pending", "", True), ("Running", "", True), ("Running", ago(0), False), ("Succeeded", "", False)],
)
def test_a_pod_is_active(phase: str, deleted: str, active: bool) -> None:
    assert is_active(worker(phase, deleted=deleted)) is active


def test_a_pod_is_ready_when_it_says_so() -> None:
    assert is_ready(worker(conditions={"Ready": "True"}))
    assert not is_ready(worker(conditions={"Ready": "False"}))
    assert not is_ready(worker())


def without_containers(pod: Pod) -> Pod:
    return structs.replace(pod, status=structs.replace(pod.status, container_statuses=()))


def test_a_pod_finished_when_its_last_container_did() -> None:
    pod = worker("Failed", ended=ago(30))
    sidecar = msgspec.convert({"name": "sidecar", "restartPolicy": "Always"}, type(pod.spec.containers[0]))
    late = ContainerStatus(
        name="sidecar", state=ContainerState(terminated=ContainerStateTerminated(finished_at=ago(10)))
    )
    setup = ContainerStatus(name="setup", state=ContainerState(terminated=ContainerStateTerminated(finished_at=ago(1))))
    both = structs.replace(
        pod,
        spec=structs.replace(pod.spec, init_containers=(sidecar,)),
        status=structs.replace(pod.status, init_container_statuses=(setup, late)),
    )
    assert finished_at(pod) == parse_time(ago(30))
    assert finished_at(both) == parse_time(ago(10)), "a sidecar counts, a step of the set-up does not"


def test_without_containers_other_fields_show_when_a_pod_finished() -> None:
    made = without_containers(worker(made=ago(100)))
    assert finished_at(made) == parse_time(ago(100))
    deleted = without_containers(worker(made=ago(100), deleted=ago(20)))
    assert finished_at(deleted) == parse_time(ago(50)), "30 s of grace before its end"
    unready = pod_condition("Ready", "False", lastTransitionTime=ago(70))
    status = structs.replace(deleted.status, conditions=(unready,))
    assert finished_at(structs.replace(deleted, status=status)) == parse_time(ago(70))


def test_annotations_that_are_no_numbers_count_as_missing() -> None:
    pod = worker(index=3, failures=2)
    assert (index_of(pod), failures_before(pod)) == (3, 2)
    for text in ("x", "9" * 5000):
        metadata = structs.replace(pod.metadata, annotations=dict.fromkeys(pod.metadata.annotations, text))
        odd = structs.replace(pod, metadata=metadata)
        assert (index_of(odd), failures_before(odd)) == (None, 0)


def test_a_time_without_a_zone_is_taken_as_utc() -> None:
    assert parse_time("2026-04-05T12:00:00") == parse_time("2026-04-05T12:00:00Z") == NOW
