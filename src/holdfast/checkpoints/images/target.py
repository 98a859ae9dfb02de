"""Where the image of one container of a CheckpointBackup goes."""

from datetime import datetime

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.checkpoints.images.errors import InvalidImageReference
from holdfast.checkpoints.images.reference import (
    ImageReference,
    checked_repository,
    parse_reference,
    registry_address,
    run_tag,
)


def target_repository(backup: CheckpointBackup, container: str) -> ImageReference:
    """The repository, without a tag unless the backup itself writes one for this container."""
    registry = backup.spec.registry
    host = registry_address(registry.url, plain_http=(_host(registry.url),)).host
    own = next((each.image for each in backup.spec.containers if each.name == container), None)
    if own is None:
        return ImageReference(host=host, repository=checked_repository(registry.repository))
    found = parse_reference(own)
    if found.host != host:
        raise InvalidImageReference(
            f"the image {own!a} of container {container} is not on {host}: its credential goes to no other host"
        )
    if found.digest:
        raise InvalidImageReference(f"the image {own!a} of container {container} has a digest: write a repository")
    return found


def target_image(backup: CheckpointBackup, container: str, run: int, at: datetime) -> ImageReference:
    """The image of one run that was frozen at this time."""
    found = target_repository(backup, container)
    tag = found.tag or run_tag(backup.metadata.name, container, run, at)
    return ImageReference(host=found.host, repository=found.repository, tag=tag)


def _host(url: str) -> str:
    return url.rpartition("://")[2].removesuffix("/").lower()
