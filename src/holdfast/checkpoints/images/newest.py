"""Which images of a repository are one owner's, which run is the newest, and which runs may be deleted.

The newest is the highest run of one owner's uid. Neither a tag that moves nor a clock decides it: nodes' clocks differ.
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol, TypeVar

import msgspec

from holdfast.checkpoints.images.errors import ImageError, ImageNotFound
from holdfast.checkpoints.images.image import HOLDFAST, parse_manifest, sha256_digest
from holdfast.checkpoints.images.reference import parse_run_tag

# As large as status.run may be, and more.
_RUN = re.compile(r"[0-9]{1,18}")
# Manifests are small: most of the time is spent waiting.
MANIFESTS_AT_ONCE = 8
BATCH = 50
# The flags of a processor take up to some 3,000 characters.
MAX_LABEL = 8192


# By itself, or with its repository.
Tag = TypeVar("Tag")


class OwnedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image with our labels. `labels` are without their prefix, such as base-image and cpu-flags."""

    tag: str
    digest: str
    owner_uid: str
    container: str
    run: int
    mode: str
    labels: dict[str, str] = {}


class ImageLister(Protocol):
    """The part of a registry client that listing needs."""

    async def tags(self, repository: str) -> list[str]: ...

    async def manifest(self, repository: str, reference: str) -> bytes: ...


async def images_of(
    registry: ImageLister, repository: str, owner_uid: str, prefixes: Collection[str] = ()
) -> list[OwnedImage]:
    """The owner's images, by run. Tags of other forms, and manifests without our labels, are left alone.

    prefixes: of the owner's tags, see `reference.tag_prefix`; with them no manifest of another owner is asked for.
    """
    tags = await tags_by_run(registry, repository, prefixes)
    return await tagged_images(registry, repository, owner_uid, chain.from_iterable(tags.values()))


async def tags_by_run(registry: ImageLister, repository: str, prefixes: Collection[str] = ()) -> dict[int, list[str]]:
    """The tags of runs, by their numbers, which grow. Whose images they name is seen from the manifests alone."""
    found: dict[int, list[str]] = {}
    for tag in await registry.tags(repository):
        name = parse_run_tag(tag)
        if name is not None and (not prefixes or name.prefix in prefixes):
            found.setdefault(name.run, []).append(tag)
    return dict(sorted(found.items()))


def batches_from_the_newest(tags: Mapping[int, list[Tag]]) -> Iterator[list[Tag]]:
    """All tags, whole runs at a time: where a repository has thousands, the first ones are mostly enough."""
    batch: list[Tag] = []
    for run in sorted(tags, reverse=True):
        batch += tags[run]
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def tagged_images(
    registry: ImageLister, repository: str, owner_uid: str, tags: Iterable[str]
) -> list[OwnedImage]:
    """Those of the owner among the images with these tags, by run."""
    waiting = asyncio.Semaphore(MANIFESTS_AT_ONCE)

    async def look(tag: str) -> OwnedImage | None:
        async with waiting:
            try:
                content = await registry.manifest(repository, tag)
            except ImageNotFound:  # deleted meanwhile
                return None
        return owned_image(tag, content)

    found = await asyncio.gather(*map(look, tags))
    ours = [image for image in found if image and image.owner_uid == owner_uid]
    return sorted(ours, key=lambda image: (image.run, image.container, image.tag))


def owned_image(tag: str, manifest: bytes) -> OwnedImage | None:
    """The image of a manifest; None if it has not our labels."""
    try:
        annotations = parse_manifest(manifest, tag).annotations
    except ImageError:
        return None
    own = _own(annotations)
    run = own.get("run", "")
    if not _RUN.fullmatch(run) or not all(own.get(name) for name in ("owner-uid", "container", "mode")):
        return None
    return OwnedImage(
        tag=tag,
        digest=sha256_digest(manifest),
        owner_uid=own["owner-uid"],
        container=own["container"],
        run=int(run),
        mode=own["mode"],
        labels=own,
    )


def newest_run(
    images: Iterable[OwnedImage], owner_uid: str, containers: Collection[str] = ()
) -> tuple[OwnedImage, ...]:
    """All images of the highest run that has every one of these containers; none if there is no such run."""
    runs = _runs(images, owner_uid)
    complete = [run for run, found in runs.items() if _has(found, containers)]
    return tuple(runs[max(complete)]) if complete else ()


def expired_images(
    images: Iterable[OwnedImage], owner_uid: str, retain: int, containers: Collection[str] = ()
) -> tuple[OwnedImage, ...]:
    """The images of all runs before the newest `retain` ones; 0 retains all.

    A run that lacks a container does not count: three failed runs must not push out the last that can be restored.
    """
    runs = _runs(images, owner_uid)
    complete = sorted(run for run, found in runs.items() if _has(found, containers))
    if not retain or len(complete) <= retain:
        return ()
    oldest = complete[-retain]
    # Deletion is by digest, and takes every tag of it.
    retained = {image.digest for run, found in runs.items() if run >= oldest for image in found}
    old = (image for run in sorted(runs) if run < oldest for image in runs[run])
    return tuple(image for image in old if image.digest not in retained)


def _runs(images: Iterable[OwnedImage], owner_uid: str) -> dict[int, list[OwnedImage]]:
    runs: dict[int, list[OwnedImage]] = {}
    for image in images:
        if image.owner_uid == owner_uid:
            runs.setdefault(image.run, []).append(image)
    return runs


def _has(images: Iterable[OwnedImage], containers: Collection[str]) -> bool:
    return {image.container for image in images}.issuperset(containers)


def _own(annotations: Mapping[str, str]) -> dict[str, str]:
    """Who may push may write anything, and messages show what labels say."""
    return {
        name.removeprefix(HOLDFAST): value
        for name, value in annotations.items()
        if name.startswith(HOLDFAST) and len(value) <= MAX_LABEL and value.isprintable()
    }
