"""Progress that is posted: pods of one machine share its loopback, and each training is heard by its own sidecar."""

import asyncio

from holdfast.local.up import LocalCluster
from tests.frameworks.jobs import completed
from tests.local.up.conftest import ROOMY
from tests.local.up.trainings import start

POST = """
import os, urllib.request
with urllib.request.urlopen(os.environ["PROGRESS_URL"], os.environ["TOLD"].encode(), timeout=60) as answer:
    assert answer.status == 204
"""
TOLD = {"late": '{"epoch": 5, "epochs": 9}', "early": '{"epoch": 1, "epochs": 9, "step": 3, "steps": 10}'}


# With its two workers a job takes every core: nothing is left for sidecars, and nothing is reserved for them.
HALF = {"numWorkers": 2, "resources": {"requests": {"cpu": ROOMY.cpus // 2}}}


async def test_each_of_two_trainings_without_any_block_reports_to_its_own_sidecar(box: LocalCluster) -> None:
    for name, told in TOLD.items():
        await start(box, name, command=["python", "-c", POST], env=[{"name": "TOLD", "value": told}], **HALF)
    ended = await asyncio.gather(*(completed(box, name) for name in TOLD))
    shown = [(job.status.current_epoch, job.status.progress) for job in ended if job.status]
    assert shown == [(5, "55%"), (1, "3%")]
