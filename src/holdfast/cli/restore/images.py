"""Which images a pod is restored from: those of the newest complete run, or of the run that the user names."""

import asyncio
from collections.abc import Collection

from holdfast.api.checkpointbackup import SUCCESSFUL_PHASES, CheckpointBackup, CheckpointBackupStatus
from holdfast.api.core.objects import Secret
from holdfast.api.credentials import RegistryCredential
from holdfast.api.meta import Key
from holdfast.checkpoints.images.docker_config import DOCKER_CONFIG, credential_from_secret
from holdfast.checkpoints.images.newest import (
    OwnedImage,
    batches_from_the_newest,
    newest_run,
    owned_image,
    tagged_images,
    tags_by_run,
)
from holdfast.checkpoints.images.reference import (
    ImageReference,
    RegistryAddress,
    parse_reference,
    registry_address,
    tag_prefix,
)
from holdfast.checkpoints.images.registry import RegistryClient
from holdfast.cli.session import Session
from holdfast.cluster.errors import Forbidden, NotFound
from holdfast.cluster.resources import SECRETS
from holdfast.errors import HoldfastError
from holdfast.pods.restore.nodes import RestorableImage, restorable_image

REGISTRY_WITHIN_S = 60.0


class RestoreFailed(HoldfastError):
    """The pod can't be restored, or was not."""


class FoundRun:
    """The images of one run. `run` is its number."""

    def __init__(self, address: RegistryAddress, images: Collection[tuple[str, OwnedImage]]) -> None:
        self.run = max(image.run for _, image in images)
        self.images = tuple(_restorable(address, repository, image) for repository, image in images)


async def find_run(
    session: Session,
    backup: CheckpointBackup,
    containers: Collection[str],
    run: int | None,
    plain_http: Collection[str] = (),
) -> FoundRun:
    """containers: those of the pod, whose tags are looked for. plain_http: registries to be reached without TLS.

    Raises RestoreFailed when there is no such run.
    """
    address = registry_address(backup.spec.registry.url, plain_http)
    deadline_s = asyncio.get_running_loop().time() + REGISTRY_WITHIN_S
    credential = await registry_credential(session, backup, address.host)
    async with RegistryClient(
        address, credential, deadline_s=deadline_s, plain_http=plain_http, clock=asyncio.get_running_loop().time
    ) as registry:
        found = await _by_status(registry, backup, run)
        if not found:
            found = await _by_tags(registry, backup, containers, run)
    if not found:
        which = f"run {run}" if run is not None else "no run"
        verb = "is not there" if run is not None else "has images"
        of = ", ".join(sorted(_wanted(backup, containers))) or "its containers"
        raise RestoreFailed(
            f"CheckpointBackup {backup.metadata.key}: {which} {verb} for {of} in "
            f"{address.host}/{backup.spec.registry.repository}: {_state(backup)}"
        )
    if any(image.mode != "container" for _, image in found):
        raise RestoreFailed(
            f"CheckpointBackup {backup.metadata.key} was taken by the training itself (mode application): a pod keeps "
            "its own image, and a TrainingJob goes on from it with spec.checkpoint.resumeFrom: oci://…"
        )
    return FoundRun(address, found)


async def registry_credential(session: Session, backup: CheckpointBackup, host: str) -> RegistryCredential:
    """Read by the user's own rights: the labels of an image say where it can go on."""
    secret = await _registry_secret(session, backup)
    return (
        credential_from_secret(secret.data, host, backup.spec.registry.repository) if secret else RegistryCredential()
    )


async def pull_secret(session: Session, backup: CheckpointBackup) -> str:
    """The Secret that nodes fetch the images with, if they can: of the pod's own namespace, and a docker config."""
    secret = await _registry_secret(session, backup)
    if secret is None or secret.metadata.namespace != backup.metadata.namespace:
        return ""
    return secret.metadata.name if DOCKER_CONFIG in secret.data else ""


async def _registry_secret(session: Session, backup: CheckpointBackup) -> Secret | None:
    reference = backup.spec.registry.secret_ref
    if reference is None:
        return None
    key = Key(reference.namespace or backup.metadata.namespace, reference.name)
    try:
        return await session.cluster.get(SECRETS, key)
    except NotFound:
        raise RestoreFailed(f"Secret {key} of registry.secretRef does not exist: create it") from None
    except Forbidden as error:
        raise RestoreFailed(
            f"the images' labels say on which nodes they can go on, and you may not read Secret {key} of "
            f"registry.secretRef: {error}"
        ) from None


async def _by_status(
    registry: RegistryClient, backup: CheckpointBackup, run: int | None
) -> list[tuple[str, OwnedImage]]:
    """The run that the status names, without listing: not every registry lists tags."""
    status = backup.status or CheckpointBackupStatus()
    if status.phase not in SUCCESSFUL_PHASES or run not in (None, status.run):
        return []
    found = []
    for built in status.built_images:
        reference = parse_reference(built.image_name)
        by = built.digest or reference.digest or reference.tag
        image = owned_image(reference.tag, await registry.manifest(reference.repository, by))
        if image is not None:
            found.append((reference.repository, image))
    return found


async def _by_tags(
    registry: RegistryClient, backup: CheckpointBackup, containers: Collection[str], run: int | None
) -> list[tuple[str, OwnedImage]]:
    owner = backup.metadata.controller.uid if backup.metadata.controller else backup.metadata.uid
    wanted = _wanted(backup, containers)
    repositories = {name: _repository(backup, name) for name in wanted} or {"": backup.spec.registry.repository}
    prefixes = {tag_prefix(backup.metadata.name, name) for name in wanted}
    places: dict[int, list[tuple[str, str]]] = {}
    for repository in sorted(set(repositories.values())):
        for number, tags in (await tags_by_run(registry, repository, prefixes)).items():
            places.setdefault(number, []).extend((repository, tag) for tag in tags)
    if run is not None:
        places = {run: places.get(run, [])}
    for batch in batches_from_the_newest(places):
        where: dict[str, str] = {tag: repository for repository, tag in batch}
        images = [
            image
            for repository in sorted(set(where.values()))
            for image in await tagged_images(
                registry, repository, owner, [tag for tag, place in where.items() if place == repository]
            )
        ]
        # Whoever names a run takes it as it is: containers that it lacks begin anew.
        if complete := newest_run(images, owner, wanted if run is None else ()):
            return [(where[image.tag], image) for image in complete]
    return []


def _wanted(backup: CheckpointBackup, containers: Collection[str]) -> set[str]:
    return {each.name for each in backup.spec.containers} or set(containers)


def _repository(backup: CheckpointBackup, container: str) -> str:
    named = next((each.image for each in backup.spec.containers if each.name == container), None)
    return parse_reference(named).repository if named else backup.spec.registry.repository


def _state(backup: CheckpointBackup) -> str:
    status = backup.status or CheckpointBackupStatus()
    return f"it is {status.phase or 'not begun'}{f': {status.message}' if status.message else ''}"


def _restorable(address: RegistryAddress, repository: str, image: OwnedImage) -> RestorableImage:
    reference = ImageReference(host=address.host, repository=repository, digest=image.digest)
    return restorable_image(image.container, str(reference), image.labels)
