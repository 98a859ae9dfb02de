"""What the API server told about pods, nodes and TrainingJobs, change by change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from holdfast.api.builtin import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from tests.control_plane.api import Api, Session
from tests.control_plane.changes import Change, changes

Seen: TypeAlias = Pod | Node | TrainingJob

SOURCES: dict[str, type[Seen]] = {
    "/api/v1/pods": Pod,
    "/api/v1/nodes": Node,
    "/apis/ml.example.com/v1/trainingjobs": TrainingJob,
}


class History:
    """Every change since the recording began, and what is there now."""

    def __init__(self) -> None:
        self.changes: list[Change[Any]] = []
        self._now: dict[type[Seen], dict[Key, Any]] = {model: {} for model in SOURCES.values()}

    @property
    def pods(self) -> dict[Key, Pod]:
        return self._now[Pod]

    @property
    def jobs(self) -> dict[Key, TrainingJob]:
        return self._now[TrainingJob]

    def of_jobs(self) -> list[TrainingJob]:
        """Every TrainingJob as it was after each of its changes."""
        return [change.obj for change in self.changes if isinstance(change.obj, TrainingJob)]

    async def follow(self, session: Session, path: str) -> None:
        there = self._now[SOURCES[path]]
        async for change in changes(session, path, SOURCES[path]):
            self.changes.append(change)
            there[change.obj.metadata.key] = change.obj
            if change.gone:
                del there[change.obj.metadata.key]


@asynccontextmanager
async def recording(api: Api) -> AsyncIterator[History]:
    history = History()
    async with api.session() as session, asyncio.TaskGroup() as group:
        followers = [group.create_task(history.follow(session, path)) for path in SOURCES]
        yield history
        for follower in followers:
            follower.cancel()
