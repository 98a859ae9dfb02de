"""Claims on one machine: bound at once, kept while they are used, and their storage gone before they are."""

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast.api.core.objects import PersistentVolumeClaim, find_condition
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import CLAIMS, EVENTS, PODS
from holdfast.local.controllers.storage import PROTECTION, unbound_claims_message, unsupported_reason, volume_of
from holdfast.runtime.informer import Store
from tests.local.controllers.bench import NAMESPACE, Bench, a_cluster
from tests.local.controllers.things import pod
from tests.runtime.virtual import virtual

DATA = Key(NAMESPACE, "data")
VOLUMES = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]


def claim(*, phase: str = "Pending", deleted: str = "", **spec: Any) -> PersistentVolumeClaim:
    metadata = {"name": "data", "namespace": "ns", "uid": "1-2", "deletionTimestamp": deleted}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, PersistentVolumeClaim)


def body(**spec: Any) -> JSON:
    usual = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "data"}, "spec": {**usual, **spec}}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({}, ""),
        ({"storageClassName": "premium-of-some-cloud"}, ""),
        ({"volumeName": "pvc-1-2"}, ""),
        ({"volumeName": "disk-7"}, 'there is no PersistentVolume "disk-7" here'),
        ({"selector": {"matchLabels": {"a": "b"}}}, "leave selector out"),
        ({"volumeMode": "Block"}, "use Filesystem"),
    ],
)
def test_a_claim_has_a_folder_unless_it_asks_for_something_else(spec: JSON, says: str) -> None:
    found = unsupported_reason(claim(**spec))
    assert says in found
    assert bool(says) == bool(found)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (None, 'persistentvolumeclaim "data" not found'),
        (claim(), "pod has unbound immediate PersistentVolumeClaims"),
        (claim(phase="Bound", deleted="2026-01-01T00:00:00Z"), 'persistentvolumeclaim "data" is being deleted'),
        (claim(phase="Bound"), ""),
    ],
)
def test_a_pod_waits_until_its_claim_is_ready(there: PersistentVolumeClaim | None, says: str) -> None:
    claims: Store[PersistentVolumeClaim] = Store()
    if there is not None:
        claims.put(there)
    assert unbound_claims_message(pod(volumes=[{"name": "tmp", "emptyDir": {}}, *VOLUMES]), claims) == says
    assert (
        unbound_claims_message(pod(namespace="elsewhere", volumes=VOLUMES), claims)
        == 'persistentvolumeclaim "data" not found'
    )
    assert unbound_claims_message(pod(volumes=[{"name": "tmp", "emptyDir": {}}]), claims) == ""


async def bound(bench: Bench) -> PersistentVolumeClaim:
    return await bench.until(CLAIMS, DATA, lambda it: it.status.phase == "Bound")


@virtual
async def test_a_claim_is_bound_with_what_it_asked_for() -> None:
    async with a_cluster() as bench:
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        made = await bound(bench)
        assert made.spec.volume_name == volume_of(made)
        assert (made.status.capacity, made.status.access_modes) == ({"storage": "1Gi"}, ("ReadWriteOnce",))
        assert made.metadata.finalizers == (PROTECTION,)


@virtual
async def test_a_claim_that_grows_has_the_new_size() -> None:
    async with a_cluster() as bench:
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        await bound(bench)
        await bench.cluster.patch(CLAIMS, DATA, {"spec": {"resources": {"requests": {"storage": "2Gi"}}}})
        await bench.until(CLAIMS, DATA, lambda it: it.status.capacity == {"storage": "2Gi"})


@virtual
async def test_a_claim_without_protection_is_given_it() -> None:
    async with a_cluster() as bench:
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        await bound(bench)
        await bench.cluster.patch(CLAIMS, DATA, {"metadata": {"finalizers": ["holdfast.dev/held"]}})
        await bench.until(CLAIMS, DATA, lambda it: it.metadata.finalizers == ("holdfast.dev/held", PROTECTION))


@virtual
async def test_a_bound_claim_is_not_written_again() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        made = await bound(bench)
        await bench.run_pod("one", volumes=VOLUMES)
        await bench.running(1)
        await asyncio.sleep(3600)
        assert await bench.cluster.get(CLAIMS, DATA) == made


@virtual
async def test_a_claim_that_can_not_be_had_says_so_and_waits() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        await bench.cluster.create(CLAIMS, body(volumeMode="Block"), namespace=NAMESPACE)
        key = await bench.run_pod("one", volumes=VOLUMES)
        turned_down = await bench.until(PODS, key, lambda it: find_condition(it.status.conditions, "PodScheduled"))
        why = find_condition(turned_down.status.conditions, "PodScheduled")
        assert why is not None
        assert why.message == "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        told = await bench.cluster.list(EVENTS, fields="reason=ProvisioningFailed")
        assert len(told.items) == 1
        # Every pod with a new claim waits for a moment: only a claim that can't be bound is worth a warning.
        assert not (await bench.cluster.list(EVENTS, fields="reason=FailedScheduling")).items
        assert (await bench.cluster.get(CLAIMS, DATA)).status.phase == "Pending"


@virtual
async def test_storage_goes_after_the_last_pod_and_before_the_claim() -> None:
    reclaimed: list[PersistentVolumeClaim] = []

    async def reclaim(key: Key) -> None:
        reclaimed.append(await bench.cluster.get(CLAIMS, key))

    async with a_cluster(reclaim) as bench:
        await bench.add_node()
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        key = await bench.run_pod("one", volumes=VOLUMES)
        (one,) = await bench.running(1)
        await bench.cluster.delete(CLAIMS, DATA)
        await bench.end(one)
        await asyncio.sleep(60)
        assert reclaimed == []
        assert (await bench.cluster.get(CLAIMS, DATA)).metadata.deletion_timestamp
        await bench.cluster.delete(PODS, key)
        await bench.gone(CLAIMS, DATA)
        assert [each.metadata.key for each in reclaimed] == [DATA]


@virtual
async def test_a_claim_stays_while_its_storage_can_not_be_removed() -> None:
    failures = [OSError("the disk is busy"), OSError("the disk is busy")]

    async def reclaim(_key: Key) -> None:
        if failures:
            raise failures.pop()

    async with a_cluster(reclaim) as bench:
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        await bound(bench)
        await bench.cluster.delete(CLAIMS, DATA)
        await bench.gone(CLAIMS, DATA)
        assert failures == []


@virtual
async def test_a_claim_waits_for_other_finalizers_without_losing_its_storage_twice() -> None:
    reclaimed: list[Key] = []

    async def reclaim(key: Key) -> None:
        reclaimed.append(key)

    async with a_cluster(reclaim) as bench:
        held = body()
        held["metadata"]["finalizers"] = ["holdfast.dev/held"]
        await bench.cluster.create(CLAIMS, held, namespace=NAMESPACE)
        await bound(bench)
        await bench.cluster.delete(CLAIMS, DATA)
        await bench.until(CLAIMS, DATA, lambda it: it.metadata.finalizers == ("holdfast.dev/held",))
        await asyncio.sleep(3600)
        assert reclaimed == [DATA]
        await bench.cluster.patch(CLAIMS, DATA, {"metadata": {"finalizers": []}})
        await bench.gone(CLAIMS, DATA)


@virtual
async def test_a_pod_that_waits_for_a_claim_does_not_keep_the_others_waiting() -> None:
    async with a_cluster() as bench:
        await bench.add_node()
        waiting = await bench.run_pod("one", volumes=VOLUMES)
        await bench.until(PODS, waiting, lambda it: find_condition(it.status.conditions, "PodScheduled"))
        other = await bench.run_pod("other")
        await bench.until(PODS, other, lambda it: it.spec.node_name)
        await bench.cluster.create(CLAIMS, body(), namespace=NAMESPACE)
        await bench.until(PODS, waiting, lambda it: it.spec.node_name)
