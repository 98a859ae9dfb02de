"""`holdfast operator`: runs the controllers on a cluster."""

import ipaddress
import os
import platform
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import structlog
import typer
import uvloop
from msgspec import Struct

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.api.scalars import InvalidQuantity, parse_quantity
from holdfast.cli.session import UsageError, errors_as_one_line
from holdfast.cluster.errors import NotFound
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.gpuworkload.snapshot import Timing as PlacingTiming
from holdfast.httpserver import raise_descriptor_limit
from holdfast.pods.template import CLAIM_SIZE, RDMA_RESOURCE, TENSORBOARD_IMAGE, Defaults, Forbidden
from holdfast.runtime.leader import Elector
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import SETTINGS, Operator, Settings
from holdfast.runtime.process import configure, level_from, on_signal, utc_now
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.decide.snapshot import TIMING, Timing
from holdfast.trainingjob.reports.server import ReportReceiver

# The options of `holdfast operator`.

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Which cluster; by default as kubectl finds it, or the one this pod runs in.", metavar="F"),
]
Namespace = Annotated[
    list[str] | None, typer.Option(help="Look after this namespace only; may be repeated.", metavar="N")
]
Workers = Annotated[int, typer.Option(help="Reconciles that run at the same time, per kind.", min=1)]
LeaderElect = Annotated[bool, typer.Option(help="Act only while holding the Lease, so that several replicas can run.")]
LeaseNamespace = Annotated[
    str, typer.Option(help="Where the Lease is; by default the namespace of the pod or of the context.")
]
MetricsPort = Annotated[int, typer.Option(help="Prometheus metrics: /metrics.", min=0, max=65535)]
HealthPort = Annotated[int, typer.Option(help="Health: /healthz and /readyz.", min=0, max=65535)]
ReportsPort = Annotated[int, typer.Option(help="Where the workers' sidecars report.", min=0, max=65535)]
ReportsAddress = Annotated[
    str,
    typer.Option(
        help="The address at which pods reach this operator; without one no progress is shown.", envvar="POD_IP"
    ),
]
BindAddress = Annotated[str, typer.Option(help="Address that all three listen on; all by default.")]
DefaultImage = Annotated[
    str, typer.Option(help="What a TrainingJob without an image runs.", envvar="HOLDFAST_DEFAULT_IMAGE")
]
FrameworkImage = Annotated[
    list[str] | None,
    typer.Option(help="The same for one framework, such as jax=repo/jax:1; may be repeated.", metavar="F=IMAGE"),
]
HoldfastImage = Annotated[
    str,
    typer.Option(help="Image with the holdfast command, run beside the workers.", envvar="HOLDFAST_IMAGE"),
]
TensorboardImage = Annotated[
    str, typer.Option(help="What runs for tensorboardEnabled.", envvar="HOLDFAST_TENSORBOARD_IMAGE")
]
RdmaResource = Annotated[str, typer.Option(help="The extended resource of one RDMA device, for rdmaEnabled.")]
ClaimSize = Annotated[str, typer.Option(help="Size of a claim for checkpoints that says none, such as 10Gi.")]
ServiceMonitors = Annotated[
    bool, typer.Option(help="Make a ServiceMonitor for each job with monitoring (needs the Prometheus Operator).")
]
Forbid = Annotated[
    list[Forbidden] | None,
    typer.Option(help="Refuse jobs whose podTemplate asks for this; may be repeated."),
]
GangAdmission = Annotated[
    bool,
    typer.Option(
        help="Start a job only when all its workers fit on the nodes that are there. Switch it off where an "
        "autoscaler adds nodes for pods that wait."
    ),
]
StarvationTimeout = Annotated[
    float,
    typer.Option(help="Seconds for which smaller jobs may pass one that does not fit.", min=0),
]
ReservationsPerNamespace = Annotated[
    int,
    typer.Option(help="Jobs of a namespace for which nodes are reserved at a time, after --patience.", min=0),
]
BindTimeout = Annotated[
    float,
    typer.Option(help="Seconds for an admitted job to get all its nodes, before it makes room again.", min=1),
]
LostPodTimeout = Annotated[
    float,
    typer.Option(help="Seconds beyond its grace that a pod on a lost node holds up a restart.", min=0),
]
RestartGracePeriod = Annotated[int, typer.Option(help="Seconds for the workers that are left when one is lost.", min=0)]
RestartUploadGracePeriod = Annotated[
    int,
    typer.Option(help="The same where a checkpoint may still be on its way to an object store.", min=0),
]
ReportTimeout = Annotated[
    float,
    typer.Option(help="Seconds without a report after which a worker's node is looked at.", min=1),
]
NodeLeaseTimeout = Annotated[
    float,
    typer.Option(help="Seconds without a renewal of the node's Lease after which that worker is lost.", min=1),
]
FinalCheckpointTimeout = Annotated[
    float,
    typer.Option(help="Seconds for a last checkpoint when successPolicy is met or a worker is told to go.", min=0),
]
RetryBackoff = Annotated[
    float,
    typer.Option(help="Seconds before the second restart in a row; doubled with each further one.", min=0),
]
RetryBackoffCap = Annotated[float, typer.Option(help="The longest wait between restarts, in seconds.", min=0)]
Resync = Annotated[
    float,
    typer.Option(help="Seconds within which every object is looked at again, in case a change was missed.", min=1),
]
PerJobMetrics = Annotated[
    bool, typer.Option(help="Metrics with a label for each job; switch it off where jobs are many.")
]


LEASE = "holdfast-operator"
DEFAULT_IMAGE = f"holdfast:{__version__}"
log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
FRAMEWORKS = ("pytorch", "tensorflow", "jax")


class Options(Struct, frozen=True, kw_only=True):
    kubeconfig: str
    settings: Settings
    reports_address: str
    reports_port: int
    leader_elect: bool
    lease_namespace: str
    defaults: Defaults
    timing: Timing
    gpuworkload_timing: PlacingTiming
    gang_admission: bool
    per_job_metrics: bool


def operator(
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = None,
    workers: Workers = 10,
    resync: Resync = SETTINGS.resync_s,
    leader_elect: LeaderElect = True,
    lease_namespace: LeaseNamespace = "",
    metrics_port: MetricsPort = 8080,
    health_port: HealthPort = 8081,
    reports_port: ReportsPort = 8082,
    reports_address: ReportsAddress = "",
    bind_address: BindAddress = "",
    default_image: DefaultImage = DEFAULT_IMAGE,
    framework_image: FrameworkImage = None,
    holdfast_image: HoldfastImage = DEFAULT_IMAGE,
    tensorboard_image: TensorboardImage = TENSORBOARD_IMAGE,
    rdma_resource: RdmaResource = RDMA_RESOURCE,
    claim_size: ClaimSize = CLAIM_SIZE,
    service_monitors: ServiceMonitors = False,
    forbid: Forbid = None,
    gang_admission: GangAdmission = True,
    patience: StarvationTimeout = TIMING.starvation_timeout_s,
    reservations_per_namespace: ReservationsPerNamespace = TIMING.reservations_per_namespace,
    bind_timeout: BindTimeout = TIMING.bind_timeout_s,
    stuck_after: LostPodTimeout = TIMING.lost_pod_timeout_s,
    survivors_grace: RestartGracePeriod = TIMING.restart_grace_s,
    uploading_grace: RestartUploadGracePeriod = TIMING.restart_upload_grace_s,
    silent_after: ReportTimeout = TIMING.report_timeout_s,
    lease_after: NodeLeaseTimeout = TIMING.node_lease_timeout_s,
    final_save: FinalCheckpointTimeout = TIMING.final_save_s,
    retry_backoff: RetryBackoff = TIMING.retry_s,
    retry_backoff_cap: RetryBackoffCap = TIMING.retry_cap_s,
    per_job_metrics: PerJobMetrics = True,
) -> None:
    """Run the controllers until asked to stop (SIGTERM, Ctrl-C)."""
    with errors_as_one_line():
        options = Options(
            kubeconfig=str(kubeconfig) if kubeconfig else "",
            settings=Settings(
                namespaces=tuple(dict.fromkeys(namespace or ())),
                workers=workers,
                resync_s=resync,
                host=bind_address,
                health_port=health_port,
                metrics_port=metrics_port,
            ),
            reports_address=_address(reports_address),
            reports_port=reports_port,
            leader_elect=leader_elect,
            lease_namespace=lease_namespace,
            defaults=Defaults(
                image=default_image,
                images=_images(framework_image or []),
                holdfast_image=holdfast_image,
                tensorboard_image=tensorboard_image,
                rdma_resource=rdma_resource,
                claim_size=_size(claim_size),
                service_monitors=service_monitors,
                forbidden=frozenset(forbid or ()),
            ),
            timing=Timing(
                retry_s=retry_backoff,
                retry_cap_s=retry_backoff_cap,
                restart_grace_s=survivors_grace,
                restart_upload_grace_s=uploading_grace,
                report_timeout_s=silent_after,
                node_lease_timeout_s=lease_after,
                final_save_s=final_save,
                starvation_timeout_s=patience,
                reservations_per_namespace=reservations_per_namespace,
                lost_pod_timeout_s=stuck_after,
                bind_timeout_s=bind_timeout,
            ),
            gpuworkload_timing=PlacingTiming(starvation_timeout_s=patience, lost_pod_timeout_s=stuck_after),
            gang_admission=gang_admission,
            per_job_metrics=per_job_metrics,
        )
        configure(level_from(os.environ))
        raise_descriptor_limit()  # each sidecar holds a connection
        uvloop.run(_run(options))


def _images(entries: list[str]) -> dict[str, str]:
    images = dict(entry.partition("=")[::2] for entry in entries)
    for framework, image in images.items():
        if framework not in FRAMEWORKS or not image:
            raise UsageError(f"--framework-image {framework}: write one of {', '.join(FRAMEWORKS)}, =, and an image")
    return images


def _size(text: str) -> str:
    try:
        parse_quantity(text)
    except InvalidQuantity as error:
        raise UsageError(f"--claim-size {text}: write an amount such as 10Gi") from error
    return text


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text)) if text else ""
    except ValueError as error:
        raise UsageError(f"--reports-address {text}: write the IP address at which pods reach this operator") from error


async def _run(options: Options) -> None:
    metrics = Metrics()
    config = load_config(options.kubeconfig)
    cluster = connect(
        config,
        rng=SystemRandom(),
        now=utc_now,
        observe=metrics.requested,
        on_undecodable=metrics.undecodable,
    )
    try:
        lease = Key(options.lease_namespace or config.namespace, LEASE)
        await _run_operator(cluster, lease, metrics, options)
    except NotFound as error:
        raise NotFound(f"{error}; {_hint(error)}") from error
    finally:
        await cluster.close()


def _hint(error: NotFound) -> str:
    if str(LEASES) in str(error):
        return "create the namespace of the Lease, or name another one with --lease-namespace"
    return "are the resource definitions installed? run: holdfast crds | kubectl apply --server-side -f -"


async def _run_operator(cluster: KubernetesCluster, lease: Key, metrics: Metrics, options: Options) -> None:
    identity = f"{platform.node()}_{uuid.uuid4()}"
    elector = (
        Elector(cluster, lease, identity, now=utc_now, random=SystemRandom(), metrics=metrics)
        if options.leader_elect
        else None
    )
    guarded = cluster.gated(elector.require_leadership) if elector else cluster
    operator = Operator(
        guarded,
        identity=identity,
        now=utc_now,
        random=SystemRandom(),
        metrics=metrics,
        elector=elector,
        settings=options.settings,
    )
    receiver, ledger = ReportReceiver(now=utc_now), SharedLedger(operator)
    operator.add(
        training_job_controller(
            operator,
            guarded,
            defaults=options.defaults,
            now=utc_now,
            timing=options.timing,
            office=receiver,
            room=ledger,
            gang_admission=options.gang_admission,
            per_job_metrics=options.per_job_metrics,
        )
    )
    operator.add(
        gpu_workload_controller(
            operator, guarded, defaults=options.defaults, now=utc_now, timing=options.gpuworkload_timing, room=ledger
        )
    )
    async with _serve_reports(receiver, operator, cluster, elector, options):
        with on_signal(operator.stop):
            await operator.run()


@asynccontextmanager
async def _serve_reports(
    receiver: ReportReceiver, operator: Operator, cluster: Cluster, elector: Elector | None, options: Options
) -> AsyncIterator[None]:
    if not options.reports_address:
        log.warning(
            "progress, metrics and saved checkpoints of jobs are not shown, and hung trainings are not found: sidecars "
            "can't reach the reports port of an operator outside the cluster; run it there (make deploy), or set "
            "--reports-address to an address of this machine that pods reach"
        )
        yield
        return
    server = receiver.serve(
        operator,
        cluster,
        leading=lambda: elector is None or elector.is_leading,
        address=options.reports_address,
        port=options.reports_port,
        host=options.settings.host,
    )
    async with server:
        yield
