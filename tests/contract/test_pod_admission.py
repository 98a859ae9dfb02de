"""What a pod is given when it is made: its account and its importance, or a refusal that says what is missing."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Forbidden, NotFound
from holdfast.cluster.protocol import JSON, Cluster
from tests.control_plane.waiting import eventually

from .kinds import JOBS, PODS, PRIORITY_CLASSES, SERVICE_ACCOUNTS, Document
from .pods import indexed, pod
from .waiting import listed


def account(name: str = "trainer", **fields: object) -> JSON:
    return {"metadata": {"name": name}, **fields}


async def created(cluster: Cluster, body: JSON, namespace: str) -> Document | None:
    """The pod; None while the server does not know yet what it refers to: it learns of new objects by a watch."""
    try:
        return await cluster.create(PODS, body, namespace=namespace)
    except Forbidden:
        return None


async def admitted(cluster: Cluster, body: JSON, namespace: str) -> Document:
    made = await eventually(partial(created, cluster, body, namespace), bool, what="the pod is admitted")
    assert made is not None
    return made


async def test_a_pod_runs_as_its_namespaces_default_account(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(PODS, pod("one", "none"), namespace=namespace)
    assert (made.spec["serviceAccountName"], made.spec["serviceAccount"]) == ("default", "default")


async def test_a_pod_runs_as_the_account_that_it_names(cluster: Cluster, namespace: str) -> None:
    await cluster.create(SERVICE_ACCOUNTS, account(automountServiceAccountToken=False), namespace=namespace)
    made = await admitted(cluster, pod("one", "none", serviceAccountName="trainer"), namespace)
    assert (made.spec["serviceAccountName"], made.spec["serviceAccount"]) == ("trainer", "trainer")
    assert "volumes" not in made.spec


@pytest.mark.every_engine
async def test_a_pod_whose_account_is_missing_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Forbidden) as refused:
        await cluster.create(PODS, pod("one", "none", serviceAccountName="trainer"), namespace=namespace)
    says = f'error looking up service account {namespace}/trainer: serviceaccount "trainer" not found'
    assert says in str(refused.value)


async def test_an_account_has_the_fields_of_its_kind_and_no_others(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest, match='unknown field "automountToken"'):
        await cluster.create(SERVICE_ACCOUNTS, account(automountToken=False), namespace=namespace)
    with pytest.raises(BadRequest):
        await cluster.create(SERVICE_ACCOUNTS, account(automountServiceAccountToken="no"), namespace=namespace)
    with pytest.raises(NotFound):
        await cluster.get(SERVICE_ACCOUNTS, Key(namespace, "trainer"))


@pytest.fixture
async def high(cluster: Cluster, namespace: str) -> AsyncIterator[str]:
    """The name of a PriorityClass."""
    name = f"{namespace}-high"
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 1000, "preemptionPolicy": "Never"})
    yield name
    await cluster.delete(PRIORITY_CLASSES, Key("", name))


async def test_a_class_gives_a_pod_its_priority(cluster: Cluster, namespace: str, high: str) -> None:
    made = await admitted(cluster, pod("one", "none", priorityClassName=high), namespace)
    assert (made.spec["priority"], made.spec["preemptionPolicy"]) == (1000, "Never")


async def test_a_pod_whose_class_is_missing_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(Forbidden) as refused:
        await cluster.create(PODS, pod("one", "none", priorityClassName="nowhere"), namespace=namespace)
    assert 'pods "one" is forbidden: no PriorityClass with name nowhere was found' in str(refused.value)


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"priority": 7}, "the integer value of priority (7) must not be provided in pod spec"),
        (
            {"preemptionPolicy": "PreemptLowerPriority"},
            "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec",
        ),
    ],
)
async def test_a_pod_cannot_say_its_priority_itself(
    cluster: Cluster, namespace: str, high: str, own: JSON, says: str
) -> None:
    await admitted(cluster, pod("known", "none", priorityClassName=high), namespace)
    with pytest.raises(Forbidden) as refused:
        await cluster.create(PODS, pod("one", "none", priorityClassName=high, **own), namespace=namespace)
    assert says in str(refused.value)


async def test_a_pod_may_repeat_what_its_class_says(cluster: Cluster, namespace: str, high: str) -> None:
    body = pod("one", "none", priorityClassName=high, priority=1000, preemptionPolicy="Never")
    assert (await admitted(cluster, body, namespace)).spec["priority"] == 1000


async def test_without_a_class_a_pod_has_the_clusters_default(cluster: Cluster, namespace: str) -> None:
    plain = await cluster.create(PODS, pod("plain", "none"), namespace=namespace)
    assert (plain.spec["priority"], plain.spec.get("priorityClassName", "")) == (0, "")
    usual = f"{namespace}-usual"
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": usual}, "value": 5, "globalDefault": True})
    try:

        async def newest() -> Document:
            body = pod("", "none")
            body["metadata"] = {"generateName": "one-"}
            return await cluster.create(PODS, body, namespace=namespace)

        made = await eventually(newest, lambda it: it.spec["priority"], what="the default counts")
        assert (made.spec["priority"], made.spec["priorityClassName"]) == (5, usual)
        second = {"metadata": {"name": f"{usual}-too"}, "value": 6, "globalDefault": True}
        with pytest.raises(Forbidden, match=f"PriorityClass {usual} is already marked as default"):
            await cluster.create(PRIORITY_CLASSES, second)
    finally:
        await cluster.delete(PRIORITY_CLASSES, Key("", usual))


@pytest.mark.parametrize("missing", [{"serviceAccountName": "trainer"}, {"priorityClassName": "CLASS"}])
async def test_a_job_makes_its_pods_when_what_they_were_refused_for_is_there(
    cluster: Cluster, namespace: str, missing: dict[str, str]
) -> None:
    name = f"{namespace}-late"
    body = indexed("one", "none", 1)
    body["spec"]["template"]["spec"] |= {key: value.replace("CLASS", name) for key, value in missing.items()}
    await cluster.create(JOBS, body, namespace=namespace)
    await cluster.create(SERVICE_ACCOUNTS, account(), namespace=namespace)
    await cluster.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": 1})
    try:
        await listed(cluster, PODS, namespace, len, "the pod is made")
    finally:
        await cluster.delete(PRIORITY_CLASSES, Key("", name))
