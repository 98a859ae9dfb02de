"""The folders behind a pod's volumes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from holdfast.api.meta import Key
from holdfast.machine.downward import PodContext
from holdfast.machine.mounts import within
from holdfast.machine.objects import ConfigMap, DownwardVolume, HostPath, Named, ObjectVolume, Secret, Volume
from holdfast.machine.sources import Sources
from holdfast.machine.trouble import PodRejected, RetryLater

READABLE = (0o755, 0o644)
PRIVATE = (0o700, 0o400)


def prepare(place: PodContext, sources: Sources, *, folder: Path, claim: Callable[[Key], Path]) -> dict[str, Path]:
    """Make all volumes of a pod, `claim` being where one is kept.

    Raises `NotYet` while something is missing, `Refused` for what can't be had here.
    """
    return {volume.name: _prepare(volume, place, sources, folder, claim) for volume in place.pod.spec.volumes}


def _prepare(volume: Volume, place: PodContext, sources: Sources, folder: Path, claim: Callable[[Key], Path]) -> Path:
    if volume.host_path:
        return _host_path(volume.name, volume.host_path)
    if volume.persistent_volume_claim:
        name = volume.persistent_volume_claim.claim_name
        return _claim(sources.claims.get(name), claim(Key(place.pod.metadata.namespace, name)))
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
    is_private, files = _files(volume, place, sources)
    _write(own, files, *(PRIVATE if is_private else READABLE))
    return own


def _host_path(name: str, source: HostPath) -> Path:
    path = Path(source.path)
    if source.type == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    if source.type and not path.exists():
        raise RetryLater(f"volume {name}: there is no {path} on this machine")
    return path


def _claim(found: Named | None, folder: Path) -> Path:
    if found is None:
        raise RetryLater(f'PersistentVolumeClaim "{folder.name}" is not there; create it')
    if found.metadata.deletion_timestamp:
        # Only a claim that is to stay may be used anew: the others' folders may go at any moment.
        raise RetryLater(
            f'PersistentVolumeClaim "{folder.name}" is being deleted; delete the pod, or use another claim'
        )
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _files(volume: Volume, place: PodContext, sources: Sources) -> tuple[bool, dict[str, bytes]]:
    """Whether they are secret, and what they hold."""
    if volume.projected:
        files: dict[str, bytes] = {}
        for source in volume.projected.sources:
            files |= dict(_source_files(source.config_map, source.secret, source.downward_api, place, sources))
            token = source.service_account_token
            if token and token.audience in sources.tokens:
                files[token.path] = sources.tokens[token.audience].encode()
        return any(source.secret or source.service_account_token for source in volume.projected.sources), files
    if volume.config_map or volume.secret or volume.downward_api:
        entries = _source_files(volume.config_map, volume.secret, volume.downward_api, place, sources)
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
    place: PodContext,
    sources: Sources,
) -> Iterator[tuple[str, bytes]]:
    if config_map:
        yield from _object_files("ConfigMap", config_map, config_map.name, sources.config_maps)
    if secret:
        yield from _object_files("Secret", secret, secret.secret_name or secret.name, sources.secrets)
    for item in downward.items if downward else ():
        if item.field_ref:
            yield item.path, place.field(item.field_ref).encode()
        elif item.resource_field_ref:
            yield item.path, place.resource(item.resource_field_ref, "").encode()


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
