"""What is done for a machine beside the reconciles, and how it ends."""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from holdfast.machines.joining import JoinProgress
from holdfast.providers.protocol import Machine


class MachineTask(StrEnum):
    """Of each, one runs at a time for a machine."""

    LAUNCH = "launch"
    JOIN = "join"
    CHECK = "check"
    """Whether the machine is still there, and who took it if not."""
    DELETE = "delete"


class Gone(Struct, frozen=True):
    """The machine is gone, or about to be: `exists` while the cloud still shows it."""

    preempted: bool
    exists: bool = False


Value: TypeAlias = Machine | Gone | None


class TaskRunning(Struct, frozen=True):
    since: datetime
    """Since when it is queued, or, once it has its turn, runs."""
    cause: str = ""
    progress: JoinProgress | None = None
    step_since: datetime | None = None
    """Since when `progress` has been at its step."""
    last_error: Exception | None = None
    """Of the try before this one."""
    is_queued: bool = False
    """As many of its sort run as may at the same time."""


class Succeeded(Struct, frozen=True):
    value: Value
    cause: str = ""


class Failed(Struct, frozen=True):
    error: Exception
    retry_at: datetime
    failures: int = 1
    cause: str = ""
    since: datetime | None = None


Work: TypeAlias = TaskRunning | Succeeded | Failed


def has_run(work: Work | None, seconds: float, now: datetime) -> bool:
    """For so long, since it had its turn."""
    return isinstance(work, TaskRunning) and not work.is_queued and now - work.since >= timedelta(seconds=seconds)


def error_of(work: Work | None) -> Exception | None:
    """What went wrong last, as long as no try has ended well."""
    match work:
        case Failed():
            return work.error
        case TaskRunning():
            return work.last_error
    return None
