"""metadata.generation counts changes of what was asked for, and of nothing else; status stays apart from it."""

import pytest

from holdfast.cluster.protocol import Cluster

from .kinds import GADGETS, JOBS, gadget, key_of
from .pods import job


async def test_a_custom_resource_starts_at_generation_one(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", generation=7), namespace=namespace)
    assert made.metadata.generation == 1


@pytest.mark.every_engine
async def test_only_a_change_of_the_spec_raises_the_generation(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    key = key_of(made)
    labelled = await cluster.patch(GADGETS, key, {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    finalized = await cluster.patch(GADGETS, key, {"metadata": {"finalizers": ["holdfast.dev/test"]}})
    ready = await cluster.patch_status(GADGETS, key, {"status": {"phase": "Ready"}})
    assert [each.metadata.generation for each in (labelled, finalized, ready)] == [1, 1, 1]
    grown = await cluster.patch(GADGETS, key, {"spec": {"size": 2}})
    same = await cluster.patch(GADGETS, key, {"spec": {"size": 2}})
    replaced = await cluster.replace(
        GADGETS, key, gadget("one", spec={"size": 5}, resourceVersion=same.metadata.resource_version)
    )
    assert [each.metadata.generation for each in (grown, same, replaced)] == [2, 2, 3]
    await cluster.patch(GADGETS, key, {"metadata": {"finalizers": None}})


async def test_a_job_counts_its_generations_the_same_way(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(JOBS, job("one", suspend=True), namespace=namespace)
    labelled = await cluster.patch(JOBS, key_of(made), {"metadata": {"labels": {"a": "b"}}})
    wider = await cluster.patch(JOBS, key_of(made), {"spec": {"parallelism": 2}})
    assert [each.metadata.generation for each in (made, labelled, wider)] == [1, 1, 2]


async def test_a_status_given_at_creation_is_dropped(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, {**gadget("one"), "status": {"phase": "Ready"}}, namespace=namespace)
    assert made.status == {}
    batch = await cluster.create(JOBS, {**job("one", suspend=True), "status": {"succeeded": 9}}, namespace=namespace)
    assert "succeeded" not in batch.status


async def test_a_patch_of_the_object_leaves_its_status_alone(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.patch_status(GADGETS, key_of(made), {"status": {"phase": "Ready"}})
    patched = await cluster.patch(GADGETS, key_of(made), {"spec": {"size": 2}, "status": {"phase": "Broken"}})
    assert patched.spec["size"] == 2
    assert patched.status == {"phase": "Ready"}


async def test_a_replacement_leaves_the_status_alone(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    ready = await cluster.patch_status(GADGETS, key_of(made), {"status": {"phase": "Ready"}})
    body = gadget("one", spec={"size": 2}, resourceVersion=ready.metadata.resource_version)
    replaced = await cluster.replace(GADGETS, key_of(made), body)
    assert replaced.status == {"phase": "Ready"}


async def test_a_patch_of_the_status_changes_neither_spec_nor_metadata(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one", labels={"a": "b"}), namespace=namespace)
    sneaky = {
        "metadata": {"labels": {"a": "c"}, "annotations": {"d": "e"}, "finalizers": ["holdfast.dev/test"]},
        "spec": {"size": 9},
        "status": {"phase": "Ready"},
    }
    patched = await cluster.patch_status(GADGETS, key_of(made), sneaky)
    assert patched.status == {"phase": "Ready"}
    assert patched.spec == made.spec
    assert patched.metadata.labels == {"a": "b"}
    assert patched.metadata.annotations == {}
    assert patched.metadata.finalizers == ()
    assert patched.metadata.generation == 1


async def test_a_status_is_merged_and_null_removes_from_it(cluster: Cluster, namespace: str) -> None:
    made = await cluster.create(GADGETS, gadget("one"), namespace=namespace)
    await cluster.patch_status(GADGETS, key_of(made), {"status": {"phase": "Ready", "count": 2}})
    patched = await cluster.patch_status(GADGETS, key_of(made), {"status": {"phase": None, "count": 3}})
    assert patched.status == {"count": 3}
