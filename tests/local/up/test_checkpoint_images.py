"""Application mode with nothing installed: a checkpoint becomes an image, and another job goes on from it."""

import asyncio
from functools import partial
from pathlib import Path

from holdfast.api.checkpointbackup import CheckpointBackupStatus
from holdfast.api.meta import Key
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS, TRAINING_JOBS
from holdfast.local.up import LocalCluster
from tests.contract.kinds import CLAIMS
from tests.contract.waiting import gone
from tests.control_plane.waiting import eventually
from tests.local.registry.registries import client
from tests.local.up.trainings import FOREVER, NAMESPACE, NEVER, WITHIN_S, checkpoint, start, told, until

# The training would never save by itself: every checkpoint here was asked for.
ENDLESS: JSON = {"hyperparameters": FOREVER, "checkpoint": {"frequency": NEVER}}


async def worker_pod(box: LocalCluster, job: str) -> str:
    (pod,) = (await box.cluster.list(PODS, namespace=NAMESPACE, labels=f"training-job={job}")).items
    return pod.metadata.name


async def back_up(box: LocalCluster, name: str, job: str, **spec: object) -> None:
    written: JSON = {
        "schedule": "immediately",
        "podRef": {"name": await worker_pod(box, job)},
        "registry": {"url": box.registry, "repository": f"checkpoints/{job}"},
        **spec,
    }
    await box.cluster.create(CHECKPOINT_BACKUPS, {"metadata": {"name": name}, "spec": written}, namespace=NAMESPACE)


async def completed(box: LocalCluster, name: str, run: int = 1) -> CheckpointBackupStatus:
    """The status of the backup when this run is complete."""

    async def look() -> CheckpointBackupStatus:
        found = await box.cluster.get(CHECKPOINT_BACKUPS, Key(NAMESPACE, name))
        return found.status or CheckpointBackupStatus()

    def is_complete(seen: CheckpointBackupStatus) -> bool:
        assert seen.phase != "Failed", seen.message
        return seen.run == run and seen.phase == "Completed"

    return await eventually(look, is_complete, what=f"run {run} of {name} is complete", within_s=WITHIN_S)


async def delete_with_storage(box: LocalCluster, data: Path, job: str) -> None:
    """The job, its claim, and so every file of it."""
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, job))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, job))
    for claim in (await box.cluster.list(CLAIMS, namespace=NAMESPACE)).items:
        await box.cluster.delete(CLAIMS, claim.metadata.key)
        await gone(box.cluster, CLAIMS, claim.metadata.key)
    left = partial(asyncio.to_thread, lambda: list((data / "volumes").glob("*/*/*")))
    await eventually(left, lambda found: not found, what="no checkpoint is left", within_s=WITHIN_S)


def layer_of(data: Path, repository: str, digest: str) -> Path:
    """The layer of an image, as the registry has it on disk."""
    manifest = data / "registry" / "repositories" / repository / "_manifests" / digest.removeprefix("sha256:")
    name = manifest.read_text().partition('"layers":[')[2].partition('"digest":"sha256:')[2][:64]
    return data / "registry" / "blobs" / "sha256" / name[:2] / name


async def resumes(box: LocalCluster, name: str, address: str) -> tuple[str, int]:
    """What a new job has gone on from, and an epoch that it reaches."""
    await start(box, name, hyperparameters=FOREVER, checkpoint={"frequency": NEVER, "resumeFrom": address})
    seen = await until(box, name, lambda it: checkpoint(it).resumed_from, "has resumed")
    begun = checkpoint(seen).last_epoch or 0
    further = await until(box, name, lambda it: (it.current_epoch or 0) > begun, "trains further")
    return checkpoint(further).resumed_from or "", begun


async def test_another_job_goes_on_from_the_image_when_the_first_and_its_storage_are_gone(
    box: LocalCluster, data: Path
) -> None:
    await start(box, "first", **ENDLESS)
    await until(box, "first", lambda seen: (seen.current_epoch or 0) > 2, "is under way")
    await back_up(box, "once", "first")
    backup = await completed(box, "once")
    (image,) = backup.built_images
    assert backup.mode == "application"
    assert image.image_name.startswith(f"{box.registry}/checkpoints/first:once-trainer-000001-")
    assert backup.bytes > 0
    assert backup.last_checkpoint_time
    saved = await until(box, "first", lambda seen: checkpoint(seen).last_epoch, "has saved")
    await delete_with_storage(box, data, "first")
    by_digest = f"oci://{box.registry}/checkpoints/first@{image.digest}"
    assert await resumes(box, "second", by_digest) == (by_digest, checkpoint(saved).last_epoch)
    await delete_with_storage(box, data, "second")


async def test_a_damaged_image_of_a_schedule_is_told_and_the_run_before_it_is_used(
    box: LocalCluster, data: Path
) -> None:
    await start(box, "third", **ENDLESS)
    await until(box, "third", lambda seen: seen.current_epoch, "is under way")
    await back_up(box, "nightly", "third", schedule="* * * * *")
    first, second = [(await completed(box, "nightly", run)).built_images[0] for run in (1, 2)]
    await delete_with_storage(box, data, "third")
    layer = layer_of(data, "checkpoints/third", second.digest)
    content = await asyncio.to_thread(layer.read_bytes)
    await asyncio.to_thread(layer.write_bytes, content[: len(content) // 2])
    resumed, _ = await resumes(box, "fourth", f"oci://{second.image_name}")
    assert resumed == f"oci://{box.registry}/checkpoints/third@{first.digest}"
    event = await told(box, "fourth", "CheckpointQuarantined", second.digest)
    assert "is corrupt, the one before it is used" in event.message
    await delete_with_storage(box, data, "fourth")


async def phase(box: LocalCluster, name: str, wanted: str) -> CheckpointBackupStatus:
    async def look() -> CheckpointBackupStatus:
        found = await box.cluster.get(CHECKPOINT_BACKUPS, Key(NAMESPACE, name))
        return found.status or CheckpointBackupStatus()

    return await eventually(look, lambda it: it.phase == wanted, what=f"{name} is {wanted}", within_s=WITHIN_S)


async def test_memory_is_not_saved_where_pods_are_processes_and_no_agent_is_waited_for(box: LocalCluster) -> None:
    await start(box, "eighth", hyperparameters=FOREVER)
    await until(box, "eighth", lambda seen: seen.current_epoch, "is under way")
    await back_up(box, "memory", "eighth", mode="container")
    status = await phase(box, "memory", "Failed")
    assert status.conditions[0].reason == "NoContainers"
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "eighth"))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, "eighth"))


async def test_a_job_that_keeps_no_checkpoints_is_told_as_the_reason(box: LocalCluster) -> None:
    await start(box, "fifth", hyperparameters=FOREVER, checkpoint={"enabled": False})
    await until(box, "fifth", lambda seen: seen.current_epoch, "is under way")
    await back_up(box, "early", "fifth")
    seen = await phase(box, "early", "Failed")
    assert "keeps no checkpoints" in (seen.message or "")
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "fifth"))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, "fifth"))


LATE = """
import os, time
from pathlib import Path

folder = Path(os.environ["CHECKPOINT_DIR"])
while not Path({release!r}).exists():
    time.sleep(0.1)
partial = folder / "checkpoint-epoch-1.tmp"
partial.mkdir()
(partial / "model.bin").write_bytes(b"weights")
partial.rename(folder / "checkpoint-epoch-1")
time.sleep(1000)
"""


async def test_a_backup_that_is_deleted_while_it_runs_is_stopped_and_the_next_one_is_taken(
    box: LocalCluster, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    script = LATE.format(release=str(release))
    await start(box, "sixth", command=["python", "-c", script], checkpoint={"frequency": 1})
    await until(box, "sixth", lambda seen: seen.state == "Running", "runs")
    await back_up(box, "given-up", "sixth")
    await back_up(box, "taken", "sixth")
    await phase(box, "given-up", "Checkpointing")
    await box.cluster.delete(CHECKPOINT_BACKUPS, Key(NAMESPACE, "given-up"))
    await gone(box.cluster, CHECKPOINT_BACKUPS, Key(NAMESPACE, "given-up"))
    await phase(box, "taken", "Checkpointing")
    await asyncio.to_thread(release.touch)
    (image,) = (await completed(box, "taken")).built_images
    assert image.image_name.rpartition(":")[2].startswith("taken-")
    async with client(box.registry) as registry:
        assert [tag.partition("-trainer-")[0] for tag in await registry.tags("checkpoints/sixth")] == ["taken"]
    await box.cluster.delete(TRAINING_JOBS, Key(NAMESPACE, "sixth"))
    await gone(box.cluster, TRAINING_JOBS, Key(NAMESPACE, "sixth"))
