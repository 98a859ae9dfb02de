"""`holdfast operator`: the controllers on a real cluster."""

import os
import platform
import uuid
from pathlib import Path
from random import SystemRandom
from typing import Annotated

import typer
import uvloop
from msgspec import Struct

from holdfast import __version__
from holdfast.api.meta import Key
from holdfast.api.quantities import NotAQuantity, amount
from holdfast.cli.failing import Misused, one_line
from holdfast.cluster.errors import NotFound
from holdfast.cluster.kubernetes import KubernetesCluster, connect, load_config
from holdfast.cluster.resources import LEASES
from holdfast.controllers.trainingjob import training_jobs
from holdfast.planning.trainingjob.timing import TIMING, Timing
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.lease import Elector
from holdfast.runtime.logs import configure, level_from
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.runtime.signals import on_signal
from holdfast.workloads.trainingjob.defaults import CLAIM_SIZE, RDMA_RESOURCE, TENSORBOARD_IMAGE, Defaults

LEASE = "holdfast-operator"
DEFAULT_IMAGE = f"holdfast:{__version__}"
FRAMEWORKS = ("pytorch", "tensorflow", "jax")
PATIENCE_S = 600.0


class Options(Struct, frozen=True, kw_only=True):
    kubeconfig: str
    settings: Settings
    leader_elect: bool
    lease_namespace: str
    defaults: Defaults
    timing: Timing
    gang_admission: bool
    patience_s: float
    per_job_metrics: bool


def operator(
    kubeconfig: Annotated[
        Path | None,
        typer.Option(help="Which cluster; by default as kubectl finds it, or the one this pod runs in.", metavar="F"),
    ] = None,
    namespace: Annotated[
        list[str] | None, typer.Option(help="Look after this namespace only; may be repeated.", metavar="N")
    ] = None,
    workers: Annotated[int, typer.Option(help="Reconciles that run at the same time, per kind.", min=1)] = 10,
    leader_elect: Annotated[
        bool, typer.Option(help="Act only while holding the Lease, so that several replicas can run.")
    ] = True,
    lease_namespace: Annotated[
        str, typer.Option(help="Where the Lease is; by default the namespace of the pod or of the context.")
    ] = "",
    metrics_port: Annotated[int, typer.Option(help="Prometheus metrics: /metrics.", min=0, max=65535)] = 8080,
    health_port: Annotated[int, typer.Option(help="Health: /healthz and /readyz.", min=0, max=65535)] = 8081,
    bind_address: Annotated[str, typer.Option(help="Address that both listen on; all by default.")] = "",
    default_image: Annotated[
        str, typer.Option(help="What a TrainingJob without an image runs.", envvar="HOLDFAST_DEFAULT_IMAGE")
    ] = DEFAULT_IMAGE,
    framework_image: Annotated[
        list[str] | None,
        typer.Option(help="The same for one framework, such as jax=repo/jax:1; may be repeated.", metavar="F=IMAGE"),
    ] = None,
    holdfast_image: Annotated[
        str,
        typer.Option(help="Image with the holdfast command, run beside the workers.", envvar="HOLDFAST_IMAGE"),
    ] = DEFAULT_IMAGE,
    tensorboard_image: Annotated[
        str, typer.Option(help="What runs for tensorboardEnabled.", envvar="HOLDFAST_TENSORBOARD_IMAGE")
    ] = TENSORBOARD_IMAGE,
    rdma_resource: Annotated[
        str, typer.Option(help="The extended resource of one RDMA device, for rdmaEnabled.")
    ] = RDMA_RESOURCE,
    claim_size: Annotated[
        str, typer.Option(help="Size of a claim for checkpoints that says none, such as 10Gi.")
    ] = CLAIM_SIZE,
    service_monitors: Annotated[
        bool, typer.Option(help="Make a ServiceMonitor for each job with monitoring (needs the Prometheus Operator).")
    ] = False,
    gang_admission: Annotated[
        bool,
        typer.Option(
            help="Start a job only when all its workers fit on the nodes that are there. Switch it off where an "
            "autoscaler adds nodes for pods that wait."
        ),
    ] = True,
    patience: Annotated[
        float,
        typer.Option(help="Seconds for which smaller jobs may pass one that does not fit.", min=0),
    ] = PATIENCE_S,
    bind_timeout: Annotated[
        float,
        typer.Option(help="Seconds for an admitted job to get all its nodes, before it makes room again.", min=1),
    ] = TIMING.bind_timeout_s,
    stuck_after: Annotated[
        float,
        typer.Option(help="Seconds beyond its grace that a pod on a lost node holds up a restart.", min=0),
    ] = TIMING.stuck_s,
    survivors_grace: Annotated[
        int, typer.Option(help="Seconds for the workers that are left when one is lost.", min=0)
    ] = TIMING.survivors_grace_s,
    retry_backoff: Annotated[
        float,
        typer.Option(help="Seconds before the second restart in a row; doubled with each further one.", min=0),
    ] = TIMING.retry_s,
    retry_backoff_cap: Annotated[
        float, typer.Option(help="The longest wait between restarts, in seconds.", min=0)
    ] = TIMING.retry_cap_s,
    per_job_metrics: Annotated[
        bool, typer.Option(help="Metrics with a label for each job; switch it off where jobs are many.")
    ] = True,
) -> None:
    """Run the controllers until asked to stop (SIGTERM, Ctrl-C)."""
    with one_line():
        options = Options(
            kubeconfig=str(kubeconfig) if kubeconfig else "",
            settings=Settings(
                namespaces=tuple(dict.fromkeys(namespace or ())),
                workers=workers,
                host=bind_address,
                health_port=health_port,
                metrics_port=metrics_port,
            ),
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
            ),
            timing=Timing(
                retry_s=retry_backoff,
                retry_cap_s=retry_backoff_cap,
                survivors_grace_s=survivors_grace,
                stuck_s=stuck_after,
                bind_timeout_s=bind_timeout,
            ),
            gang_admission=gang_admission,
            patience_s=patience,
            per_job_metrics=per_job_metrics,
        )
        configure(level_from(os.environ))
        uvloop.run(_run(options))


def _images(written: list[str]) -> dict[str, str]:
    images = dict(entry.partition("=")[::2] for entry in written)
    for framework, image in images.items():
        if framework not in FRAMEWORKS or not image:
            raise Misused(f"--framework-image {framework}: write one of {', '.join(FRAMEWORKS)}, =, and an image")
    return images


def _size(text: str) -> str:
    try:
        amount(text)
    except NotAQuantity as error:
        raise Misused(f"--claim-size {text}: write an amount such as 10Gi") from error
    return text


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
        await _operate(cluster, lease, metrics, options)
    except NotFound as error:
        raise NotFound(f"{error}; {_hint(error)}") from error
    finally:
        await cluster.close()


def _hint(error: NotFound) -> str:
    if str(LEASES) in str(error):
        return "create the namespace of the Lease, or name another one with --lease-namespace"
    return "are the resource definitions installed? run: holdfast crds | kubectl apply --server-side -f -"


async def _operate(cluster: KubernetesCluster, lease: Key, metrics: Metrics, options: Options) -> None:
    identity = f"{platform.node()}_{uuid.uuid4()}"
    elector = (
        Elector(cluster, lease, identity, now=utc_now, random=SystemRandom(), metrics=metrics)
        if options.leader_elect
        else None
    )
    guarded = cluster.gated(elector.held) if elector else cluster
    operator = Operator(
        guarded,
        identity=identity,
        now=utc_now,
        random=SystemRandom(),
        metrics=metrics,
        elector=elector,
        settings=options.settings,
    )
    operator.add(
        training_jobs(
            operator,
            guarded,
            defaults=options.defaults,
            now=utc_now,
            timing=options.timing,
            gang_admission=options.gang_admission,
            patience_s=options.patience_s,
            per_job_metrics=options.per_job_metrics,
        )
    )
    with on_signal(operator.stop):
        await operator.run()
