"""`holdfast delete`: take objects away."""

from contextlib import aclosing, suppress
from typing import Annotated

import typer
from msgspec import Struct

from holdfast.api.meta import Key
from holdfast.cli.apply import key_of
from holdfast.cli.failing import FAILED, Misused, complain
from holdfast.cli.following import by_name, follow
from holdfast.cli.manifests import read_manifests
from holdfast.cli.naming import kind_of, parse_named
from holdfast.cli.target import Choice, ContextOption, KubeconfigOption, NamespaceOption, Session, run
from holdfast.cluster.errors import ClusterError, Conflict, NotFound, Unreachable
from holdfast.cluster.known import Known
from holdfast.cluster.protocol import Change, Listing


class Doomed(Struct, frozen=True):
    known: Known
    key: Key
    uid: str


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
                complain(str(error))
                code = FAILED
        for each in doomed if wait else ():
            await until_gone(session, each.known, each.key, each.uid)
        return code

    run(Choice(kubeconfig=kubeconfig, context=context, namespace=namespace), command)


def _targets(session: Session, what: list[str], filenames: list[str], namespace: str) -> list[tuple[Known, Key]]:
    if bool(what) == bool(filenames):
        raise Misused("say what to delete: KIND NAME, or -f FILE")
    if filenames:
        manifests = read_manifests(filenames)
        kinds = [(kind_of(manifest.document), manifest) for manifest in manifests]
        return [(known, key_of(session, known, manifest, namespace)) for known, manifest in kinds]
    return [(each.known, session.key(each.known, name)) for each in parse_named(what) for name in each.names]


async def _delete(session: Session, known: Known, key: Key) -> Doomed:
    """Exactly the object that is there now: one made anew meanwhile is not meant."""
    found = await session.cluster.get(known.resource, key)
    with suppress(NotFound, Conflict):  # somebody else was quicker
        await session.cluster.delete(known.resource, key, uid=found.metadata.uid)
    typer.echo(f'{known.title} "{key.name}" deleted')
    return Doomed(known, key, found.metadata.uid)


async def until_gone(session: Session, known: Known, key: Key, uid: str) -> None:
    """Return when no object with that uid is there; with no uid, when none of that name is."""
    steps = follow(session.cluster, known.resource, namespace=key.namespace, fields=by_name(key.name))
    async with aclosing(steps):
        async for step in steps:
            if isinstance(step, Listing):
                if not any(uid in ("", each.metadata.uid) for each in step.items):
                    return
            elif step.change is Change.DELETED and step.object and uid in ("", step.object.metadata.uid):
                return
