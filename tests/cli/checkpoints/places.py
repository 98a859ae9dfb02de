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
from tests.checkpoints.making import ABOUT
from tests.checkpoints.places import FolderBackend, Place

JOB = ABOUT.job


def seen(place: Place) -> Seen:
    return VolumeView(place.volume) if isinstance(place, FolderBackend) else BucketView(place.bucket)


def listed(place: Place, attempt: int = 0, *, running: bool = False) -> list[CheckpointInfo]:
    return _all(place, ListRequest(job=JOB, attempt=attempt, running=running), CheckpointInfo)


def verified(place: Place, epoch: int | None = None) -> list[VerifyResult]:
    return _all(place, VerifyRequest(epoch=epoch), VerifyResult)


def pruned(place: Place, keep: int, attempt: int = 0, *, delete: bool = True) -> list[int]:
    """The epochs that went, or would go."""
    found = _all(place, PruneRequest(job=JOB, attempt=attempt, keep=keep, delete=delete), PruneResult)
    assert all(one.deleted is delete for one in found)
    return [one.saved.epoch for one in found]


def decide(place: Place, attempt: int, name: CheckpointName | None) -> None:
    write_decision(place.store, attempt, name, JOB)


def _all(place: Place, request: Request, kind: type) -> list:  # type: ignore[type-arg]  # of that kind, as is checked
    found = list(run_request(seen(place), request))
    assert all(isinstance(one, kind) for one in found)
    return found
