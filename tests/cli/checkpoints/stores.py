"""A store of the checkpoints' tests, as the commands look at it."""

from holdfast.checkpoints.manifest import CheckpointName
from holdfast.checkpoints.resume import write_decision
from holdfast.cli.checkpoints.operations import (
    CheckpointInfo,
    ListRequest,
    PruneRequest,
    PruneResult,
    Request,
    VerifyRequest,
    VerifyResult,
    run_request,
)
from holdfast.cli.checkpoints.view import BucketView, VolumeView
from holdfast.cli.checkpoints.view import StorageView as Seen
from tests.checkpoints.backends import FolderBackend, StoreBackend
from tests.checkpoints.making import ABOUT

JOB = ABOUT.job


def seen(backend: StoreBackend) -> Seen:
    return VolumeView(backend.volume) if isinstance(backend, FolderBackend) else BucketView(backend.bucket)


def listed(backend: StoreBackend, attempt: int = 0, *, running: bool = False) -> list[CheckpointInfo]:
    return _all(backend, ListRequest(job=JOB, attempt=attempt, running=running), CheckpointInfo)


def verified(backend: StoreBackend, epoch: int | None = None) -> list[VerifyResult]:
    return _all(backend, VerifyRequest(epoch=epoch), VerifyResult)


def pruned(backend: StoreBackend, keep: int, attempt: int = 0, *, delete: bool = True) -> list[int]:
    """The epochs that went, or would go."""
    found = _all(backend, PruneRequest(job=JOB, attempt=attempt, keep=keep, delete=delete), PruneResult)
    assert all(one.deleted is delete for one in found)
    return [one.saved.epoch for one in found]


def decide(backend: StoreBackend, attempt: int, name: CheckpointName | None) -> None:
    write_decision(backend.store, attempt, name, JOB)


def _all(backend: StoreBackend, request: Request, kind: type) -> list:  # type: ignore[type-arg]  # of that kind, as is checked
    found = list(run_request(seen(backend), request))
    assert all(isinstance(one, kind) for one in found)
    return found
