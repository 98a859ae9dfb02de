"""What the API server told about pods, nodes and holdfast's own kinds, change by change."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.api.core.objects import Node, Pod
from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from tests.control_plane.api import Api, Session
from tests.control_plane.changes import Change, changes, following


class Record:
    """Every change since the recording began, and what is there now; `sources` are the kinds by their paths."""

    def __init__(self, sources: Mapping[str, type[Any]]) -> None:
        self.sources: dict[str, type[Any]] = {"/api/v1/pods": Pod, "/api/v1/nodes": Node, **sources}
        self.changes: list[Change[Any]] = []
        self._now: dict[type[Any], dict[Key, Any]] = {model: {} for model in self.sources.values()}

    @property
    def pods(self) -> dict[Key, Pod]:
        return self._now[Pod]

    @property
    def nodes(self) -> dict[Key, Node]:
        return self._now[Node]

    async def follow(self, path: str, session: Session) -> None:
        async for change in changes(session, path, self.sources[path]):
            self.take(change, self._now[self.sources[path]])

    def take(self, change: Change[Any], there: dict[Key, Any]) -> None:
        self.changes.append(change)
        there[change.obj.metadata.key] = change.obj
        if change.gone:
            del there[change.obj.metadata.key]


class History(Record):
    """Of TrainingJobs."""

    def __init__(self) -> None:
        super().__init__({"/apis/ml.example.com/v1/trainingjobs": TrainingJob})

    @property
    def jobs(self) -> dict[Key, TrainingJob]:
        return self._now[TrainingJob]

    def of_jobs(self) -> list[TrainingJob]:
        """Every TrainingJob as it was after each of its changes."""
        return [change.obj for change in self.changes if isinstance(change.obj, TrainingJob)]


R = TypeVar("R", bound=Record)


@asynccontextmanager
async def recording(api: Api, record: R) -> AsyncIterator[R]:
    async with following(api, *(partial(record.follow, path) for path in record.sources)):
        yield record
