"""TensorBoard shows what a training writes, also where the job's checkpoints are in an object store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession

from holdfast.api.core.objects import Pod
from holdfast.cluster.resources import EVENTS, PODS
from holdfast.local.up import LocalCluster
from holdfast.trainingjob.objects.names import TENSORBOARD_LABEL
from tests.checkpoints.servers.server import Server, s3
from tests.control_plane.waiting import eventually
from tests.frameworks.jobs import NAMESPACE, WITHIN_S, completed
from tests.local.up.trainings import in_store, start, write_secret

WRITE = """
import os
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(os.environ["TENSORBOARD_DIR"])
for step in (1, 2):
    loss = Summary(value=[Summary.Value(tag="loss", simple_value=1 / step)])
    writer.add_event(Event(wall_time=step, step=step, summary=loss))
writer.close()
"""
NAME = "shown"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with s3(tmp_path) as running:
        yield running


async def warnings(box: LocalCluster) -> list[str]:
    about = f"involvedObject.name={NAME}"
    events = (await box.cluster.list(EVENTS, namespace=NAMESPACE, fields=about)).items
    return [event.message for event in events if event.reason == "TensorBoardNotStarted"]


async def board(box: LocalCluster) -> Pod | None:
    pods = (await box.cluster.list(PODS, namespace=NAMESPACE, labels=f"{TENSORBOARD_LABEL}={NAME}")).items
    return next((pod for pod in pods if pod.status.phase == "Running"), None)


async def scalars(box: LocalCluster) -> list[list[float]]:
    pod = await board(box)
    assert pod is not None
    url = f"http://{pod.status.pod_ip}:6006/data/plugin/scalars/scalars"
    try:
        async with ClientSession() as session, session.get(url, params={"run": ".", "tag": "loss"}) as answer:
            return list(await answer.json()) if answer.status == 200 else []
    except ClientError:
        return []


async def test_the_events_in_a_bucket_are_shown_once_tensorboard_is_installed(
    box: LocalCluster, tensorboard_python: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, keys = in_store(server, NAME)
    await write_secret(box, NAME, keys)
    await start(
        box,
        NAME,
        command=[str(tensorboard_python), "-c", WRITE],
        checkpoint={"storage": storage},
        monitoring={"tensorboardEnabled": True},
    )
    (warning,) = await eventually(lambda: warnings(box), bool, what="a warning", within_s=WITHIN_S)
    assert "TensorBoard does not start" in warning
    assert "pip install tensorboard" in warning
    monkeypatch.setenv("PATH", f"{tensorboard_python.parent}{os.pathsep}{os.environ['PATH']}")
    await completed(box, NAME)
    await eventually(lambda: board(box), bool, what="TensorBoard runs", within_s=WITHIN_S)
    shown = await eventually(lambda: scalars(box), lambda found: len(found) == 2, what="events", within_s=WITHIN_S)
    assert shown == [[1.0, 1, 1.0], [2.0, 2, 0.5]]
