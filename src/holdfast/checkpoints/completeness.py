"""When a checkpoint is complete: by its marker, by a rename, or because nothing in it has changed for a while.

A script that was killed in the middle of a plain save leaves a quiet folder, too. So a quiet folder counts only while
the training goes on: a folder that changed last just before the last heartbeat may hold half a checkpoint.
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
    CheckpointManifest,
    CheckpointName,
    File,
    SaveInfo,
    parse,
)

MARKER = f"{HOLDFAST_PREFIX}complete"
MARKER_OF_RANK = re.compile(rf"{re.escape(MARKER)}-(0|[1-9][0-9]{{0,5}})")
MARKER_BYTES = 64 << 10
MAX_METRICS, MAX_SAVE_ID = 64, 100
# No metric of a training is larger: what 32-bit floating point can't hold is an overflow.
HUGE = 3.5e38
# Touched at every scan of the sidecar, by the clock of the volume: the training was alive then.
HEARTBEAT_FILE = f"{HOLDFAST_PREFIX}alive"
SETTLE_S = 5.0
TICK_S = 0.01
# A scan costs about ten microseconds a file: a folder of many files is scanned less often, for a hundredth of a core.
FILES_PER_S = 1000


class ShardMarkers(NamedTuple):
    """The markers that the SDK writes into a checkpoint: the number of shards, and which shards are complete.

    step: how many batches of the epoch are done; None: all. save: the id of the save; "" if the marker has none.
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
    """The state of a checkpoint's folder at one scan. `content` differs as soon as a file does.

    Where every worker has a volume of its own, a worker's part is complete once `declared` holds its rank.
    refused: the folder has held content that can't be stored for a while; `why` tells what to do about it.
    """

    name: CheckpointName
    complete: bool
    why: str
    content: tuple[FileEntry, ...]
    declared: ShardMarkers | None = None
    refused: bool = False

    @property
    def step(self) -> int | None:
        """How many batches of the epoch in its name are done; None: all, or unknown."""
        return self.declared.step if self.declared is not None else None

    @property
    def epochs_done(self) -> int:
        return self.name.epoch if self.step is None else max(0, self.name.epoch - 1)


class CheckpointWatcher:
    """Scans the checkpoints that an attempt writes, again and again while its training runs."""

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
        self._unchanged_since: dict[CheckpointName, tuple[tuple[FileEntry, ...], float]] = {}
        self._last_scans: dict[CheckpointName, tuple[FolderScan, float]] = {}
        self._refused_since: dict[CheckpointName, float] = {}
        self._seen_open: set[CheckpointName] = set()

    def scan(self, now: float) -> list[FolderScan]:
        """Every checkpoint of the attempt, newest first; `now` is the time of a monotonic clock."""
        with contextlib.suppress(OSError):  # without a heartbeat a checkpoint may not count later, but the scan goes on
            disk.touch(self._folder / HEARTBEAT_FILE)
        names = list_checkpoints(self._folder)
        self._unchanged_since = {name: seen for name, seen in self._unchanged_since.items() if name in names}
        self._refused_since = {name: since for name, since in self._refused_since.items() if name in names}
        self._seen_open &= set(names)
        self._last_scans = {
            name: (self._scan_folder(name, now), now) if self._is_due(name, now) else self._last_scans[name]
            for name in names
        }
        return [result for result, _ in self._last_scans.values()]

    def _is_due(self, name: CheckpointName, now: float) -> bool:
        if name not in self._last_scans:
            return True
        last_scan, scanned_at = self._last_scans[name]
        # The number of files in a refused folder is not known.
        files = MAX_FILES if name in self._refused_since else len(last_scan.content)
        return files <= FILES_PER_S or now - scanned_at >= files / FILES_PER_S

    def _scan_folder(self, name: CheckpointName, now: float) -> FolderScan:
        try:
            result = self._assess(name, self._folder / name.folder_name, now)
        except (Incomplete, FileNotFoundError) as error:
            self._unchanged_since.pop(name, None)
            return FolderScan(name, False, str(error), ())
        except UnsafeContent as error:
            self._unchanged_since.pop(name, None)
            # A folder that is being written may be invalid for a moment, such as a link whose file is still to come.
            since = self._refused_since.setdefault(name, now)
            return FolderScan(name, False, str(error), (), refused=now - since >= self._quiet_s)
        self._refused_since.pop(name, None)
        return result

    def _assess(self, name: CheckpointName, folder: Path, now: float) -> FolderScan:
        content = list_files(folder)
        before, since = self._unchanged_since.get(name, (None, now))
        if before is None or before != content:
            self._unchanged_since[name] = content, now
            since = now
        else:
            content = before  # the same object, which callers hold: it takes memory once
        declared = read_markers(folder)
        if declared is not None:
            return FolderScan(
                name, declared.all_shards_present and bool(content), _shards_text(declared), content, declared
            )
        if was_renamed(folder, content):
            return FolderScan(name, True, "renamed when it was whole", content)
        is_quiet = bool(content) and now - since >= self._quiet_s
        if (is_quiet or name in self._seen_open) and self._is_open(folder):
            self._restart_quiet_period(name, folder, content, now)
            return FolderScan(name, False, "a file in it is open for writing", content)
        if not is_quiet:
            return FolderScan(name, False, f"no marker, and not unchanged for {self._quiet_s:g} s yet", content)
        return FolderScan(name, True, f"unchanged for {self._quiet_s:g} s", content)

    def _restart_quiet_period(
        self, name: CheckpointName, folder: Path, content: tuple[FileEntry, ...], now: float
    ) -> None:
        """The quiet period begins when the files are closed: a training that dies closes its files, too."""
        self._seen_open.add(name)
        self._unchanged_since[name] = content, now
        with contextlib.suppress(OSError), opened(folder) as descriptor:
            os.utime(descriptor)  # so that a scan after the end of the training sees a recent change


def list_checkpoints(attempt_folder: Path) -> list[CheckpointName]:
    """The folders with the name of a checkpoint, newest first."""
    try:
        with opened(attempt_folder) as descriptor, os.scandir(descriptor) as listing:
            folders = [found.name for found in listing if found.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    named = (parse(attempt_folder.name, leaf) for leaf in folders)
    return sorted((name for name in named if name is not None), reverse=True)


def completed_before_exit(folder: Path, quiet_s: float = SETTLE_S) -> str | None:
    """Why a checkpoint of an attempt that is over counts as complete, though it has no manifest; None if it does not.

    A quiet folder with closed files is no reason: no writer is left, so that an interrupted save is quiet and closed,
    too, and how the program ended is not known here.
    """
    content = list_files(folder)
    if not content:
        return None
    declared = read_markers(folder)
    if declared is not None:
        return _shards_text(declared) if declared.all_shards_present else None
    if was_renamed(folder, content):
        return "renamed when it was whole"
    if _last_heartbeat_ns(folder) - _changed_ns(folder, content) > quiet_s * 1e9:
        return "the training went on after it"
    return None


def read_markers(folder: Path) -> ShardMarkers | None:
    """The markers in the folder; None without a readable marker."""
    try:
        names = sorted(name for name in disk.names_in(folder) if name.startswith(MARKER))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return declared_by((name, _read_marker(folder / name)) for name in names)


def declared_by(files: Iterable[tuple[str, bytes | None]]) -> ShardMarkers | None:
    """The combined markers of these files. If the markers are of several saves, no shard counts."""
    found = []
    for name, content in files:
        of_rank = MARKER_OF_RANK.fullmatch(name)
        marker = _parse_marker(content) if of_rank or name == MARKER else None
        if marker is not None:
            found.append(marker._replace(ranks=frozenset({int(of_rank[1])})) if of_rank else marker)
    if not found:
        return None
    is_one_save = len({marker.save for marker in found}) == 1
    ranks = frozenset[int]().union(*(marker.ranks for marker in found)) if is_one_save else frozenset[int]()
    metrics = next((marker.metrics for marker in found if marker.metrics), {})
    return ShardMarkers(max(marker.shards for marker in found), ranks, found[0].step, metrics, found[0].save)


def described(
    name: CheckpointName,
    about: SaveInfo,
    files: Iterable[File],
    declared: ShardMarkers | None,
    reported: Mapping[str, float],
) -> CheckpointManifest:
    """The manifest of a checkpoint with these markers; `reported` are the metrics at the end of its epoch."""
    step, metrics = declared.step if declared else None, measured(declared, reported)
    save = declared.save if declared is not None and declared.shards > 1 else ""
    return CheckpointManifest(name.epoch, name.attempt, about, tuple(files), step, metrics, save)


def measured(declared: ShardMarkers | None, reported: Mapping[str, float]) -> Mapping[str, float]:
    """The metrics in the markers, or else the metrics of the epoch if the checkpoint was saved at the end of it."""
    if declared is not None and (declared.metrics or declared.step is not None):
        return declared.metrics
    return reported


def was_renamed(folder: Path, content: tuple[FileEntry, ...]) -> bool:
    """Whether the folder got its name after all its files were written.

    A rename updates the ctime of a folder, but not its mtime; adding or removing a file in it updates both.
    """
    status = folder.stat()
    newest = max((entry.stamp.changed_ns for entry in content), default=status.st_ctime_ns)
    if status.st_ctime_ns > max(newest, status.st_mtime_ns):
        return bool(content)
    # The clock of a file system ticks every few milliseconds: the last write and the rename often fall into one tick. A
    # rename changes the parent folder at the same time, which distinguishes it from a change of owner or mode.
    parent_lag_s = (folder.parent.stat().st_mtime_ns - status.st_ctime_ns) / 1e9
    return status.st_ctime_ns == newest > status.st_mtime_ns and 0 <= parent_lag_s < TICK_S


def open_for_writing(folder: Path) -> bool:
    """Whether a process that is visible from here has a file of the folder open for writing."""
    root = f"{os.path.realpath(folder)}/"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            for descriptor in (process / "fd").iterdir():
                if str(descriptor.readlink()).startswith(root) and _writes(process / "fdinfo" / descriptor.name):
                    return True
        except OSError:
            continue  # the process has ended, or belongs to another user
    return False


def _writes(info: Path) -> bool:
    for line in info.read_text().splitlines():
        if line.startswith("flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False


def _read_marker(path: Path) -> bytes | None:
    try:
        return read_small_file(path, MARKER_BYTES)
    except OSError:
        return None


def _parse_marker(content: bytes | None) -> ShardMarkers | None:
    """None for a marker that is empty or half written: its writer has died, or is still writing."""
    try:
        fields = json.loads(content or b"")
        shards, ranks = fields.get("shards", 1), fields.get("ranks", [0])
        if not isinstance(shards, int) or shards < 1 or not all(isinstance(rank, int) for rank in ranks):
            return None
        step, metrics = fields.get("step"), _metrics(fields.get("metrics"))
        save = [fields.get(name) for name in ("attempt", "restart", "epoch", "step")]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    is_step = type(step) is int and 0 <= step <= MAX_SIZE
    save_id = "" if None in save[:3] else ".".join(map(str, save))[:MAX_SAVE_ID]
    return ShardMarkers(shards, frozenset(ranks), step if is_step else None, metrics, save_id)


def _metrics(value: object) -> dict[str, float]:
    """The metrics that a manifest can hold; NaN is dropped."""
    items = list(value.items())[:MAX_METRICS] if isinstance(value, dict) else []
    return {name: float(number) for name, number in items if type(number) in (int, float) and -HUGE <= number <= HUGE}


def _shards_text(declared: ShardMarkers) -> str:
    return f"{len(declared.ranks)} of {declared.shards} shards declared"


def _changed_ns(folder: Path, content: tuple[FileEntry, ...]) -> int:
    return max(folder.stat().st_ctime_ns, *(entry.stamp.changed_ns for entry in content))


def _last_heartbeat_ns(folder: Path) -> int:
    """The last heartbeat of the attempt that wrote the folder: the sidecar's, or a file beside it that changed later.

    Folders and this package's own files do not count: a later attempt may have changed them.
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
