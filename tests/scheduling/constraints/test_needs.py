import pytest

from holdfast.cluster.protocol import JSON
from holdfast.scheduling.resources import NANO, pod_requests
from tests.local.controllers.things import pod


def container(cpu: str = "", *, limit: str = "", sidecar: bool = False) -> JSON:
    requests = {"cpu": cpu} if cpu else {}
    limits = {"cpu": limit} if limit else {}
    return {"resources": {"requests": requests, "limits": limits}, "restartPolicy": "Always" if sidecar else ""}


@pytest.mark.parametrize(
    ("containers", "init", "cpus"),
    [
        ([container("1"), container("2")], [], 3),
        ([container("500m"), container("500m")], [], 1),
        ([container(limit="2")], [], 2),
        ([container("1", limit="2")], [], 1),
        ([container()], [], 0),
        ([container("1")], [container("3")], 3),
        ([container("4")], [container("3"), container("2")], 4),
        ([container("1")], [container("2", sidecar=True)], 3),
        ([container("1")], [container("2", sidecar=True), container("3")], 5),
        ([container("1")], [container("3"), container("2", sidecar=True)], 3),
        ([container("5")], [container("1", sidecar=True), container("4"), container("1", sidecar=True)], 7),
    ],
)
def test_a_pod_takes_what_it_needs_at_its_greediest_moment(containers: list[JSON], init: list[JSON], cpus: int) -> None:
    taken = pod_requests(pod(containers=containers, initContainers=init).spec)
    assert taken.get("cpu", 0) == cpus * NANO
    assert taken["pods"] == NANO


def test_what_is_asked_for_the_whole_pod_goes_first_and_its_overhead_comes_on_top() -> None:
    asked = pod(
        containers=[container("1")], resources={"requests": {"cpu": "5"}}, overhead={"cpu": "250m", "memory": "1"}
    )
    assert pod_requests(asked.spec) == {"cpu": 5 * NANO + NANO // 4, "memory": NANO, "pods": NANO}


def test_what_is_no_amount_is_not_counted() -> None:
    asked = pod(containers=[container("much"), container("1"), container("-3")])
    assert pod_requests(asked.spec) == {"cpu": NANO, "pods": NANO}
