"""Where a worker's checkpoints are kept, and which part of that is this worker's: three cases, one shape.

On a volume that all workers share, worker 0 keeps for all. In an object store each worker puts what it has itself.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from holdfast.checkpoints.beneath import opened
from holdfast.checkpoints.complete import QUIET_S, Looked, Watch, checkpoints_in, complete_after_all, declared_in
from holdfast.checkpoints.content import Entry, Stamp, entries
from holdfast.checkpoints.disk import explained
from holdfast.checkpoints.errors import Incomplete, Refused
from holdfast.checkpoints.folder import FolderStore
from holdfast.checkpoints.manifest import About
from holdfast.checkpoints.names import MANIFEST, OWN, Name
from holdfast.checkpoints.objects import ObjectStore
from holdfast.checkpoints.retention import Kept, Metric, best, doomed, kept
from holdfast.reports.wire import Outcome

# In a local folder: what is in it now is in the object store, too.
UPLOADED = f"{OWN}uploaded"
# What is quiet and closed when the training has ended.
DOUBTFUL = "it may be half a checkpoint"


class Remaining(NamedTuple):
    """The checkpoints that are left: of how many epochs there is a valid one, and which is the best."""

    epochs: int
    best: Kept | None


class Place(Protocol):
    """`outcome` is what to call a checkpoint that was kept."""

    outcome: Outcome

    def address(self, name: Name) -> str: ...

    def look(self, now: float) -> list[Looked]:
        """The attempt's checkpoints, newest first; `now` is a clock that only goes forward."""
        ...

    def last_look(self) -> list[Looked]:
        """The same once the training has ended: what is only quiet may be half a checkpoint."""
        ...

    def is_kept(self, looked: Looked) -> bool:
        """Whether what was looked at is what was kept, perhaps by a sidecar before this one."""
        ...

    def keep(self, looked: Looked, about: About, metrics: Mapping[str, float]) -> None:
        """metrics: those of its epoch, if they were reported."""
        ...

    def tidy(self, looks: list[Looked], keep: int, needed: set[Name], by: Metric) -> Remaining | None:
        """Delete what is too old and not the best; what is left, if this worker can tell."""
        ...

    def elsewhere(self) -> list[Looked] | None:
        """The newest that worker 0 has kept of this attempt; None where its own folder shows this worker as much."""
        ...


class Volume:
    """pvc and nfs, for worker 0: a checkpoint stays where it is, and gets a manifest."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path, attempt: int, *, quiet_s: float = QUIET_S) -> None:
        self._folder = folder
        self._attempt = attempt
        self._store = FolderStore(folder.parent, quiet_s=quiet_s)
        self._watch = Watch(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s

    def address(self, name: Name) -> str:
        return f"{self._store.address}/{name.folder}"

    def look(self, now: float) -> list[Looked]:
        return self._watch.look(now)

    def last_look(self) -> list[Looked]:
        return [_looked_last(self._folder / name.leaf, name, self._quiet_s) for name in checkpoints_in(self._folder)]

    def is_kept(self, looked: Looked) -> bool:
        return is_newer(self._folder / looked.name.leaf / MANIFEST, looked.content)

    def keep(self, looked: Looked, about: About, metrics: Mapping[str, float]) -> None:
        self._store.put(looked.name, self._folder / looked.name.leaf, about, looked.content, metrics=metrics)

    def tidy(self, looks: list[Looked], keep: int, needed: set[Name], by: Metric) -> Remaining:
        there = kept(self._store, self._attempt)
        top = best(there, by)
        stays = needed if top is None else {*needed, top.name}
        gone = set(doomed(there, keep, self._attempt, stays, by)) | {
            name for name in superseded(looks, keep, {one.name for one in there if one.counts}) if name not in stays
        }
        for name in sorted(gone):
            self._store.delete(name)
        return _remaining(there, gone, top)

    def elsewhere(self) -> None:
        return None


class SharedVolume:
    """pvc and nfs, for the other workers: worker 0's manifests tell them what is complete."""

    outcome: Outcome = "completed"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def address(self, name: Name) -> str:
        return str(self._folder.parent / name.folder)

    def look(self, now: float) -> list[Looked]:
        return self.last_look()

    def last_look(self) -> list[Looked]:
        """It leaves no sign of life, as a `Watch` does: a survivor must not vouch for what a dead worker was saving."""
        found = []
        for name in checkpoints_in(self._folder):
            with contextlib.suppress(OSError):
                stat = (self._folder / name.leaf / MANIFEST).lstat()
                stamp = Stamp(stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
                found.append(Looked(name, True, "it has a manifest", (Entry(MANIFEST, stamp),)))
        return found

    def is_kept(self, looked: Looked) -> bool:
        return True

    def keep(self, looked: Looked, about: About, metrics: Mapping[str, float]) -> None:
        raise AssertionError("everything here is kept by worker 0")

    def tidy(self, looks: list[Looked], keep: int, needed: set[Name], by: Metric) -> None:
        return None

    def elsewhere(self) -> None:
        return None


class Mirror:
    """s3, gcs and azure: the folder is the pod's own, and what is complete in it is uploaded."""

    outcome: Outcome = "uploaded"

    def __init__(
        self, folder: Path, store: ObjectStore, attempt: int, *, index: int, workers: int, quiet_s: float = QUIET_S
    ) -> None:
        self._folder = folder
        self._store = store
        self._attempt = attempt
        self._index = index
        self._workers = workers
        self._watch = Watch(folder, quiet_s=quiet_s)
        self._quiet_s = quiet_s
        self._local = FolderStore(folder.parent)

    def address(self, name: Name) -> str:
        return f"{self._store.address}/{name.folder}"

    def look(self, now: float) -> list[Looked]:
        return [self._own_share(looked) for looked in self._watch.look(now)]

    def last_look(self) -> list[Looked]:
        names = checkpoints_in(self._folder)
        return [self._own_share(_looked_last(self._folder / name.leaf, name, self._quiet_s)) for name in names]

    def is_kept(self, looked: Looked) -> bool:
        # A manifest here is that of a restored copy, which was in the store before.
        return any(is_newer(self._folder / looked.name.leaf / sign, looked.content) for sign in (UPLOADED, MANIFEST))

    def keep(self, looked: Looked, about: About, metrics: Mapping[str, float]) -> None:
        name, folder, content = looked.name, self._folder / looked.name.leaf, looked.content
        # A training may save anew under that name at any moment: the sign goes into the folder that was uploaded.
        with explained(f"note in {folder} that it was uploaded"), _replaceable(folder), opened(folder) as descriptor:
            if self._index:
                self._store.put_part(name, folder, self._index, about, content)
            else:
                self._store.put(name, folder, about, content, ranks=self._others(folder), metrics=metrics)
            sign = os.open(UPLOADED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=descriptor)
            os.utime(sign)
            os.close(sign)

    def tidy(self, looks: list[Looked], keep: int, needed: set[Name], by: Metric) -> Remaining | None:
        uploaded = {looked.name for looked in looks if looked.complete and self.is_kept(looked)}
        for name in superseded(looks, keep, uploaded):
            if name.leaf not in {one.leaf for one in needed}:
                self._local.delete(name)
        if self._index:
            return None
        there = kept(self._store, self._attempt)
        gone = doomed(there, keep, self._attempt, needed, by)
        for name in gone:
            self._store.delete(name)
        return _remaining(there, set(gone), best(there, by))

    def elsewhere(self) -> list[Looked] | None:
        if not self._index:
            return None
        newest = next((name for name in self._store.names(self._attempt) if name.attempt == self._attempt), None)
        manifest = self._store.manifest(newest) if newest is not None else None
        if newest is None or manifest is None:
            return []
        # What is saved anew under its name has another time or step.
        saved = Entry(f"{manifest.about.saved_at} {manifest.step}", Stamp(0, 0, 0, 0))
        return [Looked(newest, True, "it has a manifest", (saved,))]

    def _own_share(self, looked: Looked) -> Looked:
        """With the SDK each worker declares shards: here are those of its own processes alone."""
        if looked.complete or not looked.content:
            return looked
        declared = declared_in(self._folder / looked.name.leaf)
        if declared is None or len(declared.ranks) < max(1, declared.shards // self._workers):
            return looked
        return looked._replace(complete=True, why="all shards of this worker are declared")

    def _others(self, folder: Path) -> range | None:
        """The workers whose parts are waited for; None: what is there is taken, since they may have none."""
        declared = declared_in(folder)
        if declared is None or declared.whole:
            return None
        return range(1, self._workers)


@contextlib.contextmanager
def _replaceable(folder: Path) -> Iterator[None]:
    """A training that saves anew removes the folder that is being read."""
    try:
        yield
    except FileNotFoundError:
        raise Incomplete(f"{folder} was replaced while it was read: it is taken again") from None


def is_newer(sign: Path, content: tuple[Entry, ...]) -> bool:
    """Whether a sign was set after the last change."""
    try:
        set_ns = sign.lstat().st_ctime_ns
    except OSError:
        return False
    return bool(content) and set_ns >= max(entry.stamp.changed_ns for entry in content)


def superseded(looks: list[Looked], keep: int, valid: set[Name]) -> list[Name]:
    """Complete ones for which there are `keep` newer ones that are valid, so that nobody will ask for them."""
    newest = sorted({name.epoch for name in valid}, reverse=True)[:keep]
    if len(newest) < keep:
        return []
    return [looked.name for looked in looks if looked.complete and looked.name.epoch < newest[-1]]


def _remaining(there: list[Kept], gone: set[Name], top: Kept | None) -> Remaining:
    return Remaining(len({one.name.epoch for one in there if one.counts and one.name not in gone}), top)


def _looked_last(folder: Path, name: Name, quiet_s: float) -> Looked:
    try:
        content, declared = entries(folder), declared_in(folder)
        if declared is None and is_newer(folder / MANIFEST, content):
            return Looked(name, True, "it has a manifest", content)
        why = complete_after_all(folder, quiet_s)
        doubt = DOUBTFUL if declared is None else "shards of it are missing"
        return Looked(name, why is not None, why or doubt, content, declared)
    except (Incomplete, Refused, OSError) as error:
        return Looked(name, False, str(error), ())
