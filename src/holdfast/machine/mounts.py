"""Volumes without mounts: paths are translated instead.

A container's paths are the machine's own, so a volume can't appear at its mountPath. It lies in the pod's folder;
every path below a mountPath that the pod writes in a command, an argument or a variable is replaced by the real one,
and the folder $HOLDFAST_ROOT holds a link to each volume at its mountPath.
"""

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.machine.expansion import expand
from holdfast.machine.objects import Container
from holdfast.machine.trouble import ConfigError

# Where a path may begin and end inside a longer text: a word of a shell command, a list, an option with =.
_BEFORE = r"(?<![^\s=:,;\"'`(\[{<>|&@])"
_AFTER = r"(?=$|[/\s:,;\"'`)\]}<>|&])"


class Mount(Struct, frozen=True):
    path: str
    target: Path


def mounts(container: Container, volumes: Mapping[str, Path], variables: Mapping[str, str]) -> list[Mount]:
    """The longest path first: a mount within a mount hides what the outer one has there."""
    found = []
    for mount in container.volume_mounts:
        if mount.name not in volumes:
            raise ConfigError(f"container {container.name} mounts the volume {mount.name}, which the pod does not have")
        sub_path = expand(mount.sub_path_expr, variables) or mount.sub_path
        target = within(volumes[mount.name], sub_path) if sub_path else volumes[mount.name]
        if sub_path and not target.exists():
            target.mkdir(parents=True, exist_ok=True)
        found.append(Mount(posixpath.normpath(mount.mount_path), target))
    return sorted(found, key=lambda mount: len(mount.path), reverse=True)


def within(folder: Path, relative: str) -> Path:
    """The path below `folder`, which it must not leave."""
    if posixpath.isabs(relative) or ".." in relative.split("/"):
        raise ConfigError(f"{relative!r} leaves its volume: write a path below it, without ..")
    target = folder / relative
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{relative!r} leaves its volume through a link")
    return target


def rewrite(text: str, mounts: Iterable[Mount]) -> str:
    """`text` with every path below a mount replaced by the real one, in one pass: what is put in is left alone."""
    targets = {mount.path: str(mount.target) for mount in mounts if mount.path != "/"}
    if not targets:
        return text
    paths = "|".join(map(re.escape, targets))
    return re.sub(f"{_BEFORE}({paths}){_AFTER}", lambda match: targets[match[1]], text)


def link(root: Path, mounts: Iterable[Mount]) -> None:
    """A link for each mount below `root`. One within another is left out: it would be written into that volume."""
    outer: list[str] = []
    for mount in sorted(mounts, key=lambda mount: len(mount.path)):
        if mount.path != "/" and not any(mount.path.startswith(f"{path}/") for path in outer):
            outer.append(mount.path)
            place = root / mount.path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(mount.target)
