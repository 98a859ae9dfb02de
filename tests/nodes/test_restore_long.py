"""Schedules, trials of nodes and killed agents: what takes longer than a change should wait for."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest

from holdfast.checkpoints.images.image import parse_manifest
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import CHECKPOINT_BACKUPS
from holdfast.pods.restore.nodes import CPU_FLAGS_ANNOTATION, RESTORE_LABEL
from tests.control_plane.waiting import eventually
from tests.nodes.agents import agents_ready, kill_agent, kill_container, nothing_left_over
from tests.nodes.backup_lab import BackupLab, backing_up, counts, restoring_lab
from tests.nodes.backups import REPOSITORY, Save, goes_on
from tests.nodes.container_checkpoints import Line, counting_pod
from tests.nodes.images import HOLDFAST
from tests.nodes.lab import Lab
from tests.nodes.registry import SECRET, LabRegistry
from tests.nodes.user import pod_of
from tests.operator.user import kubectl

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


@pytest.fixture(scope="module")
def lab(checkpointing: None) -> Iterator[Lab]:
    with restoring_lab() as lab:
        yield lab


@pytest.fixture(scope="module")
async def ready(lab: Lab) -> AsyncIterator[BackupLab]:
    async with backing_up(lab) as ready:
        yield ready


@pytest.fixture
async def save(ready: BackupLab, namespace: str) -> Save:
    save = Save(ready.lab, ready.passwords, namespace)
    await save.prepare()
    return save


class Scheduled(NamedTuple):
    save: Save
    before: list[Line]


@pytest.fixture(scope="module", autouse=True)
async def minutely(ready: BackupLab) -> AsyncIterator[Scheduled]:
    """A pod on n2 that is saved every minute while the other tests run."""
    async with ready.lab.plane.namespace() as namespace:
        save = Save(ready.lab, ready.tokens, namespace)
        await save.prepare()
        (before,) = await counts(save, "counter", counting_pod("counter", "n2"))
        await save.create("minutely", "counter", schedule="*/1 * * * *", retain=2)
        yield Scheduled(save, before)


async def test_a_label_without_the_setting_is_found_out_by_the_restore_itself(save: Save) -> None:
    await counts(save, "hopeful", counting_pod("hopeful", "n1"))
    await save.create("hopeful", "hopeful")
    await save.completed("hopeful")
    await kubectl(save.lab.plane, "label", "node", "n3", f"{RESTORE_LABEL}=true")
    try:
        done = await save.holdfast("restore", "hopeful", "--node", "n3")
    finally:
        await kubectl(save.lab.plane, "label", "node", "n3", f"{RESTORE_LABEL}-")
    assert done.code == 1
    assert "can't be created from its checkpoint on n3" in done.err
    assert "there is no other node to try" in done.err
    pods = await kubectl(save.lab.plane, "get", "pods", "-n", save.namespace, "-o", "name")
    assert pods.split() == ["pod/hopeful"], "what could not be created is removed"


async def test_a_node_that_passes_its_trial_gets_the_label_and_another_is_told_what_it_lacks(save: Save) -> None:
    await kubectl(save.lab.plane, "label", "node", "n2", f"{RESTORE_LABEL}-")
    trial = ("--registry", f"{save.registry.host}/team/trial", "--pull-secret", SECRET, "--image", HOLDFAST)
    passed, failed = await asyncio.gather(
        *(save.holdfast("doctor", "--node", node, *trial) for node in ("n2", "n3")),
    )
    assert passed.code == 0, passed
    assert "node n2 has the label holdfast.dev/restore=true now" in passed.out
    assert failed.code == 1, failed
    assert "can't be created from its checkpoint on n3" in failed.err
    assert "enable_experimental_restore_via_create = true" in failed.err
    labels = await kubectl(save.lab.plane, "get", "nodes", "-l", f"{RESTORE_LABEL}=true", "-o", "name")
    assert labels.split() == ["node/n1", "node/n2"]
    left = await kubectl(save.lab.plane, "get", "pods,cb", "-n", save.namespace, "-o", "name")
    assert left.strip() == "", "nothing of a trial is left"


async def test_every_node_tells_its_processor_and_every_image_what_it_was_made_on(ready: BackupLab, save: Save) -> None:
    await counts(save, "facts", counting_pod("facts", "n2"))
    await save.create("facts", "facts")
    (built,) = (await save.completed("facts"))["builtImages"]
    async with ready.passwords.client() as client:
        manifest = await client.manifest(REPOSITORY, built["digest"])
    annotations = parse_manifest(manifest, "facts").annotations
    assert annotations["org.criu.checkpoint.container.name"] == "trainer"
    assert annotations["dev.holdfast.runtime"].startswith("containerd 2.")
    assert annotations["dev.holdfast.criu-version"].startswith("4.")
    for node in ("n1", "n2", "n3"):
        found = json.loads(await kubectl(save.lab.plane, "get", f"node/{node}", "-o", "json"))
        told = found["metadata"]["annotations"][CPU_FLAGS_ANNOTATION].split()
        assert set(told) <= set(annotations["dev.holdfast.cpu-flags"].split())


async def test_a_node_whose_processor_lacks_what_the_image_may_use_is_not_chosen(save: Save) -> None:
    await counts(save, "fast", counting_pod("fast", "n1"))
    await save.create("fast", "fast")
    await save.completed("fast")
    found = json.loads(await kubectl(save.lab.plane, "get", "node/n2", "-o", "json"))
    flags = found["metadata"]["annotations"][CPU_FLAGS_ANNOTATION]
    annotate = ("annotate", "node/n2", "--overwrite")
    await kubectl(save.lab.plane, *annotate, f"{CPU_FLAGS_ANNOTATION}={flags.replace('avx2 ', '')}")
    try:
        refused = await save.holdfast("restore", "fast", "--node", "n2")
        shown = await save.holdfast("restore", "fast", "--dry-run")
    finally:
        await kubectl(save.lab.plane, *annotate, f"{CPU_FLAGS_ANNOTATION}={flags}")
    assert "n2: its CPU has not avx2, which container trainer may use" in refused.err
    assert "n2" not in shown.out
    assert "n1" in shown.out


async def test_a_restored_container_that_ends_begins_again_where_it_was_saved(save: Save) -> None:
    """As its pod's restartPolicy says; its image is the checkpoint."""
    (before,) = await counts(save, "stubborn", counting_pod("stubborn", "n1", restartPolicy="Always"))
    await save.create("stubborn", "stubborn")
    await save.completed("stubborn")
    again = await save.restore("stubborn", "--node", "n2")
    await goes_on(save, again, before)
    uid = (await pod_of(save.lab.plane, save.namespace, again))["metadata"]["uid"]
    await asyncio.to_thread(kill_container, save.lab, "n2", uid, b"token_hex")

    async def restarts() -> int:
        found = await pod_of(save.lab.plane, save.namespace, again)
        (status,) = found["status"]["containerStatuses"]
        return int(status["restartCount"]) if "running" in status["state"] else 0

    await eventually(restarts, lambda seen: seen > 0, what="it is created again")
    await goes_on(save, again, before)


async def test_a_pod_that_is_saved_every_minute_goes_on_from_the_newest_run(minutely: Scheduled) -> None:
    save, before = minutely
    told = await save.completed("minutely")
    assert told["nextCheckpointTime"] > told["startTime"]
    again = await save.restore("minutely", "--node", "n1")
    await goes_on(save, again, before)


@pytest.mark.parametrize("phase", ["Checkpointing", "Checkpointed", "ImageBuilt", "ImagePushing", "ImagePushed"])
async def test_an_agent_that_is_killed_leaves_nothing_behind_and_the_run_is_carried_out(
    ready: BackupLab, save: Save, phase: str
) -> None:
    await counts(save, "counter", counting_pod("counter", "n1"))
    async with save.lab.cluster() as cluster:
        seen = asyncio.create_task(_until_phase(cluster, save.namespace, phase))
        await save.create("killed", "counter")
        await seen
        await asyncio.to_thread(kill_agent, save.lab, "n1")
    await save.completed("killed")
    await agents_ready(save.lab, "n1")
    await save.create("next", "counter")
    await save.completed("next")
    await nothing_left_over(save.lab, "n1")
    await _can_be_pulled(ready.passwords, await _tags(ready.passwords, ("killed", "next")))


async def _until_phase(cluster: Cluster, namespace: str, phase: str) -> None:
    """Return as soon as a backup of the namespace is in this phase, or in a later one."""
    order = ("Checkpointing", "Checkpointed", "ImageBuilding", "ImageBuilt", "ImagePushing", "ImagePushed")
    wanted = set(order[order.index(phase) :])
    listing = await cluster.list(CHECKPOINT_BACKUPS, namespace=namespace)
    version = listing.resource_version
    async with cluster.watch(CHECKPOINT_BACKUPS, resource_version=version, namespace=namespace) as events:
        async for event in events:
            status = event.object.status if event.object is not None else None
            if status is not None and status.phase in wanted:
                return


async def _tags(registry: LabRegistry, names: tuple[str, ...]) -> list[str]:
    async with registry.client() as client:
        return [tag for tag in await client.tags(REPOSITORY) if tag.startswith(names)]


async def _can_be_pulled(registry: LabRegistry, tags: list[str]) -> None:
    """Every blob of every one of them, verified."""
    assert tags
    async with registry.client() as client:
        for tag in tags:
            manifest = parse_manifest(await client.manifest(REPOSITORY, tag), tag)
            assert manifest.config is not None
            for blob in (manifest.config, *manifest.layers):
                assert sum([len(chunk) async for chunk in client.blob(REPOSITORY, blob)]) == blob.size
