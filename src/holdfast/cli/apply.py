"""`holdfast apply`: create or patch the objects of manifests."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import typer

from holdfast.api.advice import advice
from holdfast.api.kinds import kind_of as our_kind
from holdfast.api.meta import WORKING_DIRECTORY, Key
from holdfast.api.schema.validation import subject as subject_of
from holdfast.api.schema.validation import validate_object
from holdfast.api.schema.violations import ValidationFailed
from holdfast.cli.errors import FAILED, MISUSED, UsageError, print_error, printable
from holdfast.cli.resource_args import ManifestDocument, kind_of, read_manifests
from holdfast.cli.session import Session
from holdfast.cli.up import PROGRAMS, RUNS, apply_folder, create_object, image_note, running_in
from holdfast.cli.wait_conditions import ended
from holdfast.cluster.errors import BadRequest, ClusterError, Invalid, NotFound, Unreachable
from holdfast.cluster.protocol import JSON
from holdfast.cluster.resources import KnownKind

# A three-way merge of the last applied, the live and the new object. The annotation is that of kubectl, so that both
# commands can apply the same object.
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def with_last_applied(wanted: JSON) -> JSON:
    """The object with the last-applied annotation, by which a later apply knows which fields were removed."""
    metadata = wanted["metadata"]
    existing = metadata.get("annotations") or {}
    if not isinstance(existing, dict):
        return wanted  # the server reports the error
    annotations = {name: text for name, text in existing.items() if name != LAST_APPLIED}
    applied = {**wanted, "metadata": {**metadata, "annotations": annotations}}
    note = json.dumps(applied, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"
    return {**applied, "metadata": {**metadata, "annotations": {**annotations, LAST_APPLIED: note}}}


def in_folder(part: JSON, folder: str) -> JSON:
    """The object or patch with its working directory, which is not part of the last-applied annotation."""
    metadata = part.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not folder or not isinstance(annotations, dict):
        return part
    return {**part, "metadata": {**metadata, "annotations": {**annotations, WORKING_DIRECTORY: folder}}}


def patch_to(live: JSON, noted: JSON) -> JSON:
    """The merge patch from the live object to `noted`, a manifest with its last-applied annotation."""
    metadata = noted["metadata"]
    if "labels" in live["metadata"]:
        # Others set labels too: a manifest without labels removes only its own labels.
        metadata = {"labels": {}, **metadata}
    return apply_patch(_last_applied(live), live, {**noted, "metadata": metadata})


def _last_applied(live: JSON) -> JSON:
    """The last applied object; empty if the live object was not created by apply."""
    note = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED, "")
    try:
        applied = json.loads(note)
    except ValueError:
        return {}
    return applied if isinstance(applied, dict) else {}


def apply_patch(before: JSON, live: JSON, wanted: JSON) -> JSON:
    """The merge patch that puts `wanted` into the live object and removes fields that only `before` had.

    Fields of others stay. Empty when there is no change.
    """
    patch: JSON = {name: None for name in before if name not in wanted and name in live}
    for name, value in wanted.items():
        if value is None:
            if name in live:
                patch[name] = None
        elif isinstance(value, dict) and isinstance(live.get(name), dict):
            inner = apply_patch(_map(before.get(name)), live[name], value)
            if inner:
                patch[name] = inner
        elif name not in live or not _contains(live[name], value):
            patch[name] = value
    return patch


def _map(value: Any) -> JSON:
    return value if isinstance(value, dict) else {}


def _contains(live: Any, wanted: Any) -> bool:
    """Whether `live` contains `wanted`, apart from defaults of the server."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            value is None or (name in live and _contains(live[name], value)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(map(_contains, live, wanted))
    return bool(live == wanted) and isinstance(live, bool) == isinstance(wanted, bool)


UNCHANGED = "unchanged"


async def apply_manifests(session: Session, filenames: Sequence[str], namespace: str) -> int:
    """Apply the objects of all files; returns the worst exit code."""
    return max([await _apply(session, manifest, namespace) for manifest in read_manifests(filenames)])


async def _apply(session: Session, manifest: ManifestDocument, namespace: str) -> int:
    """Apply one object; returns the exit code."""
    try:
        known = kind_of(manifest.document)
        key = key_of(session, known, manifest, namespace)
    except UsageError as error:
        print_error(f"{manifest.location}: {subject_of(manifest.document)} is refused: {error}")
        return MISUSED
    try:
        name, done = await _applied(session, known, key, manifest.document)
        typer.echo(printable(f"{known.title}/{name} {done}"))
    except Unreachable:
        raise
    except ClusterError as error:
        name = key.name or manifest.document["metadata"]["generateName"]
        for line in await _reasons(session, known, key, error, manifest.document):
            print_error(f"{known.title}/{name} is refused: {line}")
        return FAILED
    if not done.startswith(UNCHANGED):
        for note in await _notes(session, known, key, manifest.document):
            print_error(f"{known.title}/{name}: {note}")
    return 0


async def _notes(session: Session, known: KnownKind, key: Key, document: JSON) -> list[str]:
    """Hints about an accepted object that its status does not show."""
    note = await image_note(session, key.namespace, document) if known.resource.kind in PROGRAMS else ""
    return [note] if note else []


def key_of(session: Session, known: KnownKind, manifest: ManifestDocument, namespace: str) -> Key:
    """The key of the object of a manifest."""
    metadata = manifest.document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise UsageError("metadata.name is missing")
    manifest_namespace = metadata.get("namespace") or ""
    if namespace and manifest_namespace and known.resource.namespaced and manifest_namespace != namespace:
        raise UsageError(
            f"its metadata.namespace is {manifest_namespace}, and --namespace says {namespace}: leave out one of them"
        )
    return Key(
        str(manifest_namespace or session.namespace) if known.resource.namespaced else "",
        str(metadata.get("name") or ""),
    )


async def _applied(session: Session, known: KnownKind, key: Key, document: JSON) -> tuple[str, str]:
    """Apply one object; returns its name and the action."""
    namespace_field = {"namespace": key.namespace} if key.namespace else {}
    wanted: JSON = {**document, "metadata": {**document["metadata"], **namespace_field}}
    cluster, resource = session.cluster, known.resource
    folder = apply_folder(session, wanted)
    if not key.name:
        created = await create_object(session, known, in_folder(wanted, folder))
        return created.metadata.name, f"created{running_in(folder)}"
    noted = with_last_applied(wanted)
    try:
        live = await cluster.get(resource, key)
    except NotFound:
        await create_object(session, known, in_folder(noted, folder))
        return key.name, f"created{running_in(folder)}"
    patch = patch_to(live.document, noted)
    if folder and patch.get("spec", {}).keys() & RUNS:
        # The command has changed, so it runs in the folder of this apply.
        patch = in_folder(patch, folder)
    after = await cluster.patch(resource, key, patch) if patch else live
    done = UNCHANGED if after.metadata.resource_version == live.metadata.resource_version else "configured"
    end = ended(known, live.document, session.now())
    return key.name, f"{done}, and {end}: {_delete_command(known, key)} first" if end else done


async def _reasons(session: Session, known: KnownKind, key: Key, error: ClusterError, document: JSON) -> list[str]:
    """All problems, with their fields; a server that can't decode an object reports only the first problem."""
    if isinstance(error, Invalid) and error.causes:
        end = await _end(session, known, key)
        # For a finished object, one message covers all immutable fields; advice per field would contradict it.
        causes = [cause for cause in error.causes if not end or cause.reason != "FieldValueForbidden"]
        finished = f"{end}: {_delete_command(known, key)} first, or give the manifest another name"
        return [*([finished] if end else []), *advice(document, causes)]
    if isinstance(error, BadRequest) and our_kind(str(document.get("apiVersion")), str(document.get("kind"))):
        try:
            validate_object(document)
        except ValidationFailed as failure:
            return advice(document, failure.causes)
    return [str(error)]


async def _end(session: Session, known: KnownKind, key: Key) -> str:
    if not key.name:
        return ""
    with suppress(ClusterError):
        return ended(known, (await session.cluster.get(known.resource, key)).document, session.now())
    return ""


def _delete_command(known: KnownKind, key: Key) -> str:
    return f"holdfast delete {known.short_names[0] if known.short_names else known.singular} {key.name}"
