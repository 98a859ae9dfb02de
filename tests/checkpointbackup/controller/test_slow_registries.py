"""Registries that take long to say what old images they have."""

import asyncio

import pytest

from holdfast.api.credentials import RegistryCredential
from holdfast.checkpointbackup import retention
from holdfast.cluster.protocol import Cluster
from holdfast.runtime.authentication import HttpRefusal
from tests.checkpointbackup.controller.lab import BackupLab, backing_up
from tests.contract.pool import Pool
from tests.control_plane.waiting import eventually

BACKUPS = 12  # more than an operator has workers


class SlowCredentials:
    """Answers nobody until it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def credential(self, _backup: object) -> RegistryCredential:
        self.asked += 1
        await self.may_answer.wait()
        raise HttpRefusal(409, "there is none")


async def test_backups_whose_old_images_take_long_keep_no_other_backup_waiting(
    cluster: Cluster, namespace: str, lab: BackupLab, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AGAIN_S", 0.05)
    node, slow = await pool.add(), SlowCredentials()
    names = [f"save-{number}" for number in range(BACKUPS)]
    image = {"containerName": "main", "imageName": "registry.example.com/checkpoints/trainer:2"}

    async def end_second_run(name: str) -> None:
        await lab.add_pod(f"pod-{name}", node=node)
        await lab.ask(name, pod=f"pod-{name}", retain=1)
        begun = await lab.until_run(1, name)
        body = {"status": {"run": 2, "phase": "Completed", "builtImages": [image]}}
        await cluster.patch_status(lab.kind, begun.metadata.key, body)

    async def asked() -> int:
        return slow.asked

    async with backing_up(cluster, namespace, lab.requests, credentials=slow):
        await asyncio.gather(*map(end_second_run, names))
        await eventually(asked, lambda count: count == retention.AT_ONCE, what="some are asked for")
        await lab.add_pod("trainer", node=node)
        await lab.ask("another")
        await lab.until_run(1, "another")
        assert slow.asked == retention.AT_ONCE
        slow.may_answer.set()
        await eventually(asked, lambda count: count == BACKUPS, what="all have had their turn")
