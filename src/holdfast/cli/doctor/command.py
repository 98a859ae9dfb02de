"""`holdfast doctor`: examines a cluster with read rights alone, or tries one node."""

import asyncio
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import typer

from holdfast.api.checkpointbackup import CheckpointBackup
from holdfast.api.core.objects import Pod
from holdfast.cli.doctor.control_plane import cluster_findings, operator_findings
from holdfast.cli.doctor.findings import (
    Finding,
    Level,
    Section,
    by_finding,
    count,
    hidden,
    named,
    note,
    ok,
    printed,
    problem,
    unless_forbidden,
)
from holdfast.cli.doctor.nodes import (
    CHECKS,
    EXAMINED_NODES,
    GIB,
    METRICS_PORT,
    NodeEvidence,
    agents_by_node,
    ended_runs,
    free_bytes,
)
from holdfast.cli.errors import UsageError, printable
from holdfast.cli.registries import registry_host
from holdfast.cli.restore.trial import TrialOptions, run_node_trial
from holdfast.cli.session import Session
from holdfast.cluster.errors import ClusterError, NotFound
from holdfast.cluster.resources import CHECKPOINT_BACKUPS, PODS
from holdfast.pods.restore.nodes import RESTORE_LABEL, RESTORE_VALUE

AGENTS = "app.kubernetes.io/name=holdfast-node"
ASKED_AT_ONCE = 16
ANSWER_S = 5.0
INSTALL_AGENT = "kubectl apply -k manifests/node (docs/node-agent.md)"


async def examine_cluster(session: Session) -> int:
    """Print the findings; 1 if there is a problem."""
    sections = [
        Section(title="Cluster", findings=await cluster_findings(session)),
        Section(title="Operator", findings=await operator_findings(session)),
        Section(title="Nodes", findings=await nodes_section(session)),
    ]
    for line in printed(sections):
        typer.echo(printable(line))
    return 1 if count(sections, Level.PROBLEM) else 0


async def examine_node(
    session: Session, node: str, registry: str, *, secret: str, image: str, plain_http: tuple[str, ...]
) -> int:
    """Really save and restore a small pod there; the node that can do it gets the label."""
    if not node or not registry:
        raise UsageError("a node is tried with a registry: holdfast doctor --node NODE --registry HOST/REPOSITORY")
    hosts = tuple(map(registry_host, plain_http))
    options = TrialOptions(node=node, registry=registry, image=image, secret=secret, plain_http=hosts)
    await run_node_trial(session, options, lambda text: typer.echo(printable(text)))
    typer.echo(f"node {node} has the label {RESTORE_LABEL}={RESTORE_VALUE} now: pods may be restored there")
    return 0


async def nodes_section(session: Session) -> tuple[Finding, ...]:
    if session.data is not None:
        return local_findings(session.data)
    listing = await unless_forbidden(session.cluster.list(EXAMINED_NODES))
    if listing is None:
        return (hidden("nodes", "list nodes"),)
    nodes = [node for node in listing.items if node.is_linux]
    if not nodes:
        return (problem("the cluster has no Linux nodes", "add one: holdfast runs nothing elsewhere"),)
    agents = await unless_forbidden(session.cluster.list(PODS, labels=AGENTS))
    backups = await _backups(session)
    by_node = agents_by_node(agents.items if agents is not None else ())
    free = await _free_bytes(session, by_node.values())
    runs = ended_runs(backups or ())
    evidence = {
        node.metadata.name: NodeEvidence(
            agent=by_node.get(node.metadata.name),
            backups=runs.get(node.metadata.name, ()) if backups is not None else None,
            free_bytes=free.get(node.metadata.name),
        )
        for node in nodes
    }
    findings = list(_hidden(agents is None, backups is None))
    if agents is not None:
        findings.extend(_without_agent(evidence))
    for check in CHECKS:
        found = ((node.metadata.name, each) for node in nodes for each in check(node, evidence[node.metadata.name]))
        findings.extend(by_finding(found, len(nodes)))
    return tuple(findings)


def local_findings(data: Path) -> tuple[Finding, ...]:
    """On one machine pods are processes: there is no runtime that could freeze them."""
    free = shutil.disk_usage(data).free / GIB
    return (
        note("pods are processes here: CheckpointBackups have the training save by itself (mode application)"),
        ok(f"{free:.1f} GiB are free in {data}, where checkpoints and images are"),
    )


def _hidden(are_agents: bool, are_backups: bool) -> Iterator[Finding]:
    if are_agents:
        yield hidden("agents of holdfast", "list pods in all namespaces")
    if are_backups:
        yield hidden("CheckpointBackups", "list checkpointbackups.migration.dcnlab.com in all namespaces")


def _without_agent(evidence: Mapping[str, NodeEvidence]) -> Iterator[Finding]:
    """On no node at all, or on some: both may be wanted."""
    without = [name for name, each in evidence.items() if each.agent is None]
    lost = "CheckpointBackups of mode container can't be carried out, and no preemption notice is seen"
    if len(without) == len(evidence):
        yield note(f"holdfast's agent is not installed: {lost}", INSTALL_AGENT)
    elif without:
        look = "look at the selector and the tolerations of the DaemonSet holdfast-node"
        yield note(f"{named(without, len(evidence))}: holdfast's agent does not run there: {lost}", look)


async def _backups(session: Session) -> tuple[CheckpointBackup, ...] | None:
    try:
        found = await unless_forbidden(session.cluster.list(CHECKPOINT_BACKUPS))
    except NotFound:
        return ()  # the kind is not installed, which another line says
    return found.items if found is not None else None


async def _free_bytes(session: Session, agents: Iterable[Pod]) -> dict[str, float | None]:
    """By node, from the metrics of its agent; None for a node whose agent could not be asked."""
    gate, free = asyncio.Semaphore(ASKED_AT_ONCE), dict[str, float | None]()

    async def ask(agent: Pod) -> None:
        async with gate:
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await session.cluster.ask_pod(agent.metadata.key, port=METRICS_PORT, path="/metrics")
            except (ClusterError, TimeoutError):
                return
        free[agent.spec.node_name] = free_bytes(answer.decode(errors="replace"))

    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            if agent.condition("Ready") is not None:
                tasks.create_task(ask(agent))
    return free
