"""Puts what an attempt resumes from in its place, before the training starts. Worker 0 decides for all workers."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.checkpoints import disk
from holdfast.checkpoints.complete import list_checkpoints, read_markers
from holdfast.checkpoints.errors import CheckpointError, Incomplete, StoreError, Unreachable
from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.folder import VolumeStore
from holdfast.checkpoints.lease import InUse
from holdfast.checkpoints.manifest import SaveInfo
from holdfast.checkpoints.names import CheckpointName, checkpoint_name
from holdfast.checkpoints.objects import ObjectStore
from holdfast.checkpoints.resume import DecisionPending, resume, write_decision
from holdfast.checkpoints.store import Store
from holdfast.sidecar.deciding import standing_decision, withdraw_decision
from holdfast.sidecar.settings import Checkpoints
from holdfast.train.publishing import JOINING, recover


class QuarantinedCheckpoint(Struct, frozen=True):
    """A damaged checkpoint that nobody resumes from any more."""

    name: CheckpointName
    reason: str


class Restored(Struct, frozen=True):
    """`name` is where it came from; None: there is nothing to resume from."""

    name: CheckpointName | None
    address: str
    aside: tuple[QuarantinedCheckpoint, ...] = ()


def is_retryable(error: CheckpointError) -> bool:
    """Whether to try again: the network and other workers change by themselves, credentials do not."""
    return isinstance(error, Unreachable | DecisionPending | Incomplete | InUse) or type(error) is StoreError


def restore(
    place: Checkpoints,
    store: Store,
    *,
    attempt: int,
    index: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    """RESUME_FROM leads to the checkpoint when this returns, and does not exist when there is none."""
    with disk.translate_os_errors(f"make the folder {place.folder}"):
        disk.make_folder(place.folder)
    if index == 0:
        return _decided(place, store, attempt, about, environ, note)
    name = standing_decision(store, attempt, about.job)
    if isinstance(store, VolumeStore):
        # Worker 0's volume is theirs, too, with what it has put there.
        return Restored(name, _address(name, store.address, place))
    return _fetched(place, store, attempt, name, about, environ)


def _decided(
    place: Checkpoints,
    store: Store,
    attempt: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    said: list[str] = []

    def heard(sentence: str) -> None:
        said.append(sentence)
        note(sentence)

    is_anew = withdraw_decision(store, attempt)
    if isinstance(store, VolumeStore):
        store.remove_leftovers(attempt)
        if is_anew:
            _remove_unfinished(place.folder, store)
        for folder in store.attempt_folders(attempt):
            recover(folder)
    elif isinstance(store, ObjectStore):
        store.forget_parts(attempt)
    before = set(store.names(attempt))
    name, address = resume(store, place.folder, attempt, about, heard), store.address
    aside = tuple(
        QuarantinedCheckpoint(gone, _about(gone, said)) for gone in sorted(before - set(store.names(attempt)))
    )
    if name is None and place.resume_from:
        name, address = _fetch_resume_from(place, attempt, about, environ), ""
    # Whoever reads the decision starts a training at once.
    _link(place, name)
    write_decision(store, attempt, name, about.job)
    return Restored(name, _address(name, address, place), aside)


def _remove_unfinished(folder: Path, store: VolumeStore) -> None:
    """Shards of a save that nobody ends any more: those of the next save under that name must not join them."""
    with disk.translate_os_errors(f"tidy {folder}"):
        disk.remove_any(folder / JOINING)
        for name in list_checkpoints(folder):
            declared = read_markers(folder / name.folder_name)
            if declared is not None and not declared.all_shards_present:
                store.delete(name)


def _fetched(
    place: Checkpoints,
    store: Store,
    attempt: int,
    name: CheckpointName | None,
    about: SaveInfo,
    environ: Mapping[str, str],
) -> Restored:
    """The other workers have folders of their own, and need what worker 0 has."""
    address = store.address
    if name is not None and place.resume_from and store.manifest(name) is None:
        name, address = _fetch_resume_from(place, attempt, about, environ), ""
    elif name is not None:
        store.get(name, place.folder / name.folder_name)
    _link(place, name)
    return Restored(name, _address(name, address, place))


def _fetch_resume_from(place: Checkpoints, attempt: int, about: SaveInfo, environ: Mapping[str, str]) -> CheckpointName:
    source = find(place.resume_from, environ)
    name = checkpoint_name(source.epoch, attempt)
    fetch(source, place.folder / name.folder_name, name, about)
    return name


def _address(name: CheckpointName | None, store: str, place: Checkpoints) -> str:
    if name is None:
        return ""
    return f"{store}/{name.folder}" if store else place.resume_from


def _about(name: CheckpointName, said: list[str]) -> str:
    return next((sentence for sentence in said if sentence.startswith(f"{name} ")), f"{name} is damaged")


def _link(place: Checkpoints, name: CheckpointName | None) -> None:
    link = place.resume_link
    with disk.translate_os_errors(f"set RESUME_FROM {link}"):
        if name is None:
            link.unlink(missing_ok=True)
            return
        partial = link.with_name(f".{link.name}.partial")
        partial.unlink(missing_ok=True)
        partial.symlink_to(os.path.relpath(place.folder / name.folder_name, link.parent))
        disk.rename(partial, link)
