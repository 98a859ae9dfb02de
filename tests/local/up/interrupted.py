"""Trainings that are interrupted again and again, each time at a batch that a plan names, and what they have trained.

The state of such a training is a chain of digests over every batch, in order: a batch that is left out, trained twice
or out of order gives another one. The script interrupts itself where it can, and else says at which batch it waits.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from holdfast.cluster.resources import PODS
from holdfast.local.up import LocalCluster
from tests.local.up.trainings import NAMESPACE, change, start, status, stopped, until

EPOCHS, BATCHES = 3, 5
# By itself, or from outside, once it waits. Beside these, a launcher may start it anew within the attempt.
WAYS = ("kill", "kill-saving", "suspend", "scale", "drain", "up")

TIMEOUT_S = 900  # of a test of some of them, on a machine that does other things as well
ENDED_WITHIN_S = 600.0

SCRIPT = """
import hashlib, json, os, signal, sys, time
from pathlib import Path
from holdfast import train

folder = Path(sys.argv[1])
plan = json.loads((folder / "plan.json").read_text())
rank = int(os.environ["RANK"])


def note(name, text=""):
    partial = folder / f".{name}.{rank}"
    partial.write_text(text)
    partial.rename(folder / name)


def save(half=False):
    with run.checkpoint() as saved:
        (saved / f"state-{rank}.json").write_text(json.dumps(state)[: 10 if half else None])
        if half:
            os.kill(os.getpid(), signal.SIGKILL)


def told():
    try:
        return json.loads((folder / "at").read_text())
    except FileNotFoundError:
        return {"at": [0, 0], "restart": 0}


def tell(at):
    note("at", json.dumps({"at": at, "restart": restart}))


def start_anew(count):
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(count)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def follow(at):
    # The other ranks stay behind rank 0, as collectives make them; True: this one is to be stopped from outside.
    while True:
        first = told()
        if first["restart"] > restart:  # a launcher starts all of them anew
            start_anew(first["restart"])
        if first["at"] > at:
            return False
        note(f"here-{rank}", json.dumps(at))
        if run.notice() is not None:
            return True
        time.sleep(0.01)


def gather(at, is_there):
    while not all(is_there(other) for other in range(1, run.world)):
        tell(at)
        time.sleep(0.01)


def is_here(other, at):
    return (folder / f"here-{other}").exists() and json.loads((folder / f"here-{other}").read_text()) >= at


def stop_here(at):
    # Rank 0 takes the next stop of the plan once it is there; True: it is to be stopped from outside.
    if rank:
        return follow(at)
    tell(at)
    number = len(list(folder.glob("stop-*")))
    if number == len(plan["stops"]) or at < plan["stops"][number][:2]:
        return False
    kind = plan["stops"][number][2]
    note(f"stop-{number:03}")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "kill-saving":
        save(half=True)
    if kind == "restart":
        start_anew(restart + 1)
    for other in range(1, run.world):
        (folder / f"here-{other}").unlink(missing_ok=True)
    gather(at, lambda other: is_here(other, at))
    note(f"ask-{number:03}", kind)
    while run.notice() is None:
        time.sleep(0.01)
    return True


restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
if rank and not restart:
    (folder / "at").unlink(missing_ok=True)  # it is of those who ran before
run = train.start(shards=plan["shards"])
state = {"chain": "", "trained": []}
if run.resumed:
    parts = {file.read_text() for file in run.resumed.glob("state-*.json")}
    if len(parts) != 1:
        note("mixed", "\\n".join(sorted(parts)))
        sys.exit(9)
    state = json.loads(parts.pop())
is_asked = False
for epoch in run.epochs(plan["epochs"]):
    for batch in run.batches(range(1, plan["batches"] + 1)):
        state["trained"].append([epoch, batch])
        state["chain"] = hashlib.sha256(f"{state['chain']} {epoch} {batch}".encode()).hexdigest()
        planned = [epoch, batch] in plan["saves"]
        if planned:
            save()
        is_asked = stop_here([epoch, batch]) or is_asked
        if run.due():
            save()
            while is_asked:
                time.sleep(1)
    run.report(loss=1 / epoch)
    if run.due():
        save()
        while is_asked:
            time.sleep(1)
while rank and follow([999, 0]):
    time.sleep(1)
note(f"result-{rank}", json.dumps(state))
if rank == 0:
    gather([1000, 0], lambda other: (folder / f"result-{other}").exists())
"""


class Plan(Struct, frozen=True, kw_only=True):
    """Stops come in the order of their positions, so that each is reached, whatever was lost."""

    name: str
    shards: bool
    workers: int
    saves: tuple[tuple[int, int], ...]
    stops: tuple[tuple[int, int, str], ...]

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        facts = {"shards": self.shards, "epochs": EPOCHS, "batches": BATCHES, "saves": self.saves, "stops": self.stops}
        (folder / "plan.json").write_text(json.dumps(facts))


def all_batches() -> dict[str, object]:
    chain, trained = "", []
    for epoch, batch in positions():
        chain = hashlib.sha256(f"{chain} {epoch} {batch}".encode()).hexdigest()
        trained.append([epoch, batch])
    return {"chain": chain, "trained": trained}


def positions() -> Iterator[tuple[int, int]]:
    return ((epoch, batch) for epoch in range(1, EPOCHS + 1) for batch in range(1, BATCHES + 1))


def plans(seed: int, count: int, ways: tuple[str, ...], restarts: int) -> list[Plan]:
    """Each with every one of the ways that it can have, and so many restarts by its launcher.

    Of every second one, each worker saves a shard; of every second two, saves come within epochs, too.
    """
    random = Random(seed)
    return [_plan(random, f"plan-{seed}-{number}", number, ways, restarts) for number in range(count)]


def _plan(random: Random, name: str, number: int, ways: tuple[str, ...], restarts: int) -> Plan:
    shards, within = number % 2 == 1, number // 2 % 2 == 0
    # Ranks take the state of any shard, but a checkpoint of two is no work of one.
    kinds = [way for way in ways if not (shards and way == "scale")] + ["restart"] * restarts
    random.shuffle(kinds)
    where = sorted(random.choices(list(positions()), k=len(kinds)))
    return Plan(
        name=name,
        shards=shards,
        workers=2 if shards else 1,
        saves=tuple(sorted(random.sample(list(positions()), 6))) if within else (),
        stops=tuple((*place, kind) for place, kind in zip(where, kinds, strict=True)),
    )


class Interrupting:
    """Does to each training what it waits for. `box` is the cluster that is up, if any is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.box: LocalCluster | None = None
        self.is_up = asyncio.Event()
        self.waiting: set[str] = set()
        """Those that are to see the end of the cluster, and a new one."""

    def begin(self, box: LocalCluster) -> None:
        self.box = box
        self.is_up.set()

    async def until_it_may_end(self, running: Sequence["asyncio.Task[None]"]) -> None:
        """When every training that is left waits for the end of the cluster, or has ended."""
        while len(self.waiting) < sum(not task.done() for task in running):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        self.is_up.clear()

    async def run(self, plan: Plan, **checkpoint: object) -> None:
        folder = self.folder / plan.name
        await asyncio.to_thread(plan.write, folder)
        await start(
            await self._up(),
            plan.name,
            command=[sys.executable, "-c", SCRIPT, str(folder)],
            numWorkers=plan.workers,
            checkpoint=checkpoint,
            failurePolicy={"backoffLimit": 1000},
        )
        done, workers = 0, plan.workers
        deadline_s = asyncio.get_running_loop().time() + ENDED_WITHIN_S
        while not await asyncio.to_thread((folder / "result-0").exists):
            assert asyncio.get_running_loop().time() < deadline_s, await self._story(plan)
            for asked in sorted(folder.glob("ask-*"))[done:]:
                done += 1
                workers = await self._interrupt(plan, asked.read_text(), workers)
            await asyncio.sleep(0.1)
        await until(await self._up(), plan.name, lambda seen: seen.state == "Completed", "is completed")

    async def _interrupt(self, plan: Plan, way: str, workers: int) -> int:
        box = await self._up()
        match way:
            case "suspend":
                await change(box, plan.name, suspend=True)
                await stopped(box, plan.name)
                await change(box, plan.name, suspend=False)
            case "scale":
                workers = 3 - workers
                await change(box, plan.name, numWorkers=workers)
            case "drain":
                await self._drain(box, plan.name)
            case _:
                self.waiting.add(plan.name)
                while plan.name in self.waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        return workers

    async def _drain(self, box: LocalCluster, name: str) -> None:
        attempt = (await status(box, name)).restart_count
        labels = f"training-job={name},holdfast.dev/attempt={attempt}"
        pods = (await box.cluster.list(PODS, namespace=NAMESPACE, labels=labels)).items
        await box.cluster.delete(PODS, next(pod for pod in pods if not pod.is_finished).metadata.key)

    async def _up(self) -> LocalCluster:
        await self.is_up.wait()
        assert self.box is not None
        return self.box

    async def _story(self, plan: Plan) -> str:
        seen = await status(await self._up(), plan.name)
        files = sorted(file.name for file in (self.folder / plan.name).iterdir())
        return f"{plan} does not end: {seen.state} {seen.message}, attempt {seen.restart_count}, {files}"

    def outcome(self, plan: Plan) -> object:
        """What the training has trained; something else where its ranks differ, or shards of two saves were mixed."""
        folder = self.folder / plan.name
        if (folder / "mixed").exists():
            return (folder / "mixed").read_text()
        results = {file.read_text() for file in folder.glob("result-*")}
        return json.loads(results.pop()) if len(results) == 1 else results
