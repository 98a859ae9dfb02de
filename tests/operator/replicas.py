"""What kwok only pretends: the sidecar of each replica and a training beside it run as processes.

The sidecar has the environment that the replica's template gives it, and the token that its kubelet would ask for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from tests.control_plane.api import JSON
from tests.control_plane.waiting import eventually
from tests.operator.spot import JOB, SpotStory
from tests.operator.user import kubectl
from tests.sidecar.operators import OperatorDouble
from tests.sidecar.pods import Pod
from tests.sidecar.test_backups import SAVES_ON_NOTICE

# Of the sidecar's environment, what is no path in its container.
TAKEN = (
    "HOLDFAST_JOB",
    "HOLDFAST_JOB_UID",
    "HOLDFAST_NAMESPACE",
    "HOLDFAST_WORKERS",
    "HOLDFAST_RETENTION",
    "HOLDFAST_RESUME_FROM",
    "HOLDFAST_RESUME_NEWEST",
    "HOLDFAST_RESUME_EXACTLY",
    "HOLDFAST_PLAIN_HTTP_REGISTRIES",
)


class Replicas:
    def __init__(self, story: SpotStory, folder: Path, ending: AsyncExitStack) -> None:
        self._story = story
        self._folder = folder
        self._ending = ending

    async def train(self, replica: int, attempt: int) -> Pod:
        """The training of that attempt, once its sidecar has restored what it is to go on from."""
        story, selector = self._story, f"holdfast.dev/replica={replica},holdfast.dev/attempt={attempt}"
        listing = partial(story.get, "pods", "-l", f"holdfast.dev/spot-job={JOB},{selector}")
        found = await eventually(
            listing,
            lambda seen: [each["status"].get("phase") for each in seen["items"]] == ["Running"],
            what=f"attempt {attempt} of replica {replica} runs",
        )
        (pod,) = found["items"]
        folder = self._folder / f"r{replica}-{attempt}"
        folder.mkdir()
        files = OperatorDouble(folder)
        await self._write_token(pod, files.token_file)
        config = await story.get(f"configmap/{JOB}-reports")
        files.reports_file.write_text(config["data"]["reports.json"])
        sidecar = pod["spec"]["initContainers"][-1]
        environ = {each["name"]: each["value"] for each in sidecar["env"] if each["name"] in TAKEN}
        running = await self._ending.enter_async_context(
            Pod(folder / "volume", folder / "pod", files, attempt=attempt, environ=environ)
        )
        await running.sidecar()
        restored = running.local / "state" / "restored.json"
        await eventually(partial(asyncio.to_thread, restored.exists), bool, what="it has restored")
        await running.script(SAVES_ON_NOTICE)
        await eventually(partial(asyncio.to_thread, running.heeded.exists), bool, what="it looks for notices")
        return running

    async def _write_token(self, pod: JSON, file: Path) -> None:
        metadata = pod["metadata"]
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={metadata['name']}")
        options = (*bound, f"--bound-object-uid={metadata['uid']}", "--audience=holdfast.dev/reports")
        account = pod["spec"]["serviceAccountName"]
        token = await kubectl(self._story.plane, "create", "token", account, "-n", metadata["namespace"], *options)
        await asyncio.to_thread(file.write_text, token)


@asynccontextmanager
async def replicas(story: SpotStory, folder: Path) -> AsyncIterator[Replicas]:
    async with AsyncExitStack() as ending:
        yield Replicas(story, folder, ending)


async def power_off(pod: Pod) -> None:
    """Its processes end with its machine."""
    for process in pod.running:
        process.kill()
    await asyncio.gather(*(process.wait() for process in pod.running))
