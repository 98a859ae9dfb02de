"""A claim on storage: how it waits, how it is bound, and who keeps it."""

import pytest

from holdfast.api.core.objects import Pod
from holdfast.api.meta import Key
from holdfast.cluster.errors import BadRequest, Invalid
from holdfast.cluster.protocol import JSON, Cluster
from holdfast.cluster.resources import PODS

from .engine import Engine
from .kinds import CLAIMS, key_of
from .pods import pod
from .pool import Pool
from .test_scheduling import bound, waits
from .waiting import gone, until

PROTECTION = "kubernetes.io/pvc-protection"


def claim(name: str = "data", **spec: object) -> JSON:
    usual = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name}, "spec": {**usual, **spec}}


def using(name: str, pool: str, claim: str = "data") -> JSON:
    """A pod with the claim among its volumes."""
    return pod(name, pool, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": claim}}])


async def test_a_new_claim_waits_and_is_protected(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CLAIMS, claim(), namespace=namespace)
    assert made.status == {"phase": "Pending"}
    assert made.spec["volumeMode"] == "Filesystem"
    assert made.metadata.finalizers == (PROTECTION,)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"accessModes": []}, "spec.accessModes"),
        ({"accessModes": ["Often"]}, "spec.accessModes"),
        ({"resources": {"requests": {"cpu": "1"}}}, "spec.resources[storage]"),
    ],
)
async def test_a_claim_that_makes_no_sense_is_refused_with_its_path(
    cluster: Cluster, namespace: str, spec: JSON, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await cluster.create(CLAIMS, claim(**spec), namespace=namespace)
    assert field in {cause.field for cause in refused.value.causes}


async def test_a_misspelt_field_of_a_claim_is_refused(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(BadRequest, match=r'unknown field "spec\.storageClass"'):
        await cluster.create(CLAIMS, claim(storageClass="fast"), namespace=namespace)


@pytest.mark.every_engine
async def test_a_claim_is_bound_to_storage_that_fits(engine: Engine, namespace: str) -> None:
    await engine.add_storage(namespace, "1Gi")
    made = await engine.cluster.create(CLAIMS, claim(storageClassName=namespace), namespace=namespace)
    held = await until(engine.cluster, CLAIMS, key_of(made), lambda it: it.status["phase"] == "Bound", "is bound")
    assert held.status["capacity"] == {"storage": "1Gi"}
    assert held.status["accessModes"] == ["ReadWriteMany"]
    assert held.spec["volumeName"]


async def test_a_claim_on_a_volume_that_is_not_there_waits(engine: Engine, namespace: str) -> None:
    made = await engine.cluster.create(
        CLAIMS, claim(volumeName="nowhere", storageClassName=namespace), namespace=namespace
    )
    await engine.add_storage(namespace, "1Gi")
    await engine.cluster.create(CLAIMS, claim("other", storageClassName=namespace), namespace=namespace)
    await until(engine.cluster, CLAIMS, Key(namespace, "other"), lambda it: it.status["phase"] == "Bound", "is bound")
    assert (await engine.cluster.get(CLAIMS, key_of(made))).status == {"phase": "Pending"}


async def test_a_claim_that_nobody_uses_goes_at_once(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(CLAIMS, claim(), namespace=namespace)
    await cluster.delete(CLAIMS, key_of(made))
    await gone(cluster, CLAIMS, key_of(made))


async def test_a_claim_stays_until_the_last_pod_that_uses_it_is_gone(engine: Engine, pool: Pool) -> None:
    await pool.add()
    await engine.add_storage(pool.name, "1Gi")
    made = await pool.cluster.create(CLAIMS, claim(storageClassName=pool.name), namespace=pool.name)
    await pool.cluster.create(PODS, using("one", pool.name), namespace=pool.name)
    (one,) = await pool.running(1)
    await pool.cluster.delete(CLAIMS, key_of(made))
    await pool.cluster.create(PODS, pod("bystander", pool.name), namespace=pool.name)
    await pool.running(2)
    assert (await pool.cluster.get(CLAIMS, key_of(made))).metadata.finalizers == (PROTECTION,)
    await pool.end(one)
    await until(pool.cluster, PODS, one.metadata.key, lambda it: it.status.phase == "Succeeded", "has ended")
    other = await pool.cluster.create(CLAIMS, claim("other"), namespace=pool.name)
    await pool.cluster.delete(CLAIMS, key_of(other))
    await gone(pool.cluster, CLAIMS, key_of(other))
    assert (await pool.cluster.get(CLAIMS, key_of(made))).metadata.deletion_timestamp
    await pool.cluster.delete(PODS, one.metadata.key)
    await gone(pool.cluster, CLAIMS, key_of(made))


async def test_a_pod_waits_for_its_claim_and_says_so(engine: Engine, pool: Pool) -> None:
    node = await pool.add()
    key = (await pool.cluster.create(PODS, using("one", pool.name), namespace=pool.name)).metadata.key
    assert 'persistentvolumeclaim "data" not found' in await waits(pool, key)
    await engine.add_storage(pool.name, "1Gi")
    await pool.cluster.create(CLAIMS, claim(storageClassName=pool.name), namespace=pool.name)
    assert await bound(pool, key) == node


async def test_a_pod_waits_for_a_claim_without_storage(pool: Pool) -> None:
    await pool.add()
    await pool.cluster.create(CLAIMS, claim(volumeName="nowhere"), namespace=pool.name)
    key = (await pool.cluster.create(PODS, using("one", pool.name), namespace=pool.name)).metadata.key
    assert "pod has unbound immediate PersistentVolumeClaims" in await waits(pool, key)


async def test_a_pod_is_not_given_a_claim_that_is_going(engine: Engine, pool: Pool) -> None:
    await pool.add()
    await engine.add_storage(pool.name, "1Gi")
    body = claim(storageClassName=pool.name)
    body["metadata"]["finalizers"] = ["holdfast.dev/held"]
    made = await pool.cluster.create(CLAIMS, body, namespace=pool.name)
    await pool.cluster.delete(CLAIMS, key_of(made))
    await _scheduler_sees_claims(pool)
    key = (await pool.cluster.create(PODS, using("one", pool.name), namespace=pool.name)).metadata.key
    assert 'persistentvolumeclaim "data" is being deleted' in await waits(pool, key)
    await pool.cluster.patch(CLAIMS, key_of(made), {"metadata": {"finalizers": []}})


async def _scheduler_sees_claims(pool: Pool) -> None:
    """As they are now: it hears of them in their order, and of this one last."""
    await pool.cluster.create(CLAIMS, claim("last", volumeName="nowhere"), namespace=pool.name)
    key = (await pool.cluster.create(PODS, using("last", pool.name, "last"), namespace=pool.name)).metadata.key

    def knows(found: Pod) -> bool:
        return any("unbound immediate" in condition.message for condition in found.status.conditions)

    await until(pool.cluster, PODS, key, knows, "waits for a claim that the scheduler knows")
