"""When a checkpoint is complete: by its marker, by a rename, or because nothing in it has changed for a while.

A script that was killed in the middle of a plain save leaves a folder that is quiet, too. So quietness counts only
while the training goes on: what changed last just before its last sign of life may be half a checkpoint.
"""

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from holdfast.checkpoints import files as disk
from holdfast.checkpoints.confined_files import opened
from holdfast.checkpoints.errors import Incomplete, UnsafeContent
from holdfast.checkpoints.files import FileEntry, list_files, read_small_file
from holdfast.checkpoints.manifest import (
    HOLDFAST_PREFIX,
    MAX_FILES,
    MAX_SIZE,
    CheckpointName,
    File,
    Manifest,
    SaveInfo,
    parse,
)

MARKER = f"{HOLDFAST_PREFIX}complete"
MARKER_OF_RANK = re.compile(rf"{re.escape(MARKER)}-(0|[1-9][0-9]{{0,5}})")
MARKER_BYTES = 64 << 10
MOST_METRICS, MOST_SAVE = 64, 100
# No number of a training is larger: what 32-bit floating point can't hold is an overflow.
HUGE = 3.5e38
# Touched at every look of the sidecar, by the clock of the volume: the training was alive then.
HEARTBEAT_FILE = f"{HOLDFAST_PREFIX}alive"
SETTLE_S = 5.0
TICK_S = 0.01
# A look costs about ten microseconds a file: one of many files is looked at less often, for a hundredth of a core.
FILES_PER_S = 1000


class ShardMarkers(NamedTuple):
    """What the SDK says of a checkpoint: of how many shards it is, and which are there.

    step: of the epoch, the batches that are done; None: all. save: which save it is; "" where the marker does not say.
    """

    shards: int
    ranks: frozenset[int]
    step: int | None = None
    metrics: Mapping[str, float] = {}
    save: str = ""

    @property
    def all_shards_present(self) -> bool:
        return len(self.ranks) >= self.shards


class FolderScan(NamedTuple):
    """A checkpoint's folder at one look. `content` differs as soon as a file does.

    Where every worker has a volume of its own, a worker's part is complete once `declared` holds its rank.
    refused: it holds what can't be kept, and has for a while; `why` says what to do about it.
    """

    name: CheckpointName
    complete: bool
    why: str
    content: tuple[FileEntry, ...]
    declared: ShardMarkers | None = None
    refused: bool = False

    @property
    def step(self) -> int | None:
        """Of the epoch that it is named after, the batches that are done; None: all, or nobody says."""
        return self.declared.step if self.declared is not None else None

    @property
    def epochs_done(self) -> int:
        return self.name.epoch if self.step is None else max(0, self.name.epoch - 1)


class CheckpointWatcher:
    """The checkpoints that an attempt writes, looked at again and again while its training runs."""

    def __init__(
        self,
        attempt_folder: Path,
        *,
        quiet_s: float = SETTLE_S,
        is_open: Callable[[Path], bool] | None = None,
    ) -> None:
        self._folder = attempt_folder
        self._quiet_s = quiet_s
        self._is_open = is_open or open_for_writing
        self._since: dict[CheckpointName, tuple[tuple[FileEntry, ...], float]] = {}
        self._last: dict[CheckpointName, tuple[FolderScan, float]] = {}
        self._refused: dict[CheckpointName, float] = {}
        self._opened: set[CheckpointName] = set()

    def scan(self, now: float) -> list[FolderScan]:
        """Every checkpoint of the attempt, newest first; `now` is a clock that only goes forward."""
        with contextlib.suppress(OSError):  # without that sign a checkpoint may count for less, and the look goes on
            disk.touch(self._folder / HEARTBEAT_FILE)
        names = list_checkpoints(self._folder)
        self._since = {name: seen for name, seen in self._since.items() if name in names}
        self._refused = {name: since for name, since in self._refused.items() if name in names}
        self._opened &= set(names)
        self._last = {
            name: (self._look(name, now), now) if self._is_due(name, now) else self._last[name] for name in names
        }
        return [looked for looked, _ in self._last.values()]

    def _is_due(self, name: CheckpointName, now: float) -> bool:
        if name not in self._last:
            return True
        looked, then = self._last[name]
        # Of one that is refused nobody knows how many files it has.
        files = MAX_FILES if name in self._refused else len(looked.content)
        return files <= FILES_PER_S or now - then >= files / FILES_PER_S

    def _look(self, name: CheckpointName, now: float) -> FolderScan:
        try:
            looked = self._assess(name, self._folder / name.folder_name, now)
        except (Incomplete, FileNotFoundError) as error:
            self._since.pop(name, None)
            return FolderScan(name, False, str(error), ())
        except UnsafeContent as error:
            self._since.pop(name, None)
            # What is being written may be odd for a moment, such as a link whose file is still to come.
            since = self._refused.setdefault(name, now)
            return FolderScan(name, False, str(error), (), refused=now - since >= self._quiet_s)
        self._refused.pop(name, None)
        return looked

    def _assess(self, name: CheckpointName, folder: Path, now: float) -> FolderScan:
        content = list_files(folder)
        before, since = self._since.get(name, (None, now))
        if before is None or before != content:
            self._since[name] = content, now
            since = now
        else:
            content = before  # which others hold on to: it is there once
        declared = read_markers(folder)
        if declared is not None:
            return FolderScan(name, declared.all_shards_present and bool(content), _shards(declared), content, declared)
        if was_renamed(folder, content):
            return FolderScan(name, True, "renamed when it was whole", content)
        is_quiet = bool(content) and now - since >= self._quiet_s
        if (is_quiet or name in self._opened) and self._is_open(folder):
            self._restart_quiet_period(name, folder, content, now)
            return FolderScan(name, False, "a file in it is open for writing", content)
        if not is_quiet:
            return FolderScan(name, False, f"no marker, and not unchanged for {self._quiet_s:g} s yet", content)
        return FolderScan(name, True, f"unchanged for {self._quiet_s:g} s", content)

    def _restart_quiet_period(
        self, name: CheckpointName, folder: Path, content: tuple[FileEntry, ...], now: float
    ) -> None:
        """It has to be quiet from when it is closed on: a training that dies closes its files, too."""
        self._opened.add(name)
        self._since[name] = content, now
        with contextlib.suppress(OSError), opened(folder) as descriptor:
            os.utime(descriptor)  # so that it has changed just now for who looks when the training has ended


def list_checkpoints(attempt_folder: Path) -> list[CheckpointName]:
    """The folders that have a checkpoint's name, newest first."""
    try:
        with opened(attempt_folder) as descriptor, os.scandir(descriptor) as listing:
            folders = [found.name for found in listing if found.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    named = (parse(attempt_folder.name, leaf) for leaf in folders)
    return sorted((name for name in named if name is not None), reverse=True)


def completed_before_exit(folder: Path, quiet_s: float = SETTLE_S) -> str | None:
    """Why a checkpoint of an attempt that is over counts as complete, though nobody has digested it.

    Not because it is quiet and closed: no writer is left, so that what was cut off is that, too, and how the program
    ended is not known here.
    """
    content = list_files(folder)
    if not content:
        return None
    declared = read_markers(folder)
    if declared is not None:
        return _shards(declared) if declared.all_shards_present else None
    if was_renamed(folder, content):
        return "renamed when it was whole"
    if _last_heartbeat_ns(folder) - _changed_ns(folder, content) > quiet_s * 1e9:
        return "the training went on after it"
    return None


def read_markers(folder: Path) -> ShardMarkers | None:
    """What the markers say; None without any that can be read."""
    try:
        names = sorted(name for name in disk.names_in(folder) if name.startswith(MARKER))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return declared_by((name, _own(folder / name)) for name in names)


def declared_by(files: Iterable[tuple[str, bytes | None]]) -> ShardMarkers | None:
    """What markers of these names and contents say together. Where they are of several saves, no shard counts."""
    found = []
    for name, content in files:
        of_rank = MARKER_OF_RANK.fullmatch(name)
        said = _marker(content) if of_rank or name == MARKER else None
        if said is not None:
            found.append(said._replace(ranks=frozenset({int(of_rank[1])})) if of_rank else said)
    if not found:
        return None
    is_one_save = len({said.save for said in found}) == 1
    ranks = frozenset[int]().union(*(said.ranks for said in found)) if is_one_save else frozenset[int]()
    metrics = next((said.metrics for said in found if said.metrics), {})
    return ShardMarkers(max(said.shards for said in found), ranks, found[0].step, metrics, found[0].save)


def described(
    name: CheckpointName,
    about: SaveInfo,
    files: Iterable[File],
    declared: ShardMarkers | None,
    reported: Mapping[str, float],
) -> Manifest:
    """The manifest of a checkpoint with such markers; `reported` are the metrics at the end of its epoch."""
    step, metrics = declared.step if declared else None, measured(declared, reported)
    save = declared.save if declared is not None and declared.shards > 1 else ""
    return Manifest(name.epoch, name.attempt, about, tuple(files), step, metrics, save)


def measured(declared: ShardMarkers | None, reported: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics of a checkpoint: those of its markers, or else of its epoch, if it was saved at the end of it."""
    if declared is not None and (declared.metrics or declared.step is not None):
        return declared.metrics
    return reported


def was_renamed(folder: Path, content: tuple[FileEntry, ...]) -> bool:
    """Whether the folder got its name after all its files were there.

    A rename changes when a folder was changed, and not when it was modified; making or removing a file in it does both.
    """
    found = folder.stat()
    newest = max((entry.stamp.changed_ns for entry in content), default=found.st_ctime_ns)
    if found.st_ctime_ns > max(newest, found.st_mtime_ns):
        return bool(content)
    # The clock of a file system ticks every few milliseconds: the last write and the rename often fall into one tick. A
    # rename changes the folder above at the same time, which tells it from a change of owner or mode.
    beside_s = (folder.parent.stat().st_mtime_ns - found.st_ctime_ns) / 1e9
    return found.st_ctime_ns == newest > found.st_mtime_ns and 0 <= beside_s < TICK_S


def open_for_writing(folder: Path) -> bool:
    """Whether some process that can be seen from here has a file of the folder open for writing."""
    root = f"{os.path.realpath(folder)}/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()).startswith(root) and _writes(process / "fdinfo" / descriptor.name):
                    return True
        except OSError:
            continue  # it has ended, or belongs to somebody else
    return False


def _writes(info: Path) -> bool:
    for line in info.read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _own(path: Path) -> bytes | None:
    try:
        return read_small_file(path, MARKER_BYTES)
    except OSError:
        return None


def _marker(content: bytes | None) -> ShardMarkers | None:
    """None for one that is empty or half written: whoever wrote it has died, or is at it."""
    try:
        facts = json.loads(content or b"")
        shards, ranks = facts.get("shards", 1), facts.get("ranks", [0])
        if not isinstance(shards, int) or shards < 1 or not all(isinstance(rank, int) for rank in ranks):
            return None
        step, metrics = facts.get("step"), _metrics(facts.get("metrics"))
        save = [facts.get(name) for name in ("attempt", "restart", "epoch", "step")]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    is_step = type(step) is int and 0 <= step <= MAX_SIZE
    said = "" if None in save[:3] else ".".join(map(str, save))[:MOST_SAVE]
    return ShardMarkers(shards, frozenset(ranks), step if is_step else None, metrics, said)


def _metrics(said: object) -> dict[str, float]:
    """Those that a manifest can tell; NaN is none."""
    numbers = list(said.items())[:MOST_METRICS] if isinstance(said, dict) else []
    return {name: float(value) for name, value in numbers if type(value) in (int, float) and -HUGE <= value <= HUGE}


def _shards(declared: ShardMarkers) -> str:
    return f"{len(declared.ranks)} of {declared.shards} shards declared"


def _changed_ns(folder: Path, content: tuple[FileEntry, ...]) -> int:
    return max(folder.stat().st_ctime_ns, *(entry.stamp.changed_ns for entry in content))


def _last_heartbeat_ns(folder: Path) -> int:
    """The last sign of life of the attempt that wrote it: the sidecar's, or a file beside it that was written later.

    Folders and this package's own files tell nothing: a later attempt may have changed them.
    """
    latest = 0
    for parent, _, files in os.walk(folder.parent):
        if Path(parent).is_relative_to(folder):
            continue
        for file in files:
            if file == HEARTBEAT_FILE or not file.startswith(HOLDFAST_PREFIX):
                with contextlib.suppress(FileNotFoundError):
                    latest = max(latest, Path(parent, file).lstat().st_ctime_ns)
    return latest
