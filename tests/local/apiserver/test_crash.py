"""A process that is killed while it writes loses nothing that it had acknowledged."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import NamedTuple

from holdfast.local.apiserver.server import open_cluster
from tests.contract.kinds import CONFIG_MAPS, Document, config_map, key_of

from .writer_process import CHANGES, GONE, WRITERS

ROOT = Path(__file__).parents[3]


class Answer(NamedTuple):
    """What a writer was told of its object."""

    name: str
    uid: str
    change: str
    version: str


async def killed_after(path: Path, answers: int) -> list[Answer]:
    """What a writing process had been answered when it was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.local.apiserver.writer_process", path, stdout=PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    said = [await process.stdout.readline() for _ in range(answers)]
    process.kill()
    said += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    # The last line may have been cut off in the middle.
    return [Answer(*line.decode().strip().split("|")) for line in said if line.endswith(b"\n")]


def is_next(found: Document | None, last: Answer) -> bool:
    """Whether the object is as its writer last saw it, or one unacknowledged step further."""
    if last.uid == GONE:
        return found is None or found.data == {"change": "0"}
    if found is None:
        return last.change == str(CHANGES)
    steps = int(found.data["change"]) - int(last.change)
    ahead = int(found.metadata.resource_version) - int(last.version)
    return found.metadata.uid == last.uid and (ahead == 0 if steps == 0 else steps == 1 and ahead > 0)


async def test_everything_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    path, highest = tmp_path / "objects.db", 0
    for answers in (1, 40, 160):
        acknowledged = await killed_after(path, answers)
        last = {answer.name: answer for answer in acknowledged}
        versions = [int(answer.version) for answer in acknowledged if answer.uid != GONE]
        assert versions == sorted(set(versions))
        assert versions[0] > highest
        cluster = await open_cluster(path, now=lambda: datetime.now(UTC), rng=Random(0))
        found = {item.metadata.name: item for item in (await cluster.list(CONFIG_MAPS, namespace="default")).items}
        assert {name for name, answer in last.items() if not is_next(found.get(name), answer)} == set()
        assert len(found) <= WRITERS
        made = await cluster.create(CONFIG_MAPS, config_map("after"), namespace="default")
        highest = int(made.metadata.resource_version)
        assert highest > max(versions)
        await cluster.delete(CONFIG_MAPS, key_of(made))
        await cluster.close()
