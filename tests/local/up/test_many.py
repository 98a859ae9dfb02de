"""500 TrainingJobs of one short worker each, every tenth with a sidecar: all end, and nothing stays behind."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from tests.control_plane.waiting import eventually
from tests.local.up.up import Up, training_job

JOBS = 500
NAMES = [f"job-{number}" for number in range(JOBS)]


def descriptors(up: Up) -> int:
    """Open files of `up`, connections of its clients left out."""
    links = (Path(f"/proc/{up.pid}/fd")).iterdir()
    return sum(1 for link in links if not _is_socket(link))


def _is_socket(link: Path) -> bool:
    try:
        return str(link.readlink()).startswith("socket:")
    except OSError:
        return True


async def completed(up: Up) -> int:
    told = await asyncio.to_thread(up.holdfast, "get", "tj", "-o", "json")
    items = json.loads(told.stdout)["items"]
    return sum(item.get("status", {}).get("state") == "Completed" for item in items)


@pytest.mark.timeout(900)
async def test_five_hundred_jobs_end_and_nothing_of_them_stays(tmp_path: Path) -> None:
    with Up(tmp_path / "data", log=tmp_path / "up.log").running() as up:
        before = descriptors(up)
        manifest = "---\n".join(
            training_job(name, ["true"], monitoring={"enabled": number % 10 == 0}) for number, name in enumerate(NAMES)
        )
        applied = await asyncio.to_thread(partial(up.holdfast, "apply", "-f", "-", given=manifest))
        assert applied.returncode == 0, applied.stderr
        await eventually(partial(completed, up), lambda count: count == JOBS, what="all Completed", within_s=600)
        deleted = await asyncio.to_thread(up.holdfast, "delete", "tj", *NAMES)
        assert deleted.returncode == 0, deleted.stderr

        async def folders() -> list[str]:
            return sorted(path.name for path in (up.data / "pods").iterdir())

        await eventually(folders, lambda left: not left, what="no pod's folder is left")
        assert up.processes() == []
        assert descriptors(up) <= before + 5
