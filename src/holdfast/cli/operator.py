"""`holdfast operator`: the controllers on a real cluster."""

import ipaddress
import os
import platform
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom

import structlog
import uvloop
from msgspec import Struct

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.api.quantities import InvalidQuantity, parse_quantity
from holdfast.cli import operator_options as options
from holdfast.cli.failing import UsageError, errors_as_one_line
from holdfast.cluster.errors import NotFound
from holdfast.cluster.kubernetes import KubernetesCluster, connect, load_config
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES
from holdfast.controllers.gpuworkload import gpu_workload_controller
from holdfast.controllers.room import SharedLedger
from holdfast.controllers.trainingjob import training_job_controller
from holdfast.httpserver import raise_descriptor_limit
from holdfast.planning.gpuworkload.timing import Timing as PlacingTiming
from holdfast.planning.trainingjob.timing import TIMING, Timing
from holdfast.reports.office import ReportReceiver
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.lease import Elector
from holdfast.runtime.logs import configure, level_from
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import SETTINGS, Operator, Settings
from holdfast.runtime.signals import on_signal
from holdfast.workloads.trainingjob.defaults import CLAIM_SIZE, RDMA_RESOURCE, TENSORBOARD_IMAGE, Defaults

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
    kubeconfig: options.Kubeconfig = None,
    namespace: options.Namespace = None,
    workers: options.Workers = 10,
    resync: options.Resync = SETTINGS.resync_s,
    leader_elect: options.LeaderElect = True,
    lease_namespace: options.LeaseNamespace = "",
    metrics_port: options.MetricsPort = 8080,
    health_port: options.HealthPort = 8081,
    reports_port: options.ReportsPort = 8082,
    reports_address: options.ReportsAddress = "",
    bind_address: options.BindAddress = "",
    default_image: options.DefaultImage = DEFAULT_IMAGE,
    framework_image: options.FrameworkImage = None,
    holdfast_image: options.HoldfastImage = DEFAULT_IMAGE,
    tensorboard_image: options.TensorboardImage = TENSORBOARD_IMAGE,
    rdma_resource: options.RdmaResource = RDMA_RESOURCE,
    claim_size: options.ClaimSize = CLAIM_SIZE,
    service_monitors: options.ServiceMonitors = False,
    forbid: options.Forbid = None,
    gang_admission: options.GangAdmission = True,
    patience: options.StarvationTimeout = TIMING.starvation_timeout_s,
    reservations_per_namespace: options.ReservationsPerNamespace = TIMING.reservations_per_namespace,
    bind_timeout: options.BindTimeout = TIMING.bind_timeout_s,
    stuck_after: options.LostPodTimeout = TIMING.lost_pod_timeout_s,
    survivors_grace: options.RestartGracePeriod = TIMING.restart_grace_s,
    uploading_grace: options.RestartUploadGracePeriod = TIMING.restart_upload_grace_s,
    silent_after: options.ReportTimeout = TIMING.report_timeout_s,
    lease_after: options.NodeLeaseTimeout = TIMING.node_lease_timeout_s,
    final_save: options.FinalCheckpointTimeout = TIMING.final_save_s,
    retry_backoff: options.RetryBackoff = TIMING.retry_s,
    retry_backoff_cap: options.RetryBackoffCap = TIMING.retry_cap_s,
    per_job_metrics: options.PerJobMetrics = True,
) -> None:
    """Run the controllers until asked to stop (SIGTERM, Ctrl-C)."""
    with errors_as_one_line():
        chosen = Options(
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
        uvloop.run(_run(chosen))


def _images(written: list[str]) -> dict[str, str]:
    images = dict(entry.partition("=")[::2] for entry in written)
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


async def _run(chosen: Options) -> None:
    metrics = Metrics()
    config = load_config(chosen.kubeconfig)
    cluster = connect(
        config,
        rng=SystemRandom(),
        now=utc_now,
        observe=metrics.requested,
        on_undecodable=metrics.undecodable,
    )
    try:
        lease = Key(chosen.lease_namespace or config.namespace, LEASE)
        await _run_operator(cluster, lease, metrics, chosen)
    except NotFound as error:
        raise NotFound(f"{error}; {_hint(error)}") from error
    finally:
        await cluster.close()


def _hint(error: NotFound) -> str:
    if str(LEASES) in str(error):
        return "create the namespace of the Lease, or name another one with --lease-namespace"
    return "are the resource definitions installed? run: holdfast crds | kubectl apply --server-side -f -"


async def _run_operator(cluster: KubernetesCluster, lease: Key, metrics: Metrics, chosen: Options) -> None:
    identity = f"{platform.node()}_{uuid.uuid4()}"
    elector = (
        Elector(cluster, lease, identity, now=utc_now, random=SystemRandom(), metrics=metrics)
        if chosen.leader_elect
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
        settings=chosen.settings,
    )
    office, room = ReportReceiver(now=utc_now), SharedLedger(operator)
    operator.add(
        training_job_controller(
            operator,
            guarded,
            defaults=chosen.defaults,
            now=utc_now,
            timing=chosen.timing,
            office=office,
            room=room,
            gang_admission=chosen.gang_admission,
            per_job_metrics=chosen.per_job_metrics,
        )
    )
    operator.add(
        gpu_workload_controller(
            operator, guarded, defaults=chosen.defaults, now=utc_now, timing=chosen.gpuworkload_timing, room=room
        )
    )
    async with _serve_reports(office, operator, cluster, elector, chosen):
        with on_signal(operator.stop):
            await operator.run()


@asynccontextmanager
async def _serve_reports(
    office: ReportReceiver, operator: Operator, cluster: Cluster, elector: Elector | None, chosen: Options
) -> AsyncIterator[None]:
    if not chosen.reports_address:
        log.warning(
            "progress, metrics and saved checkpoints of jobs are not shown, and hung trainings are not found: sidecars "
            "can't reach the reports port of an operator outside the cluster; run it there (make deploy), or set "
            "--reports-address to an address of this machine that pods reach"
        )
        yield
        return
    opening = office.serve(
        operator,
        cluster,
        leading=lambda: elector is None or elector.is_leading,
        address=chosen.reports_address,
        port=chosen.reports_port,
        host=chosen.settings.host,
    )
    async with opening:
        yield
