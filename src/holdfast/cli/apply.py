"""`holdfast apply`: make the cluster hold what manifests say."""

from contextlib import suppress
from typing import Annotated

import typer

from holdfast.api.advice import advice
from holdfast.api.kinds import kind_of as our_kind
from holdfast.api.kinds import without_controller
from holdfast.api.meta import Key
from holdfast.api.validation import ValidationFailed, validate_object
from holdfast.api.validation import subject as subject_of
from holdfast.cli.changing import in_folder, patch_to, with_last_applied
from holdfast.cli.failing import FAILED, MISUSED, UsageError, print_error, printable
from holdfast.cli.manifests import Manifest, read_manifests
from holdfast.cli.naming import kind_of
from holdfast.cli.one_machine import RUNS, apply_folder, create_object, image_note, running_in
from holdfast.cli.target import ClusterOptions, ContextOption, KubeconfigOption, NamespaceOption, Session, run
from holdfast.cli.waiting import ended
from holdfast.cluster.errors import BadRequest, ClusterError, Invalid, NotFound, Unreachable
from holdfast.cluster.known import KnownKind
from holdfast.cluster.protocol import JSON

UNCHANGED = "unchanged"


def apply(
    filenames: Annotated[
        list[str],
        typer.Option("--filename", "-f", help="File, folder, or - for standard input. May be given several times."),
    ],
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Create or change objects: holdfast apply -f job.yaml"""

    async def command(session: Session) -> int:
        manifests = read_manifests(filenames)
        return max([await _apply(session, manifest, namespace) for manifest in manifests])

    run(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


async def _apply(session: Session, manifest: Manifest, namespace: str) -> int:
    """The exit code that this object calls for."""
    try:
        known = kind_of(manifest.document)
        key = key_of(session, known, manifest, namespace)
    except UsageError as error:
        print_error(f"{manifest.place}: {subject_of(manifest.document)} is refused: {error}")
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
    """What to know about an object that is accepted, and that its status does not tell."""
    notes = [without_controller(known.resource.group, known.resource.kind)]
    if known.resource.kind in ("TrainingJob", "GPUWorkload"):
        notes.append(await image_note(session, key.namespace, document))
    return [note for note in notes if note]


def key_of(session: Session, known: KnownKind, manifest: Manifest, namespace: str) -> Key:
    """Where the manifest's object is, or is to be."""
    metadata = manifest.document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise UsageError("metadata.name is missing")
    written = metadata.get("namespace") or ""
    if namespace and written and known.resource.namespaced and written != namespace:
        raise UsageError(
            f"its metadata.namespace is {written}, and --namespace says {namespace}: leave out one of them"
        )
    return Key(str(written or session.namespace) if known.resource.namespaced else "", str(metadata.get("name") or ""))


async def _applied(session: Session, known: KnownKind, key: Key, document: JSON) -> tuple[str, str]:
    """The object's name, and what has been done."""
    home = {"namespace": key.namespace} if key.namespace else {}
    wanted: JSON = {**document, "metadata": {**document["metadata"], **home}}
    cluster, resource = session.cluster, known.resource
    folder = apply_folder(session, wanted)
    if not key.name:
        made = await create_object(session, known, in_folder(wanted, folder))
        return made.metadata.name, f"created{running_in(folder)}"
    noted = with_last_applied(wanted)
    try:
        live = await cluster.get(resource, key)
    except NotFound:
        await create_object(session, known, in_folder(noted, folder))
        return key.name, f"created{running_in(folder)}"
    patch = patch_to(live.document, noted)
    if folder and patch.get("spec", {}).keys() & RUNS:
        # What runs has changed, so that it runs in the folder of this apply.
        patch = in_folder(patch, folder)
    after = await cluster.patch(resource, key, patch) if patch else live
    done = UNCHANGED if after.metadata.resource_version == live.metadata.resource_version else "configured"
    end = ended(known, live.document, session.now())
    return key.name, f"{done}, and {end}: {_again(known, key)} first" if end else done


async def _reasons(session: Session, known: KnownKind, key: Key, error: ClusterError, document: JSON) -> list[str]:
    """Each thing that is wrong, with its field; a server that can't read an object names the first one only."""
    if isinstance(error, Invalid) and error.causes:
        end = await _end(session, known, key)
        # What may not change is one fact about an object that has ended; advice for each field would contradict it.
        causes = [cause for cause in error.causes if not end or cause.reason != "FieldValueForbidden"]
        late = f"{end}: {_again(known, key)} first, or give the manifest another name"
        return [*([late] if end else []), *advice(document, causes)]
    if isinstance(error, BadRequest) and our_kind(str(document.get("apiVersion")), str(document.get("kind"))):
        try:
            validate_object(document)
        except ValidationFailed as refusal:
            return advice(document, refusal.causes)
    return [str(error)]


async def _end(session: Session, known: KnownKind, key: Key) -> str:
    if not key.name:
        return ""
    with suppress(ClusterError):
        return ended(known, (await session.cluster.get(known.resource, key)).document, session.now())
    return ""


def _again(known: KnownKind, key: Key) -> str:
    return f"holdfast delete {known.short_names[0] if known.short_names else known.singular} {key.name}"
