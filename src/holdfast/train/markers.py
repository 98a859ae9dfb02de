"""The marker that a checkpoint carries: it is written last, and says of what the checkpoint consists.

One rank saves: `.holdfast-complete`. Each rank saves its shard: `.holdfast-complete-{rank}`, and the checkpoint is
complete when there are as many of them as each declares, all of one save.

A checkpoint that was copied has no marker any more. Its manifest, which the sidecar writes, tells the position then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

WHOLE = ".holdfast-complete"
CHECKPOINT = re.compile(r"checkpoint-epoch-([0-9]{1,15})", re.ASCII)
SHARD = re.compile(re.escape(WHOLE) + r"-([0-9]{1,9})", re.ASCII)
MAX_MARKER_BYTES = 65536
MANIFEST = ".holdfast-manifest.json"
MAX_MANIFEST_BYTES = 4 << 20


class SaveId(NamedTuple):
    """One save, the same for every rank that takes part in it; of one attempt's, no two have the same."""

    attempt: int
    restart: int
    epoch: int
    step: int | None
    """The steps done of the epoch; None when the whole epoch is done."""


class Marker(NamedTuple):
    save: SaveId
    shards: int


def shard_name(rank: int) -> str:
    return f"{WHOLE}-{rank}"


def write_marker(
    file: Path, save: SaveId, *, shards: int, rank: int, metrics: Mapping[str, float] | None = None
) -> None:
    said = {"shards": shards, "ranks": [rank], **save._asdict(), "metrics": dict(metrics or {})}
    file.write_text(json.dumps(said) + "\n", encoding="utf-8")


def read_marker(folder: Path) -> Marker | None:
    """What any marker of the folder says; None where none can be read."""
    return next(_markers(folder), None)


def is_complete(folder: Path) -> bool:
    found = set(_markers(folder))
    if len(found) != 1:  # shards of two saves are no checkpoint
        return False
    ranks = [SHARD.fullmatch(file.name) for file in folder.glob(f"{WHOLE}-*")]
    present = {int(match[1]) for match in ranks if match}
    return (folder / WHOLE).is_file() or present >= set(range(found.pop().shards))


def is_whole(folder: Path) -> bool:
    """Also of a copy, which has a manifest instead of markers."""
    if read_marker(folder) is None:
        return (folder / MANIFEST).is_file()
    return is_complete(folder)


def saved_position(folder: Path) -> tuple[int, int | None]:
    """The epoch, and the steps done of it, None meaning all. Without marker and manifest the name tells the epoch."""
    marker = read_marker(folder)
    if marker is not None:
        return marker.save.epoch, marker.save.step
    match = CHECKPOINT.fullmatch(folder.name)
    return _in_manifest(folder / MANIFEST) or ((int(match[1]) if match else 0), None)


def _in_manifest(file: Path) -> tuple[int, int | None] | None:
    try:
        with file.open("rb") as stream:
            said = json.loads(stream.read(MAX_MANIFEST_BYTES + 1))
        epoch, step = said["epoch"], said.get("step")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    is_position = all(type(number) is int and number >= 0 for number in (epoch, 0 if step is None else step))
    return (epoch, step) if is_position else None


def _markers(folder: Path) -> Iterator[Marker]:
    for file in sorted(folder.glob(f"{WHOLE}*")):
        marker = _parse(file)
        if marker is not None:
            yield marker


def _parse(file: Path) -> Marker | None:
    try:
        with file.open("rb") as stream:
            said = json.loads(stream.read(MAX_MARKER_BYTES))
        save = SaveId(*(said[name] for name in SaveId._fields))
        shards = said["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = [shards, save.attempt, save.restart, save.epoch, 0 if save.step is None else save.step]
    return Marker(save, shards) if all(type(number) is int and number >= 0 for number in whole) else None
