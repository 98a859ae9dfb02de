"""What an attempt begins from: the job's own newest checkpoint, or a folder or an image that it is given.

resumeFrom of a TrainingJob counts while the job has no checkpoint of its own. The image that a replica of a
SpotInstanceJob is given is of the same training, perhaps of another replica: whichever is further counts. Once attempts
have failed from an image again and again, the image alone counts: the store may hold the very state that fails.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from holdfast.checkpoints.errors import CheckpointNotFound, Corrupt, UnsafeContent
from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.images.errors import ImageNotFound, RepositoryNotFound, UnusableImage
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName, SaveInfo, checkpoint_name
from holdfast.checkpoints.resume import resume
from holdfast.checkpoints.store import CheckpointStore
from holdfast.errors import HoldfastError
from holdfast.sidecar.settings import Checkpoints

OCI = "oci://"


class FetchedSource(Struct, frozen=True):
    """`name` is what it is called as a checkpoint of this job. refused: damaged images, with the reason."""

    name: CheckpointName
    address: str
    refused: tuple[tuple[str, str], ...] = ()


class NotFurther(HoldfastError):
    """The image is not further than what the job has itself: it is not unpacked."""

    def __init__(self, epoch: int, beyond: int) -> None:
        super().__init__(f"the image is of epoch {epoch}, and the job has a checkpoint of epoch {beyond}")
        self.epoch = epoch


class Start(NamedTuple):
    """`name` is None for a start from nothing. `source`, if that is where it comes from and not the job's own store."""

    name: CheckpointName | None
    source: FetchedSource | None = None
    refused: tuple[tuple[str, str], ...] = ()


def choose_start(
    checkpoints: Checkpoints,
    store: CheckpointStore,
    attempt: int,
    about: SaveInfo,
    environ: Mapping[str, str],
    note: Callable[[str], None],
) -> Start:
    """The checkpoint, which is in the attempt's folder when this returns. note: why another one is not used."""
    if checkpoints.resume_exactly:
        return _exact_start(checkpoints, attempt, about, environ)
    failure: CheckpointNotFound | None = None
    image_epoch = -1
    own = store.names(attempt) if checkpoints.resume_newest and checkpoints.resume_from else []
    if own:
        try:
            source = fetch_resume_source(checkpoints, attempt, about, environ, beyond=max(own).epoch)
            return Start(source.name, source, source.refused)
        except NotFurther as reason:
            image_epoch = reason.epoch
            note(f"{checkpoints.resume_from} is left out: {reason}")
        except CheckpointNotFound as error:
            failure = error
    name = resume(store, checkpoints.folder, attempt, about, note)
    # The job's own may have turned out to be damaged, or unfinished.
    if name is not None and name.epoch >= image_epoch:
        return Start(name, None, ((checkpoints.resume_from, str(failure)),) if failure else ())
    if failure is not None:
        raise failure
    return _exact_start(checkpoints, attempt, about, environ)


def _exact_start(checkpoints: Checkpoints, attempt: int, about: SaveInfo, environ: Mapping[str, str]) -> Start:
    """From what is given, and from nothing where nothing is.

    Checkpoints of earlier attempts that are further stay in the store, fenced off by the decision of this one.
    """
    if not checkpoints.resume_from:
        return Start(None)
    source = fetch_resume_source(checkpoints, attempt, about, environ)
    return Start(source.name, source, source.refused)


def fetch_resume_source(
    checkpoints: Checkpoints, attempt: int, about: SaveInfo, environ: Mapping[str, str], *, beyond: int = -1
) -> FetchedSource:
    """Raises `NotFurther` for an image of this epoch or of an earlier one."""
    if checkpoints.resume_from.startswith(OCI):
        return _fetch_resume_image(checkpoints, attempt, about, beyond)
    source = find(checkpoints.resume_from, environ)
    name = checkpoint_name(source.epoch, attempt)
    fetch(source, checkpoints.folder / name.folder_name, name, about)
    return FetchedSource(name, checkpoints.resume_from)


def _fetch_resume_image(checkpoints: Checkpoints, attempt: int, about: SaveInfo, beyond: int) -> FetchedSource:
    # Not at the top: a client of registries is needed for this alone.
    from holdfast.checkpoints.images.fetch import fetch_image, read_secrets

    def place(found: CheckpointManifest) -> tuple[Path, CheckpointManifest]:
        if found.epoch <= beyond:
            raise NotFurther(found.epoch, beyond)
        name = checkpoint_name(found.epoch, attempt)
        return checkpoints.folder / name.folder_name, replace(found, attempt=attempt, about=about, save="")

    try:
        fetched = fetch_image(
            checkpoints.resume_from,
            place,
            secrets=read_secrets(checkpoints.pull_secrets),
            plain_http=checkpoints.plain_http_registries,
        )
    except (CheckpointNotFound, Corrupt, UnsafeContent, ImageNotFound, RepositoryNotFound) as error:
        raise UnusableImage(str(error)) from error
    refused = tuple((each.address, each.reason) for each in fetched.refused)
    return FetchedSource(checkpoint_name(fetched.manifest.epoch, attempt), fetched.address, refused)
