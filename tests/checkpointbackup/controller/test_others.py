"""Runs that others carry out: sidecars, and agents that are not holdfast's."""

from typing import Any

import msgspec
import pytest

from holdfast.api.backup_runs import BackupProgress
from holdfast.api.checkpointbackup import NODE_LABEL
from holdfast.runtime.operator import Operator
from holdfast.runtime.process import utc_now
from tests.checkpointbackup.controller.lab import CONTAINER, BackupLab, SeenBackup
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually

SIDECAR = {**CONTAINER, "name": "holdfast-sidecar", "restartPolicy": "Always"}
IMAGE = "registry.example.com/checkpoints/trainer:save-main-000001"


def report(it: SeenBackup, state: str, **more: Any) -> BackupProgress:
    return msgspec.convert({"uid": it.metadata.uid, "run": it.status.run, "state": state, **more}, BackupProgress)


async def begun_with_sidecar(lab: BackupLab, pool: Pool, **spec: Any) -> SeenBackup:
    pod = await lab.add_pod(node=await pool.add(), initContainers=[SIDECAR])
    await lab.ask(**spec)
    begun = await lab.until_run()
    assert (begun.status.mode, begun.status.pod_uid) == ("application", pod.metadata.uid)

    async def wanted() -> bool:
        return lab.requests.wanted(pod.metadata.uid, utc_now()) is not None

    await eventually(wanted, bool, what="the sidecar is to take the backup")
    return begun


@pytest.mark.usefixtures("operator")
class TestSidecars:
    async def test_the_sidecars_reports_become_the_phases(self, lab: BackupLab, pool: Pool) -> None:
        begun = await begun_with_sidecar(lab, pool)
        assert NODE_LABEL not in begun.metadata.labels
        assert "the sidecar of pod trainer" in begun.message
        uid = begun.status.pod_uid
        wanted = lab.requests.wanted(uid, utc_now())
        assert wanted is not None
        assert (wanted.backup, wanted.run, wanted.container, wanted.owner_uid) == (
            "save",
            1,
            "main",
            begun.metadata.uid,
        )
        assert wanted.tag.startswith("save-main-000001-")
        assert 0 < wanted.seconds_left <= 600
        lab.requests.record(uid, report(begun, "saving"))
        await lab.until_phase("Checkpointing")
        lab.requests.record(uid, report(begun, "packed", bytes=4096))
        await lab.until_phase("ImageBuilt")
        lab.requests.record(uid, report(begun, "pushed", image=IMAGE, digest=f"sha256:{'0' * 64}", bytes=4096))
        done = await lab.until_phase("Completed")
        assert [(each.container_name, each.image_name) for each in done.status.built_images] == [("main", IMAGE)]
        assert (done.status.bytes, done.holds("Completed")) == (4096, True)
        assert await lab.event_reasons(last="Completed") == ["Completed", "RunStarted"]

    async def test_a_backup_that_is_deleted_or_over_is_not_wanted_any_more(self, lab: BackupLab, pool: Pool) -> None:
        begun = await begun_with_sidecar(lab, pool)
        await lab.delete()
        await lab.gone()

        async def withdrawn() -> bool:
            return lab.requests.is_withdrawn(report(begun, "saving"))

        await eventually(withdrawn, bool, what="the run is withdrawn")
        assert lab.requests.wanted(begun.status.pod_uid, utc_now()) is None

    async def test_a_failed_save_fails_the_run_in_the_sidecars_words(self, lab: BackupLab, pool: Pool) -> None:
        begun = await begun_with_sidecar(lab, pool)
        failure = report(begun, "failed", reason="NoCheckpoint", message="the training wrote none")
        lab.requests.record(begun.status.pod_uid, failure)
        failed = await lab.until_phase("Failed")
        assert (failed.reason(), failed.message) == ("NoCheckpoint", "the training wrote none")


class TestExternalAgents:
    @pytest.fixture
    def operator_options(self) -> dict[str, Any]:
        return {"external_agent": True}

    async def test_their_phases_are_read_as_ours(self, lab: BackupLab, pool: Pool, operator: Operator) -> None:
        await lab.add_pod(node=await pool.add())
        await lab.ask()
        await lab.until_run()
        await lab.push_image()
        assert await lab.event_reasons(last="Completed") == ["Completed", "RunStarted"]

        async def counted() -> float | None:
            labels = {"mode": "container", "result": "Completed"}
            return operator.registry.get_sample_value("checkpointbackup_runs_total", labels)

        await eventually(counted, lambda count: count == 1, what="the run is counted")

    @pytest.mark.usefixtures("timed_operator")
    async def test_they_delete_the_pod_themselves_and_that_ends_the_schedule(self, lab: BackupLab, pool: Pool) -> None:
        pod = await lab.add_pod(node=await pool.add())
        await lab.ask(schedule="* * * * *", stopPod=True)
        await lab.until(lambda it: it.status.next_checkpoint_time, "is scheduled")
        lab.clock.advance(60)
        await lab.touch()
        await lab.until_run(1)
        pushed = await lab.push_image(complete=False)
        await lab.touch()
        await lab.ask("later", pod="nobody")
        await lab.until_says("there is no pod nobody", "later")
        assert (await lab.get()).status.phase == pushed.status.phase == "ImagePushed"
        assert pod.metadata.uid in {each.metadata.uid for each in await lab.pods()}
        await lab.write_phase("CompletedPodDeleted")
        over = await lab.until(lambda it: it.reason("Scheduled") == "PodDeleted", "has ended")
        assert (over.status.phase, over.status.next_checkpoint_time) == ("CompletedPodDeleted", None)
