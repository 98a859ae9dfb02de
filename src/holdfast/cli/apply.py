"""`holdfast apply`: make the cluster hold what manifests say."""

from collections.abc import Iterator
from typing import Annotated

import typer

from holdfast.api.kinds import kind_of as our_kind
from holdfast.api.meta import Key
from holdfast.api.validation import Refused, admit
from holdfast.cli.changing import patch_to, with_last_applied
from holdfast.cli.failing import FAILED, MISUSED, Misused, complain
from holdfast.cli.manifests import Manifest, read_manifests
from holdfast.cli.naming import kind_of
from holdfast.cli.target import Choice, ContextOption, KubeconfigOption, NamespaceOption, Session, run
from holdfast.cluster.errors import BadRequest, ClusterError, Invalid, NotFound, Unreachable
from holdfast.cluster.known import Known
from holdfast.cluster.protocol import JSON


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

    run(Choice(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


async def _apply(session: Session, manifest: Manifest, namespace: str) -> int:
    """The exit code that this object calls for."""
    try:
        known = kind_of(manifest.document)
        key = key_of(session, known, manifest, namespace)
    except Misused as error:
        complain(f"{manifest.place}: {error}")
        return MISUSED
    subject = f"{known.title}/{key.name or manifest.document['metadata']['generateName']}"
    try:
        typer.echo(f"{subject} {await _applied(session, known, key, manifest.document)}")
    except Unreachable:
        raise
    except ClusterError as error:
        for line in _reasons(error, manifest.document):
            complain(f"{subject} is refused: {line}")
        return FAILED
    return 0


def key_of(session: Session, known: Known, manifest: Manifest, namespace: str) -> Key:
    """Where the manifest's object is, or is to be."""
    metadata = manifest.document.get("metadata")
    if not isinstance(metadata, dict) or not (metadata.get("name") or metadata.get("generateName")):
        raise Misused("metadata.name is missing")
    written = metadata.get("namespace") or ""
    if namespace and written and known.resource.namespaced and written != namespace:
        raise Misused(f"its metadata.namespace is {written}, and --namespace says {namespace}: leave out one of them")
    return Key(str(written or session.namespace) if known.resource.namespaced else "", str(metadata.get("name") or ""))


async def _applied(session: Session, known: Known, key: Key, document: JSON) -> str:
    """What has been done, in a word."""
    home = {"namespace": key.namespace} if key.namespace else {}
    wanted: JSON = {**document, "metadata": {**document["metadata"], **home}}
    cluster, resource = session.cluster, known.resource
    if not key.name:
        await cluster.create(resource, wanted, namespace=key.namespace)
        return "created"
    noted = with_last_applied(wanted)
    try:
        live = await cluster.get(resource, key)
    except NotFound:
        await cluster.create(resource, noted, namespace=key.namespace)
        return "created"
    patch = patch_to(live.document, noted)
    if not patch:
        return "unchanged"
    after = await cluster.patch(resource, key, patch)
    return "unchanged" if after.metadata.resource_version == live.metadata.resource_version else "configured"


def _reasons(error: ClusterError, document: JSON) -> Iterator[str]:
    """Each thing that is wrong, with its field; a server that can't read an object names the first one only."""
    if isinstance(error, Invalid) and error.causes:
        yield from (f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in error.causes)
        return
    if isinstance(error, BadRequest) and our_kind(str(document.get("apiVersion")), str(document.get("kind"))):
        try:
            admit(document)
        except Refused as refusal:
            yield from map(str, refusal.causes)
            return
    yield str(error)
