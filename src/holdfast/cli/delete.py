"""`holdfast delete`: take objects away."""

import re
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Annotated

import msgspec
import typer
from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cli.apply import key_of
from holdfast.cli.get import to_flow
from holdfast.cli.resource_args import kind_of, parse_named_resources, read_manifests
from holdfast.cli.session import (
    FAILED,
    ClusterOptions,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Session,
    UsageError,
    by_name,
    follow,
    print_error,
    printable,
    run,
)
from holdfast.cluster.errors import ClusterError, Conflict, NotFound, Unreachable
from holdfast.cluster.protocol import JSON, Change, Listing
from holdfast.cluster.resources import KnownKind
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.object_store import store_url
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume, prefix


class DeletionTarget(Struct, frozen=True):
    known: KnownKind
    key: Key
    document: JSON

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])


def delete(
    what: Annotated[list[str] | None, typer.Argument(help="KIND NAME…, or KIND/NAME…", metavar="KIND/NAME")] = None,
    filenames: Annotated[
        list[str] | None, typer.Option("--filename", "-f", help="Delete what these manifests name: file, folder or -.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is gone.")] = True,
    ignore_not_found: Annotated[
        bool, typer.Option("--ignore-not-found", help="What is not there counts as deleted.")
    ] = False,
    namespace: NamespaceOption = "",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = "",
) -> None:
    """Delete objects: holdfast delete tj mnist, holdfast delete -f job.yaml"""

    async def command(session: Session) -> int:
        targets = _targets(session, what or [], filenames or [], namespace)
        code, doomed = 0, []
        for known, key in targets:
            try:
                doomed.append(await _delete(session, known, key))
            except Unreachable:
                raise
            except ClusterError as error:
                if isinstance(error, NotFound) and ignore_not_found:
                    continue
                print_error(str(error))
                code = FAILED
        for each in doomed:
            last = await until_gone(session, each.known, each.key, each.uid) if wait else None
            for line in checkpoints_left(each.known, last or each.document):
                typer.echo(printable(line))
        return code

    run(ClusterOptions(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


def _targets(session: Session, what: list[str], filenames: list[str], namespace: str) -> list[tuple[KnownKind, Key]]:
    if bool(what) == bool(filenames):
        raise UsageError("say what to delete: KIND NAME, or -f FILE")
    if filenames:
        manifests = read_manifests(filenames)
        kinds = [(kind_of(manifest.document), manifest) for manifest in manifests]
        return [(known, key_of(session, known, manifest, namespace)) for known, manifest in kinds]
    return [(each.known, session.key(each.known, name)) for each in parse_named_resources(what) for name in each.names]


async def _delete(session: Session, known: KnownKind, key: Key) -> DeletionTarget:
    """Exactly the object that is there now: one made anew meanwhile is not meant."""
    found = await session.get(known, key)
    with suppress(NotFound, Conflict):  # somebody else was quicker
        await session.cluster.delete(known.resource, key, uid=found.metadata.uid)
    typer.echo(f'{known.title} "{key.name}" deleted')
    return DeletionTarget(known, key, found.document)


def checkpoints_left(known: KnownKind, document: JSON) -> Iterator[str]:
    """Where the checkpoints of a deleted TrainingJob are, and what a job writes that goes on from the last one."""
    if known.resource.kind != "TrainingJob":
        return
    try:
        job = msgspec.convert(document, TrainingJob)
    except msgspec.ValidationError:  # of another version of holdfast
        return
    kept, report = checkpoint_storage(job), job.status.checkpoint if job.status else None
    last = re.search(r"attempt-\d+/[^/]+$", report.last or "") if report else None
    if kept is None or last is None:
        return
    if is_volume(kept):
        kept = structs.replace(kept, pvc_name=kept.pvc_name or names.claim_name(job)) if kept.type == "pvc" else kept
        place = f"the claim {kept.pvc_name}" if kept.type == "pvc" else f"{kept.nfs_server}:{kept.nfs_path}"
        folder = prefix(job, kept)
    else:
        folder = place = store_url(job, kept)
    # Two jobs never share a prefix: the next one has its own.
    written = {"type": kept.type, **msgspec.to_builtins(structs.replace(kept, prefix=None))}
    example = to_flow({"resumeFrom": f"{folder}/{last[0]}", "storage": written})
    yield f"The checkpoints of {job.metadata.name} stay in {place}. A job that goes on from the last one writes:"
    yield f"  checkpoint: {example}"
    if kept.type == "pvc":
        yield f"To delete them: holdfast delete pvc {kept.pvc_name}"


async def until_gone(session: Session, known: KnownKind, key: Key, uid: str) -> JSON | None:
    """Return when no object with that uid is there; with no uid, when none of that name is.

    Gives the object as it was last seen, where the deletion itself was seen.
    """
    steps = follow(session.cluster, known.resource, namespace=key.namespace, fields=by_name(key.name))
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Listing):
                if not any(uid in ("", each.metadata.uid) for each in step.items):
                    return None
            elif step.change is Change.DELETED and step.object and uid in ("", step.object.metadata.uid):
                return step.object.document
    return None
