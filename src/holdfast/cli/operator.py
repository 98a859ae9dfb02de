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
from holdfast.cli.failing import one_line
from holdfast.cluster.errors import NotFound
from holdfast.cluster.kubernetes import KubernetesCluster, connect, load_config
from holdfast.cluster.resources import LEASES
from holdfast.controllers.trainingjob import training_jobs
from holdfast.runtime.clocks import utc_now
from holdfast.runtime.lease import Elector
from holdfast.runtime.logs import configure, level_from
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.operator import Operator, Settings
from holdfast.runtime.signals import on_signal

LEASE = "holdfast-operator"
DEFAULT_IMAGE = f"holdfast:{__version__}"


class Options(Struct, frozen=True, kw_only=True):
    kubeconfig: str
    settings: Settings
    leader_elect: bool
    lease_namespace: str
    default_image: str


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
) -> None:
    """Run the controllers until asked to stop (SIGTERM, Ctrl-C)."""
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
        default_image=default_image,
    )
    with one_line():
        configure(level_from(os.environ))
        uvloop.run(_run(options))


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
        raise NotFound(
            f"{error}; are the resource definitions installed? run: holdfast crds | kubectl apply --server-side -f -"
        ) from error
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
    operator.add(training_jobs(operator, guarded, default_image=options.default_image, now=utc_now))
    with on_signal(operator.stop):
        await operator.run()
