"""Application mode on a real API server: the operator and the sidecars as processes, with their own tokens.

kwok pretends to run the pods; of each pod that matters here, the sidecar runs beside it, with the environment that the
pod's template gives it, and the token that its kubelet would ask for.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.checkpoints.images.image import ImageFacts
from holdfast.checkpoints.images.layer import CheckpointLayer
from holdfast.checkpoints.images.reference import parse_run_tag
from holdfast.checkpoints.images.registry import push_image
from holdfast.local.registry.server import serve_registry
from tests.checkpoints.images.test_layer import checkpoint
from tests.control_plane.api import JSON
from tests.control_plane.nodes import Nodes
from tests.control_plane.server import ControlPlane
from tests.control_plane.waiting import eventually
from tests.local.registry.registries import client
from tests.operator.conftest import StartOperator
from tests.operator.process import OperatorProcess
from tests.operator.user import apply, kubectl
from tests.sidecar.operators import OperatorDouble
from tests.sidecar.pods import Pod
from tests.sidecar.test_backups import SAVES_ON_NOTICE

REPOSITORY = "checkpoints/bert"
# What the sidecar takes from its pod as it is: paths are of this machine.
TAKEN = ("HOLDFAST_JOB_UID", "HOLDFAST_JOB", "HOLDFAST_NAMESPACE", "HOLDFAST_WORKERS", "HOLDFAST_RETENTION")
RESUMING = ("HOLDFAST_RESUME_FROM", "HOLDFAST_PLAIN_HTTP_REGISTRIES")


def manifest(kind: str, name: str, spec: JSON) -> str:
    version = "ml.example.com/v1" if kind == "TrainingJob" else "migration.dcnlab.com/v1"
    return yaml.safe_dump({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})


def job(name: str, **checkpoint: object) -> str:
    storage = {"type": "nfs", "nfsServer": "files.invalid", "nfsPath": "/runs"}
    spec = {"model": "m", "dataset": "d", "numWorkers": 1, "gpusPerWorker": 0, "image": "registry.invalid/app:1"}
    return manifest("TrainingJob", name, {**spec, "checkpoint": {"storage": storage, **checkpoint}})


class Story:
    def __init__(self, plane: ControlPlane, namespace: str, registry: str, folder: Path) -> None:
        self.plane, self.namespace, self.registry, self.folder = plane, namespace, registry, folder

    async def get(self, *what: str) -> JSON:
        found: JSON = json.loads(await kubectl(self.plane, "get", *what, "-n", self.namespace, "-o", "json"))
        return found

    @contextlib.asynccontextmanager
    async def worker(self, name: str) -> AsyncIterator[Pod]:
        """The sidecar of the job's only worker, from when its pod runs on."""
        await apply(self.plane, self.namespace, job(name) if name == "first" else self.resuming(name))
        listing = partial(self.get, "pods", "-l", f"training-job={name}", "--field-selector=status.phase=Running")
        (pod,) = (await eventually(listing, lambda it: it["items"], what=f"{name} runs"))["items"]
        (sidecar,) = pod["spec"]["initContainers"]
        environ = {each["name"]: each["value"] for each in sidecar["env"] if "value" in each}
        local = self.folder / name
        local.mkdir()
        files = OperatorDouble(local)
        await self._write_token(pod, files.token_file)
        await self.write_endpoint(name, files.reports_file)
        taken = {each: environ[each] for each in (*TAKEN, *RESUMING) if each in environ}
        async with Pod(self.folder / f"volume-{name}", local / "pod", files, environ=taken) as running:
            await running.sidecar()
            yield running

    def resuming(self, name: str) -> str:
        return job(name, resumeFrom=self.resume_from)

    resume_from = ""

    async def _write_token(self, pod: JSON, file: Path) -> None:
        metadata, account = pod["metadata"], pod["spec"]["serviceAccountName"]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={metadata['name']}")
        options = (*bound, f"--bound-object-uid={metadata['uid']}", "--audience=holdfast.dev/reports")
        token = await kubectl(self.plane, "create", "token", account, "-n", self.namespace, *options)
        await asyncio.to_thread(file.write_text, token)

    async def write_endpoint(self, name: str, file: Path, *, other_than: str = "") -> str:
        """As the kubelet does when the ConfigMap has changed."""

        def is_there(config: JSON) -> bool:
            return config["data"].get("reports.json", "") not in ("", other_than)

        config = await eventually(partial(self.get, f"configmap/{name}-config"), is_there, what="the endpoint")
        text: str = config["data"]["reports.json"]
        await asyncio.to_thread(file.write_text, text)
        return text

    async def back_up(self, name: str, job: str) -> None:
        spec: JSON = {
            "schedule": "immediately",
            "podRef": {"name": (await self.get("pods", "-l", f"training-job={job}"))["items"][0]["metadata"]["name"]},
            "registry": {"url": self.registry, "repository": REPOSITORY},
        }
        await apply(self.plane, self.namespace, manifest("CheckpointBackup", name, spec))

    async def until_phase(self, name: str, phase: str) -> JSON:
        """The backup's status in that phase, with its uid."""

        def is_there(backup: JSON) -> bool:
            status = backup.get("status", {})
            assert status.get("phase") != "Failed", status["message"]
            return bool(status.get("phase") == phase)

        found = await eventually(partial(self.get, f"cb/{name}"), is_there, what=f"{name} is {phase}", within_s=120)
        return {**found["status"], "uid": found["metadata"]["uid"]}


def start(plane: ControlPlane, namespace: str, start_operator: StartOperator, registry: str) -> OperatorProcess:
    return start_operator(
        plane,
        f"--namespace={namespace}",
        f"--lease-namespace={namespace}",
        "--reports-address=127.0.0.1",
        "--reports-port=0",
        f"--plain-http-registry={registry}",
    )


@pytest.fixture
async def story(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator, tmp_path: Path
) -> AsyncIterator[Story]:
    await nodes.add(1)
    async with serve_registry(tmp_path / "registry") as registry:
        start(plane, namespace, start_operator, registry)
        yield Story(plane, namespace, registry, tmp_path)


async def trains(pod: Pod) -> None:
    """The training has begun, and looks for notices."""
    await eventually(partial(asyncio.to_thread, pod.checkpoint_dir.exists), bool, what="it has restored")
    await pod.script(SAVES_ON_NOTICE)
    await eventually(partial(asyncio.to_thread, pod.heeded.exists), bool, what="it looks for notices")


async def push_damaged_run(story: Story, status: JSON) -> str:
    """The next run of the same owner, whose layer is cut off in the registry; its address."""
    (image,) = status["builtImages"]
    tag = image["imageName"].rpartition(":")[2].replace("-000001-", "-000002-")
    assert parse_run_tag(tag) is not None
    folder = story.folder / "next"
    content = checkpoint(folder, {"model.bin": b"better weights" * 1000})
    facts = ImageFacts(
        mode="application",
        owner_uid=status["uid"],
        owner_kind="CheckpointBackup",
        container="trainer",
        run=2,
        created="2026-11-18T12:00:00Z",
    )
    async with client(story.registry) as registry:
        pushed = await push_image(registry, REPOSITORY, tag, facts, CheckpointLayer(folder, content))
    digest = pushed.layer.digest.removeprefix("sha256:")
    blob = story.folder / "registry" / "blobs" / "sha256" / digest[:2] / digest
    await asyncio.to_thread(blob.write_bytes, blob.read_bytes()[:-2000])
    return f"oci://{story.registry}/{REPOSITORY}:{tag}"


async def test_a_checkpoint_is_pushed_and_another_job_goes_on_from_it_or_from_the_one_before(story: Story) -> None:
    async with story.worker("first") as pod:
        await trains(pod)
        await story.back_up("nightly", "first")
        status = await story.until_phase("nightly", "Completed")
        (image,) = status["builtImages"]
        assert (status["mode"], status["run"], image["containerName"]) == ("application", 1, "trainer")
        saved = (pod.checkpoint_dir / "checkpoint-epoch-1" / "model.bin").read_bytes()
        damaged = await push_damaged_run(story, status)
    await kubectl(story.plane, "delete", "tj/first", "-n", story.namespace, "--wait=false")
    by_digest = f"oci://{story.registry}/{REPOSITORY}@{image['digest']}"
    for name, story.resume_from in (("second", by_digest), ("third", damaged)):
        async with story.worker(name) as pod:
            await eventually(partial(asyncio.to_thread, pod.resume_from.exists), bool, what=f"{name} has restored")
            assert (pod.resume_from / "model.bin").read_bytes()[:20] == saved[:20]

            def says(seen: JSON) -> Any:
                return seen.get("status", {}).get("checkpoint", {}).get("resumedFrom")

            seen = await eventually(partial(story.get, f"tj/{name}"), says, what=f"{name} says what it goes on from")
            assert says(seen) == by_digest
    events = await kubectl(story.plane, "get", "events", "-n", story.namespace)
    assert "CheckpointQuarantined" in events
    assert "is corrupt, the one before it is used" in events


async def test_a_run_under_way_outlives_its_operator_and_is_completed_by_the_next_one(
    plane: ControlPlane, namespace: str, nodes: Nodes, start_operator: StartOperator, tmp_path: Path
) -> None:
    await nodes.add(1)
    async with serve_registry(tmp_path / "registry") as registry:
        pass  # down, for now: its port is remembered
    story = Story(plane, namespace, registry, tmp_path)
    operator = start(plane, namespace, start_operator, registry)
    async with story.worker("first") as pod:
        await trains(pod)
        await story.back_up("nightly", "first")
        await story.until_phase("nightly", "ImagePushing")
        endpoint = tmp_path / "first" / "reports.json"
        before = await story.write_endpoint("first", endpoint)
        operator.kill()
        start(plane, namespace, start_operator, registry)
        await story.write_endpoint("first", endpoint, other_than=before)
        async with serve_registry(tmp_path / "registry") as again:
            assert again == registry
            status = await story.until_phase("nightly", "Completed")
            async with client(registry) as reader:
                (tag,) = await reader.tags(REPOSITORY)
                assert await reader.resolve_tag(REPOSITORY, tag) == status["builtImages"][0]["digest"]
    assert status["run"] == 1
