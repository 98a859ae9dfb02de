"""The command itself: backup, template, images, nodes, pod."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import typer
from msgspec import Struct

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.meta import Key
from holdfast.cli.errors import UsageError, print_error, printable
from holdfast.cli.get import to_yaml
from holdfast.cli.registries import registry_host
from holdfast.cli.resource_args import find_kind, read_manifests
from holdfast.cli.restore.images import FoundRun, RestoreFailed, find_run, pull_secret
from holdfast.cli.restore.pods import RESTORE_NODES, PodRestorer, why_not
from holdfast.cli.session import Session
from holdfast.cli.wait_conditions import parse_seconds
from holdfast.cluster.errors import NotFound
from holdfast.pods.restore.nodes import choose_nodes
from holdfast.pods.restore.template import RestorePlan, missing_containers, restored_pod, unrestored_containers


class RestoreOptions(Struct, frozen=True, kw_only=True):
    run: int | None = None
    name: str = ""
    filename: str = ""
    node: str = ""
    pull_secret: str = ""
    plain_http: tuple[str, ...] = ()
    dry_run: bool = False
    timeout: str = "10m"


async def restore_backup(session: Session, name: str, options: RestoreOptions) -> int:
    """Start a pod from the backup's images, and return when it runs."""
    time_s = parse_seconds(options.timeout)
    known = find_kind("checkpointbackup")
    backup = msgspec.convert((await session.get(known, session.key(known, name))).document, CheckpointBackup)
    template = await _template(session, backup, options.filename)
    plain_http = tuple(map(registry_host, options.plain_http))
    found = await find_run(session, backup, _containers(template), options.run, plain_http)
    if missing := missing_containers(template, found.images):
        raise UsageError(
            f"the pod template has no container {', '.join(missing)}, which the images of run {found.run} are of: "
            "write the pod's own template with -f"
        )
    plan = await _plan(session, backup, found, options)
    if options.dry_run:
        typer.echo(to_yaml(restored_pod(template, plan)), nl=False)
        return 0
    for container in unrestored_containers(template, found.images):
        print_error(f"container {container} has no image in run {found.run}: it begins anew")
    await _carry_out(session, template, plan, found.run, time_s, options.timeout)
    return 0


async def _plan(session: Session, backup: CheckpointBackup, found: FoundRun, options: RestoreOptions) -> RestorePlan:
    nodes = (await session.cluster.list(RESTORE_NODES)).items
    choice = choose_nodes(nodes, found.images, options.node)
    if not choice.fit:
        raise RestoreFailed(f"run {found.run} of CheckpointBackup {backup.metadata.key} can't go on: {choice.message}")
    secret = options.pull_secret or await pull_secret(session, backup)
    if not secret and backup.spec.registry.secret_ref is not None:
        print_error(
            "nodes can't fetch images with registry.secretRef, which is no docker config of this namespace: "
            "--pull-secret names a Secret that they can use"
        )
    return RestorePlan(
        name=options.name or f"{backup.spec.pod_ref.name[:200]}-run-{found.run}",
        namespace=backup.metadata.namespace,
        images=found.images,
        nodes=choice.fit,
        secret=secret,
        source=f"{backup.metadata.name} run {found.run}",
    )


async def _carry_out(
    session: Session, template: Mapping[str, Any], plan: RestorePlan, run: int, time_s: float, timeout: str
) -> None:
    restorer = PodRestorer(session, template, lambda text: typer.echo(printable(text)))
    try:
        async with asyncio.timeout(time_s):
            pod = await restorer.restore(plan)
    except TimeoutError:
        waits = why_not(restorer.last)
        raise RestoreFailed(f"pod {plan.name} does not run after {timeout}{f'; {waits}' if waits else ''}") from None
    if pod.is_finished:
        typer.echo(f"pod {plan.name} went on from run {run} on {pod.spec.node_name}, and is {pod.status.phase}")
    else:
        typer.echo(f"pod {plan.name} goes on from run {run} on {pod.spec.node_name}")


async def _template(session: Session, backup: CheckpointBackup, filename: str) -> Mapping[str, Any]:
    """Of the file, or else the pod itself if it is still there."""
    if filename:
        return _template_of_file(filename)
    known = find_kind("pod")
    key = Key(backup.metadata.namespace, backup.spec.pod_ref.name)
    try:
        return (await session.cluster.get(known.resource, key)).document
    except NotFound:
        raise UsageError(
            f"pod {key} is gone: write its manifest, or that of the workload that made it, with -f"
        ) from None


def _template_of_file(filename: str) -> Mapping[str, Any]:
    """A pod, or a workload with a pod template."""
    for manifest in read_manifests([filename]):
        document = manifest.document
        if document.get("kind") == "Pod":
            return document
        spec = document.get("spec")
        template = spec.get("template") if isinstance(spec, dict) else None
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            return template
    raise UsageError(f"{filename} holds no pod and no workload with a pod template")


def _containers(template: Mapping[str, Any]) -> list[str]:
    spec = template.get("spec") or {}
    return [each["name"] for each in spec.get("containers", ()) if isinstance(each, dict) and "name" in each]
