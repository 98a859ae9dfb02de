"""The folders behind a pod's volumes."""

import asyncio
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.api.core.objects import ConfigMap, PersistentVolumeClaim, Secret
from holdfast.api.meta import Key
from holdfast.local.kubelet.environment import PodContext, Sources, expand
from holdfast.local.kubelet.objects import (
    ConfigError,
    DownwardVolume,
    HostPath,
    MountableVolume,
    ObjectVolume,
    PodRejected,
    RetryLater,
    RunnableContainer,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


# Volumes without mounts: paths are translated instead.
#
# A container sees the file system of the host, so a volume can't appear at its mountPath. The volume is a folder of
# the pod; every path below a mountPath in a command, an argument or a variable is replaced by the real path, and the
# folder $HOLDFAST_ROOT contains a link to each volume at its mountPath.

# Delimiters of a path inside a longer text: a word of a shell command, a list, an option with =.
_BEFORE = r"(?<![^\s=:,;\"'`(\[{<>|&@])"
_AFTER = r"(?=$|[/\s:,;\"'`)\]}<>|&])"


class Mount(Struct, frozen=True):
    path: str
    target: Path


def mounts(container: RunnableContainer, volumes: Mapping[str, Path], variables: Mapping[str, str]) -> list[Mount]:
    """The mounts of a container, longest path first: a nested mount hides that path of the outer mount."""
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
    """The path below `folder`; raises `ConfigError` for a path outside of `folder`."""
    if posixpath.isabs(relative) or ".." in relative.split("/"):
        raise ConfigError(f"{relative!r} leaves its volume: write a path below it, without ..")
    target = folder / relative
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{relative!r} leaves its volume through a link")
    return target


def rewrite(text: str, mounts: Iterable[Mount]) -> str:
    """Replace every path below a mount by the real path, in one pass: inserted paths are not replaced again."""
    targets = {mount.path: str(mount.target) for mount in mounts if mount.path != "/"}
    if not targets:
        return text
    paths = "|".join(map(re.escape, targets))
    return re.sub(f"{_BEFORE}({paths}){_AFTER}", lambda match: targets[match[1]], text)


def link(root: Path, mounts: Iterable[Mount]) -> None:
    """Create a link per mount below `root`. Nested mounts get none: the link would be written into the outer volume."""
    outer: list[str] = []
    for mount in sorted(mounts, key=lambda mount: len(mount.path)):
        if mount.path != "/" and not any(mount.path.startswith(f"{prefix}/") for prefix in outer):
            outer.append(mount.path)
            path = root / mount.path.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(mount.target)


READABLE = (0o755, 0o644)
PRIVATE = (0o700, 0o400)


def prepare(context: PodContext, sources: Sources, *, folder: Path, claim: Callable[[Key], Path]) -> dict[str, Path]:
    """Prepare all volumes of a pod; `claim` returns the folder of a claim.

    Raises `RetryLater` while a source is missing, `PodRejected` for a volume that this node does not support.
    """
    return {volume.name: _prepare(volume, context, sources, folder, claim) for volume in context.pod.spec.volumes}


def _prepare(
    volume: MountableVolume, context: PodContext, sources: Sources, folder: Path, claim: Callable[[Key], Path]
) -> Path:
    if volume.host_path:
        return _host_path(volume.name, volume.host_path)
    if volume.persistent_volume_claim:
        name = volume.persistent_volume_claim.claim_name
        return _claim(sources.claims.get(name), claim(Key(context.pod.metadata.namespace, name)))
    if volume.nfs is not None:
        raise PodRejected(
            f"volume {volume.name} is on an NFS server, and this machine mounts nothing: use a persistentVolumeClaim, "
            "which is a folder here (checkpoint.storage.type pvc), or mount it yourself and use hostPath",
            reason="VolumeNotSupported",
        )
    own = folder / volume.name
    if volume.empty_dir is not None:
        own.mkdir(parents=True, exist_ok=True)
        return own
    is_private, files = _files(volume, context, sources)
    _write(own, files, *(PRIVATE if is_private else READABLE))
    return own


def _host_path(name: str, source: HostPath) -> Path:
    path = Path(source.path)
    if source.type == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if source.type and not path.exists():
        raise RetryLater(f"volume {name}: there is no {path} on this machine")
    return path


def _claim(found: PersistentVolumeClaim | None, folder: Path) -> Path:
    if found is None:
        raise RetryLater(f'PersistentVolumeClaim "{folder.name}" is not there; create it')
    if found.metadata.deletion_timestamp:
        # A claim that is being deleted gets no new users: its folder may be removed at any moment.
        raise RetryLater(
            f'PersistentVolumeClaim "{folder.name}" is being deleted; delete the pod, or use another claim'
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _files(volume: MountableVolume, context: PodContext, sources: Sources) -> tuple[bool, dict[str, bytes]]:
    """Whether the files are secret, and their contents by path."""
    if volume.projected:
        files: dict[str, bytes] = {}
        for source in volume.projected.sources:
            files |= dict(_source_files(source.config_map, source.secret, source.downward_api, context, sources))
            token = source.service_account_token
            if token and token.audience in sources.tokens:
                files[token.path] = sources.tokens[token.audience].encode()
        return any(source.secret or source.service_account_token for source in volume.projected.sources), files
    if volume.config_map or volume.secret or volume.downward_api:
        entries = _source_files(volume.config_map, volume.secret, volume.downward_api, context, sources)
        return volume.secret is not None, dict(entries)
    raise PodRejected(
        f"volume {volume.name} is of a kind that this machine does not have: use emptyDir, hostPath, "
        "persistentVolumeClaim, configMap, secret or downwardAPI",
        reason="VolumeNotSupported",
    )


def _source_files(
    config_map: ObjectVolume | None,
    secret: ObjectVolume | None,
    downward: DownwardVolume | None,
    context: PodContext,
    sources: Sources,
) -> Iterator[tuple[str, bytes]]:
    if config_map:
        yield from _object_files("ConfigMap", config_map, config_map.name, sources.config_maps)
    if secret:
        yield from _object_files("Secret", secret, secret.secret_name or secret.name, sources.secrets)
    for item in downward.items if downward else ():
        if item.field_ref:
            yield item.path, context.field(item.field_ref).encode()
        elif item.resource_field_ref:
            yield item.path, context.resource(item.resource_field_ref, "").encode()


def _object_files(
    kind: str, source: ObjectVolume, name: str, found: Mapping[str, ConfigMap] | Mapping[str, Secret]
) -> Iterator[tuple[str, bytes]]:
    holder = found.get(name)
    if holder is None:
        if not source.optional:
            raise RetryLater(f'{kind} "{name}" is not there; create it, or mark the volume optional')
        return
    if not source.items:
        yield from holder.files.items()
    for item in source.items:
        if item.key in holder.files:
            yield item.path, holder.files[item.key]
        elif not source.optional:
            raise RetryLater(f'{kind} "{name}" has no key "{item.key}"')


def _write(folder: Path, files: Mapping[str, bytes], folder_mode: int, file_mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=folder_mode)
    for name, content in files.items():
        path = within(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        path.unlink(missing_ok=True)
        path.touch(mode=file_mode if file_mode & 0o200 else 0o600)
        path.write_bytes(content)
        path.chmod(file_mode)


# Retained after a pod has ended, until its object is deleted.
RETAINED = ("logs",)


async def remove(folder: Path) -> None:
    """Remove the whole folder; files that can't be removed are logged and left."""
    await asyncio.to_thread(_remove, folder)


async def remove_all_but_logs(folder: Path) -> None:
    """Remove everything of a pod except its logs."""
    await asyncio.to_thread(_prune, folder)


def _prune(folder: Path) -> None:
    for entry in folder.iterdir() if folder.exists() else ():
        if entry.name not in RETAINED:
            _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_open_and_retry)
    else:
        path.unlink(missing_ok=True)


def _open_and_retry(action: Callable[..., object], name: str, _: object) -> None:
    """Make the folder writable and retry: a training may leave folders that even their owner can't write into."""
    path = Path(name)
    try:
        for folder in (path.parent, path):
            if folder.is_dir() and not folder.is_symlink():
                folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        if path.is_dir() and not path.is_symlink() and action is not os.unlink:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("not removed", path=name, reason=str(error))
