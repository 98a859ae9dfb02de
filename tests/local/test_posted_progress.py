"""Progress that is posted: pods of one machine share its loopback, and each training is heard by its own sidecar."""

import asyncio

from holdfast.local.onebox import Onebox
from tests.frameworks.jobs import completed
from tests.local.trainings import start

POST = """
import json, os, urllib.request
told = json.dumps({"epoch": int(os.environ["EPOCH"]), "epochs": 9}).encode()
with urllib.request.urlopen(os.environ["PROGRESS_URL"], told, timeout=60) as answer:
    assert answer.status == 204
"""


async def test_each_of_two_trainings_is_heard_by_its_own_sidecar(box: Onebox) -> None:
    for epoch in (3, 5):
        own = [{"name": "EPOCH", "value": str(epoch)}]
        await start(box, f"posts-{epoch}", command=["python", "-c", POST], env=own, monitoring={"enabled": True})
    ended = await asyncio.gather(*(completed(box, f"posts-{epoch}") for epoch in (3, 5)))
    assert [job.status.current_epoch for job in ended if job.status] == [3, 5]
