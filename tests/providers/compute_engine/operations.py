"""Operations of the double."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.providers.compute_engine.refusals import OperationFailure

SYSTEM = "system"


class FakeOperation:
    def __init__(
        self,
        *,
        name: str,
        number: int,
        kind: str,
        project: str,
        zone: str,
        target: str,
        target_id: str,
        user: str,
        request_id: str,
        began_at: datetime,
    ) -> None:
        self.name = name
        self.id = str(number)
        self.kind = kind
        self.project = project
        self.zone = zone
        self.target = target
        self.target_id = target_id
        self.user = user
        self.request_id = request_id
        self.began_at = began_at
        self.ended_at: datetime | None = None
        self.failure: OperationFailure | None = None
        self.done = asyncio.Event()

    def end(self, now: datetime, failure: OperationFailure | None = None) -> None:
        self.ended_at = now
        self.failure = failure
        self.done.set()

    @property
    def machine_name(self) -> str:
        return self.target.rpartition("/")[2]

    def as_operation(self, root: str) -> Mapping[str, Any]:
        zone = f"{root}/projects/{self.project}/zones/{self.zone}"
        began = self.began_at.isoformat(timespec="milliseconds")
        shown: dict[str, Any] = {
            "kind": "compute#operation",
            "id": self.id,
            "name": self.name,
            "zone": zone,
            "operationType": self.kind,
            "targetLink": f"{root}/{self.target}",
            "targetId": self.target_id,
            "status": "DONE" if self.ended_at else "RUNNING",
            "user": self.user,
            "progress": 100 if self.ended_at else 0,
            "insertTime": began,
            "startTime": began,
            "selfLink": f"{zone}/operations/{self.name}",
        }
        if self.request_id:
            shown["clientOperationId"] = self.request_id
        if self.ended_at:
            shown["endTime"] = self.ended_at.isoformat(timespec="milliseconds")
        if self.failure:
            shown["error"] = {"errors": [self.failure.error]}
            shown["httpErrorStatusCode"] = self.failure.status
            shown["httpErrorMessage"] = "BAD REQUEST" if self.failure.status == 400 else "SERVICE UNAVAILABLE"
        return shown
