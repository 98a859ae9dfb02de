"""The later steps of a run: the archive is checked, becomes an image, and goes to the registry."""

import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import structlog
from msgspec import structs

from holdfast.api.credentials import CredentialRefused, CredentialRequest, RegistryCredential
from holdfast.api.spotinstancejob import is_spot_job
from holdfast.checkpoints.errors import CheckpointError, StorageFull
from holdfast.checkpoints.images.image import LAYER_TYPE, ZSTD_LAYER_TYPE, file_blob
from holdfast.checkpoints.images.reference import parse_reference, registry_address
from holdfast.checkpoints.images.registry import RegistryClient, push_image
from holdfast.node.credentials import CredentialUnavailable
from holdfast.node.facts import with_archive
from holdfast.node.faults import RunFailed, RunFailure, checkpoint_failure
from holdfast.node.journal import ContainerRecord
from holdfast.node.parts import in_thread
from holdfast.node.progress import FIRST_PAUSE_S, ContainerFailed, RunProgress, full_disk

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


async def build(progress: RunProgress, container: ContainerRecord) -> None:
    """Refuse an archive that is not whole or not safe; compress it if that is wanted and worth the time."""
    progress.doing = f"building the image of container {container.name}"
    archives, path = progress.parts.archives, Path(container.archive)
    try:
        checked = await in_thread(lambda: archives.check(path))
        built = structs.replace(container, is_built=True, facts=with_archive(container.facts, checked))
        if progress.backup.spec.compression == "zstd":
            built = await _compressed(progress, built)
    except CheckpointError as error:
        raise ContainerFailed(checkpoint_failure(error)) from None
    except OSError as error:
        raise ContainerFailed(_unreadable(path, error)) from None
    await progress.change(built)


async def _compressed(progress: RunProgress, container: ContainerRecord) -> ContainerRecord:
    record, archives, given_up = progress.record, progress.parts.archives, threading.Event()
    assert record is not None, "a container with an archive is in a record"
    if await in_thread(archives.work_free_bytes) < container.size:
        raise ContainerFailed(await full_disk(progress, container.size))
    name = record.compressed_name(container.name)
    try:
        found = await in_thread(lambda: archives.compress(Path(container.archive), name, given_up), given_up)
    except StorageFull:
        raise ContainerFailed(await full_disk(progress, container.size)) from None
    return container if found is None else structs.replace(container, compressed=str(found[0]), diff_id=found[1])


async def credential(progress: RunProgress) -> RegistryCredential:
    """Ask the operator until it answers or refuses. Without a Secret the registry is asked anonymously.

    For a SpotInstanceJob the operator makes a token of an hour, if the registry takes such tokens.
    """
    progress.doing = "waiting for the registry's credential"
    if progress.backup.spec.registry.secret_ref is None and not is_spot_job(progress.backup.metadata.controller):
        return RegistryCredential()
    metadata = progress.backup.metadata
    request = CredentialRequest(namespace=metadata.namespace, backup=metadata.name, uid=metadata.uid, run=progress.run)
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            return await progress.parts.credentials.credential(request)
        except CredentialRefused as error:
            raise RunFailed(RunFailure("CredentialRefused", str(error))) from None
        except CredentialUnavailable as error:
            log.warning("no credential yet", key=str(metadata.key), run=progress.run, error=str(error))
            try:
                pause_s = await progress.pause(pause_s, str(error))
            except ContainerFailed as late:
                raise RunFailed(late.failure._replace(reason="CredentialUnavailable")) from None


async def push(progress: RunProgress, registry: RegistryClient, container: ContainerRecord) -> None:
    """Push the image, and remove the archive as soon as the registry has it."""
    progress.doing = f"pushing the image of container {container.name}"
    parts, began_s = progress.parts, progress.parts.clocks.clock()
    reference = parse_reference(container.image)
    path = Path(container.compressed or container.archive)
    try:
        pushed = await push_image(
            registry,
            reference.repository,
            reference.tag,
            container.facts,
            await in_thread(lambda: file_blob(path)),
            media_type=ZSTD_LAYER_TYPE if container.compressed else LAYER_TYPE,
            diff_id=container.diff_id,
        )
    except CheckpointError as error:
        raise ContainerFailed(checkpoint_failure(error)) from None
    except OSError as error:
        raise ContainerFailed(_unreadable(path, error)) from None
    parts.metrics.pushed(pushed.layer.size, parts.clocks.clock() - began_s)
    await progress.change(structs.replace(container, digest=pushed.digest, bytes=pushed.layer.size))
    await progress.remove_files(container)


def open_target(progress: RunProgress, found: RegistryCredential) -> AbstractAsyncContextManager[RegistryClient]:
    parts = progress.parts
    try:
        address = registry_address(progress.backup.spec.registry.url, parts.plain_http)
        return parts.open_registry(address, found, deadline_s=progress.deadline_s)
    except CheckpointError as error:
        raise RunFailed(checkpoint_failure(error)) from None


def _unreadable(path: Path, error: OSError) -> RunFailure:
    return RunFailure("ArchiveUnreadable", f"can't read {path}: {error.strerror or type(error).__name__}")
