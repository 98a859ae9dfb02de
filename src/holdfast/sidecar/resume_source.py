"""Fetches what a job without a checkpoint of its own resumes from (checkpoint.resumeFrom): a folder or an image."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from holdfast.checkpoints.fetch import fetch, find
from holdfast.checkpoints.manifest import CheckpointManifest, CheckpointName, SaveInfo, checkpoint_name
from holdfast.sidecar.settings import Checkpoints

OCI = "oci://"


class FetchedSource(Struct, frozen=True):
    """`name` is what it is called as a checkpoint of this job. refused: damaged images, with the reason."""

    name: CheckpointName
    address: str
    refused: tuple[tuple[str, str], ...] = ()


def fetch_resume_source(
    checkpoints: Checkpoints, attempt: int, about: SaveInfo, environ: Mapping[str, str]
) -> FetchedSource:
    if checkpoints.resume_from.startswith(OCI):
        return _fetch_resume_image(checkpoints, attempt, about)
    source = find(checkpoints.resume_from, environ)
    name = checkpoint_name(source.epoch, attempt)
    fetch(source, checkpoints.folder / name.folder_name, name, about)
    return FetchedSource(name, checkpoints.resume_from)


def _fetch_resume_image(checkpoints: Checkpoints, attempt: int, about: SaveInfo) -> FetchedSource:
    # Not at the top: a client of registries is needed for this alone.
    from holdfast.checkpoints.images.fetch import fetch_image, read_secrets

    def place(found: CheckpointManifest) -> tuple[Path, CheckpointManifest]:
        name = checkpoint_name(found.epoch, attempt)
        return checkpoints.folder / name.folder_name, replace(found, attempt=attempt, about=about, save="")

    fetched = fetch_image(
        checkpoints.resume_from,
        place,
        secrets=read_secrets(checkpoints.pull_secrets),
        plain_http=checkpoints.plain_http_registries,
    )
    refused = tuple((each.address, each.reason) for each in fetched.refused)
    return FetchedSource(checkpoint_name(fetched.manifest.epoch, attempt), fetched.address, refused)
