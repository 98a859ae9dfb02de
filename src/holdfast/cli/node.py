"""`holdfast node`: the agent that saves containers on one node."""

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import structlog
import typer
from msgspec import Struct, structs

from holdfast.cli.errors import UsageError, errors_as_one_line
from holdfast.cli.registries import PlainHttpRegistry, registry_host
from holdfast.cli.sidecar import tune_allocator
from holdfast.cluster.kubernetes.client import connect
from holdfast.cluster.kubernetes.credentials import StaticCredentials
from holdfast.cluster.kubernetes.kubeconfig import Config, load_config
from holdfast.cluster.protocol import Cluster
from holdfast.node.agent import CheckpointAgent
from holdfast.node.archives import ArchiveFolder
from holdfast.node.cpu_flags import publish_cpu_flags
from holdfast.node.credentials import CredentialClient
from holdfast.node.facts import read_host_facts
from holdfast.node.journal import Journal
from holdfast.node.kubelet import KubeletClient, KubeletTrust
from holdfast.node.metrics import AgentMetrics
from holdfast.node.notice.metadata import ADDRESS
from holdfast.node.notice.watch import watching_notices
from holdfast.node.parts import AgentClocks, CallTimes, KubeletCheckpoints, RunParts, registry_opener
from holdfast.runtime.http import add_health, metrics_app, serve_app
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.process import configure, level_from, on_signal, utc_now

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

NodeName = Annotated[str, typer.Option(help="Name of the node.", envvar="NODE_NAME")]
NodeAddress = Annotated[
    str, typer.Option(help="Address of the node's kubelet; by default the node's name.", envvar="NODE_IP")
]
KubeletPort = Annotated[int, typer.Option(help="Port of the kubelet.", min=1, max=65535)]
KubeletCertificate = Annotated[
    Path,
    typer.Option(help="The kubelet's own certificate, for one that the cluster's CA did not sign.", metavar="F"),
]
CheckpointsFolder = Annotated[
    Path, typer.Option(help="Where the kubelet writes archives; the same path here and for the kubelet.", metavar="D")
]
JournalFolder = Annotated[
    Path, typer.Option(help="A folder of the agent's own on the node, for its journal.", metavar="D")
]
Token = Annotated[Path, typer.Option(help="Token with the audience holdfast.dev/node, for the operator.", metavar="F")]
OperatorNamespace = Annotated[
    str, typer.Option(help="Namespace of the operator, where it says how it is reached.", envvar="OPERATOR_NAMESPACE")
]
MetricsPort = Annotated[int, typer.Option(help="Metrics and health: /metrics, /healthz and /readyz.", min=0, max=65535)]
BindAddress = Annotated[str, typer.Option(help="Address that they are served on; all by default.")]
PreemptionNotices = Annotated[
    bool, typer.Option(help="Whether to watch for notices that the cloud takes this node back.")
]
MetadataServer = Annotated[str, typer.Option(help="Address of the cloud's metadata server.", metavar="URL")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Which cluster; by default the one that this pod runs in.", metavar="F")
]


class NodeOptions(Struct, frozen=True, kw_only=True):
    """kubelet_url: without a path."""

    kubeconfig: str
    node_name: str
    kubelet_url: str
    kubelet_certificate: Path
    checkpoints_folder: Path
    journal_folder: Path
    token_file: Path
    operator_namespace: str
    plain_http_registries: tuple[str, ...]
    metrics_port: int
    bind_address: str
    metadata_server: str
    """"" for none: preemption notices are not watched."""


def node(
    node_name: NodeName = "",
    node_address: NodeAddress = "",
    kubelet_port: KubeletPort = 10250,
    kubelet_certificate: KubeletCertificate = Path("/var/lib/kubelet/pki/kubelet.crt"),
    checkpoints_folder: CheckpointsFolder = Path("/var/lib/kubelet/checkpoints"),
    journal_folder: JournalFolder = Path("/var/lib/holdfast-node"),
    token_file: Token = Path("/var/run/secrets/holdfast.dev/node/token"),
    operator_namespace: OperatorNamespace = "holdfast-system",
    plain_http_registry: PlainHttpRegistry = None,
    metrics_port: MetricsPort = 9109,
    bind_address: BindAddress = "",
    preemption_notices: PreemptionNotices = True,
    metadata_server: MetadataServer = ADDRESS,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Save the containers of this node's CheckpointBackups until asked to stop (SIGTERM, Ctrl-C)."""
    tune_allocator()
    with errors_as_one_line():
        if not node_name:
            raise UsageError("which node is this? set NODE_NAME, or write --node-name")
        address = node_address or node_name
        options = NodeOptions(
            kubeconfig=str(kubeconfig) if kubeconfig else "",
            node_name=node_name,
            kubelet_url=f"https://{f'[{address}]' if ':' in address else address}:{kubelet_port}",
            kubelet_certificate=kubelet_certificate,
            checkpoints_folder=checkpoints_folder,
            journal_folder=journal_folder,
            token_file=token_file,
            operator_namespace=operator_namespace,
            plain_http_registries=tuple(map(registry_host, plain_http_registry or ())),
            metrics_port=metrics_port,
            bind_address=bind_address,
            metadata_server=metadata_server if preemption_notices else "",
        )
        configure(level_from(os.environ))
        asyncio.run(_run(options))


async def _run(options: NodeOptions) -> None:
    metrics, config = Metrics(), load_config(options.kubeconfig)
    cluster = connect(
        config, rng=SystemRandom(), now=utc_now, observe=metrics.requested, on_undecodable=metrics.undecodable
    )
    trust = KubeletTrust(config.server.authority, options.kubelet_certificate)
    kubelet = KubeletClient(options.kubelet_url, StaticCredentials(config.user), trust, clock=time.monotonic)
    try:
        async with kubelet, AsyncExitStack() as stack:
            parts = _parts(options, config, cluster, kubelet, metrics)
            if options.metadata_server:
                notices = watching_notices(
                    cluster,
                    options.node_name,
                    registry=metrics.registry,
                    now=utc_now,
                    address=options.metadata_server,
                )
                parts = structs.replace(parts, remaining_s=(await stack.enter_async_context(notices)).remaining_s)
            telling = asyncio.create_task(
                publish_cpu_flags(cluster, options.node_name, parts.host.cpu_flags, asyncio.sleep)
            )
            stack.callback(telling.cancel)
            await _serve(CheckpointAgent(parts, metrics=metrics, random=SystemRandom()), options, metrics)
    finally:
        await cluster.close()


def _parts(
    options: NodeOptions, config: Config, cluster: Cluster, kubelet: KubeletCheckpoints, metrics: Metrics
) -> RunParts:
    clocks, agent_metrics = AgentClocks(), AgentMetrics(metrics.registry)
    archives = ArchiveFolder(options.checkpoints_folder, options.journal_folder)
    agent_metrics.track_free_bytes(archives.free_bytes)
    return RunParts(
        node=options.node_name,
        cluster=cluster,
        kubelet=kubelet,
        credentials=CredentialClient(cluster, namespace=options.operator_namespace, token_file=options.token_file),
        journal=Journal(options.journal_folder),
        archives=archives,
        open_registry=registry_opener(options.plain_http_registries, clocks),
        host=read_host_facts(),
        metrics=agent_metrics,
        plain_http=options.plain_http_registries,
        clocks=clocks,
        call_times=CallTimes(),
    )


async def _serve(agent: CheckpointAgent, options: NodeOptions, metrics: Metrics) -> None:
    app = metrics_app(metrics.registry)
    add_health(app, live=lambda: (), ready=agent.unready_reasons)
    host = options.bind_address or None
    async with serve_app(app, host=host, port=options.metrics_port, option="--metrics-port") as port:
        log.info("agent begins", node=options.node_name, kubelet=options.kubelet_url, metrics_port=port)
        with on_signal(agent.stop):
            await agent.run()
