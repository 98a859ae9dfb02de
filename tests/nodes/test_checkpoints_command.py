"""`holdfast checkpoints` of a claim, looked at by a real pod on a real node."""

import asyncio
import os
from functools import partial
from pathlib import Path
from random import Random

import pytest

from holdfast.api.meta import Key
from holdfast.checkpoints.manifest import checkpoint_name
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.resources import TRAINING_JOBS
from holdfast.runtime.process import utc_now
from tests.checkpoints.making import MODEL, content
from tests.cli.checkpoints.jobs import fill_volume
from tests.cli.lab import Done, holdfast
from tests.control_plane.waiting import eventually
from tests.nodes.images import HOLDFAST
from tests.nodes.jobs import provide_volume, shared_folder, training_job
from tests.nodes.lab import Lab
from tests.operator.conftest import install_kinds
from tests.operator.user import apply, kubectl

WORKER = 1000
LARGE = {**MODEL, "large.bin": bytes(range(256)) * 131_072}


@pytest.fixture
async def volume(lab: Lab, namespace: str) -> Path:
    """What a job `digits` would have saved on a claim, and nobody runs."""
    install_kinds(lab.plane)
    claim = await provide_volume(lab, namespace)
    kept = {"storage": {"type": "pvc", "pvcName": claim}}
    await apply(lab.plane, namespace, training_job("digits", checkpoint=kept, suspend=True))
    cluster = connect(load_config(str(lab.plane.kubeconfig)), rng=Random(0), now=utc_now)
    try:
        job = await cluster.get(TRAINING_JOBS, Key(namespace, "digits"))
        await cluster.patch_status(TRAINING_JOBS, Key(namespace, "digits"), {"status": {"state": "Suspended"}})
    finally:
        await cluster.close()
    root = shared_folder(lab, namespace) / namespace / "digits" / job.metadata.uid
    await asyncio.to_thread(_fill, root, shared_folder(lab, namespace))
    return root


def _fill(root: Path, shared: Path) -> None:
    fill_volume(root, checkpoint_name(1, 0), checkpoint_name(2, 0))
    fill_volume(root, checkpoint_name(3, 0), files=LARGE)
    for path in (root, *root.rglob("*"), *root.parents):
        if path.is_relative_to(shared):
            os.chown(path, WORKER, WORKER)


async def test_a_claims_checkpoints_are_listed_verified_pruned_and_downloaded(
    lab: Lab, namespace: str, volume: Path, tmp_path: Path
) -> None:
    async def run(*arguments: str) -> Done:
        place = ["-n", namespace, "--kubeconfig", str(lab.plane.kubeconfig), "--image", HOLDFAST]
        return await holdfast("checkpoints", arguments[0], "digits", *arguments[1:], *place)

    listed = await run("list", "--no-headers")
    assert listed.code == 0, listed
    assert [line.split()[0] for line in listed.lines] == ["3", "2", "1"]
    assert "yes   next" in listed.lines[0]

    target = tmp_path / "copy"
    downloaded = await run("download", "--output", str(target))
    assert downloaded.code == 0, downloaded
    assert content(target) == LARGE

    gone = await run("prune", "--keep", "1", "--yes")
    assert gone.code == 0, gone
    assert [line.split(":")[0] for line in gone.lines[:-1]] == ["epoch 1 of attempt 0", "epoch 2 of attempt 0"]

    (volume / checkpoint_name(3, 0).folder / "model.bin").write_bytes(b"WEIGHTS")
    verified = await run("verify")
    assert verified.code == 1
    assert verified.lines[1] == "  the content of model.bin is not what was saved: its digest differs"
    pods = partial(kubectl, lab.plane, "get", "pods", "-n", namespace, "-o", "name")
    await eventually(pods, lambda seen: not seen.strip(), what="no pod is left")
