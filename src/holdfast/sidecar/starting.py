"""Puts what an attempt resumes from in its place, before the training starts. Worker 0 decides for all workers."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.checkpoints import disk
from holdfast.checkpoints.complete import checkpoints_in, declared_in
from holdfast.checkpoints.errors import CheckpointError, Incomplete, StoreError, Unreachable
from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.folder import FolderStore
from holdfast.checkpoints.lease import InUse
from holdfast.checkpoints.manifest import About
from holdfast.checkpoints.names import Name, named
from holdfast.checkpoints.objects import ObjectStore
from holdfast.checkpoints.resume import Undecided, resume, write_decision
from holdfast.checkpoints.store import Store
from holdfast.sidecar.deciding import decided, withdraw
from holdfast.sidecar.settings import Checkpoints
from holdfast.train.publishing import JOINING, recover


class Aside(Struct, frozen=True):
    """A damaged checkpoint that nobody resumes from any more."""

    name: Name
    reason: str


class Restored(Struct, frozen=True):
    """`name` is where it came from; None: there is nothing to resume from."""

    name: Name | None
    address: str
    aside: tuple[Aside, ...] = ()


def may_pass(error: CheckpointError) -> bool:
    """Whether to try again: the network and other workers change by themselves, credentials do not."""
    return isinstance(error, Unreachable | Undecided | Incomplete | InUse) or type(error) is StoreError


def restore(
    place: Checkpoints,
    store: Store,
    *,
    attempt: int,
    index: int,
    about: About,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    """RESUME_FROM leads to the checkpoint when this returns, and does not exist when there is none."""
    with disk.explained(f"make the folder {place.folder}"):
        disk.make_folder(place.folder)
    if index == 0:
        return _decided(place, store, attempt, about, environ, note)
    name = decided(store, attempt, about.job)
    if isinstance(store, FolderStore):
        # Worker 0's volume is theirs, too, with what it has put there.
        return Restored(name, _address(name, store.address, place))
    return _fetched(place, store, attempt, name, about, environ)


def _decided(
    place: Checkpoints,
    store: Store,
    attempt: int,
    about: About,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Restored:
    said: list[str] = []

    def heard(sentence: str) -> None:
        said.append(sentence)
        note(sentence)

    is_anew = withdraw(store, attempt)
    if isinstance(store, FolderStore):
        store.remove_leftovers(attempt)
        if is_anew:
            _remove_unfinished(place.folder, store)
        for folder in store.attempt_folders(attempt):
            recover(folder)
    elif isinstance(store, ObjectStore):
        store.forget_parts(attempt)
    before = set(store.names(attempt))
    name, address = resume(store, place.folder, attempt, about, heard), store.address
    aside = tuple(Aside(gone, _about(gone, said)) for gone in sorted(before - set(store.names(attempt))))
    if name is None and place.first:
        name, address = _fetch_first(place, attempt, about, environ), ""
    # Whoever reads the decision starts a training at once.
    _link(place, name)
    write_decision(store, attempt, name, about.job)
    return Restored(name, _address(name, address, place), aside)


def _remove_unfinished(folder: Path, store: FolderStore) -> None:
    """Shards of a save that nobody ends any more: those of the next save under that name must not join them."""
    with disk.explained(f"tidy {folder}"):
        disk.discard(folder / JOINING)
        for name in checkpoints_in(folder):
            declared = declared_in(folder / name.leaf)
            if declared is not None and not declared.whole:
                store.delete(name)


def _fetched(
    place: Checkpoints, store: Store, attempt: int, name: Name | None, about: About, environ: Mapping[str, str]
) -> Restored:
    """The other workers have folders of their own, and need what worker 0 has."""
    address = store.address
    if name is not None and place.first and store.manifest(name) is None:
        name, address = _fetch_first(place, attempt, about, environ), ""
    elif name is not None:
        store.get(name, place.folder / name.leaf)
    _link(place, name)
    return Restored(name, _address(name, address, place))


def _fetch_first(place: Checkpoints, attempt: int, about: About, environ: Mapping[str, str]) -> Name:
    source = find(place.first, environ)
    name = named(source.epoch, attempt)
    fetch(source, place.folder / name.leaf, name, about)
    return name


def _address(name: Name | None, store: str, place: Checkpoints) -> str:
    if name is None:
        return ""
    return f"{store}/{name.folder}" if store else place.first


def _about(name: Name, said: list[str]) -> str:
    return next((sentence for sentence in said if sentence.startswith(f"{name} ")), f"{name} is damaged")


def _link(place: Checkpoints, name: Name | None) -> None:
    link = place.resume_link
    with disk.explained(f"set RESUME_FROM {link}"):
        if name is None:
            link.unlink(missing_ok=True)
            return
        partial = link.with_name(f".{link.name}.partial")
        partial.unlink(missing_ok=True)
        partial.symlink_to(os.path.relpath(place.folder / name.leaf, link.parent))
        disk.rename(partial, link)
