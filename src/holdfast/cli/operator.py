"""`holdfast operator`: runs the controllers on a cluster."""

import ipaddress
import os
import platform
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Literal

import structlog
import uvloop
from msgspec import Struct

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.api.scalars import InvalidQuantity, parse_quantity
from holdfast.checkpointbackup.controller import checkpoint_backup_controller
from holdfast.checkpointbackup.credentials import CredentialHandler, RegistrySecretReader
from holdfast.checkpointbackup.endpoint import EndpointPublisher
from holdfast.cli import operator_flags as flags
from holdfast.cli.errors import UsageError, errors_as_one_line
from holdfast.cli.operator_machines import MachineOptions, operating_machines
from holdfast.cli.operator_spot import add_spot_jobs, registry_access
from holdfast.cli.registries import PlainHttpRegistry, registry_host
from holdfast.cluster.errors import NotFound
from holdfast.cluster.kubernetes.client import KubernetesCluster, connect
from holdfast.cluster.kubernetes.domain import DOMAIN, own_cluster_domain
from holdfast.cluster.kubernetes.kubeconfig import load_config
from holdfast.cluster.protocol import Cluster
from holdfast.cluster.resources import LEASES
from holdfast.gpuworkload.controller import gpu_workload_controller
from holdfast.gpuworkload.snapshot import GPUWorkloadTiming
from holdfast.httpserver import raise_descriptor_limit
from holdfast.pods.template import CLAIM_SIZE, CLUSTER_DOMAIN, RDMA_RESOURCE, TENSORBOARD_IMAGE, Defaults
from holdfast.runtime.backup_requests import BackupRequests
from holdfast.runtime.leader import Elector
from holdfast.runtime.ledger import SharedLedger
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import SETTINGS, Operator, OperatorSettings
from holdfast.runtime.process import configure, level_from, on_signal, utc_now
from holdfast.runtime.reachability import try_connect
from holdfast.runtime.secrets import SecretReader
from holdfast.scheduling.machine_pools import MachinePools
from holdfast.spotinstancejob.registry_access import RegistryAccess
from holdfast.spotinstancejob.reports import ReplicaReports
from holdfast.trainingjob.controller import training_job_controller
from holdfast.trainingjob.decide.snapshot import TIMING, TrainingJobTiming
from holdfast.trainingjob.reports.receiver import ReportReceiver

LEASE = "holdfast-operator"
NODE_ACCOUNT = "holdfast-node"
DEFAULT_IMAGE = f"holdfast:{__version__}"
log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
MACHINES = MachineOptions()
FRAMEWORKS = ("pytorch", "tensorflow", "jax")


class Options(Struct, frozen=True, kw_only=True):
    kubeconfig: str
    settings: OperatorSettings
    reports_address: str
    reports_port: int
    leader_elect: bool
    lease_namespace: str
    defaults: Defaults
    timing: TrainingJobTiming
    gpuworkload_timing: GPUWorkloadTiming
    probe_nodes: bool
    gang_admission: bool
    per_job_metrics: bool
    plain_http_registries: tuple[str, ...]
    checkpoint_agent: Literal["holdfast", "external"]
    node_service_account: str
    machines: MachineOptions


def operator(
    kubeconfig: flags.Kubeconfig = None,
    namespace: flags.Namespace = None,
    workers: flags.Workers = 10,
    resync: flags.Resync = SETTINGS.resync_s,
    leader_elect: flags.LeaderElect = True,
    lease_namespace: flags.LeaseNamespace = "",
    metrics_port: flags.MetricsPort = 8080,
    health_port: flags.HealthPort = 8081,
    reports_port: flags.ReportsPort = 8082,
    reports_address: flags.ReportsAddress = "",
    bind_address: flags.BindAddress = "",
    default_image: flags.DefaultImage = DEFAULT_IMAGE,
    framework_image: flags.FrameworkImage = None,
    holdfast_image: flags.HoldfastImage = DEFAULT_IMAGE,
    tensorboard_image: flags.TensorboardImage = TENSORBOARD_IMAGE,
    rdma_resource: flags.RdmaResource = RDMA_RESOURCE,
    claim_size: flags.ClaimSize = CLAIM_SIZE,
    service_monitors: flags.ServiceMonitors = False,
    discovery: flags.DiscoveryOption = "job",
    cluster_domain: flags.ClusterDomain = "",
    forbid: flags.Forbid = None,
    gang_admission: flags.GangAdmission = True,
    patience: flags.StarvationTimeout = TIMING.starvation_timeout_s,
    reservations_per_namespace: flags.ReservationsPerNamespace = TIMING.reservations_per_namespace,
    bind_timeout: flags.BindTimeout = TIMING.bind_timeout_s,
    stuck_after: flags.LostPodTimeout = TIMING.lost_pod_timeout_s,
    survivors_grace: flags.RestartGracePeriod = TIMING.restart_grace_s,
    uploading_grace: flags.RestartUploadGracePeriod = TIMING.restart_upload_grace_s,
    silent_after: flags.ReportTimeout = TIMING.report_timeout_s,
    lease_after: flags.NodeLeaseTimeout = TIMING.node_lease_timeout_s,
    probe_nodes: flags.ProbeNodes = True,
    final_save: flags.FinalCheckpointTimeout = TIMING.final_save_s,
    retry_backoff: flags.RetryBackoff = TIMING.retry_s,
    retry_backoff_cap: flags.RetryBackoffCap = TIMING.retry_cap_s,
    per_job_metrics: flags.PerJobMetrics = True,
    plain_http_registry: PlainHttpRegistry = None,
    checkpoint_agent: flags.CheckpointAgent = "holdfast",
    node_service_account: flags.NodeServiceAccount = "",
    own_cloud_identity: flags.OwnCloudIdentity = None,
    machine_launch_timeout: flags.MachineLaunchTimeout = MACHINES.launch_s,
    machine_join_timeout: flags.MachineJoinTimeout = MACHINES.join_step_s,
    machine_ready_timeout: flags.MachineReadyTimeout = MACHINES.gpu_ready_s,
) -> None:
    """Run the controllers until asked to stop (SIGTERM, Ctrl-C)."""
    with errors_as_one_line():
        options = Options(
            kubeconfig=str(kubeconfig) if kubeconfig else "",
            settings=OperatorSettings(
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
                discovery=discovery,
                cluster_domain=_domain(cluster_domain),
                forbidden=frozenset(forbid or ()),
                plain_http_registries=tuple(map(registry_host, plain_http_registry or ())),
            ),
            timing=TrainingJobTiming(
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
            gpuworkload_timing=GPUWorkloadTiming(starvation_timeout_s=patience, lost_pod_timeout_s=stuck_after),
            probe_nodes=probe_nodes,
            gang_admission=gang_admission,
            per_job_metrics=per_job_metrics,
            plain_http_registries=tuple(map(registry_host, plain_http_registry or ())),
            checkpoint_agent=checkpoint_agent,
            node_service_account=node_service_account,
            machines=MachineOptions(
                own_identity_namespaces=tuple(own_cloud_identity or ()),
                launch_s=machine_launch_timeout,
                join_step_s=machine_join_timeout,
                gpu_ready_s=machine_ready_timeout,
            ),
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


def _domain(text: str) -> str:
    domain = text.strip(".") or own_cluster_domain() or CLUSTER_DOMAIN
    if not DOMAIN.fullmatch(domain):
        raise UsageError(f"--cluster-domain {text}: write a DNS domain such as {CLUSTER_DOMAIN}")
    return domain


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
    account = f"{lease.namespace}:{LEASE}"
    secrets, pools = SecretReader(guarded, operator_account=account), MachinePools(SystemRandom().random)
    operating = operating_machines(
        operator,
        guarded,
        pools,
        secrets,
        options.machines,
        namespace=lease.namespace,
        require_leadership=elector.require_leadership if elector else lambda: None,
    )
    async with registry_access(guarded, secrets) as access:
        receiver = _add_jobs(operator, guarded, pools, access, account, options)
        if options.reports_address:
            operator.add_leader_task(EndpointPublisher(guarded, lease.namespace, lambda: receiver.endpoint_json).run)
        async with operating, _serve_reports(receiver, operator, cluster, elector, lease, access, options):
            with on_signal(operator.stop):
                await operator.run()


def _add_jobs(
    operator: Operator, cluster: Cluster, pools: MachinePools, access: RegistryAccess, account: str, options: Options
) -> ReportReceiver:
    """The controllers of what users run and save, on one ledger of GPUs; and what receives their sidecars' reports."""
    backups, ledger = BackupRequests(), SharedLedger(operator)
    receiver = ReportReceiver(now=utc_now, backups=backups)
    operator.add(
        training_job_controller(
            operator,
            cluster,
            defaults=options.defaults,
            now=utc_now,
            timing=options.timing,
            receiver=receiver,
            ledger=ledger,
            gang_admission=options.gang_admission,
            per_job_metrics=options.per_job_metrics,
            connect=try_connect if options.probe_nodes else None,
        )
    )
    operator.add(
        gpu_workload_controller(
            operator, cluster, defaults=options.defaults, now=utc_now, timing=options.gpuworkload_timing, ledger=ledger
        )
    )
    operator.add(
        checkpoint_backup_controller(
            operator,
            cluster,
            now=utc_now,
            requests=backups,
            credentials=RegistrySecretReader(
                cluster, operator_account=account, plain_http=options.plain_http_registries, tokens=access
            ),
            external_agent=options.checkpoint_agent == "external",
            plain_http=options.plain_http_registries,
        )
    )
    add_spot_jobs(
        operator,
        cluster,
        pools,
        access,
        receiver,
        defaults=options.defaults,
        ledger=ledger,
        operator_account=account,
    )
    return receiver


@asynccontextmanager
async def _serve_reports(
    receiver: ReportReceiver,
    operator: Operator,
    cluster: Cluster,
    elector: Elector | None,
    lease: Key,
    access: RegistryAccess,
    options: Options,
) -> AsyncIterator[None]:
    if not options.reports_address:
        log.warning(
            "progress, metrics and saved checkpoints of jobs are not shown, and hung trainings are not found: sidecars "
            "can't reach the reports port of an operator outside the cluster; run it there (make deploy), or set "
            "--reports-address to an address of this machine that pods reach"
        )
        yield
        return

    def is_leading() -> bool:
        return elector is None or elector.is_leading

    credentials = CredentialHandler(
        cluster,
        now=utc_now,
        leading=is_leading,
        node_account=options.node_service_account or f"system:serviceaccount:{lease.namespace}:{NODE_ACCOUNT}",
        operator_account=f"{lease.namespace}:{LEASE}",
        plain_http=options.plain_http_registries,
        tokens=access,
    )
    server = receiver.serve(
        operator,
        cluster,
        leading=is_leading,
        address=options.reports_address,
        port=options.reports_port,
        host=options.settings.host,
        routes=credentials.routes(),
        others=(ReplicaReports.of(operator, cluster),),
    )
    async with server:
        yield
