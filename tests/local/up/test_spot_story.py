"""SpotInstanceJobs on one machine, from apply to the last machine given back, whatever is taken back in between."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import Struct

from tests.control_plane.waiting import eventually
from tests.local.up.up import Up

# Each copy begins with a number of its own, which only a checkpoint hands on.
SCRIPT = """
import json, os, random, sys, time
from pathlib import Path
from holdfast import train

notes = Path(sys.argv[1])
run = train.start()
state = json.loads((run.resumed / "state.json").read_text()) if run.resumed else {"id": random.getrandbits(60)}
for epoch in run.epochs(default=1_000_000):
    with (notes / os.environ["HOSTNAME"]).open("a") as file:
        file.write(f"{state['id']} {epoch}\\n")
    if run.due():
        with run.checkpoint() as folder:
            (folder / "state.json").write_text(json.dumps(state))
    if (notes / "finish").exists():
        break
    time.sleep(0.2)
"""
WITHIN_S = 180.0


class Line(Struct, frozen=True):
    """What an attempt has noted: whose state it has, and the epoch that it was at."""

    id: int
    epoch: int


class Story:
    """A job with two replicas, on the machines of one `holdfast up`."""

    def __init__(self, up: Up, folder: Path) -> None:
        self.up = up
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir()
        (folder / "train.py").write_text(SCRIPT)

    async def holdfast(self, *arguments: str, given: str = "") -> str:
        done = await asyncio.to_thread(partial(self.up.holdfast, *arguments, given=given, cwd=self.folder))
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def apply(self, **spec: Any) -> None:
        await self.holdfast("apply", "-f", "-", given=manifests(self.up.registry, str(self.notes), **spec))

    async def get(self, what: str) -> list[Any]:
        items: list[Any] = json.loads(await self.holdfast("get", what, "-o", "json"))["items"]
        return items

    async def status(self) -> Any:
        (job,) = await self.get("sij")
        status = job.get("status", {})
        assert status.get("phase") != "Failed", status
        return status

    async def until(self, holds: Callable[[Any], object], what: str) -> Any:
        return await eventually(self.status, lambda seen: bool(holds(seen)), what=what, within_s=WITHIN_S)

    async def running(self) -> dict[int, Any]:
        """The replicas when all run, each on a machine of its own."""

        def all_run(status: Any) -> bool:
            replicas = status.get("jobStatuses", [])
            return len(replicas) == 2 and all(each["phase"] == "Running" for each in replicas)

        status = await self.until(all_run, "two replicas run")
        replicas = {each["replica"]: each for each in status["jobStatuses"]}
        assert len({each["nodeName"] for each in replicas.values()}) == 2
        return replicas

    async def lines(self, attempt: str, at_least: int = 1) -> list[Line]:
        """What the attempt, by the name of its Job, has noted."""

        def look() -> list[Line]:
            files = [path for path in self.notes.iterdir() if re.fullmatch(f"{attempt}-[a-z0-9]+", path.name)]
            return [Line(*map(int, line.split())) for path in files for line in path.read_text().splitlines()]

        what = f"{attempt} has got further"
        return await eventually(
            lambda: asyncio.to_thread(look), lambda found: len(found) >= at_least, what=what, within_s=WITHIN_S
        )

    async def finish(self) -> None:
        (self.notes / "finish").touch()
        await self.until(lambda status: status["phase"] == "Succeeded", "has succeeded")

    async def nothing_is_left(self) -> None:
        """Pods that have ended stay a while for whoever looks at them."""

        async def left() -> list[str]:
            own = self.up.data / "machines"
            machines = [item["metadata"]["name"] for item in await self.get("pi")]
            nodes = [item["metadata"]["name"] for item in await self.get("nodes") if "providerID" in item["spec"]]
            unfinished = [
                item["metadata"]["name"]
                for item in await self.get("pods")
                if item["status"]["phase"] not in ("Succeeded", "Failed")
            ]
            return [*machines, *nodes, *unfinished, *(path.name for path in own.iterdir())]

        await eventually(left, lambda found: not found, what="all machines are given back", within_s=WITHIN_S)
        await eventually(lambda: asyncio.to_thread(self.up.processes), lambda found: not found, what="no process runs")


def manifests(registry: str, notes: str, **spec: Any) -> str:
    template = {
        "apiVersion": "training.training.dcnlab.com/v1alpha1",
        "kind": "SpotInstanceVM",
        "metadata": {"name": "here"},
        "spec": {
            "vmImage": "none",
            "gpu": {"type": "nvidia-l4", "count": 1},
            "gcp": {"project": "this-computer", "zone": "us-central1-a", "machineType": "g2-standard-4"},
        },
    }
    container = {
        "name": "training",
        "image": "any",
        "command": ["python", "train.py", notes],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    job = {
        "apiVersion": "training.training.dcnlab.com/v1alpha1",
        "kind": "SpotInstanceJob",
        "metadata": {"name": "copies"},
        "spec": {
            "replicas": 2,
            "spotInstanceVMRef": {"name": "here"},
            "gcpCredentialsSecretRef": {"name": "not-there"},
            "checkpointConfig": {
                "checkpointImageRepo": f"{registry}/checkpoints/copies",
                "checkpointInterval": "20s",
            },
            "jobTemplate": {"spec": {"template": {"spec": {"containers": [container]}}}},
            **spec,
        },
    }
    return yaml.safe_dump_all([template, job])


# Two of three machines are taken back, one after the other, and one comes later.
LOG = """
0,add,node1
0,add,node2
0,add,node3
20000,remove,node1
30000,add,node4
40000,remove,node2
"""


@pytest.fixture
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    options: tuple[str, ...] = getattr(request, "param", ())
    trace = tmp_path / "trace.csv"
    trace.write_text(LOG)
    options = tuple(each.format(trace=trace) for each in options)
    with Up(tmp_path / "data", *options, log=tmp_path / "up.log").running() as up:
        yield Story(up, tmp_path)


async def test_the_lost_copy_goes_on_from_the_other_and_both_from_the_newest_image(story: Story) -> None:
    await story.apply()
    first = await story.running()
    ids = {number: (await story.lines(each["name"]))[0].id for number, each in first.items()}
    assert ids[0] != ids[1]

    await story.holdfast("preempt", first[0]["machine"], "--notice", "10s")
    await story.until(lambda status: status.get("recoveries"), "the first copy is brought back")
    second = await story.running()
    assert (second[0]["attempt"], second[1]["attempt"]) == (1, 0)
    restored = (await story.lines(second[0]["name"]))[0]
    assert restored.id == ids[1], "it has the survivor's state"
    assert restored.epoch > 1
    assert second[0]["machine"] != first[0]["machine"]

    for each in second.values():
        await story.holdfast("preempt", each["machine"], "--now")
    await story.until(lambda status: len(status.get("recoveries", [])) == 3, "both copies are brought back")
    third = await story.running()
    for each in third.values():
        assert (await story.lines(each["name"]))[0].id == ids[1]
    status = await story.status()
    assert [each["source"] for each in status["recoveries"]] == ["survivor", "repository", "repository"]
    assert status["restarts"] == {"preemption": 3}

    await story.finish()
    await story.nothing_is_left()


async def test_killed_amid_a_preemption_it_finds_its_machines_and_goes_on(story: Story) -> None:
    await story.apply()
    first = await story.running()
    ids = {(await story.lines(each["name"], at_least=5))[0].id for each in first.values()}
    await story.until(lambda status: status.get("lastCheckpointImage"), "is saved")
    await story.holdfast("preempt", first[0]["machine"], "--notice", "10s")
    await story.until(lambda status: status["jobStatuses"][0]["attempt"] == 1, "the loss is seen")
    await asyncio.to_thread(story.up.kill)
    await asyncio.to_thread(story.up.start)
    await story.until(lambda status: len(status.get("recoveries", [])) >= 2, "both are brought back")
    again = await story.running()
    for each in again.values():
        assert (await story.lines(each["name"]))[0].id in ids
    await eventually(partial(story.get, "pi"), lambda found: len(found) == 2, what="two machines", within_s=WITHIN_S)
    await story.finish()
    await story.nothing_is_left()


async def test_a_training_that_fails_uses_up_the_backoff_limit_whatever_its_restart_policy(story: Story) -> None:
    container = {
        "name": "training",
        "image": "any",
        "command": ["python", "-c", "raise SystemExit('there is no data set')"],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }
    pod = {"spec": {"restartPolicy": "OnFailure", "containers": [container]}}
    await story.apply(replicas=1, jobTemplate={"spec": {"backoffLimit": 1, "template": pod}})

    async def status() -> Any:
        (job,) = await story.get("sij")
        return job.get("status", {})

    failed = await eventually(
        status, lambda seen: seen.get("phase") == "Failed", what="the job has failed", within_s=WITHIN_S
    )
    assert failed["restarts"] == {"application": 1}
    assert "there is no data set (after 1 of 1 restarts of backoffLimit)" in failed["message"]
    await story.nothing_is_left()


@pytest.mark.parametrize(
    "story", [("--preemption-trace={trace}", "--trace-speed=2", "--preemption-notice=5s")], indirect=True
)
async def test_a_job_succeeds_while_a_log_of_spot_machines_takes_them_back(story: Story) -> None:
    await story.apply()
    first = await story.running()
    ids = {(await story.lines(each["name"]))[0].id for each in first.values()}
    status = await story.until(lambda status: len(status.get("recoveries", [])) >= 2, "two machines are taken back")
    assert {each["cause"] for each in status["recoveries"]} == {"preemption"}
    again = await story.running()
    for each in again.values():
        assert (await story.lines(each["name"]))[0].id in ids
    await story.finish()
    await story.nothing_is_left()
