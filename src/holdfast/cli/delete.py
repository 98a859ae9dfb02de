"""`holdfast delete`: delete objects."""

import re
from collections.abc import Iterator
from contextlib import aclosing, suppress

import msgspec
import typer
from msgspec import Struct, structs

from holdfast.api.meta import Key
from holdfast.api.trainingjob import TrainingJob
from holdfast.cli.apply import key_of
from holdfast.cli.errors import FAILED, UsageError, print_error, printable
from holdfast.cli.get import to_flow
from holdfast.cli.resource_args import kind_of, parse_named_resources, read_manifests
from holdfast.cli.session import Session, by_name, follow
from holdfast.cluster.errors import ClusterError, Conflict, NotFound, Unreachable
from holdfast.cluster.protocol import JSON, Change, DeleteOptions, Listing
from holdfast.cluster.resources import KnownKind
from holdfast.trainingjob.objects import names
from holdfast.trainingjob.objects.storage import checkpoint_storage, is_volume, prefix, store_url


class DeletionTarget(Struct, frozen=True):
    known: KnownKind
    key: Key
    document: JSON

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])


async def delete_objects(
    session: Session, targets: list[tuple[KnownKind, Key]], *, wait: bool, ignore_not_found: bool
) -> int:
    code, deleted = 0, []
    for known, key in targets:
        try:
            deleted.append(await _delete(session, known, key))
        except Unreachable:
            raise
        except ClusterError as error:
            if isinstance(error, NotFound) and ignore_not_found:
                continue
            print_error(str(error))
            code = FAILED
    for each in deleted:
        last = await until_gone(session, each.known, each.key, each.uid) if wait else None
        for line in checkpoints_left(each.known, last or each.document):
            typer.echo(printable(line))
    return code


def targets(session: Session, what: list[str], filenames: list[str], namespace: str) -> list[tuple[KnownKind, Key]]:
    if bool(what) == bool(filenames):
        raise UsageError("say what to delete: KIND NAME, or -f FILE")
    if filenames:
        manifests = read_manifests(filenames)
        kinds = [(kind_of(manifest.document), manifest) for manifest in manifests]
        return [(known, key_of(session, known, manifest, namespace)) for known, manifest in kinds]
    return [(each.known, session.key(each.known, name)) for each in parse_named_resources(what) for name in each.names]


async def _delete(session: Session, known: KnownKind, key: Key) -> DeletionTarget:
    """Delete exactly the current object, not a new object of the same name."""
    found = await session.get(known, key)
    with suppress(NotFound, Conflict):  # somebody else has deleted the object meanwhile
        await session.cluster.delete(known.resource, key, DeleteOptions(uid=found.metadata.uid))
    typer.echo(f'{known.title} "{key.name}" deleted')
    return DeletionTarget(known, key, found.document)


def checkpoints_left(known: KnownKind, document: JSON) -> Iterator[str]:
    """Where the checkpoints of a deleted TrainingJob are, and the spec of a job that resumes from the last one."""
    if known.resource.kind != "TrainingJob":
        return
    try:
        job = msgspec.convert(document, TrainingJob)
    except msgspec.ValidationError:  # an object of another holdfast version
        return
    storage_spec, report = checkpoint_storage(job), job.status.checkpoint if job.status else None
    last = re.search(r"attempt-\d+/[^/]+$", report.last or "") if report else None
    if storage_spec is None or last is None:
        return
    if is_volume(storage_spec):
        storage_spec = (
            structs.replace(storage_spec, pvc_name=storage_spec.pvc_name or names.claim_name(job))
            if storage_spec.type == "pvc"
            else storage_spec
        )
        location = (
            f"the claim {storage_spec.pvc_name}"
            if storage_spec.type == "pvc"
            else f"{storage_spec.nfs_server}:{storage_spec.nfs_path}"
        )
        folder = prefix(job, storage_spec)
    else:
        folder = location = store_url(job, storage_spec)
    # Two jobs never share a prefix: the next job has its own prefix.
    storage_fields = {"type": storage_spec.type, **msgspec.to_builtins(structs.replace(storage_spec, prefix=None))}
    example = to_flow({"resumeFrom": f"{folder}/{last[0]}", "storage": storage_fields})
    yield f"The checkpoints of {job.metadata.name} stay in {location}. A job that goes on from the last one writes:"
    yield f"  checkpoint: {example}"
    if storage_spec.type == "pvc":
        yield f"To delete them: holdfast delete pvc {storage_spec.pvc_name}"


async def until_gone(session: Session, known: KnownKind, key: Key, uid: str) -> JSON | None:
    """Wait until no object with that uid exists; with uid "", until no object of that name exists.

    Returns the last version of the object if the watch received its deletion.
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
