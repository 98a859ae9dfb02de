"""A store of the checkpoints' tests, as the commands look at it."""

from holdfast.checkpoints.names import Name
from holdfast.checkpoints.resume import write_decision
from holdfast.cli.checkpoints.facts import Doomed, Listing, Pruning, Request, Saved, Verification, Verified
from holdfast.cli.checkpoints.place import InBucket, OnVolume
from holdfast.cli.checkpoints.place import Place as Seen
from holdfast.cli.checkpoints.work import do
from tests.checkpoints.making import ABOUT
from tests.checkpoints.places import FolderPlace, Place

JOB = ABOUT.job


def seen(place: Place) -> Seen:
    return OnVolume(place.volume) if isinstance(place, FolderPlace) else InBucket(place.bucket)


def listed(place: Place, attempt: int = 0, *, running: bool = False) -> list[Saved]:
    return _all(place, Listing(job=JOB, attempt=attempt, running=running), Saved)


def verified(place: Place, epoch: int | None = None) -> list[Verified]:
    return _all(place, Verification(epoch=epoch), Verified)


def pruned(place: Place, keep: int, attempt: int = 0, *, delete: bool = True) -> list[int]:
    """The epochs that went, or would go."""
    found = _all(place, Pruning(job=JOB, attempt=attempt, keep=keep, delete=delete), Doomed)
    assert all(one.deleted is delete for one in found)
    return [one.saved.epoch for one in found]


def decide(place: Place, attempt: int, name: Name | None) -> None:
    write_decision(place.store, attempt, name, JOB)


def _all(place: Place, request: Request, kind: type) -> list:  # type: ignore[type-arg]  # of that kind, as is checked
    found = list(do(seen(place), request))
    assert all(isinstance(one, kind) for one in found)
    return found
