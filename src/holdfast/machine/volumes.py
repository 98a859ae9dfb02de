"""The folders behind a pod's volumes."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.machine.downward import Place
from holdfast.machine.mounts import within
from holdfast.machine.objects import ConfigMap, DownwardVolume, HostPath, ObjectVolume, Secret, Volume
from holdfast.machine.sources import Sources
from holdfast.machine.trouble import NotYet, Refused

READABLE = (0o755, 0o644)
PRIVATE = (0o700, 0o400)


def prepare(place: Place, sources: Sources, *, folder: Path, claims: Path) -> dict[str, Path]:
    """Make all volumes of a pod; raises `NotYet` while something is missing, `Refused` for what can't be had here."""
    return {volume.name: _prepare(volume, place, sources, folder, claims) for volume in place.pod.spec.volumes}


def _prepare(volume: Volume, place: Place, sources: Sources, folder: Path, claims: Path) -> Path:
    if volume.host_path:
        return _host_path(volume.name, volume.host_path)
    if volume.persistent_volume_claim:
        return _claim(volume.persistent_volume_claim.claim_name, place, sources, claims)
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
        raise NotYet(f"volume {name}: there is no {path} on this machine")
    return path


def _claim(name: str, place: Place, sources: Sources, claims: Path) -> Path:
    if name not in sources.claims:
        raise NotYet(f'PersistentVolumeClaim "{name}" is not there; create it')
    folder = claims / place.pod.metadata.namespace / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _files(volume: Volume, place: Place, sources: Sources) -> tuple[bool, dict[str, bytes]]:
    """Whether they are secret, and what they hold."""
    if volume.projected:
        files: dict[str, bytes] = {}
        for source in volume.projected.sources:  # a service account's token is left out: nobody here could check it
            files |= dict(_source_files(source.config_map, source.secret, source.downward_api, place, sources))
        return any(source.secret for source in volume.projected.sources), files
    if volume.config_map or volume.secret or volume.downward_api:
        entries = _source_files(volume.config_map, volume.secret, volume.downward_api, place, sources)
        return volume.secret is not None, dict(entries)
    raise Refused(
        f"volume {volume.name} is of a kind that this machine does not have: use emptyDir, hostPath, "
        "persistentVolumeClaim, configMap, secret or downwardAPI",
        reason="VolumeNotSupported",
    )


def _source_files(
    config_map: ObjectVolume | None,
    secret: ObjectVolume | None,
    downward: DownwardVolume | None,
    place: Place,
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
            raise NotYet(f'{kind} "{name}" is not there; create it, or mark the volume optional')
        return
    if not source.items:
        yield from holder.files.items()
    for item in source.items:
        if item.key in holder.files:
            yield item.path, holder.files[item.key]
        elif not source.optional:
            raise NotYet(f'{kind} "{name}" has no key "{item.key}"')


def _write(folder: Path, files: Mapping[str, bytes], folder_mode: int, file_mode: int) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=folder_mode)
    for name, content in files.items():
        path = within(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=folder_mode)
        path.unlink(missing_ok=True)
        path.touch(mode=file_mode if file_mode & 0o200 else 0o600)
        path.write_bytes(content)
        path.chmod(file_mode)
